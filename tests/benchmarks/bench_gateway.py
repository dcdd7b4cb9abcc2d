"""A gateway process, from a broker on loopback to its spool: rates, memory, share of a core."""

from __future__ import annotations

import compileall
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_agent.demo.processes import Broker
from edge_agent.ports.spool import Spool
from edge_agent.wire import frames, readings
from tests.benchmarks.bench import ROOT, bench, record
from tests.benchmarks.load import cpu_s, diagnose, one_broker, packet, peak_mb, rss_mb, start_publisher
from tests.support.processes.tree import Node, Top
from tests.support.waiting import eventually

BATCH: Final = 1_000  # readings of a CBOR message
BATCHES: Final = 40_000
SINGLES: Final = 700_000
STEP_US: Final = 1  # a million readings a second of event time
LIMIT_S: Final = 90.0
QUERY: Final = """
[query.avg]
source = "s-0"
window = {type = "tumbling", length = "1s"}
aggregates = ["avg"]
"""


def sensor(name: str, topic: str, more: str = "") -> str:
    """A sensor of the local broker."""
    return f'\n[sensor.{name}]\ndriver = "mqtt"\ntopic = "{topic}"\n{more}\n'


@contextmanager
def running(broker: Broker, folder: Path, rest: str) -> Iterator[Node]:
    """A gateway that listens on the broker, with its shipped settings."""
    config = (
        f'[node]\nid = "gw-1"\n[uplink]\nbroker = "{broker.url}"\n[local]\nbroker = "{broker.url}"\n'
        f'[spool]\nquota = "1GB"\n{rest}'
    )
    gateway = Node("run", "gw-1", folder / "gw-1", config)
    gateway.start()
    try:
        log = broker.folder / "broker.log"
        eventually(lambda: "gw-1-sensors" in log.read_text())
        eventually(lambda: diagnose(broker, "gw-1"))
        yield gateway
    finally:
        gateway.stop()


def counted(said: dict[str, Any]) -> int:
    """Readings taken so far."""
    return sum(said["readings"].values())


def drained(broker: Broker, folder: Path, gateway: Node, file: Path, total: int) -> tuple[float, float]:
    """Seconds from the first message published to the end of the process that had committed the last reading, and its
    CPU seconds for that.
    """
    before = cpu_s(gateway.pid)
    began = time.monotonic()
    publisher = start_publisher(broker.port, file)
    until = began + LIMIT_S
    seen, still = -1, 0
    while time.monotonic() < until and still < 10:
        now = counted(diagnose(broker, "gw-1"))
        if now >= total:
            break
        still = still + 1 if now == seen and publisher.poll() is not None else 0
        seen = now
        time.sleep(0.1)
    publisher.wait()
    cpu = cpu_s(gateway.pid) - before
    assert gateway.stop() == 0
    ended = time.monotonic()
    spool = Spool(folder / "gw-1" / "spool.db", "gw-1", frames.encode)
    slot: Any = spool.open().state["source/s-0"]
    spool.close()
    if slot["readings"] != total:
        raise SystemExit(f"{slot['readings']} of {total} readings are in the spool: some were dropped")
    return ended - began, cpu


@bench("gateway_batches", budget_s=150)
def gateway_batches() -> None:
    """CBOR batches of a thousand readings, each with its own int64 times and float64 values."""
    with one_broker() as (broker, folder):
        file, rng = folder / "packets", np.random.default_rng(1)
        value = rng.normal(20.0, 1.0, BATCH)
        first_us = int(time.time() * 1e6) - BATCHES * BATCH * STEP_US
        with file.open("wb") as out:
            for n in range(BATCHES):
                time_us = first_us + (n * BATCH + np.arange(BATCH)) * STEP_US
                out.write(packet("plant/s-0", readings.encode(time_us, value)))
        with running(broker, folder, sensor("s-0", "plant/s-0") + QUERY) as gateway:
            seconds, cpu = drained(broker, folder, gateway, file, BATCHES * BATCH)
    record(
        "gateway_batches",
        BATCHES * BATCH / seconds,
        "readings/s",
        f"{BATCHES} CBOR messages of {BATCH} readings over Mosquitto, QoS 0, tumbling avg of 1 s at 1 M readings/s of "
        f"event time; from the first publish until all are committed and the process has ended: {seconds:.1f} s, "
        f"CPU of the gateway {cpu:.1f} s",
    )


@bench("gateway_json", budget_s=150)
def gateway_json() -> None:
    """One JSON reading a message."""
    with one_broker() as (broker, folder):
        file, rng = folder / "packets", np.random.default_rng(1)
        first_us = int(time.time() * 1e6) - SINGLES * 10
        with file.open("wb") as out:
            for n, value in enumerate(rng.normal(20.0, 1.0, SINGLES).round(2).tolist()):
                payload = f'{{"ts":{first_us + n * 10},"temperature":{value}}}'
                out.write(packet("plant/s-0", payload.encode()))
        pointers = 'value = "/temperature"\ntime = "/ts"\nqos = 0'
        with running(broker, folder, sensor("s-0", "plant/s-0", pointers) + QUERY) as gateway:
            seconds, cpu = drained(broker, folder, gateway, file, SINGLES)
    record(
        "gateway_json",
        SINGLES / seconds,
        "readings/s",
        f"{SINGLES} messages over Mosquitto with one JSON reading each (time and value by pointers), QoS 0; from the "
        f"first publish until all are committed and the process has ended: {seconds:.1f} s, "
        f"CPU of the gateway {cpu:.1f} s",
    )


