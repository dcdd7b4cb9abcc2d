"""At a URI one call of maintain works at a time, and notices a root (no Spark: the store is a dict)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest

from cloud_job.delta import maintain
from cloud_job.delta.tables import Place
from edge_agent.errors import PortError

LOCK = f"s3://fleet/tables/{maintain.LOCK}"
AT_A_URI = Place("s3://fleet/tables", guarded=True)


class Opened:
    """An open file of a store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def write(self, content: bytearray) -> None:
        self.store.files[self.name] += bytes(content)

    def readNBytes(self, most: int) -> bytes:
        return self.store.files[self.name][:most]

    def close(self) -> None:
        """Nothing is left to write."""


class Store:
    """Hadoop's file system of a store. full: it takes no file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.full = False

    def create(self, name: str, overwrite: bool) -> Opened:
        assert not overwrite
        if self.full or name in self.files:
            raise RuntimeError("An error occurred while calling o1.create.\n: java.io.IOException")
        self.files[name] = b""
        return Opened(self, name)

    def exists(self, name: str) -> bool:
        return name in self.files

    def open(self, name: str) -> Opened:
        return Opened(self, name)

    def delete(self, name: str, recursive: bool) -> None:
        assert not recursive
        del self.files[name]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(maintain, "hadoop", lambda _spark, uri: (made, uri))
    monkeypatch.setattr(maintain, "_decided", lambda _spark, _place: 7)
    return made


def alone(place: Place = AT_A_URI) -> Any:
    return maintain._alone(None, place)  # type: ignore[arg-type]


def test_the_second_call_names_the_first_and_the_file(store: Store) -> None:
    """Protocol 8.5: it took no lock there."""
    with alone() as check:
        check()
        assert json.loads(store.files[LOCK])["process"] == os.getpid()
        for _ in range(2):
            with (
                pytest.raises(PortError, match=f"process {os.getpid()}.*since 20.*{maintain.LOCK}.*delete this file"),
                alone(),
            ):
                pass
        assert LOCK in store.files, "the second call leaves the lock of the first"
    assert not store.files


def test_a_call_that_fails_leaves_no_lock(store: Store) -> None:
    with pytest.raises(ValueError, match="no space"), alone():
        raise ValueError("no space")
    assert not store.files


def test_the_lock_of_a_killed_process_of_this_machine_is_taken_and_no_other(store: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    store.files[LOCK] = json.dumps({"host": host, "process": ended.pid}).encode()
    with alone():
        assert json.loads(store.files[LOCK])["process"] == os.getpid()
    for content in ("", "[]", "{", json.dumps({"host": "another", "process": ended.pid}), json.dumps({"host": host})):
        store.files[LOCK] = content.encode()
        with pytest.raises(PortError, match="if that process has ended, delete this file"), alone():
            pass
        assert store.files[LOCK] == content.encode()


def test_a_store_that_takes_no_file_is_named(store: Store) -> None:
    store.full = True
    with pytest.raises(PortError, match=f"cannot create {LOCK}"), alone():
        pass


def test_a_store_that_refuses_the_file_when_it_is_closed_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 does; it gave a traceback, and left a file without content, for which every later call was refused."""
    closed = mock.Mock(side_effect=RuntimeError("An error occurred while calling o1.close.\n: AccessDenied"))
    monkeypatch.setattr(Opened, "close", closed)
    with pytest.raises(PortError, match=f"cannot create {LOCK}"), alone():
        pass
    assert not store.files


def test_a_session_without_access_to_files_has_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Spark Connect."""
    monkeypatch.setattr(maintain, "_decided", lambda _spark, _place: 7)
    with alone() as check:
        check()


def test_a_root_that_has_written_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with alone() as check:
        check()
        monkeypatch.setattr(maintain, "_decided", lambda _spark, _place: 8)
        with pytest.raises(PortError, match="a root has written batch 8"):
            check()


@pytest.mark.parametrize("place", [Place("/srv/tables"), Place("main.", named=True, guarded=True)])
def test_in_a_folder_and_in_a_catalog_there_is_no_such_file(store: Store, place: Place) -> None:
    """A folder has the lock of the root."""
    with alone(place) as check:
        check()
        assert not store.files
