"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from edge_agent.demo.processes import Broker, ChildProcess, free_ports

C = TypeVar("C", bound=ChildProcess)


@pytest.fixture
def ended() -> Iterator[Callable[[C], C]]:
    """Starts a process and ends it with the test."""
    with ExitStack() as stack:

        def begin(child: C) -> C:
            child.start()
            stack.callback(child.stop)
            return child

        yield begin


@pytest.fixture
def brokers(tmp_path: Path, ended: Callable[[Broker], Broker]) -> Callable[[int], list[Broker]]:
    """Starts so many brokers."""

    def start(count: int) -> list[Broker]:
        return [
            ended(Broker(f"broker-{n}", tmp_path / f"broker-{n}", port)) for n, port in enumerate(free_ports(count))
        ]

    return start
