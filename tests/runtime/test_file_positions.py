"""A gateway that is started again reads its files from where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config.node_file.settings import load
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.runtime import gateway as module
from edge_agent.runtime.gateway import GatewayLoop
from tests.hostile.stand_ins import TEXTS, Broker, Process


@pytest.mark.parametrize(
    ("change", "earlier", "want"),
    [("speed = 60\n", False, 5), ('labels = {a = "b"}\n', True, 5), ('value = "other"\n', False, 10)],
    ids=["speed", "labels", "value"],
)
def test_a_file_is_read_again_only_if_its_readings_are_others(
    change: str, earlier: bool, want: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.1. An earlier version stored the speed beside the position."""
    path, config = tmp_path / "r.csv", tmp_path / "headwater.toml"
    path.write_text("time,value,other\n" + "".join(f"{1_790_000_000 + n},{n},{n}\n" for n in range(5)))
    process = Process("gateway", tmp_path, Broker())
    readings = 0
    for text, stores_all in (("", earlier), (change, False)):
        config.write_text(f'{TEXTS["gateway"]}[sensor.f]\ndriver = "file"\npath = "{path}"\n{text}')
        process.settings = load(config)
        with monkeypatch.context() as patch:
            if stores_all:
                patch.setattr(module, "_source", module._whole)
            process.run(20)
        assert isinstance(process.loop, GatewayLoop)
        assert isinstance(process.loop.machine, Gateway)
        readings = process.loop.machine.sources["f"].readings
    assert readings == want
