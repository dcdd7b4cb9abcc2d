"""`headwater check`: list every mistake of settings, sensors and queries, with its place and what to do."""

from __future__ import annotations

import argparse
import json
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import line_of
from edge_agent.config.checking.documents import read
from edge_agent.config.checking.durations import format_duration
from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.definitions.definitions import Definition, parse_definition_file
from edge_agent.config.in_force.crosscheck import over_horizon
from edge_agent.config.in_force.unserved_report import unserved
from edge_agent.config.node_file.node_tables import TABLES, UplinkTable, keys_of
from edge_agent.config.node_file.settings import DEFAULT_FILE, INIT, MAX_FILE_BYTES, Settings, bytes_of, load, notes
from edge_agent.config.topics import KINDS
from edge_agent.errors import ConfigError, NotSupported, PortError, Problem
from edge_agent.ports.mqtt.dial import read_password
from edge_agent.ports.sensors.file_access import paths_of

HELP = "Read files and list every mistake with its place, the nearest valid name and what to do. Changes nothing."
EXAMPLES = """\
  headwater check                         # headwater.toml here
  headwater check --connect press-1.toml  # also check that its files exist and its brokers answer
  headwater check boiler.json             # a sensor or a query, before it is published
  headwater check root.toml region-1.toml press-1.toml  # also what concerns several: horizon, grace, circles
  headwater check --json *.toml

exit codes: 0 no mistake; 1 no mistake, but a file or broker is missing (--connect); 2 mistakes; 3 not supported yet
"""
_NO_NAME = '""'  # shown for a name that is empty
NO_REGULAR = "is not a file"
CONNECT_S = 3.0  # a broker that takes longer to accept a connection is reported


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one file. code: exit code. lines: mistakes as text. settings, content: of a file that can be used.

    settings: None for a sensor or a query.
    """

    file: str
    kind: str
    code: int
    about: str
    lines: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()
    settings: Settings | None = None
    content: bytes = b""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", default=[DEFAULT_FILE], metavar="FILE", help=f"default {DEFAULT_FILE}")
    parser.add_argument(
        "--as", dest="kind", choices=("settings", *KINDS), help="what the files are (default: by content)"
    )
    parser.add_argument("--connect", action="store_true", help="also check that files exist and brokers answer")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def main(args: argparse.Namespace) -> int:
    """Check every file. Returns the exit code of the worst."""
    verdicts = _together([_check(file, args.kind, args.connect) for file in args.files])
    if args.json:
        print(json.dumps([_as_json(v) for v in verdicts], indent=2, ensure_ascii=False))
    else:
        for verdict in verdicts:
            for line in verdict.lines:
                print(printable(line), file=sys.stderr)
            print(
                printable(f"{verdict.file or _NO_NAME}: {verdict.about}"),
                file=sys.stderr if verdict.code else sys.stdout,
            )
            for note in verdict.notes:
                print(printable(f"{verdict.file}: note: {note}"), file=sys.stderr)
    codes = {verdict.code for verdict in verdicts}
    return next((code for code in (2, 3, 1) if code in codes), 0)


def _check(file: str, kind: str | None, connect: bool) -> Verdict:
    given, kind = kind, kind or "settings"
    content = b""
    try:
        content = bytes_of(file, "" if given in KINDS else INIT)  # once: a pipe has nothing left afterwards
        kind = given or _kind_of(file, content)
        if kind in KINDS:
            definition = parse_definition_file(kind, file, content)
            about = f"a {kind} named {definition.id}, all right"
            return Verdict(file, kind, 0, about, definitions=(definition,), content=content)
        settings = load(file, payload=content)
    except NotSupported as err:
        return Verdict(file, kind, 3, "not supported by this version", tuple(str(err).splitlines()), err.problems)
    except ConfigError as err:
        lines = tuple(str(err).splitlines())
        return Verdict(file, kind, 2, _many(len(lines), "mistake"), lines, err.problems)
    verdict = Verdict(file, kind, 0, _about(settings), (), (), notes(settings), settings.definitions, settings, content)
    problems, many = unserved(settings)
    if many:
        return replace(_wrong(verdict, problems), about=_many(many, "mistake"))
    if connect and (missing := tuple(_missing(settings))):
        return replace(verdict, code=1, about="no mistake, but a file or broker is missing", lines=missing)
    return verdict


def _together(verdicts: list[Verdict]) -> list[Verdict]:
    """Add mistakes that concern several files: a gap longer than the root's horizon, a grace that is too short, and
    parents in a circle.
    """
    every = [v.settings for v in verdicts if v.settings is not None]
    horizon_us = min((each.root.horizon_us for each in every if each.node.role == "root"), default=None)
    found = verdicts if horizon_us is None else [_within(verdict, horizon_us) for verdict in verdicts]
    parents = {each.node.id: each.uplink.in_order for each in every if each.uplink is not None}
    return [_patient(_upward(verdict, parents), every) for verdict in found]


def _upward(verdict: Verdict, parents: Mapping[str, Sequence[str]]) -> Verdict:
    """Add a mistake if a parent of a node is below it (docs/protocol.md 1.5). parents: of all nodes, by their ids."""
    own = verdict.settings
    if own is None or own.uplink is None or own.lower is None or verdict.code == 2:
        return verdict
    name = own.node.id
    ways: list[tuple[str, ...]] = [(name, first) for first in own.uplink.in_order]
    seen = set(own.uplink.in_order)
    for way in ways:  # the shortest first; longer ones are added meanwhile
        if way[-1] == name:
            at = "uplink.parents" if own.uplink.parents else "uplink.parent"
            why = f"frames would go in a circle and never reach the root: {' to '.join(way)}"
            return _wrong(verdict, [Problem(at, way[1], why, "remove a parent that is below this node")])
        more = [each for each in parents.get(way[-1], ()) if each not in seen]
        seen.update(more)
        ways += [(*way, each) for each in more]
    return verdict


def _patient(verdict: Verdict, every: Sequence[Settings]) -> Verdict:
    """Add a mistake if a node would exclude a child that may be silent longer (docs/protocol.md 4.4)."""
    parent = verdict.settings
    if parent is None or parent.lower is None or verdict.code == 2:
        return verdict
    below = ((_silence_us(child), child.node.id) for child in every if _is_below(child, parent))
    least_us, name = max(below, default=(0, ""))
    if parent.grace_us > least_us:
        return verdict
    why = f"not more than {format_duration(least_us)}, for which {name} may be silent"
    grace = format_duration(parent.grace_us)
    return _wrong(verdict, [Problem("lower.grace", grace, why, "use a longer grace")])


def _is_below(child: Settings, parent: Settings) -> bool:
    return child.uplink is not None and parent.node.id in child.uplink.in_order and child.node.id != parent.node.id


def _silence_us(child: Settings) -> int:
    """How long nothing new may come from a child in order: two heartbeats and its own grace, or delay of a sensor."""
    heartbeat_us = child.uplink.heartbeat_us if child.uplink is not None else 0
    delays_us = [each.value.delay_us for each in child.definitions if isinstance(each.value, Sensor)]
    return 2 * heartbeat_us + (child.grace_us if child.lower is not None else max(delays_us, default=0))


def _within(verdict: Verdict, horizon_us: int) -> Verdict:
    inner = verdict.kind == "settings"
    found = [(d, why) for d in verdict.definitions if (why := over_horizon(d.value, horizon_us)) is not None]
    problems = [replace(why, at=f"{d.kind}.{d.id}.{why.at}") if inner else why for d, why in found]
    return _wrong(verdict, problems) if problems else verdict


def _wrong(verdict: Verdict, problems: Sequence[Problem]) -> Verdict:
    """Add mistakes to a verdict, with their line numbers in the file."""
    document = read(verdict.content, MAX_FILE_BYTES)
    placed = [replace(each, line=document.line(tuple(each.at.split(".")))) for each in problems]
    lines = (*verdict.lines, *(line_of(each, verdict.file) for each in placed))
    about = _many(len(lines), "mistake")
    return replace(verdict, code=2, about=about, lines=lines, problems=(*verdict.problems, *placed))


def _kind_of(file: str, content: bytes) -> str:
    """The kind of a file, from its content: 'settings', 'sensor' or 'query'."""
    try:
        table = read(content, MAX_FILE_BYTES).value
    except ConfigError:
        return "settings"  # `load` reports the mistakes
    if "streams" in table:
        raise ConfigError(f"{file} is a recording, not a configuration; run it with: headwater replay {file}")
    if any(name in table for name in (*TABLES, *KINDS)):
        return "settings"
    return "sensor" if "driver" in table else "query" if {"window", "source", "aggregates"} & set(table) else "settings"


def _about(settings: Settings) -> str:
    node, uplink = settings.node, settings.uplink
    above = f" below {' or '.join(uplink.in_order)} at {uplink.broker}" if uplink is not None else ""
    counts = {kind: sum(d.kind == kind for d in settings.definitions) for kind in KINDS}
    has = f", {_many(counts['sensor'], 'sensor')}, {_many(counts['query'], 'query')}" if node.role == "gateway" else ""
    return f"{node.role} {node.id}{above}{has}, all right"


def _missing(settings: Settings) -> Iterator[str]:
    """One line per file that does not exist and per broker that does not accept a connection."""
    for name in ("uplink", "lower", "local"):
        table = getattr(settings, name)
        if table is None:
            continue
        for key in keys_of(type(table)):
            value = getattr(table, key.inside)
            if not key.name.endswith("_file") or value is None:
                continue
            if why := _no_file(Path(value)) or (key.name == "password_file" and _no_password(Path(value))):
                yield f"[{name}] {key.name}: {value} {why}"
        if table.broker is not None and (why := _unreachable(table.broker)):
            yield f"[{name}] broker {table.broker}: {why}"
        for parent, url in table.brokers if isinstance(table, UplinkTable) else ():
            if why := _unreachable(url):
                yield f"[{name}.brokers] {parent} {url}: {why}"
    for definition in settings.definitions:
        for path in sorted(paths_of([definition.value])) if isinstance(definition.value, Sensor) else ():
            if (why := _no_file(Path(path))) and why != NO_REGULAR:  # a driver of a package may read a device
                yield f'sensor "{definition.id}": {path} {why}'


def _no_file(path: Path) -> str:
    """Why a path is not a file; '' if it is one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as err:
        return f"cannot be read: {(err.strerror or str(err)).lower()}"
    return "" if stat.S_ISREG(mode) else "is a directory, not a file" if stat.S_ISDIR(mode) else NO_REGULAR


def _no_password(path: Path) -> str:
    """Why a file cannot be used as a password; '' if it can."""
    try:
        read_password(path)
    except PortError as err:
        return f"cannot be used: {str(err).removeprefix(f'{path}: ')}"
    return ""


def _unreachable(broker: str) -> str:
    url = urlsplit(broker)
    try:
        socket.create_connection((url.hostname or "", url.port or 1883), timeout=CONNECT_S).close()
    except OSError as err:
        return f"{(err.strerror or str(err)).lower()}; check that it runs and that the port is open"
    return ""


def _as_json(verdict: Verdict) -> dict[str, Any]:
    problems = [{**asdict(p), "text": line_of(p, verdict.file)} for p in verdict.problems]
    if not problems:
        problems = [{**asdict(Problem("", None, line)), "text": line} for line in verdict.lines]
    result = {"file": verdict.file, "kind": verdict.kind, "ok": verdict.code == 0, "about": verdict.about}
    return {**result, "problems": problems, "notes": list(verdict.notes)}


def _many(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
