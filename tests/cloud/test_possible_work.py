"""A decision with windows whose rows cannot be made is carried out without these, and says so (no Spark but below)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from cloud_job.delta import tables
from cloud_job.spark import job, possible_work
from cloud_job.spark.batch_guard import BatchGuard
from cloud_job.spark.possible_work import MOST_TRIES, REASON, Impossible, possible
from cloud_job.spark.results import labels
from cloud_job.spark.row_sources import RowSources
from edge_agent.algebra.frame import Gap
from edge_agent.algebra.query.key import QueryKey
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.errors import PortError, ProtocolError
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import Islands, Ordering, RefusedFrame, SessionKey, TooLate, WindowRange, Work
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import CrashError, FragileJob, Roots

STORE_TEXTS = (
    (
        "org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException: Operation failed: "
        '"The server is currently unable to receive requests. Please retry your request.", 503, GET, ServerBusy'
    ),
    (
        "org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException: Operation failed: "
        '"This request is not authorized to perform this operation.", 403, GET, AuthorizationPermissionMismatch'
    ),
    'Operation failed: "Too many requests", 429, GET, https://acc.dfs.core.windows.net/c/x',
    "com.google.cloud.hadoop.repackaged.gcs.com.google.api.client.googleapis.json.GoogleJsonResponseException: 429",
    "GoogleJsonResponseException: 503 Backend Error",
    "software.amazon.awssdk.services.s3.model.S3Exception: We encountered an internal error. (Status Code: 500)",
    "software.amazon.awssdk.services.s3.model.S3Exception: The provided token has expired. (Status Code: 400)",
    "org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block: BP-1",
    "org.apache.hadoop.fs.ChecksumException: Checksum error: file:/srv/bronze/part-0.parquet at 512 exp: 1 got: 2",
    "java.io.FileNotFoundException: File file:/srv/bronze/part-0.parquet does not exist",
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///srv/x.parquet.",
    (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///srv/x.parquet. SQLSTATE: KD001\n"
        "Caused by: java.lang.RuntimeException: file:/srv/x.parquet is not a Parquet file."
    ),
    (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most "
        "recent failure: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"
    ),
    "org.apache.spark.SparkException: Job 4 cancelled because SparkContext was shut down",
    "io.unitycatalog.client.ApiException: 401 Unauthorized",
    "[DELTA_PROTOCOL_CHANGED] ProtocolChangedException: The protocol version of the Delta table has been changed.",
    "[DELTA_METADATA_CHANGED] MetadataChangedException",
    "[DELTA_TABLE_NOT_FOUND] Delta table `/srv/tables/ops/nodes` doesn't exist.",
    (
        "pyspark.errors.exceptions.connect.SparkConnectGrpcException: <_MultiThreadedRendezvous of RPC that terminated "
        "with: status = StatusCode.UNAVAILABLE"
    ),
)
STACK = (
    "\tat java.base/java.io.ObjectInputStream.readObject(ObjectInputStream.java:1)\n"
    "\tat org.apache.hadoop.fs.FileSystem.open(FileSystem.java:1)\n\t... 3 more"
)
DATA_TEXTS = (
    (
        f"org.apache.spark.SparkException: Job aborted due to stage failure\n{STACK}\n"
        f"Caused by: java.lang.NullPointerException\n{STACK}"
    ),
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\nKeyError: 'a=java.io.,b=[DELTA_'",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\nCaused by: java.io.EOFException",
    "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] boom",
    "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.",
    '[CAST_INVALID_INPUT] The value \'java.io.\' of the type "STRING" cannot be cast to "BIGINT".',
    "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE] Cannot perform Merge as multiple source rows matched.",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: key.",
)


def span(number: int, name: str = "q") -> WindowRange:
    at = START + number * SECOND
    return WindowRange(name, 1, 0, at, at + SECOND, SECOND, SECOND, 0, at, at, (0,), "", 1, 1, complete=True)


class Maker:
    """Makes what does not start at one of these seconds."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.tries = {START + each * SECOND for each in bad}, 0

    def __call__(self, work: Work) -> None:
        self.tries += 1
        assert not work.unread, "messages that could not be read are no part that may be left out"
        if any(each.low_us in self.bad for each in (*work.closing, *work.revising)):
            raise ValueError("no such number\nand more")


