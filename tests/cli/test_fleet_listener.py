"""What several brokers keep of a node that moved from one to another."""

from __future__ import annotations

import argparse
import json
import os
from itertools import permutations
from pathlib import Path

import pytest

from edge_agent.cli.support.broker_listener import add_broker, link_of
from edge_agent.cli.support.fleet_listener import FleetListener, HeardNode
from edge_agent.errors import ConfigError
from edge_agent.ports.mqtt.dial import read_password

PRESENT, FORMER = 0, 1
ONLINE = {"online": True, "role": "gateway", "parent": "region-2"}
OFFLINE = {"online": False, "role": "gateway", "parent": "region-1"}
BOOKS = {"parent": "region-2", "at_us": 2, "final": False, "taken": 5}
OLD_BOOKS = {"parent": "region-1", "at_us": 1, "final": True, "taken": 3}

CASES = {
    "the former broker keeps everything": (
        (PRESENT, "status", ONLINE),
        (PRESENT, "books", BOOKS),
        (FORMER, "status", OFFLINE),
        (FORMER, "books", OLD_BOOKS),
    ),
    "the former broker keeps the last will": (
        (PRESENT, "status", ONLINE),
        (PRESENT, "books", BOOKS),
        (FORMER, "status", OFFLINE),
    ),
    "frames wait for the former parent": (
        (PRESENT, "status", ONLINE),
        (PRESENT, "books", BOOKS),
        (FORMER, "status", ONLINE),
    ),
    "no books at the new broker yet": (
        (PRESENT, "status", ONLINE),
        (FORMER, "status", OFFLINE),
        (FORMER, "books", OLD_BOOKS),
    ),
    "it is offline at both": (
        (PRESENT, "status", {**ONLINE, "online": False}),
        (PRESENT, "books", BOOKS),
        (FORMER, "status", OFFLINE),
        (FORMER, "books", OLD_BOOKS),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_broker_that_a_node_uses_does_not_depend_on_which_answers_last(case: str) -> None:
    for order in permutations(CASES[case]):
        fleet = FleetListener([])
        for broker, what, content in order:
            fleet._take(broker, f"hw/1/up/gw-1/{what}", json.dumps(content).encode())
        node = fleet.nodes["gw-1"]
        assert node.broker == PRESENT
        assert node.status["parent"] == "region-2"
        assert node.books in (BOOKS, {})


def test_a_node_of_which_only_an_answer_came_is_offline() -> None:
    assert not HeardNode().online
    assert HeardNode().books == {}


def test_two_commands_have_two_names_also_in_two_containers() -> None:
    """There the process id is the same, and the broker disconnects one of two clients with one id."""
    parser = argparse.ArgumentParser()
    add_broker(parser)
    names = {link_of(parser.parse_args([])).client_id for _ in range(20)}
    assert len(names) == 20
    assert all(len(name) <= 23 for name in names), "what MQTT 3.1.1 obliges every broker to accept"
    assert len({FleetListener([])._id for _ in range(20)}) == 20


@pytest.mark.parametrize("url", ["", "mqtt://", "http://host", "mqtt://host:99999", "mqtt://host:0", "mqtt://host/x?y"])
def test_what_is_no_address_of_a_broker_is_refused(url: str) -> None:
    parser = argparse.ArgumentParser()
    add_broker(parser)
    with pytest.raises(ConfigError, match=r'like "mqtt://|only scheme, host and port'):
        link_of(parser.parse_args(["--broker", url]))


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    """It was left out without a word, and stood in the message that no broker answers."""
    parser = argparse.ArgumentParser()
    add_broker(parser)
    with pytest.raises(ConfigError, match="--user and --password-file") as refused:
        link_of(parser.parse_args(["--broker", "mqtt://ops:s3cret@127.0.0.1:1"]))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--password-file", "FILE"], "--password-file: there is a password without a user; add --user NAME"),
        (["--broker", "mqtts://h", "--key-file", "FILE"], "--key-file: there is a key without a certificate"),
        (["--ca-file", "FILE"], "--ca-file: mqtt://127.0.0.1:1883 is not TLS; use mqtts://..."),
        (["--user", "ops", "--password-file", "FILE/none"], "FILE/none: Not a directory"),
        (["--broker", "mqtts://h", "--ca-file", "FILE"], "FILE: wanted certificates, as PEM ("),
    ],
)
def test_files_that_cannot_serve_are_refused_before_the_broker_is_asked(
    words: list[str], why: str, tmp_path: Path
) -> None:
    """They were left out without a word, or it was said that no broker runs. Settings files refuse them, too."""
    file = tmp_path / "file"
    file.write_text("no certificate")
    parser = argparse.ArgumentParser()
    add_broker(parser)
    with pytest.raises(ConfigError) as refused:
        link_of(parser.parse_args([word.replace("FILE", str(file)) for word in words]))
    assert str(refused.value).startswith(why.replace("FILE", str(file)))


def test_a_password_from_a_pipe_is_left_for_the_connection() -> None:
    """As in --password-file <(pass show broker): the check read it, and the broker got an empty password."""
    reads, writes = os.pipe()
    try:
        os.write(writes, b"s3cret\n")
        os.close(writes)
        parser = argparse.ArgumentParser()
        add_broker(parser)
        link = link_of(parser.parse_args(["--user", "ops", "--password-file", f"/dev/fd/{reads}"]))
        assert link.password_file is not None
        assert read_password(link.password_file) == "s3cret"
    finally:
        os.close(reads)


def test_certificates_may_be_for_one_of_several_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.cli.support.broker_listener.tls_context", lambda _link: None)
    parser = argparse.ArgumentParser()
    add_broker(parser)
    parser.add_argument("--also", action="append")
    words = ["--broker", "mqtt://hall", "--also", "mqtts://cloud", "--ca-file", "ca.pem"]
    assert link_of(parser.parse_args(words)).url == "mqtt://hall"


def test_help_takes_any_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_BROKER", "mqtt://50%power:1883")
    parser = argparse.ArgumentParser()
    add_broker(parser)
    assert "50%power" in parser.format_help()
