"""Messages of a broker as plain dictionaries and as lines of text, for `peek` and `status`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from edge_agent.algebra.frame import HORIZON_US, LOST, NEVER_US, Frame, Gap, GroupPart, Heartbeat, Plan, Section
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.series import Series
from edge_agent.algebra.query.query import Group
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.foreign_json import printable
from edge_agent.errors import WireError
from edge_agent.wire import frames, receipts

MOST_PUBLISHED: Final = 6 * 10**16  # as microseconds: the years 69 to 3871; dates end some millennia later
SHOWN: Final = 4_000  # characters of a line: some screens
SHOWN_BYTES: Final = 48  # bytes shown of a message that cannot be decoded


def clock(us: int | None) -> str | None:
    """Microseconds since 1970 as 2026-11-21T09:00:00.000Z; minus infinity as '-'."""
    if us is None:
        return None
    if us <= NEVER_US:
        return "-"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError):
        return f"{us} us"


@dataclass(slots=True)
class EpochNames:
    """What the numbers in the frames of one epoch stand for, learned from the frames received so far."""

    groups: dict[int, Group] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)

    def learn(self, frame: Frame) -> None:
        if frame.define is not None:
            self.groups.update(frame.define.groups)
            self.plans.update({number: plan for number, _, plan in frame.define.plans})
            first, texts = frame.define.keys
            self.keys.update(enumerate(texts, first))

    def group(self, number: int) -> str:
        """The title of a group; its number while its definition is unknown."""
        group = self.groups.get(number)
        return f"group {number}" if group is None else title(group)


def title(group: Group) -> str:
    """The title of a group: boiler[site,unit] where value > 0; of local windows: boiler of press-1."""
    return (
        group.source
        + (f" of {group.node}" if group.node else "")
        + (f"[{','.join(group.by)}]" if group.by else "")
        + (f" where {group.where}" if group.where else "")
    )


class MessageRenderer:
    """Renders messages. Names replace the numbers in frames once a frame with their definition was rendered."""

    def __init__(self, *, rows: bool = False) -> None:
        """rows: render every row of partials as well."""
        self._rows = rows
        self._names: dict[tuple[str, int], EpochNames] = {}

    def render(self, topic: str, payload: bytes) -> dict[str, Any]:
        """A message as plain values. `kind` is its type; for 'bad' messages there are `why` and the first bytes.

        All texts are printable, so that nothing in a message controls the terminal or looks like a line of its own.
        """
        return {name: _printable(value) for name, value in self._fields(topic, payload).items()}

    def _fields(self, topic: str, payload: bytes) -> dict[str, Any]:
        parsed = topics.parse(topic)
        if parsed is None:
            return {"kind": "foreign", "topic": printable(topic), "bytes": len(payload), "text": text_of(payload)}
        fields: dict[str, Any] = {"kind": parsed.what, "node": parsed.node, "bytes": len(payload)}
        try:
            match parsed.what:
                case "frame":
                    fields["to"] = parsed.other
                    self._frame(fields, payload)
                case "ack":
                    fields["kind"] = "receipt"
                    _receipt(fields, payload)
                case "definition":
                    fields |= {"scope": parsed.scope, "item": f"{parsed.kind}/{parsed.other}", "text": text_of(payload)}
                case "status" | "state" | "books" | "answer":
                    if parsed.other:
                        fields["item"] = parsed.other
                    fields["content"] = json_of(payload)
                case _:
                    fields["text"] = text_of(payload)
        except WireError as err:
            fields |= {"kind": "bad", "why": str(err), "hex": payload[:SHOWN_BYTES].hex()}
        return fields

    def _frame(self, fields: dict[str, Any], payload: bytes) -> None:
        envelope = frames.envelope(payload)
        fields |= {"epoch": f"{envelope.epoch:08x}", "seq": envelope.seq}
        message = frames.decode_body(envelope)
        names = self._names.setdefault((fields["node"], envelope.epoch), EpochNames())
        if isinstance(message, Heartbeat):
            fields["kind"] = "heartbeat"
            fields["last_seq"] = message.last_seq
            fields["frontiers"] = {names.group(number): clock(at) for number, at in message.frontiers}
            return
        names.learn(message)
        if message.birth is not None:
            before = message.birth.predecessor
            fields["birth"] = {
                "version": message.birth.version,
                "journal": f"{message.birth.journal:016x}",
                "predecessor": f"{before[0]:08x}/{before[1]}" if isinstance(before, tuple) else before and LOST,
            }
        if message.flush is not None:
            fields["flush"] = message.flush.after
            if message.flush.successor is not None:
                fields["successor"] = f"{message.flush.successor:08x}"
        if message.leave is not None:
            fields["leave"] = f"{message.leave:08x}"
        for members in message.members:
            fields.setdefault("members", {})[names.group(members.group)] = [leaf.node for leaf in members.leaves]
        if message.groups:
            fields["groups"] = [self._part(part, names) for part in message.groups]
        if message.gaps:
            fields["gaps"] = [gap_of(gap) for gap in message.gaps]

    def _part(self, part: GroupPart, names: EpochNames) -> dict[str, Any]:
        fields: dict[str, Any] = {"group": names.group(part.group), "frontier": clock(part.frontier_us)}
        for word, sections in (("rows", part.sections), ("late", part.late)):
            if sections:
                fields[word] = sum(len(section.partials) for section in sections)
        if part.exceptions or part.more:
            excepted = (*(part.exceptions or ()), *part.more)
            fields["left_out"] = {left.node: clock(left.frontier_us) for left in excepted}
        if part.ended:
            fields["counted_again"] = list(part.ended)
        if part.registers:
            fields["registers"] = len(part.registers)
        if self._rows:
            try:
                fields["partials"] = [
                    row for section in (*part.sections, *part.late) for row in rows_of(section, names)
                ]
            except WireError as err:
                fields["partials"] = [{"bad": str(err)}]
        return fields


def rows_of(section: Section, names: EpochNames) -> list[dict[str, Any]]:
    """Each row of a section; columns by name if the plan is known, else by position."""
    plan = names.plans.get(section.plan)
    rows = (section if plan is None else section.named(plan)).partials
    columns = {name: column.tolist() for name, column in rows.states.items()}
    return [
        {
            "start": clock(start),
            "end": clock(end),
            "key": names.keys.get(key, key),
            **{name: _cell(values[at]) for name, values in columns.items()},
        }
        for at, (start, end, key) in enumerate(
            zip(rows.start.tolist(), rows.end.tolist(), rows.key.tolist(), strict=True)
        )
    ]


def _cell(value: object) -> object:
    """A cell of a state column as a JSON value: values with counts, readings with times, a sketch as its first bytes.

    The nodes of readings are numbers of the epoch.
    """
    match value:
        case Multiset():
            return {"values": value.values.tolist(), "counts": value.counts.tolist()}
        case Series():
            times = [clock(us) for us in value.time_us.tolist()]
            return {"times": times, "values": value.value.tolist(), "nodes": value.node.tolist()}
        case bytes():
            return _hex(value)
    return value


def gap_of(gap: Gap) -> dict[str, Any]:
    """A declared loss as plain values."""
    return {
        "reason": gap.reason,
        "start": clock(gap.start_us),
        "end": clock(gap.end_us),
        "readings": gap.readings,
        "nodes": list(gap.nodes),
        "groups": [title(group) for group in gap.groups],
    }


def _receipt(fields: dict[str, Any], payload: bytes) -> None:
    receipt = receipts.decode(payload)
    fields |= {"epoch": f"{receipt.epoch:08x}", "journal": f"{receipt.journal:016x}", "upto": receipt.upto}
    if receipt.above:
        fields["above"] = [list(pair) for pair in receipt.above]
    if receipt.quarantined:
        fields["quarantined"] = list(receipt.quarantined)
    if receipt.horizon_us != HORIZON_US:
        fields["horizon_us"] = receipt.horizon_us


def text_of(payload: bytes) -> str:
    """A payload as text, or as hex if it is not UTF-8. Control characters become blanks."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return _hex(payload)
    return " ".join(printable(text).split())


