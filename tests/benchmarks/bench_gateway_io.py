"""The rim alone, without a broker: what of a gateway's rate is its own receiving, parsing and spooling."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Commit
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.packets import Message, Splitter
from edge_agent.ports.mqtt.socket_stream import READ_BYTES, SocketStream
from edge_agent.ports.sensors.mqtt import MqttSensors
from edge_agent.ports.spool import Spool
from tests.benchmarks.bench import bench, record
from tests.benchmarks.load import packet

MESSAGES: Final = 300_000
COMMITS: Final = 300


@bench("receive_messages", budget_s=30)
def receive_messages() -> None:
    """Small messages out of a socket, as tuples."""
    data = b"".join(packet("plant/s-0", b'{"ts":%d,"v":20.5}' % n) for n in range(MESSAGES))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = SocketStream(ours, Splitter(False, 1, 1 << 20), bytearray(READ_BYTES))
    sender = threading.Thread(target=theirs.sendall, args=(data,), daemon=True)
    sender.start()
    taken, began = 0, time.thread_time()
    while taken < MESSAGES:
        stream.read()
        taken += len(stream.splitter.messages)
        stream.splitter.messages.clear()
    spent_s = time.thread_time() - began
    sender.join()
    ours.close()
    theirs.close()
    how = f"{MESSAGES} PUBLISH packets of MQTT 3.1.1, QoS 0, 40 bytes, from a socket pair; CPU time of the reader"
    record("receive_messages", MESSAGES / spent_s, "messages/s", how)


@bench("convert_json", budget_s=30)
def convert_json() -> None:
    """Messages to one batch: value and time out of JSON."""
    clock = SystemClock()
    sensors = MqttSensors(clock)
    options = (("topic", "plant/+"), ("value", "/v"), ("time", "/ts"), ("qos", 0))
    sensors.configure([Sensor("s", 1, "mqtt", options, range=(-40.0, 125.0))], {})
    now_us = clock.now_us()
    messages: list[Message] = [("plant/s-0", b'{"ts":%d,"v":20.5}' % (now_us + n), 0, 0) for n in range(16_000)]
    best = 0.0
    for _ in range(7):
        began = time.thread_time()
        sensors.feed(messages, now_us)
        (read,) = sensors.poll(now_us)
        best = max(best, len(read.batch.value) / (time.thread_time() - began))
    record("convert_json", best, "readings/s", "value and time by pointers, 16 000 messages a batch, best of 7")


@bench("spool_commit_s", budget_s=30)
def spool_commit() -> None:
    """One commit as a gateway makes it every second: open state, one frame in, one receipted frame out."""
    start, total = np.arange(100), np.arange(100.0)
    with tempfile.TemporaryDirectory(dir=Path("build") if Path("build").is_dir() else None) as folder:
        spool = Spool(Path(folder) / "spool.db", "gw-1", lambda frame: os.urandom(400))
        spool.open()
        spent = []
        for n in range(COMMITS):
            total += 1.0
            began = time.perf_counter()
            spool.commit(Commit({"open": {"start": start, "sum": total}}, (Frame(1, n),), ((1, n - 10),), ((1, n),)))
            spent.append(time.perf_counter() - began)
        spool.close()
    how = f"median of {COMMITS}: 1.6 kB of state, one frame of 400 B in, one out, WAL and FULL, on this disk"
    record("spool_commit_s", float(np.median(spent)), "s", how)


if __name__ == "__main__":
    receive_messages()
    convert_json()
    spool_commit()