def test_windows_that_raise_are_found_among_many_in_few_tries() -> None:
    work = Work(
        7,
        closing=tuple(map(span, range(1_000))),
        revising=(span(2_000),),
        refused=(RefusedFrame("gw", 1, 2, "bad"),),
        unread=3,
    )
    make = Maker(17, 600)
    left, impossible = possible(work, make)
    assert [each.piece for each in impossible] == [span(17), span(600)]
    assert left == replace(work, closing=tuple(each for each in work.closing if each.low_us not in make.bad))
    assert make.tries < 60
    assert impossible[0].why == "ValueError: no such number"


def test_where_most_raise_the_rest_is_left_out_after_some_tries() -> None:
    work = Work(7, closing=tuple(map(span, range(10_000))))
    make = Maker(*range(10_000))
    left, impossible = possible(work, make)
    assert (left.closing, len(impossible)) == ((), 10_000)
    assert make.tries == MOST_TRIES


LATE = tuple(TooLate("gw", 1, seq, 1, "s", 50) for seq in (1, 2))
REFUSED = tuple(RefusedFrame("gw", 1, seq, "bad") for seq in (1, 2))
ORDERED = tuple(Ordering("q", 1, "", 0, (), after_us, after_us + 1, ()) for after_us in (1, 2))


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("closing", (span(1), span(2))),
        ("revising", (span(1), span(2))),
        ("ordering", ORDERED),
        ("beyond", LATE),
        ("refused", REFUSED),
    ],
)
def test_a_part_of_any_kind_that_raises_is_left_out_alone(name: str, pieces: tuple[Any, ...]) -> None:
    every: dict[str, Any] = {"closing": (span(9),), "beyond": LATE[1:], "refused": REFUSED[1:], name: pieces}
    work = Work(7, unread=3, **every)

    def make(tried: Work) -> None:
        assert sum(len(getattr(tried, field)) for field in possible_work.PIECES) <= len(pieces), "one kind at a time"
        if pieces[0] in getattr(tried, name):
            raise ValueError

    left, impossible = possible(work, make)
    assert [each.piece for each in impossible] == [pieces[0]]
    good: dict[str, Any] = {name: pieces[1:]}
    assert left == replace(work, **good)


def test_a_part_that_an_earlier_start_declared_is_known_whatever_its_error_says() -> None:
    """protocol 8.1: else each start would declare it once more."""
    state = RootState(RootLimits())
    for piece in (span(1), LATE[0], REFUSED[0]):
        rows = [Impossible(piece, ValueError(text)).row(state, 7) for text in ("one: two", "three: four")]
        assert possible_work.about(rows[0]) == possible_work.about(rows[1])
    others = (span(1), span(2), replace(span(1), node="gw"), replace(span(1), query="r"), *LATE, *REFUSED)
    told = {possible_work.about(Impossible(piece, ValueError("x")).row(state, 7)) for piece in others}
    assert len(told) == len(others)


def test_windows_between_bounds_lie_where_the_first_starts_and_the_last_ends() -> None:
    lattice = replace(span(0), slide_us=SECOND, offset_us=500_000, length_us=2 * SECOND)
    windows = replace(lattice, low_us=1_200_001, high_us=3_999_999)
    assert possible_work.times_of(windows) == (1_500_000, 5_500_000)
    assert possible_work.times_of(replace(windows, low_us=1_500_000)) == (1_500_000, 5_500_000)
    assert possible_work.times_of(replace(windows, slide_us=0, length_us=5)) == (1_200_001, 4_000_004)


