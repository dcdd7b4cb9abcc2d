"""A password file that cannot be used: the connection says which file and why, and tries again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edge_agent.errors import PortError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.dial import read_password
from edge_agent.ports.mqtt.link import Down, Link
from tests.support.ports.connections import QUICK, Net


def _refused(net: Net, file: Path) -> str:
    """The reason of a connection with this password file, at a listener that accepts it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        connection = Connection(Link(url, "gw", user="gw", password_file=file, backoff_s=QUICK), seed=1)
        net.open.append(connection)
        net.reports[connection] = []
        connection.open()
        net.until(lambda: net.count(connection, Down) >= 4)  # it goes on trying
        downs = net.of(connection, Down)
        assert (downs[3].retry_s > QUICK[0]) == file.exists(), "only a file that is missing may come at any moment"
        return downs[0].why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("geheim-für-alle".encode("latin-1"), "the password is not text in UTF-8"),
        (b"x" * 70_000, "the password is longer than 65535 bytes"),
    ],
)
def test_a_password_that_cannot_be_sent_is_a_reason_that_names_its_file(
    net: Net, tmp_path: Path, content: bytes, why: str
) -> None:
    """It ended the gateway at each start."""
    file = tmp_path / "password"
    file.write_bytes(content)
    assert _refused(net, file) == f"{file}: {why}"


def test_a_password_file_without_an_end_is_read_in_part() -> None:
    with pytest.raises(PortError, match="/dev/zero: the password is longer than 65535 bytes"):
        read_password(Path("/dev/zero"))


def test_a_missing_password_file_is_named(net: Net, tmp_path: Path) -> None:
    assert _refused(net, tmp_path / "none") == f"{tmp_path / 'none'}: No such file or directory"
    assert _refused(net, tmp_path) == f"{tmp_path}: Is a directory"
