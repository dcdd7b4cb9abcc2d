"""A record or file that no batch can be made with costs itself alone, at every stage before a decision (no Spark).

The job keeps its rows in lists; reading, deciding and encoding are the product's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_job.ingest.intake import NOTHING, Leave
from cloud_job.spark import batch_guard, decision_checkpoint
from cloud_job.spark.batch_guard import BatchGuard
from edge_agent.algebra.frame import Frame
from edge_agent.config import topics
from edge_agent.root.completeness import Decider
from edge_agent.root.decision import decide, transition
from edge_agent.root.decision.work import Work
from tests.support.cloud.child_frames import ROOT, SECOND, START
from tests.support.cloud.guarded_roots import File, GuardedRoot
from tests.support.cloud.list_jobs import ListJob


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuardedRoot:
    monkeypatch.setattr(batch_guard, "PAUSES_S", (0.0, 0.0))
    return GuardedRoot(tmp_path)


def raising_on(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, when: Callable[..., bool]) -> None:
    """Before it returns, a function raises where `when` holds for its arguments: what it has noted stays noted."""
    before = getattr(of, name)

    def raises(*args: Any, **named: Any) -> Any:
        out = before(*args, **named)
        if when(*args, **named):
            raise RuntimeError("injected")
        return out

    monkeypatch.setattr(of, name, raises)


def is_bad_frame(_decider: Decider, node: str, message: Any, _us: int) -> bool:
    return node == "gw-bad" and getattr(message, "seq", 0) == 2 and hasattr(message, "groups")


def test_a_record_that_raises_while_it_is_taken_is_as_if_it_had_never_been_handled(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.guard.process([root.births(), root.second(0)])
    raising_on(monkeypatch, Decider, "take", is_bad_frame)
    root.guard.process([root.second(1), root.second(2)])
    assert root.runs == 2, "one more run, from the decision before"
    assert (root.applied("gw-good"), root.applied("gw-bad")) == (3, 2)
    ((node, seq, why),) = root.quarantined()
    assert (node, seq) == ("gw-bad", 2)
    assert "injected" in why
    assert [gap["nodes"] for gap in root.gaps()] == [["gw-bad"]], "what it held is declared"
    assert not root.closing()[START + 2 * SECOND]
    ((told, example),) = root.told
    assert "injected" in told
    assert "gw-bad" in example


@pytest.mark.parametrize("files", [1, 3])
def test_a_record_with_which_no_decision_can_be_taken_is_found_and_left_out(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    root.guard.process([root.births(), root.second(0)])
    step = decide.step

    def raises(state: Any, decision: Any, *args: Any, **named: Any) -> Work:
        work = step(state, decision, *args, **named)
        if any(e.node == "gw-bad" and e.seq == 2 and e.frame is not None for e in decision.effects):
            raise RecursionError("injected")
        return work

    monkeypatch.setattr(transition, "step", raises)
    names = [root.second(n) for n in range(1, 4)]
    for at in range(0, 3, files):
        root.guard.process(names[at : at + files])
    assert (root.applied("gw-good"), root.applied("gw-bad")) == (4, 3)
    ((node, seq, why),) = root.quarantined()
    assert (node, seq) == ("gw-bad", 2)
    assert "injected" in why
    assert not root.closing()[START + 2 * SECOND]
    assert root.closing()[START + 4 * SECOND], "later windows are whole"
    assert [name for row in root.kept.batches[1:] for name in row["files"]] == [name for name, _ in names]


def test_a_state_that_cannot_be_encoded_with_a_record_is_made_without_it(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.guard.process([root.births(), root.second(0)])
    ahead = root.bad.seq + 1

    def waits(decider: Decider, *_: Any) -> bool:
        epochs = decider.parent.inbox.epochs.items()
        return any(key.node == "gw-bad" and isinstance(frames.waiting.get(ahead), Frame) for key, frames in epochs)

    root.guard = BatchGuard(root.run, root.note)  # the first batch of a run holds the whole state
    raising_on(monkeypatch, decision_checkpoint, "dumps", waits)
    lost, late = root.second(1), root.second(2)
    root.guard.process([late])  # the frame before it has not come: it waits
    root.guard.process([lost])
    assert (root.applied("gw-good"), root.applied("gw-bad")) == (3, 2)
    assert [(node, seq) for node, seq, _ in root.quarantined()] == [("gw-bad", ahead)]


def test_a_file_that_cannot_be_stored_is_left_out_whole_and_others_go_on(root: GuardedRoot) -> None:
    root.guard.process([root.births(), root.second(0)])
    bad = root.second(1)
    tries = []

    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        tries.append(list(names))
        if bad[0] in names and any(row["kind"] == "frame" for row in rows):
            raise RuntimeError("rows that cannot be stored\nmuch more")

    root.kept.store = store
    root.guard.process([root.second(2), bad, root.second(3)])
    assert list(map(len, tries)) == [3, 3, 3, 1, 1, 1, 1, 1, 1], "three times together, then one by one"
    assert root.kept.batches[-1]["files"] == ["00000005.cborseq"]
    whys = {why for _, _, why in root.quarantined()}
    assert whys == {f"{bad[0]} cannot be processed: RuntimeError: rows that cannot be stored"}
    assert {(why, example) for why, example in root.told} == {
        (why, topics.frames(node, ROOT)) for why in whys for node in ("gw-good", "gw-bad")
    }
    assert {node for node, _, _ in root.quarantined()} == {"gw-good", "gw-bad"}
    assert not root.closing()[START + 2 * SECOND]


def test_a_batch_that_fails_is_repeated_after_pauses_but_not_after_the_last_try(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store that is away for a second. Where records are left out, that was the cause: there is no pause."""
    slept: list[float] = []
    monkeypatch.setattr(batch_guard, "PAUSES_S", (0.5, 2.0))
    monkeypatch.setattr(time, "sleep", slept.append)
    root.guard.process([root.births()])
    fails = [True, True]

    def store(_names: Sequence[str], _rows: list[dict[str, Any]]) -> None:
        if fails and fails.pop():
            raise RuntimeError("away for a while")

    root.kept.store = store
    root.guard.process([root.second(0)])
    assert (slept, root.quarantined(), root.runs) == ([0.5, 2.0], [], 3)
    fails += [True, True, True]
    root.guard.process([root.second(1)])
    assert slept == [0.5, 2.0] * 2
    slept.clear()
    raising_on(monkeypatch, Decider, "take", lambda *args: is_bad_frame(*args) or getattr(args[2], "seq", 0) == 3)
    root.guard.process([root.second(2), root.second(3)])
    assert len(root.quarantined()) > 3, "records were left out"
    assert slept == []