def test_what_lies_in_the_world_is_no_window_s_fault() -> None:
    def full(_work: Work) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        possible(Work(7, closing=(span(0),)), full)
    with pytest.raises(PortError):
        possible_work.raise_if_of_the_world(PortError("another root has them"))
    for text in (
        "java.io.IOException: Disk quota exceeded",
        "java.nio.file.FileSystemException: /mnt/part-0: Stale file handle",
        "com.amazonaws.services.s3.model.AmazonS3Exception: Please reduce your request rate. (Error Code: SlowDown)",
        "java.nio.file.AccessDeniedException: s3a://fleet/bronze: 403 Forbidden",
        "java.net.UnknownHostException: store.example",
        "java.net.SocketTimeoutException: Read timed out",
    ):
        with pytest.raises(RuntimeError):
            possible_work.raise_if_of_the_world(RuntimeError(f"An error occurred while calling o1.save.\n: {text}"))


@pytest.mark.parametrize("text", STORE_TEXTS)
def test_errors_of_files_and_stores_are_no_window_s_fault(text: str) -> None:
    """Windows were left out, and frames quarantined, because of a disk, a cloud store or a cluster."""
    error = RuntimeError(f"An error occurred while calling o1.save.\n: {text}")
    with pytest.raises(RuntimeError):
        possible_work.raise_if_of_the_world(error)


@pytest.mark.parametrize("text", DATA_TEXTS)
def test_errors_of_rows_are_of_the_data(text: str) -> None:
    """Otherwise one row would end the root at each start."""
    possible_work.raise_if_of_the_world(RuntimeError(f"An error occurred while calling o1.save.\n: {text}"))


def test_an_error_of_our_own_code_with_a_record_is_judged_by_its_type() -> None:
    """Its text may contain any value of a child."""
    cause = KeyError("java.io.IOException: No space left on device")
    possible_work.raise_if_of_the_world(RuntimeError(f"cannot be handled: {cause}"), cause)
    with pytest.raises(RuntimeError):
        possible_work.raise_if_of_the_world(RuntimeError("cannot be handled"), OSError("Input/output error"))


@pytest.mark.parametrize("kind", [KeyError, ValueError, TypeError, OverflowError, ProtocolError])
def test_an_error_that_only_our_own_code_raises_is_judged_by_its_type(kind: type[Exception]) -> None:
    """A key `site=Permission denied` of a child, in an error of a decision, ended the root at each start."""
    possible_work.raise_if_of_the_world(kind("site=Permission denied"))


def test_a_file_may_be_why_executors_are_lost() -> None:
    """As of starts that were killed: after five of them it is moved aside."""
    assert possible_work.jvm_has_died(RuntimeError("Job aborted: ExecutorLostFailure (executor 1 exited)"))


@pytest.mark.parametrize(
    ("error", "gone", "died"),
    [
        pytest.param(ConnectionRefusedError(), True, True, id="refused"),
        pytest.param(EOFError(), True, True, id="end"),
        *(pytest.param(RuntimeError(f"py4j: {text}"), True, True, id=text) for text in possible_work.GONE),
        pytest.param(RuntimeError("java.lang.OutOfMemoryError: Java heap space"), False, True, id="memory"),
        pytest.param(RuntimeError("[DIVIDE_BY_ZERO]"), False, False, id="data"),
        pytest.param(OSError("No space left on device"), False, False, id="disk"),
    ],
)
def test_only_a_jvm_that_is_gone_needs_a_new_process(error: Exception, gone: bool, died: bool) -> None:
    assert (possible_work.jvm_is_gone(error), possible_work.jvm_has_died(error)) == (gone, died)


def test_an_error_is_shown_as_one_line_that_names_its_last_cause() -> None:
    assert possible_work.text_of(ValueError("one\ntwo")) == "ValueError: one"
    assert possible_work.text_of(ValueError()) == "ValueError: "
    chain = RuntimeError(f"Job aborted\nCaused by: a.B: first\n\tat x\nCaused by: c.D: last{'!' * 300}\n\tat y")
    assert possible_work.text_of(chain) == f"c.D: last{'!' * 300}"[: possible_work.SHOWN]


