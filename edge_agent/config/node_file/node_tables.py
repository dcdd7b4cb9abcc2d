"""The tables of a node's local file, one frozen dataclass each: units in names, defaults, and their reasons.

A field is a key of the file without the unit: `keepalive_us` is written `keepalive = "30s"`. Schemas and the table of
defaults in docs/configure.md are made from these.
"""

from __future__ import annotations

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
ROOT_ID: Final = "root"  # the id of the lander and the Spark root unless a file sets another

_ID: Final = Text("a node id", NODE_ID.pattern, "a-z, 0-9 and -, at most 32")
_PATH: Final = Text("a path", longest=1000)
_USER: Final = Text("a user name", longest=64)


def setting(kind: ValueType, default: object = REQUIRED, doc: str = "", why: str = "") -> Any:
    """A field of a settings table. default: the value inside; REQUIRED for none. why: the reason of the default."""
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
    """[node]: who this is. Certificate name, user name, client id and node id are one text."""

    id: str = setting(_ID, doc="id of this node")
    role: str = setting(
        Choice(ROLES, what="role"), "gateway", "gateway, region (merger) or root (lander and Spark root)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The keys that the connections to all three brokers share. Secrets are named by file."""

    broker: str | None = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    user: str | None = setting(_USER, None, "user name")
    password_file: str | None = setting(_PATH, None, "file with the password")
    ca_file: str | None = setting(_PATH, None, "certificates of the authority; left out: the system's")
    cert_file: str | None = setting(_PATH, None, "certificate of this node")
    key_file: str | None = setting(_PATH, None, "key of the certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkTable(LinkTable):
    """[uplink]: the broker and the parent above. Secrets are named by file."""

    broker: str = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    user: str | None = setting(_USER, None, "user name; the node's id where access rules go by %u")
    parent: str = setting(_ID, ROOT_ID, "id of the node that takes the frames", "small trees have no regions")
    parents: tuple[str, ...] = setting(
        ListOf(_ID, most=8),
        (),
        "instead of `parent`: several, the best first; while one is away the next one gets the frames",
        "none of them may be below this node",
    )
    brokers: tuple[tuple[str, str], ...] = setting(
        MapOf(_ID, Url()),
        (),
        "a table: brokers of parents that are not on `broker`; also of a former parent, until it has what waits for it",
    )
    away_us: int = setting(
        Duration(SECOND, DAY),
        120 * SECOND,
        "without a connection to the parent or a receipt from it, before the next of `parents` gets the frames",
        "a restart of a region or a broker is shorter",
    )
    back_us: int = setting(
        Duration(SECOND, DAY),
        300 * SECOND,
        "how long the first of `parents` must have answered before the node returns to it",
        "a parent that comes and goes would move its children each time",
    )
    keepalive_us: int = setting(
        Duration(SECOND, 3600 * SECOND), 30 * SECOND, "MQTT keepalive", "found dead within 60 s"
    )
    spread_us: int | None = setting(
        Duration(0, 3600 * SECOND),
        None,
        "after the broker ended the connection, the node reconnects at a random time within this; left out: 30s with "
        "TLS, else 0s",
        "200 nodes reconnect at 7 a second, and within half of the grace time; 0s for a fleet of a few",
    )
    in_flight: int = setting(
        Number(1, 1000, whole=True), 20, "frames published and not yet acknowledged", "deeper queues measured slower"
    )
    heartbeat_us: int = setting(
        Duration(100 * MS, 3600 * SECOND), SECOND, "between heartbeats of an idle node", "moves time forward for 30 B"
    )

    @property
    def in_order(self) -> tuple[str, ...]:
        """The parents, the best first."""
        return self.parents or (self.parent,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerTable(LinkTable):
    """[lower]: the broker on which a region or the root receives the frames of its children."""

    broker: str | None = setting(Url(), None, "as in [uplink]; left out: a region's own uplink broker")
    members: tuple[str, ...] = setting(
        ListOf(_ID, most=10_000), (), "children that are expected before they announced themselves"
    )
    retired: tuple[str, ...] = setting(ListOf(_ID, most=10_000), (), "nodes that will not come back")
    tiers: int | None = setting(
        Number(1, 8, whole=True),
        None,
        "tiers below; with 1 a region lets each child speak for itself only, without it each that is a gateway by what "
        "it said first; the grace time follows from it, as if it were 1 at a region and 2 at the root",
    )
    grace_us: int | None = setting(
        Duration(100 * MS, 7 * DAY),
        None,
        "silence after which a child is left out; left out: 60s for each tier below",
        "a restart, a broker's restart and two missed heartbeats fit in",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTable(LinkTable):
    """[local]: the broker on which local sensors publish (driver mqtt); client id `<node>-sensors`, MQTT 3.1.1."""

    broker: str = setting(Url(), doc="mqtt://host:port or mqtts://host:port")
    keepalive_us: int = setting(Duration(SECOND, 3600 * SECOND), 30 * SECOND, "MQTT keepalive", "as upward")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTable:
    """[spool]: where open state and frames wait for their receipts."""

    path: str = setting(_PATH, "spool.db", "SQLite file; beside the configuration if relative")
    commit_interval_us: int = setting(
        Duration(50 * MS, 60 * SECOND),
        SECOND,
        "one transaction each",
        "what a power cut may cost; 0.35 GB of flash a day",
    )
    quota_bytes: int = setting(
        ByteSize(10**6),
        256 * 10**6,
        "beyond it the oldest unsent frames are dropped and declared",
        "weeks of a thin line, small beside a card",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTable:
    """[clock]: when the time is known. Until then readings that get their time from the node wait for it."""

    trust: str = setting(
        Choice(("auto", "synced", "always"), what="trust"),
        "auto",
        "auto: a time service (NTP) or the parent confirms the clock; without a service a plausible one counts; "
        "synced: they always must; always: it is right",
        "works at once on any machine, and waits on a board that boots in 1970",
    )
    max_error_us: int = setting(
        Duration(10 * MS, 60 * SECOND),
        2 * SECOND,
        "a parent's time is used if its error is at most this",
        "half a commit of the parent's and a slow line",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsTable:
    """[limits]: how much a node accepts, so that a mistake elsewhere cannot overload it."""

    sensors: int = setting(Number(1, 256, whole=True), 256, "sensors of a node", "the greatest number that is tested")
    queries: int = setting(
        Number(1, 10_000, whole=True), 2000, "queries of a node", "a thousand over one sensor is tested"
    )
    groups: int = setting(
        Number(1, 2000, whole=True),
        500,
        "different sources, filters, labels and latenesses that its queries have",
        "each is sliced separately; all together take a tenth of a second per commit",
    )
    keys: int = setting(
        Number(100, 65_536, whole=True),
        10_000,
        "series (different labels) of one mqtt sensor within half a minute; readings of further ones are counted",
        "each takes 1 kB of memory until it is silent",
    )
    edges_per_second: int = setting(
        Number(1, 10**6, whole=True),
        10_000,
        "window edges a second of all queries; equal windows of one source, filter, labels and lateness count once",
        "slices become rows: more than that is raw data",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTable:
    """[files]: what sensors of published definitions may read. Those of this file may read what they name."""

    folders: tuple[str, ...] = setting(
        ListOf(_PATH, most=64),
        (),
        "folders below which sensors defined by topic may read regular files; beside the configuration if relative",
        "a definition over MQTT must not read what the agent may: keys, other people's files",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanderTable:
    """[lander]: landing files of the top of the tree."""

    folder: str = setting(_PATH, "landing", "where landing files go; beside the configuration if relative")
    flush_interval_us: int = setting(
        Duration(10 * MS, 60 * SECOND), 500 * MS, "a landing file at least", "half a second of staleness for one fsync"
    )
    flush_messages: int = setting(
        Number(1, 10**6, whole=True), 8000, "or that many messages", "keeps one file in memory"
    )
    flush_size_bytes: int = setting(
        ByteSize(10**4, 10**9), 32 * 10**6, "or that many bytes", "keeps one file in memory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootTable:
    """[root]: the Spark job and its Delta tables."""

    tables: str = setting(_PATH, "tables", "folder or URI of the tables; beside the configuration if relative")
    catalog: str | None = setting(
        Text("a catalog", r"[A-Za-z0-9_-]{1,64}", longest=64),
        None,
        "three-part names in that catalog; left out: by path",
    )
    checkpoint: str | None = setting(
        _PATH, None, "used by earlier roots only; `check` and the log of a start warn about it; leave it out"
    )
    trigger_us: int = setting(Duration(0, 3600 * SECOND), SECOND, "between micro-batches", "a batch costs 1 to 2 s")
    revise_every_us: int = setting(
        Duration(0, DAY),
        60 * SECOND,
        "a window is revised at most once in this time",
        "a MERGE costs more than an append",
    )
    horizon_us: int = setting(
        Duration(0, 366 * DAY), 7 * DAY, "later readings go to ops.late, in no result", "a week off line is usual"
    )
    upkeep_us: int = setting(
        Duration(SECOND, 7 * DAY),
        600 * SECOND,
        "between two compactions of a table; rows are deleted once an hour or a day",
        "some hundred small files cost a query little; to merge them takes 3 to 4 s, in which no batch is made",
    )
    keep_versions_us: int = setting(
        Duration(SECOND, 366 * DAY),
        DAY,
        "old versions of the tables: their files and their commits in the log",
        "longer than any reader is under way",
    )
    keep_ops_us: int = setting(
        Duration(SECOND, 3660 * DAY),
        30 * DAY,
        "rows of ops.batches and ops.quarantine, bronze rows without readings; older rows of ops.late and ops.gaps are "
        "added up by node and reason",
        "after a month only totals are of interest",
    )
    keep_results_us: int | None = setting(
        Duration(SECOND, 3660 * DAY),
        None,
        "rows of gold.results since they were written, at least the horizon; left out: for ever",
        "results are the purpose of the tables",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """[log]: lines on standard error."""

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
FOR_ROLE: Final[dict[str, tuple[str, ...]]] = {  # the tables a role has; the first are needed
    "gateway": ("node", "uplink", "local", "spool", "clock", "limits", "files", "log"),
    "region": ("node", "uplink", "lower", "spool", "clock", "log"),
    "root": ("node", "lower", "lander", "root", "log"),
}
