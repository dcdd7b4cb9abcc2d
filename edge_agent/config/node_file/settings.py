"""Reads a node's local file, headwater.toml: identity, connections, spool, limits, sensors and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any, Final, TypeVar

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import BAD, Key, Report, complete, line_of, nearest, read_table
from edge_agent.config.checking.documents import Path, read
from edge_agent.config.checking.durations import format_duration, format_size
from edge_agent.config.checking.value_types import FilePath
from edge_agent.config.definitions.definitions import Definition, read_definition
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.in_force.crosscheck import too_many, warnings
from edge_agent.config.node_file.node_tables import (
    FOR_ROLE,
    SECOND,
    TABLES,
    ClockTable,
    FilesTable,
    LanderTable,
    LimitsTable,
    LinkTable,
    LocalTable,
    LogTable,
    LowerTable,
    NodeTable,
    RootTable,
    SpoolTable,
    UplinkTable,
    is_uri,
    keys_of,
)
from edge_agent.config.topics import KINDS
from edge_agent.errors import ConfigError

DEFAULT_FILE: Final = "headwater.toml"
INIT: Final = "`headwater init` writes one"  # what to do if there is no such file
MOST_READ_BYTES: Final = 100_000_000  # of any file, a recording too
MAX_FILE_BYTES: Final = 1_000_000  # 256 sensors and 2 000 queries fit
GRACE_PER_TIER_US: Final = 60 * SECOND
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of a file. uplink, lower, local: None if the file has no such table.

    definitions: from [sensor.<id>] and [query.<id>]; the registry decides which of them and of those from topics are in
    force. Paths are absolute if `load` read the file.
    """

    node: NodeTable
    uplink: UplinkTable | None = None
    lower: LowerTable | None = None
    local: LocalTable | None = None
    spool: SpoolTable = field(default_factory=SpoolTable)
    clock: ClockTable = field(default_factory=ClockTable)
    limits: LimitsTable = field(default_factory=LimitsTable)
    files: FilesTable = field(default_factory=FilesTable)
    lander: LanderTable = field(default_factory=LanderTable)
    root: RootTable = field(default_factory=RootTable)
    log: LogTable = field(default_factory=LogTable)
    definitions: tuple[Definition, ...] = ()

    @property
    def one_broker(self) -> bool:
        """Whether both sides of a region use one broker, so that one connection serves both."""
        return bool(self.lower and self.uplink and self.lower.broker == self.uplink.broker)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Files with passwords and keys."""
        tables = [table for table in (self.uplink, self.lower, self.local) if table is not None]
        return tuple(path for table in tables for path in (table.password_file, table.key_file) if path is not None)

    @property
    def grace_us(self) -> int:
        """Silence after which a child is excluded, in microseconds."""
        if self.lower is None:
            return GRACE_PER_TIER_US
        tiers = self.lower.tiers or (2 if self.node.role == "root" else 1)
        return self.lower.grace_us if self.lower.grace_us is not None else tiers * GRACE_PER_TIER_US


def load(path: str | File, state: str | File | None = None, payload: bytes | None = None) -> Settings:
    """Read and check a file. state: base of relative paths of files that the node writes; None: the file's folder.

    payload: the content, if it has been read. Raises: ConfigError with every problem, one line each, beginning with the
    file's name.
    """
    if payload is None:
        payload = bytes_of(path, INIT)
    folder = File(path).resolve().parent
    return absolute(parse(payload, str(path)), folder, folder if state is None else File(state))


def bytes_of(path: str | File, missing: str = "", most_bytes: int = MOST_READ_BYTES) -> bytes:
    """The content of a file. missing: what to do if there is no such file. Raises: ConfigError.

    Of a longer file only most_bytes + 1 are read, and refused: /dev/zero has no end.
    """
    if not str(path):
        raise ConfigError('"" is no file; give the name of one')
    try:
        with File(path).open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as err:
        hints = {
            FileNotFoundError: missing,
            IsADirectoryError: "name a file in it",
            PermissionError: "is it readable for this user?",
        }
        hint = hints.get(type(err), "")
        raise ConfigError(f"{path}: {(err.strerror or str(err)).lower()}{hint and f'; {hint}'}") from err
    if len(content) > most_bytes:
        raise ConfigError(f"{path}: more than {format_size(most_bytes)}, which are not read; name another file")
    return content


def parse(payload: bytes | str | Mapping[str, object], name: str = DEFAULT_FILE) -> Settings:
    """Read settings from a text; relative paths stay relative. Raises: ConfigError, NotSupported."""
    try:
        document = read(payload, MAX_FILE_BYTES)
    except ConfigError as err:
        raise ConfigError("\n".join(line_of(p, name) for p in err.problems), err.problems) from err
    report = Report(document)
    settings = read_settings(document.value, report)
    report.finish(name)
    assert isinstance(settings, Settings), "BAD without a problem in the report"
    return settings


def read_settings(value: Mapping[str, object], report: Report, also: tuple[str, ...] = ()) -> Any:
    """Returns Settings, or BAD with problems in the report. also: more names of tables, for hints."""
    for name in value:
        if name not in TABLES and name not in KINDS:
            plural = {f"{kind}s": kind for kind in KINDS} | {"queries": "query", "gateway": "node", "cloud": "root"}
            near = plural.get(name) or nearest(name, (*TABLES, *KINDS, *also))
            report.unknown((), name, (), f"[{near}]" if near else f"tables are {', '.join((*TABLES, *KINDS, *also))}")
    read_tables: dict[str, Any] = {}
    for name, table in TABLES.items():
        if name in value:
            read_tables[name] = _table(table, keys_of(table), value[name], (name,), report)
    if "node" not in value:
        report.wrong((), None, "[node] is missing", 'add [node] with id = "..."')
    role = node.role if isinstance(node := read_tables.get("node"), NodeTable) else None
    _fits_role(role, value, report)
    for name in ("uplink", "lower", "local"):
        if read_tables.get(name) not in {None, BAD}:
            _credentials(read_tables[name], (name,), report)
    if isinstance(uplink := read_tables.get("uplink"), UplinkTable) and isinstance(node, NodeTable):
        _parents(node, uplink, value["uplink"], report)
    found = [
        read_definition(kind, str(item), table, (kind, str(item)), report)
        for kind in KINDS
        for item, table in _items(value.get(kind, {}), kind, report)
    ]
    if role is None or report.problems or not complete(read_tables):
        return BAD
    settings = Settings(**read_tables, definitions=tuple(d for d in found if isinstance(d, Definition)))
    settings = _with_lower(settings)
    _fits_together(settings, report, "local_broker" if "local_broker" in also else "local")
    return settings


def _table(table: type[_T], keys: tuple[Key, ...], value: object, at: Path, report: Report) -> _T | Any:
    if isinstance(value, Mapping) and "password" in value and any(key.name == "password_file" for key in keys):
        report.unknown(at, "password", (), "write the password to a file, and set password_file = ...")
        value = {name: item for name, item in value.items() if name != "password"}
    values = read_table(keys, value, at, report)
    return table(**{key.inside: values[key.name] for key in keys}) if complete(values) else BAD


def _items(value: object, kind: str, report: Report) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    report.wrong((kind,), None, f"wanted tables [{kind}.<id>]", f"[{kind}.boiler]")
    return []


def _fits_role(role: str | None, value: Mapping[str, object], report: Report) -> None:
    if role is None:
        return
    for name in value:
        if name in TABLES and name not in FOR_ROLE[role]:
            roles = " or ".join(r for r, tables in FOR_ROLE.items() if name in tables)
            report.wrong((name,), None, f"a {role} has no [{name}]", f"it is for role {roles}")
        if name in KINDS and role != "gateway":
            report.wrong(
                (name,), None, f"a {role} has no definitions of its own", f"publish them: hw/1/all/cfg/{name}/..."
            )
    needed = {"gateway": "uplink", "region": "uplink", "root": "lower"}[role]
    if needed not in value:
        report.wrong((), None, f"[{needed}] is missing", f'a {role} needs it: [{needed}] with broker = "mqtt://..."')


def _credentials(table: LinkTable, at: Path, report: Report) -> None:
    if table.password_file is not None and table.user is None:
        # the values are not shown: somebody may have written the secret itself
        report.wrong((*at, "password_file"), None, "there is a password without a user", "add user = ...")
    if (table.cert_file is None) != (table.key_file is None):
        said, missing = ("cert_file", "key_file") if table.key_file is None else ("key_file", "cert_file")
        report.wrong((*at, said), None, "certificate and key are only valid together", f"add {missing} = ...")
    secure = (table.broker or "mqtts").startswith("mqtts")
    for name in ("ca_file", "cert_file"):
        if getattr(table, name) is not None and not secure:
            report.wrong((*at, name), getattr(table, name), "the address of the broker is not TLS", "use mqtts://...")


def _parents(node: NodeTable, uplink: UplinkTable, value: object, report: Report) -> None:
    """Checks the parents and their brokers."""
    key = "parents" if uplink.parents else "parent"
    if uplink.parents and isinstance(value, Mapping) and "parent" in value:
        report.wrong(
            ("uplink", "parent"), uplink.parent, "`parents` is given too", "list all in parents, the best first"
        )
    if node.id in uplink.in_order:
        report.wrong(("uplink", key), node.id, "is this node itself", "use the id of the node above")
    first = uplink.in_order[0]
    for name, url in uplink.brokers:
        at = ("uplink", "brokers", name)
        if name == first:
            report.wrong(
                at, url, "is the first parent, which is on `broker`", "write its broker there, and leave this out"
            )
        if (uplink.ca_file or uplink.cert_file) and not url.startswith("mqtts"):
            report.wrong(at, url, "the address of the broker is not TLS, but certificates are given", "use mqtts://...")


def _with_lower(settings: Settings) -> Settings:
    """For a region without a lower broker: the settings with the broker of the uplink as lower broker."""
    lower, uplink = settings.lower, settings.uplink
    if settings.node.role != "region" or uplink is None or (lower is not None and lower.broker is not None):
        return settings
    shared = ("broker", "user", "password_file", "ca_file", "cert_file", "key_file")
    return replace(settings, lower=replace(lower or LowerTable(), **{name: getattr(uplink, name) for name in shared}))


def _fits_together(settings: Settings, report: Report, local: str) -> None:
    """Checks that involve several tables. local: name of the table with the local broker in this file."""
    node, lower = settings.node, settings.lower
    if node.role == "root" and (lower is None or lower.broker is None):
        report.wrong(("lower",), None, '"broker" is missing', 'add broker = "mqtt://..."')
    if lower is not None:
        for name in sorted(set(lower.members) & set(lower.retired)):
            report.wrong(("lower", "retired"), name, "is in members too", "delete it from one")
        for name in sorted(set(lower.members) & set(() if settings.uplink is None else settings.uplink.in_order)):
            why = "is a parent of this node, so it cannot also be its child"
            report.wrong(("lower", "members"), name, why, "delete it from one")
        _grace(settings, report)
    if is_uri(settings.lander.folder):
        why = "is a URI, and landing files are in a folder of the file system"
        report.wrong(("lander", "folder"), settings.lander.folder, why, "mount it, and name the folder")
    root = settings.root
    if root.keep_results_us is not None and root.keep_results_us < root.horizon_us:
        why = "is shorter than the horizon, within which results are revised"
        at_least = format_duration(root.horizon_us)
        report.wrong(("root", "keep_results"), format_duration(root.keep_results_us), why, f"use at least {at_least}")
    for kind in KINDS:
        values = [d.value for d in settings.definitions if d.kind == kind]
        if (problem := too_many(kind, "", values, settings.limits)) is not None:
            report.wrong((kind,), None, problem.why, problem.hint)
    for definition in settings.definitions:
        sensor = definition.value
        if isinstance(sensor, Sensor) and DRIVERS[sensor.driver].local and settings.local is None:
            why = f"driver {sensor.driver} needs a local broker"
            keys = 'broker = "mqtt://127.0.0.1:1883"' if local == "local" else 'password = "..."'
            report.wrong(("sensor", definition.id), None, why, f"add [{local}] with {keys}")


def _grace(settings: Settings, report: Report) -> None:
    """Checks that grace exceeds two heartbeats plus the grace of the tiers below (docs/protocol.md 4.4)."""
    lower = settings.lower
    if lower is None or lower.grace_us is None:
        return
    heartbeat = settings.uplink.heartbeat_us if settings.uplink else SECOND
    tiers = lower.tiers or 1
    least = 2 * heartbeat + (tiers - 1) * GRACE_PER_TIER_US
    if lower.grace_us <= least:
        why = (
            f"not more than {format_duration(least)}: two heartbeats{' and the grace of the tiers below' * (tiers > 1)}"
        )
        report.wrong(("lower", "grace"), format_duration(lower.grace_us), why, "use a longer grace")


def absolute(settings: Settings, folder: File, state: File) -> Settings:
    """The settings with absolute paths. URIs do not change.

    folder: base of relative paths. state: base of relative paths of spool, landing files and tables.
    """

    def under(table: _T, folder: File = folder) -> _T:
        found = {}
        for key in keys_of(type(table)):
            value = getattr(table, key.inside)
            is_path = key.name.endswith("_file") or key.name in {"path", "folder", "tables"}
            if is_path and isinstance(value, str) and not is_uri(value):
                found[key.inside] = str(folder / value)
        return replace(table, **found) if found else table  # type: ignore[type-var]

    connections = {
        name: under(t) for name in ("uplink", "lower", "local") if (t := getattr(settings, name)) is not None
    }
    return replace(
        settings,
        spool=under(settings.spool, state),
        lander=under(settings.lander, state),
        root=under(settings.root, state),
        files=replace(settings.files, folders=tuple(str(folder / each) for each in settings.files.folders)),
        definitions=tuple(_paths_under(folder, d) for d in settings.definitions),
        **connections,
    )


def _paths_under(folder: File, definition: Definition) -> Definition:
    """The definition with absolute paths, if it is a sensor that reads files."""
    sensor = definition.value
    if not isinstance(sensor, Sensor):
        return definition
    paths = {key.inside for key in DRIVERS[sensor.driver].keys if isinstance(key.kind, FilePath)}
    options = tuple((name, str(folder / str(v)) if name in paths else v) for name, v in sensor.options)
    return replace(definition, value=replace(sensor, options=options))


def notes(settings: Settings) -> tuple[str, ...]:
    """Remarks about settings that are valid but probably not intended, one line each."""
    said = []
    sensors = {d.id: d.value for d in settings.definitions if isinstance(d.value, Sensor)}
    for definition in settings.definitions:
        labels = () if isinstance(definition.value, Sensor) else warnings(definition.value, sensors)
        said += [line_of(replace(problem, at=f"query.{definition.id}.{problem.at}")) for problem in labels]
        for source in getattr(definition.value, "sources", ()):
            if source in sensors:
                continue
            near = nearest(source, sensors)
            hint = f"; did you mean {near}?" if near else ""
            said.append(
                f'query "{definition.id}": no sensor "{source}" in this file; it waits until one is published{hint}'
            )
    if settings.root.checkpoint is not None:
        said.append("[root] checkpoint has no effect: the root stores its checkpoint in its tables; delete the key")
    uplink = settings.uplink
    if uplink is not None and uplink.user not in {None, settings.node.id}:
        said.append(f'[uplink] user "{uplink.user}" is not the node id: access rules with %u use the user name')
    if uplink is not None:
        for name, _ in uplink.brokers:
            if name not in uplink.in_order:
                near = nearest(name, uplink.in_order)
                hint = f"; did you mean {near}?" if near else ""
                said.append(f"[uplink.brokers] {name} is not a parent: used only while frames wait for it{hint}")
        brokers = (uplink.broker, *(url for _, url in uplink.brokers))
        if uplink.password_file is not None and any(url.startswith("mqtt://") for url in brokers):
            said.append("[uplink] sends a password without TLS: use mqtts://...")
    return tuple(said)