def test_a_key_that_reads_like_an_error_of_the_world_is_of_the_data() -> None:
    """Otherwise the root would end at each start because of a label that a child sent."""
    text = "[DUPLICATED_MAP_KEY] Duplicate map key Permission denied was found, please check the input data."
    possible_work.raise_if_of_the_world(RuntimeError(text))


@pytest.mark.spark
def test_a_key_with_a_label_twice_has_labels(spark: SparkSession) -> None:
    """As at the plain root: the last one is taken."""
    keys = ("k=1,k=2", ",", "k=1")
    rows = spark.createDataFrame([(key,) for key in keys], "key string")
    found = {row[0]: row[1] for row in rows.select("key", labels(rows["key"])).collect()}
    assert found["k=1,k=2"] == {"k": "2"}
    assert found["k=1"] == {"k": "1"}
    assert len(found) == len(keys)


def test_what_gets_no_row_is_declared_whatever_table_the_row_was_for() -> None:
    state, error = RootState(RootLimits()), ValueError("no such number")
    late = Impossible(TooLate("gw", 1, 2, 1, "boiler", START), error).row(state, 7)
    assert (late["sources"], late["nodes"], late["end"], late["readings"]) == (["boiler"], ["gw"], START, -1)
    refused = Impossible(RefusedFrame("gw", 1, 2, "bad"), error).row(state, 7)
    assert refused["nodes"] == ["gw"]
    assert refused["detail"] == "frame 00000001/2 of gw: ValueError: no such number"
    assert (refused["start"], refused["end"], refused["sources"]) == (0, 0, [])
    window = Impossible(span(3), error).row(state, 7)
    assert (window["start"], window["nodes"]) == (START + 3 * SECOND, [])
    before = Impossible(TooLate("gw", 1, 2, 1, "boiler", -5), error).row(state, 7)
    assert (before["start"], before["end"]) == (0, 0), "no row of a table ends before it starts"


def test_what_gets_no_row_is_named_by_its_query_and_times_whatever_its_windows_are() -> None:
    error, sessions = ValueError("no such number"), islands((40, 50), low_us=30)
    ordering = Ordering("q", 1, "gw", None, (), 5, 9, ())
    assert Impossible(ordering, error).name == "query q revision 1, 5 to 9 us"
    assert Impossible(sessions, error).name == "query q revision 1, 30 to 60 us"
    assert Impossible(span(1), error).name == f"query q revision 1, {START + SECOND} to {START + 2 * SECOND} us"
    state = RootState(RootLimits(), queries={QueryKey("q", 1): canonical_query(query("q"))})
    for piece, start_us, end_us in ((ordering, 5, 9), (sessions, 30, 60)):
        row = Impossible(piece, error).row(state, 7)
        assert (row["start"], row["end"], row["nodes"]) == (start_us, end_us, ["gw"])
        assert (row["sources"], row["detail"]) == (
            [query("q").source],
            "query q revision 1: ValueError: no such number",
        )


def islands(touch: tuple[int, int] | None, low_us: int | None = None, *keys: SessionKey) -> Islands:
    """Sessions of a query that are complete below 60 and have had rows below 20."""
    none = (None, None, None)
    return Islands("q", 1, 0, 5, 0, (), 60, 20, low_us, True, touch, *none, 0, "gw", meets=False, keys=keys, cells=())