@bench("gateway_rss_mb", "gateway_cpu_share", budget_s=150)
def gateway_size() -> None:
    """256 sensors and 10 queries; then a thousand messages a second with one reading each.

    The agent is byte-compiled first, as its package does on a gateway: compiling leaves memory behind.
    """
    compileall.compile_dir(ROOT / "edge_agent", quiet=1)
    windows = ("1s", "5s", "10s", "30s", "1m", "5m", "10m", "30m", "1h", "2h")
    sensors = "".join(sensor(f"s-{n}", f"plant/{n:02}/temp", 'labels = {site = "a"}') for n in range(256))
    queries = "".join(
        f'\n[query.q-{n}]\nsource = "s-{n}"\nby = ["site"]\nwindow = {{type = "tumbling", length = "{length}"}}\n'
        'aggregates = ["avg", "max", "stddev"]\n'
        for n, length in enumerate(windows)
    )
    per_s, seconds = 1_000, 25
    with one_broker() as (broker, folder):
        file, rng = folder / "packets", np.random.default_rng(1)
        with file.open("wb") as out:
            values = rng.normal(20.0, 1.0, per_s * seconds)
            for n, value in enumerate(values.tolist()):
                out.write(packet(f"plant/{n % 90:02}/temp", f"{value:06.3f}".encode()))
        packets = len(values)
        fed = sum(n % 90 < len(windows) for n in range(packets))
        with running(broker, folder, sensors + queries) as gateway:
            publisher = start_publisher(broker.port, file, per_s, packets)
            time.sleep(5)
            cpu, began = cpu_s(gateway.pid), time.monotonic()
            time.sleep(seconds - 8)
            share = (cpu_s(gateway.pid) - cpu) / (time.monotonic() - began)
            memory = rss_mb(gateway.pid)
            publisher.wait()
            time.sleep(2)  # the last ones are gathered
            said = diagnose(broker, "gw-1")
    sliced = sum(group["readings"] for group in said["groups"].values())
    if (counted(said), sliced) != (packets, fed):
        raise SystemExit(f"{counted(said)} of {packets} readings came, {sliced} of {fed} reached their queries")
    record(
        "gateway_rss_mb",
        memory,
        "MB",
        "VmRSS of `headwater run`, byte-compiled, with 256 MQTT sensors and 10 queries, under that load; "
        f"{sliced} readings in queries",
    )
    record(
        "gateway_cpu_share",
        share,
        "1",
        f"{per_s} MQTT messages a second with one bare number each, QoS 1 subscription, over {seconds - 8} s; "
        f"{counted(said)} of {packets} readings counted",
    )


BURST: Final = 66_000  # machines that report once each
BY_MACHINE: Final = """
[query.avg]
source = "s-0"
by = ["machine"]
window = {type = "tumbling", length = "5s"}
aggregates = ["avg"]
"""


@bench("gateway_keys_peak_mb", "gateway_keys_after_mb", budget_s=200)
def gateway_keys() -> None:
    """A burst of 66 000 keys, one reading each, and a minute later."""
    with one_broker() as (broker, folder):
        file = folder / "packets"
        with file.open("wb") as out:
            for n in range(BURST):
                out.write(packet(f"plant/machine-{n}/temp", b"20.5"))
        labels = 'labels = {machine = "{topic[1]}"}'
        asked = sensor("s-0", "plant/+/temp", labels) + BY_MACHINE
        with Top(broker.url), running(broker, folder, asked) as gateway:
            publisher = start_publisher(broker.port, file)
            publisher.wait()
            eventually(lambda: heard(broker) >= BURST, timeout_s=60.0)
            time.sleep(60)
            after, peak = rss_mb(gateway.pid), peak_mb(gateway.pid)
            said = diagnose(broker, "gw-1")
    how = f"`headwater run` below a parent, {BURST} machines in one burst of MQTT messages, {refused(said)} refused; "
    record("gateway_keys_peak_mb", peak, "MB", how + "VmHWM")
    record("gateway_keys_after_mb", after, "MB", how + "VmRSS 60 s later")


def refused(said: dict[str, Any]) -> int:
    """Readings of keys beyond the limit."""
    return sum(each.get("too_many_keys", 0) for each in said.get("quality", {}).values())


def heard(broker: Broker) -> int:
    """Readings taken and refused so far."""
    said = diagnose(broker, "gw-1")
    return counted(said) + refused(said)


if __name__ == "__main__":
    import sys

    {"b": gateway_batches, "j": gateway_json, "s": gateway_size}[sys.argv[1]]()
