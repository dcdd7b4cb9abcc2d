"""The tables of a node's local file, one frozen dataclass each, with defaults and the reasons for them.

A key of the file is the name of a field without its unit: `keepalive_us` is written `keepalive = "30s"`. The schemas
and the tables of defaults in docs/configure.md are generated from these classes.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

from edge_agent.config.checking.checker import REQUIRED, Key, ValueType
from edge_agent.config.checking.composite_types import ListOf, MapOf
from edge_agent.config.checking.durations import UNITS_US
from edge_agent.config.checking.quantities import ByteSize, Duration
from edge_agent.config.checking.value_types import Choice, Number, Text, Url
from edge_agent.config.topics import NODE_ID

MS: Final = UNITS_US["ms"]
SECOND: Final = UNITS_US["s"]
DAY: Final = UNITS_US["d"]
ROLES: Final = ("gateway", "region", "root")
ROOT_ID: Final = "root"  # default id of the lander and the Spark root

_ID: Final = Text("a node id", NODE_ID.pattern, "a-z, 0-9 and -, at most 32")
_PATH: Final = Text("a path", longest=1000)
_USER: Final = Text("a user name", longest=64)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash is enough: Spark reads dbfs:/x and file:/x


def is_uri(text: str) -> bool:
    """Whether a text that may be a path is a URI."""
    return _URI.match(text) is not None


def setting(kind: ValueType, default: object = REQUIRED, doc: str = "", why: str = "") -> Any:
    """Declare a field of a settings table. default: an internal value, or REQUIRED. why: the reason for the default."""
    about = {"kind": kind, "doc": doc, "why": why}
    return field(metadata=about) if default is REQUIRED else field(default=default, metadata=about)


def keys_of(table: type) -> tuple[Key, ...]:
    """The keys of a settings table in a file."""
    keys = []
    for f in fields(table):
        kind: ValueType = f.metadata["kind"]
        default = REQUIRED if f.default is MISSING else f.default
        keys.append(Key(f.name.removesuffix(kind.suffix), kind, default, f.metadata["doc"], f.metadata["why"]))
    return tuple(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """[node]: identity of this node. Its id is also the certificate name, user name and client id."""

    id: str = setting(_ID, doc="id of this node")
    role: str = setting(
        Choice(ROLES, what="role"), "gateway", "gateway, region (merger) or root (lander and Spark root)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The keys that the connections to all three brokers share. Secrets are given as file names."""

    broker: str | None = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    user: str | None = setting(_USER, None, "user name")
    password_file: str | None = setting(_PATH, None, "file with the password")
    ca_file: str | None = setting(_PATH, None, "certificates of the authority; left out: those of the system")
    cert_file: str | None = setting(_PATH, None, "certificate of this node")
    key_file: str | None = setting(_PATH, None, "private key of the certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkTable(LinkTable):
    """[uplink]: the parent and its broker. Secrets are given as file names."""

    broker: str = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    user: str | None = setting(_USER, None, "user name; must be the node id if access rules use %u")
    parent: str = setting(_ID, ROOT_ID, "id of the node that receives the frames", "small trees have no regions")
    parents: tuple[str, ...] = setting(
        ListOf(_ID, most=8),
        (),
        "instead of `parent`: several ids, the best first; while a parent is away the next one gets the frames",
        "no parent may be below this node",
    )
    brokers: tuple[tuple[str, str], ...] = setting(
        MapOf(_ID, Url()),
        (),
        "a table, parent = broker, for parents that are not on `broker`; keep a former parent until it has its frames",
    )
    away_us: int = setting(
        Duration(SECOND, DAY),
        120 * SECOND,
        "time without a connection or receipt of the parent, after which the next of `parents` gets the frames",
        "a restart of a region or a broker is shorter",
    )
    back_us: int = setting(
        Duration(SECOND, DAY),
        300 * SECOND,
        "the node returns to the first of `parents` once it has answered for this long",
        "an unstable parent would move its children each time",
    )
    keepalive_us: int = setting(
        Duration(SECOND, 3600 * SECOND), 30 * SECOND, "MQTT keepalive", "a lost connection is noticed within 60 s"
    )
    spread_us: int | None = setting(
        Duration(0, 3600 * SECOND),
        None,
        "if the broker ended the connection, the node reconnects at a random time within this; left out: 30s with "
        "TLS, else 0s",
        "200 nodes reconnect at 7 a second, within half of the grace time; use 0s for a few nodes",
    )
    in_flight: int = setting(
        Number(1, 1000, whole=True), 20, "most frames published but not yet acknowledged", "higher values were slower"
    )
    heartbeat_us: int = setting(
        Duration(100 * MS, 3600 * SECOND),
        SECOND,
        "interval of the heartbeats of an idle node",
        "a heartbeat moves time forward for 30 bytes",
    )

    @property
    def in_order(self) -> tuple[str, ...]:
        """The ids of the parents, the best first."""
        return self.parents or (self.parent,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerTable(LinkTable):
    """[lower]: the broker on which a region or the root receives the frames of its children."""

    broker: str | None = setting(Url(), None, "as in [uplink]; left out: a region's own uplink broker")
    members: tuple[str, ...] = setting(
        ListOf(_ID, most=10_000), (), "children to wait for even before they have announced themselves"
    )
    retired: tuple[str, ...] = setting(ListOf(_ID, most=10_000), (), "nodes that will not come back")
    tiers: int | None = setting(
        Number(1, 8, whole=True),
        None,
        "number of tiers below; with 1 a region accepts from each child only the data of the child itself; left out: "
        "it does so for children that first announced themselves as gateways; the grace time follows from it (left "
        "out: as for 1 at a region, 2 at the root)",
    )
    grace_us: int | None = setting(
        Duration(100 * MS, 7 * DAY),
        None,
        "a child that is silent for this long is excluded; left out: 60s for each tier below",
        "longer than a restart of the node and its broker and two missed heartbeats",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTable(LinkTable):
    """[local]: the broker on which local sensors publish (driver mqtt); client id `<node>-sensors`, MQTT 3.1.1."""

    broker: str = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    keepalive_us: int = setting(Duration(SECOND, 3600 * SECOND), 30 * SECOND, "MQTT keepalive", "as in [uplink]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTable:
    """[spool]: the file for open state and for frames that wait for receipts."""

    path: str = setting(_PATH, "spool.db", "SQLite file; beside the configuration if relative")
    commit_interval_us: int = setting(
        Duration(50 * MS, 60 * SECOND),
        SECOND,
        "interval of commits; a power cut loses at most this much",
        "writes 0.35 GB to flash a day",
    )
    quota_bytes: int = setting(
        ByteSize(10**6),
        256 * 10**6,
        "when it is full, the oldest unsent frames are dropped and reported as gaps",
        "weeks without a connection, and little of a card",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTable:
    """[clock]: when the node's time can be used. Until then, readings that get their time from the node wait."""

    trust: str = setting(
        Choice(("auto", "synced", "always"), what="trust"),
        "auto",
        "auto: a time service (NTP) or the parent must confirm the clock; without a time service a plausible clock is "
        "enough; synced: they must always confirm it; always: the clock is trusted",
        "works at once on any machine, and waits on a board that boots in 1970",
    )
    max_error_us: int = setting(
        Duration(10 * MS, 60 * SECOND),
        2 * SECOND,
        "a parent's time is used if its error is at most this",
        "half a commit of the parent, and a slow line",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsTable:
    """[limits]: how much a node accepts, so that a mistake elsewhere cannot overload it."""

    sensors: int = setting(Number(1, 256, whole=True), 256, "sensors of a node", "the greatest number that is tested")
    queries: int = setting(
        Number(1, 10_000, whole=True), 2000, "queries of a node", "a thousand queries of one sensor are tested"
    )
    groups: int = setting(
        Number(1, 2000, whole=True),
        500,
        "different combinations of source, filter, labels and lateness of all queries",
        "each is sliced separately; 500 take a tenth of a second per commit",
    )
    keys: int = setting(
        Number(100, 65_536, whole=True),
        10_000,
        "series (combinations of labels) of one sensor within half a minute; readings of others are counted and "
        "dropped",
        "each takes 1 kB of memory while it has readings",
    )
    edges_per_second: int = setting(
        Number(1, 10**6, whole=True),
        10_000,
        "window edges a second of all queries; equal windows of one source, filter, labels and lateness count once",
        "each edge makes a row; with more, the rows would be as many as raw readings",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTable:
    """[files]: files that sensors defined by topic may read. Sensors in this file may read any file that they name."""

    folders: tuple[str, ...] = setting(
        ListOf(_PATH, most=64),
        (),
        "sensors defined by topic may read regular files below these folders; beside the configuration if relative",
        "definitions over MQTT must not read everything that the agent can read, such as keys",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanderTable:
    """[lander]: landing files at the top of the tree."""

    folder: str = setting(_PATH, "landing", "folder of landing files; beside the configuration if relative")
    flush_interval_us: int = setting(
        Duration(10 * MS, 60 * SECOND),
        500 * MS,
        "a landing file is written after this time",
        "two fsyncs a second, and results half a second later",
    )
    flush_messages: int = setting(
        Number(1, 10**6, whole=True), 8000, "or after this many messages", "a file fits into memory"
    )
    flush_size_bytes: int = setting(
        ByteSize(10**4, 10**9), 32 * 10**6, "or after this many bytes", "a file fits into memory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootTable:
    """[root]: the Spark job and its Delta tables."""

    tables: str = setting(_PATH, "tables", "folder or URI of the tables; beside the configuration if relative")
    catalog: str | None = setting(
        Text("a catalog", r"[A-Za-z0-9_-]{1,64}", longest=64),
        None,
        "use tables of this catalog, by three-part names; left out: tables by path",
    )
    checkpoint: str | None = setting(
        _PATH, None, "used by earlier roots only; `check` and the log of a start warn about it; leave it out"
    )
    trigger_us: int = setting(Duration(0, 3600 * SECOND), SECOND, "interval of micro-batches", "a batch takes 1 to 2 s")
    revise_every_us: int = setting(
        Duration(0, DAY),
        60 * SECOND,
        "a window is revised at most once in this time",
        "a MERGE costs more than an append",
    )
    horizon_us: int = setting(
        Duration(0, 366 * DAY),
        7 * DAY,
        "readings later than this are not in results but in ops.late",
        "a node may be offline for a week",
    )
    upkeep_us: int = setting(
        Duration(SECOND, 7 * DAY),
        600 * SECOND,
        "interval of compactions of a table; rows are deleted once an hour or a day",
        "some hundred small files slow a query little; a compaction takes 3 to 4 s, in which no batch runs",
    )
    keep_versions_us: int = setting(
        Duration(SECOND, 366 * DAY),
        DAY,
        "how long to keep old versions of the tables, their files and commits in the log",
        "longer than any query runs",
    )
    keep_ops_us: int = setting(
        Duration(SECOND, 3660 * DAY),
        30 * DAY,
        "how long to keep rows of ops.batches and ops.quarantine, and bronze rows without readings; older rows of "
        "ops.late and ops.gaps are added up by node and reason",
        "after a month only totals are of interest",
    )
    keep_results_us: int | None = setting(
        Duration(SECOND, 3660 * DAY),
        None,
        "how long to keep rows of gold.results after they were written, at least the horizon; left out: for ever",
        "results are the purpose of the tables",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """[log]: the log on standard error."""

    level: str = setting(
        Choice(("debug", "info", "warning", "error"), what="level"), "info", "lowest level that is logged"
    )


TABLES: Final[dict[str, type]] = {
    "node": NodeTable,
    "uplink": UplinkTable,
    "lower": LowerTable,
    "local": LocalTable,
    "spool": SpoolTable,
    "clock": ClockTable,
    "limits": LimitsTable,
    "files": FilesTable,
    "lander": LanderTable,
    "root": RootTable,
    "log": LogTable,
}
FOR_ROLE: Final[dict[str, tuple[str, ...]]] = {  # tables of each role; settings.py checks which are required
    "gateway": ("node", "uplink", "local", "spool", "clock", "limits", "files", "log"),
    "region": ("node", "uplink", "lower", "spool", "clock", "log"),
    "root": ("node", "lower", "lander", "root", "log"),
}