def test_sessions_lie_where_the_first_is_touched_or_begins_and_where_the_last_is_complete() -> None:
    near, far = SessionKey("a", 60, 20, (10, 90)), SessionKey("b", 60, 20)
    assert possible_work.times_of(islands((40, 50))) == (40, 60)
    assert possible_work.times_of(islands((40, 70))) == (40, 70)
    assert possible_work.times_of(islands((40, 70), 30)) == (30, 70)
    assert possible_work.times_of(islands((40, 70), 50)) == (40, 70)
    assert possible_work.times_of(islands(None, 30, far)) == (30, 60)
    assert possible_work.times_of(islands(None, 30, far, near)) == (10, 90)
    assert possible_work.times_of(islands(None)) == (20, 60), "what had rows before"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_root_goes_on_after_a_decision_of_which_a_window_cannot_be_made(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1: the decision stands, and rows of one query raise in Spark, in this run and at each start."""
    from pyspark.sql import functions as F

    whole = RowSources.windows

    def windows(self: RowSources, work: Work, spans: tuple[WindowRange, ...], lookups: Any) -> Any:
        rows = whole(self, work, spans, lookups)
        if any(each.query == "bad" and each.low_us <= START + 3 * SECOND <= each.high_us for each in spans):
            return rows.withColumn(
                "key", F.when(F.col("query") == "bad", F.raise_error(F.lit("boom"))).otherwise(F.col("key"))
            )
        return rows

    root, told = roots(), list[tuple[str, str]]()
    child = Child("gw", (query("good"), query("bad", fns=("max",))))
    guard = BatchGuard(root.start, lambda why, example: told.append((why, example)))

    def take(*records: bytes) -> None:
        path = root.land(*records)
        guard.process([(path.name, path.read_bytes())])

    take(tick(START), record(child, START, child.birth()))
    monkeypatch.setattr(RowSources, "windows", windows)
    for second in range(1, 7):
        at = START + second * SECOND
        rows = child.rows(at, np.array([at - SECOND]), np.array([float(second)]))
        take(tick(at), record(child, at, rows))
    starts = {name: sorted(row["start"] for row in root.rows(where=f"query = '{name}'")) for name in ("good", "bad")}
    assert starts["good"] == [START + n * SECOND for n in range(6)]
    assert starts["bad"] == [at for at in starts["good"] if at != START + 3 * SECOND]
    (gap,) = root.rows(tables.GAPS)
    assert (gap["reason"], gap["start"], gap["end"]) == (REASON, START + 3 * SECOND, START + 4 * SECOND)
    assert "query bad revision 1" in gap["detail"]
    assert "boom" in gap["detail"]
    assert [example.split(",")[0] for _why, example in told] == ["query bad revision 1"]
    assert all(row["complete"] for row in root.rows())
    root.start()
    assert guard.job.impossible != root.job.impossible == []


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_is_left_out_is_declared_though_gap_records_of_the_batch_are_written_already(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.1: ops.gaps had rows of the batch, so the declaration was never added to them."""

    def broken(*_: object) -> None:
        raise ValueError("boom")

    root = roots(horizon_us=10 * SECOND)
    child = Child("gw", (query(),))
    guard = BatchGuard(root.start)

    def take(*records: bytes) -> None:
        path = root.land(*records)
        guard.process([(path.name, path.read_bytes())])

    def lost(second: int) -> bytes:
        gap = Gap((child.queries[0].group,), START, START + SECOND, 3, (), f"lost {second}")
        return record(child, START + second * SECOND, child.gap(gap))

    def late(second: int) -> bytes:
        at_us = START + second * SECOND
        return record(child, at_us, child.rows(at_us, np.array([START]), np.array([1.0]), length_us=1, late=True))

    def declared() -> list[tuple[int, str]]:
        return sorted((row["batch"], row["reason"]) for row in root.rows(tables.GAPS))

    take(tick(START), record(child, START, child.birth()))
    at = START + 100 * SECOND
    take(tick(at), record(child, at, child.rows(at, np.array([at - SECOND]), np.array([1.0]))))
    monkeypatch.setattr(job, "late", broken)
    take(tick(at), lost(100), late(100))
    first = guard.job.state.number
    wanted = [(first, REASON), (first, "lost 100")]
    assert declared() == wanted
    root.start()
    assert declared() == wanted, "once"

    guard = BatchGuard(root.start)
    with monkeypatch.context() as killed:
        killed.setattr(FragileJob, "crash", ("declared", first + 1))
        with pytest.raises(CrashError):
            take(tick(at + SECOND), lost(101), late(101))
    root.start()
    assert declared() == [*wanted, (first + 1, REASON), (first + 1, "lost 101")]
    assert root.rows(tables.LATE) == []