def _hex(payload: bytes) -> str:
    return payload[:SHOWN_BYTES].hex() + ("…" if len(payload) > SHOWN_BYTES else "")


def json_of(payload: bytes) -> object:
    """A payload as a JSON value, or as text if it is not JSON that is read from a network. All texts are printable."""
    try:
        return _printable(foreign_json.parse(payload))
    except ValueError:
        return text_of(payload)


def published(value: object) -> int | None:
    """An integer that a node may have published, also one in microseconds since 1970. None: something else."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= MOST_PUBLISHED:
        return None
    return value


def _printable(value: object) -> object:
    """A value with printable texts and names. Its depth is bounded by the parser, or by the fields of a frame."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(name)): _printable(each) for name, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


def listed(names: list[str], most: int) -> str:
    """The first `most` names and the number of the others: a, b, c and 4 more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def shortened(text: str) -> str:
    """A line for a terminal: its begin, and how to see the rest."""
    left = len(text) - SHOWN
    return text if left <= 0 else f"{text[:SHOWN]} … {left} more characters; --json prints them all"


def line(fields: dict[str, Any]) -> str:
    """A rendered message as one line: node, kind, size and content."""
    kind, node = fields["kind"], fields.get("node", "")
    head = f"{node or 'all':16} {kind:10} "
    match kind:
        case "foreign":
            return f"{'?':16} {kind:10} {fields['topic']}: {fields['text']}"
        case "bad":
            return f"{head}{fields['bytes']} B: {fields['why']} ({fields['hex']})"
        case "frame":
            return (
                head
                + f"{fields['epoch']}/{fields['seq']} to {fields['to']}, {fields['bytes']} B; "
                + "; ".join(_contents(fields))
            )
        case "heartbeat":
            frontiers = ", ".join(f"{group} at {at}" for group, at in fields["frontiers"].items())
            more = f"; {frontiers}" if frontiers else ""
            return head + f"{fields['epoch']} after {fields['last_seq']}, {fields['bytes']} B{more}"
        case "receipt":
            above = f", and {fields['above']}" if "above" in fields else ""
            bad = f", quarantined {fields['quarantined']}" if "quarantined" in fields else ""
            return head + f"{fields['epoch']} all below {fields['upto']}{above}{bad}"
        case "definition":
            return head + f"{fields['item']} = {fields['text'] or '(removed)'}"
        case "cmd":
            return f"{head}{fields['text']}"
    content = fields["content"]
    item = f"{fields['item']} = " if "item" in fields else ""
    return head + item + (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


def _contents(fields: dict[str, Any]) -> list[str]:
    """The content of a frame, part by part."""
    parts: list[str] = []
    if "birth" in fields:
        parts.append(f"birth of {fields['birth']['version']} after {fields['birth']['predecessor'] or 'nothing'}")
    if "flush" in fields:
        then = f", then epoch {fields['successor']}" if "successor" in fields else ""
        parts.append(f"flush after {fields['flush']}{then}")
    for group, leaves in fields.get("members", {}).items():
        parts.append(f"{group} serves {len(leaves)} leaves")
    for part in fields.get("groups", ()):
        text = f"{part['group']}: {part.get('rows', 0)} rows"
        if "late" in part:
            text += f", {part['late']} late"
        if part["frontier"]:
            text += f", up to {part['frontier']}"
        if "left_out" in part:
            text += f", without {', '.join(part['left_out'])}"
        parts.append(text)
        parts.extend(f"  {json.dumps(row, ensure_ascii=False)}" for row in part.get("partials", ()))
    parts += [f"LOST {gap['start']} to {gap['end']}: {gap['reason']}" for gap in fields.get("gaps", ())]
    return parts or ["empty"]
