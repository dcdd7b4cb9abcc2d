"""Commands to a whole fleet: through several mergers, at real brokers, obeyed once by every gateway they are for."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from edge_agent.cli.support.broker_listener import listen
from edge_agent.demo.processes import Broker, ChildProcess
from edge_agent.identity.broker_files import Access, acl
from edge_agent.ports.mqtt.link import Link
from tests.support.fakes import Mosquitto
from tests.support.processes.broker_clients import publish, retained
from tests.support.processes.tree import Top, gateway, region
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

Begin = Callable[[ChildProcess], ChildProcess]
Brokers = Callable[[int], list[Broker]]
TO_ALL = "hw/1/all/cmd"
LOCAL = """
[sensor.boiler]
driver = "simulated"
rate = 20

[query.batch]
source = "boiler"
window = {type = "punctuation", interpretation = "bounds"}
aggregates = ["count"]
"""


class Answers:
    """All answers of a broker, as they come. Entered once its subscription holds: a retained answer shows that."""

    def __init__(self, broker: str) -> None:
        self.came: list[tuple[str, str, dict[str, Any]]] = []  # node, id, content
        self._broker, self._over = broker, False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        link = Link(self._broker, "test-operator", connect_timeout_s=5.0)
        for topic, payload, _, _ in listen(link, ["hw/1/up/+/cmd/+"], 60.0):
            self.came.append((topic.split("/")[3], topic.split("/")[5], json.loads(payload)))
            if self._over:
                return

    def __enter__(self) -> Self:
        publish(self._broker, "hw/1/up/nobody/cmd/retained", "{}")
        self._thread.start()
        eventually(lambda: self.to("retained"))
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._over = True

    def to(self, name: str) -> dict[str, dict[str, Any]]:
        """Answers to a command, by node; none may have answered twice."""
        found = [(node, said) for node, command, said in self.came if command == name]
        assert len(found) == len(dict(found)), f"answered twice: {found}"
        return dict(found)


def test_a_mark_for_all_reaches_every_gateway_once_through_two_mergers(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    """Both mergers pass it on to the one broker below them, where both gateways hear it twice."""
    above, below = brokers(2)
    for n in (1, 2):
        ended(region(f"region-{n}", tmp_path / f"region-{n}", above.url, "root", below.url))
        ended(gateway(f"press-{n}", tmp_path / f"press-{n}", below.url, f"region-{n}", LOCAL))
    for url, node in ((above.url, "region"), (below.url, "press")):
        for n in (1, 2):
            eventually(partial(retained, url, f"hw/1/up/{node}-{n}/status"))
    with Answers(below.url) as low, Answers(above.url) as high:

        def command(name: str, **fields: Any) -> None:
            publish(above.url, TO_ALL, json.dumps({"cmd": name, **fields}), retain=False)

        command("mark", id="m1", at="2026-11-21T06:00:00Z", marker="shift")
        eventually(lambda: len(low.to("m1")) == 2)
        at = {"cmd": "mark", "id": "m1", "ok": True, "at": "2026-11-21T06:00:00Z"}
        assert low.to("m1") == {"press-1": at, "press-2": at}

        command("mark", id="m2", nodes=["press-*", "!press-1"])
        eventually(lambda: low.to("m2"))
        command("mark", id="m1", at="2026-11-21T06:00:00Z")  # known by its id
        command("rebirth", id="m3")
        command("mark")  # without an id
        command("reload", id="m4")
        eventually(lambda: len(low.to("m4")) == 2)
        assert low.to("m2").keys() == {"press-2"}
        assert {said["definitions"] for said in low.to("m4").values()} == {2}
        eventually(lambda: len(high.to("m3")) == len(high.to("mark")) == 2)
        assert not any(said["ok"] for name in ("m3", "mark") for said in high.to(name).values())
        assert "m3" not in {name for _, name, _ in low.came}
        assert low.to("m1") == {"press-1": at, "press-2": at}


def test_marks_with_a_time_give_every_gateway_the_same_windows(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    """Two commands, one row of both gateways."""
    above, below = brokers(2)
    with Top(above.url) as top, Answers(below.url) as low:
        ended(region("region-1", tmp_path / "region-1", above.url, "root", below.url))
        for n in (1, 2):
            ended(gateway(f"press-{n}", tmp_path / f"press-{n}", below.url, "region-1", LOCAL))
            eventually(partial(retained, below.url, f"hw/1/up/press-{n}/status"))
        eventually(partial(retained, above.url, "hw/1/up/region-1/status"))
        start_us = time.time_ns() // 1_000 + 1_000_000
        bounds = (start_us, start_us + 500_000)
        for n, at_us in enumerate(bounds):
            publish(above.url, TO_ALL, json.dumps({"cmd": "mark", "id": f"m{n}", "at": at_us}), retain=False)
        eventually(lambda: len(low.to("m1")) == 2)
        row = eventually(lambda: [row for row in top.results("batch").values() if row.received == 2])[0]
        assert (row.start, row.end) == bounds
        assert row.readings == 20


def test_the_access_list_of_a_broker_lets_parents_and_operators_command_a_fleet_and_nobody_else(
    tmp_path: Path,
) -> None:
    """What a gateway publishes there reaches nobody; it hears what others say."""
    (tmp_path / "acl").write_text(acl(Access(parents=("region-1",))))
    with contextlib.ExitStack() as over:
        broker = Mosquitto(tmp_path, f"acl_file {tmp_path / 'acl'}")
        over.callback(broker.stop)

        def say(user: str, *options: str) -> None:
            command = ["mosquitto_pub", "-V", "5", "-p", str(broker.port), "-q", "1", "-i", user, "-u", user]
            subprocess.run([*command, "-t", TO_ALL, *options], check=False, timeout=10, capture_output=True)

        say("region-1", "-r", "-m", "retained")
        link = Link(broker.url, "press-1", user="press-1", connect_timeout_s=5.0)
        heard = listen(link, [TO_ALL], 10.0)
        assert next(heard)[1] == b"retained"
        for user in ("press-2", "region-1"):
            say(user, "-m", user)
        assert next(heard)[1] == b"region-1"


def test_a_gateway_knows_after_a_restart_which_commands_it_has_obeyed(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    (broker,) = brokers(1)
    agent = ended(gateway("press-1", tmp_path / "press-1", broker.url, "root", LOCAL))
    eventually(lambda: retained(broker.url, "hw/1/up/press-1/status"))
    with Answers(broker.url) as heard:
        mark = json.dumps({"cmd": "mark", "id": "m1"})
        publish(broker.url, TO_ALL, mark, retain=False)
        eventually(lambda: heard.to("m1"))
        assert agent.stop() == 0
        ended(agent)
        eventually(lambda: retained(broker.url, "hw/1/up/press-1/status")["online"])
        publish(broker.url, TO_ALL, mark, retain=False)
        publish(broker.url, TO_ALL, json.dumps({"cmd": "diagnose", "id": "d1"}), retain=False)
        eventually(lambda: heard.to("d1"))
        assert len(heard.to("m1")) == 1
