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


def alone(place: Place = AT_A_URI, warned: list[str] | None = None) -> Any:
    return maintain._alone(None, place, ([] if warned is None else warned).append)  # type: ignore[arg-type]


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


def left(**fields: object) -> bytes:
    """A lock that this process would write, with other fields."""
    return json.dumps({**maintain._this_process(), "since": "2026", **fields}).encode()


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_of_a_killed_process_of_this_machine_is_taken(store: Store, ended: int) -> None:
    store.files[LOCK] = left(process=ended, began=1)
    with alone():
        assert json.loads(store.files[LOCK])["process"] == os.getpid()


def test_the_lock_of_a_process_whose_id_another_one_has_now_is_taken(store: Store) -> None:
    """It was refused for ever, as in a container, where maintain has the same id in each run."""
    for process in (os.getpid(), os.getppid()):
        store.files[LOCK] = left(process=process, began=1)
        with alone():
            assert json.loads(store.files[LOCK])["began"] == maintain._began(os.getpid())


def test_the_lock_of_before_a_restart_of_this_machine_is_taken(store: Store) -> None:
    store.files[LOCK] = left(process=os.getppid(), boot="another")
    with alone():
        pass


def test_a_lock_that_this_process_could_not_delete_is_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook; the store did not answer when the call before ended."""
    with monkeypatch.context() as patch, alone():
        patch.setattr(Store, "delete", mock.Mock(side_effect=RuntimeError("An error occurred: timeout")))
    assert LOCK in store.files
    with alone():
        pass
    assert not store.files


@pytest.mark.parametrize(
    "fields",
    [
        {"boot": "another", "machine": "another"},  # with the same name, as of many in a cloud
        {"boot": "another", "namespace": "another"},  # a container of another machine, with the same image and name
        {"namespace": "another"},  # a container, whose processes have no number here
        {"boot": "", "machine": "", "namespace": ""},  # nothing is known of where it ran
        {"boot": "another", "machine": ""},
        {"process": 10**30},
        {"process": "7"},
        {"process": 0},
    ],
    ids=str,
)
def test_no_other_lock_is_taken(store: Store, ended: int, fields: dict[str, object]) -> None:
    found = store.files[LOCK] = left(**{"process": ended, "began": 1, **fields})
    with pytest.raises(PortError, match="if that process has ended, delete this file"), alone():
        pass
    assert store.files[LOCK] == found


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", json.dumps({"host": socket.gethostname(), "process": 1})])
def test_a_lock_that_says_too_little_is_not_taken(store: Store, content: str) -> None:
    store.files[LOCK] = content.encode()
    with pytest.raises(PortError, match="if that process has ended, delete this file"), alone():
        pass


def test_a_running_process_has_its_lock_also_if_others_may_not_see_when_it_began(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is mounted with hidepid."""
    store.files[LOCK] = left(process=os.getppid(), began=1)
    monkeypatch.setattr(maintain, "_began", lambda _process: 0)
    with pytest.raises(PortError, match="headwater maintain runs on"), alone():
        pass


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


def test_a_session_without_access_to_files_has_no_lock_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Spark Connect; it said nothing."""
    warned: list[str] = []
    monkeypatch.setattr(maintain, "_decided", lambda _spark, _place: 7)
    with alone(warned=warned) as check:
        check()
    (line,) = warned
    assert line == (
        "no lock is held at s3://fleet/tables, because this Spark session has no access to its files: make sure that "
        "no other headwater maintain runs"
    )


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