def test_an_orderly_end_is_that_of_the_newest_run(root: GuardedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[tuple[str, Any]] = []
    for name in ("finish", "close"):
        monkeypatch.setattr(ListJob, name, lambda job, name=name: did.append((name, job)))
    root.guard.finish()
    root.guard.close()
    assert did == [("finish", root.guard.job), ("close", root.guard.job)]


def test_a_file_that_fails_without_its_records_too_is_moved_aside(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(batch_guard, "sync_path", synced.append)
    root.guard.process([root.births(), root.second(0)])
    bad = root.second(1)
    (root.folder / bad[0]).write_bytes(bad[1])

    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        if bad[0] in names and any(row["node"] for row in rows):
            raise RuntimeError("injected")

    root.kept.store = store
    root.guard.process([bad])
    aside = root.folder / batch_guard.ASIDE
    assert (aside / bad[0]).read_bytes() == bad[1]
    assert ((aside / bad[0]).stat().st_mode & 0o777, aside.stat().st_mode & 0o777) == (0o600, 0o700)
    assert synced == [root.folder, aside], "the folder, and the copy in it"
    assert [why for _, _, why in root.quarantined()] == [f"{bad[0]} cannot be processed: RuntimeError: injected"]
    assert root.guard.took(bad[0]), "the job deletes it from the landing folder, like every file that it has read"


def test_a_full_disk_is_no_fault_of_a_file(root: GuardedRoot) -> None:
    root.guard.process([root.births()])
    tries = []

    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        tries.append(names)
        raise RuntimeError("java.io.IOException: No space left on device")

    root.kept.store = store
    with pytest.raises(RuntimeError, match="No space left"):
        root.guard.process([root.second(0)])
    assert len(tries) == 1
    assert root.quarantined() == []


@pytest.mark.parametrize("there", [False, True])
def test_a_copy_goes_only_while_the_file_is_there(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """After its decision the job deletes the file: then the copy is all that is left."""
    bad = root.folder / "bad.cborseq"
    bad.write_bytes(b"content")

    def fails(_job: ListJob, files: list[File], _left_out: Any) -> None:
        assert files == [(bad.name, b"")]
        assert (root.folder / batch_guard.ASIDE / bad.name).exists()
        if not there:
            bad.unlink()
        raise RuntimeError("injected")

    monkeypatch.setattr(ListJob, "process", fails)
    with pytest.raises(RuntimeError, match="injected"):
        root.guard._move_aside(bad.name, "why")
    assert (root.folder / batch_guard.ASIDE / bad.name).exists() != there


def test_a_disk_that_is_full_by_then_moves_no_file_aside(root: GuardedRoot) -> None:
    root.guard.process([root.births()])
    bad = root.second(0)
    (root.folder / bad[0]).write_bytes(bad[1])

    def store(_names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        frames = any(row["kind"] == "frame" for row in rows)
        raise RuntimeError("cannot be stored" if frames else "java.io.IOException: No space left on device")

    root.kept.store = store
    with pytest.raises(RuntimeError, match="No space left"):
        root.guard.process([bad])
    assert not (root.folder / batch_guard.ASIDE).exists()


def test_where_every_file_fails_it_is_not_the_files(root: GuardedRoot) -> None:
    root.guard.process([root.births()])

    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        raise RuntimeError("always")

    root.kept.store = store
    files = [root.second(n) for n in range(6)]
    for name, content in files:
        (root.folder / name).write_bytes(content)
    with pytest.raises(RuntimeError, match="always"):
        root.guard.process(files)
    assert len(root.kept.batches) == 1
    assert root.quarantined() == []
    assert all((root.folder / name).read_bytes() == content for name, content in files)
    assert list((root.folder / batch_guard.ASIDE).glob("*")) == [], "no file is moved aside without a decision"


def test_files_that_fail_are_all_left_out_while_others_do_not(root: GuardedRoot) -> None:
    """Three in a row may be the files; what is good in between says that the cause is in them."""
    root.guard.process([root.births()])
    files = [root.second(n) for n in range(12)]
    bad = {files[n][0] for n in (0, 1, 2, 4, 6, 7, 8, 10)}

    def store(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        if bad & {*names} and any(row["kind"] == "frame" for row in rows):
            raise RuntimeError("cannot be stored")

    root.kept.store = store
    for file in files:
        root.guard.process([file])
    assert {why.partition(" ")[0] for _, _, why in root.quarantined()} == bad
    more = [root.second(n) for n in range(20, 24)]
    bad |= {name for name, _ in more}
    for file in more[:3]:
        root.guard.process([file])
    with pytest.raises(RuntimeError, match="cannot be stored"):
        root.guard.process(more[3:])


def test_a_batch_whose_decision_was_written_is_neither_searched_nor_repeated(
    root: GuardedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1: the new run has carried it out."""
    root.guard.process([root.births()])
    write, asked = ListJob._write, list[str]()

    def fails(job: ListJob, *args: Any) -> None:
        write(job, *args)
        raise RuntimeError("after the decision")

    monkeypatch.setattr(ListJob, "_write", fails)
    monkeypatch.setattr(ListJob, "attempt", lambda *_: asked.append("attempt"))
    root.guard.process([root.second(0)])
    assert (asked, root.runs, len(root.kept.batches)) == ([], 2, 2)
    assert root.quarantined() == []


def test_an_error_of_the_state_itself_blames_no_record(root: GuardedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.guard.process([root.births()])
    raising_on(monkeypatch, transition, "step", lambda *args, **named: True)
    with pytest.raises(RuntimeError, match="injected"):
        root.guard.process([root.second(0)])
    assert root.quarantined() == []


def test_many_bad_records_of_one_child_cost_a_few_runs(root: GuardedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.guard.process([root.births()])
    raising_on(
        monkeypatch, Decider, "take", lambda _d, node, message, _us: node == "gw-bad" and hasattr(message, "groups")
    )
    attempts = []
    whole = ListJob.attempt

    def counted(job: ListJob, files: Any, left_out: Leave = NOTHING, most: int | None = None) -> Any:
        attempts.append(most)
        return whole(job, files, left_out, most)

    monkeypatch.setattr(ListJob, "attempt", counted)
    root.guard.process([root.second(n) for n in range(50)])
    assert len(attempts) < 10
    assert root.applied("gw-good") == 50
    assert len(root.quarantined()) == 50
    assert len(root.told) <= batch_guard.MOST_OF_TOPIC + 1
