"""What passes a broker, told: a message becomes a plain dictionary, and that a line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from edge_agent.algebra.frame import HORIZON_US, LOST, NEVER_US, Frame, Gap, GroupPart, Heartbeat, Plan, Section
from edge_agent.algebra.query.query import Group
from edge_agent.config import topics
from edge_agent.errors import WireError
from edge_agent.wire import frames, receipts

Told = dict[str, Any]
SHOWN_BYTES: Final = 48  # of what nobody could read


def clock(us: int | None) -> str | None:
    """2026-11-21T09:00:00.000Z; minus infinity is '-'."""
    if us is None:
        return None
    if us <= NEVER_US:
        return "-"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError):
        return f"{us} us"


@dataclass(slots=True)
class HeardNumbers:
    """What the numbers of one epoch mean, as far as it was heard."""

    groups: dict[int, Group] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)

    def learn(self, frame: Frame) -> None:
        """Take in a frame's definitions."""
        if frame.define is not None:
            self.groups.update(frame.define.groups)
            self.plans.update({number: plan for number, _, plan in frame.define.plans})
            first, texts = frame.define.keys
            self.keys.update(enumerate(texts, first))

    def group(self, number: int) -> str:
        """How a group is called: its source and key, or its number where its definition was not heard."""
        group = self.groups.get(number)
        return f"group {number}" if group is None else title(group)


def title(group: Group) -> str:
    """boiler[site,unit] where value > 0; of a gateway's own windows: boiler of press-1."""
    return (
        group.source
        + (f" of {group.node}" if group.node else "")
        + (f"[{','.join(group.by)}]" if group.by else "")
        + (f" where {group.where}" if group.where else "")
    )


class MessageRenderer:
    """Tells messages, with what it has heard so far."""

    def __init__(self, *, rows: bool = False) -> None:
        """rows: tell every row of partials as well."""
        self._rows = rows
        self._names: dict[tuple[str, int], HeardNumbers] = {}

    def tell(self, topic: str, payload: bytes) -> Told:
        """A message as plain values. `kind` says what it is; 'bad' comes with the reason and the first bytes."""
        parsed = topics.parse(topic)
        if parsed is None:
            return {"kind": "foreign", "topic": topic, "bytes": len(payload), "text": text_of(payload)}
        told: Told = {"kind": parsed.what, "node": parsed.node, "bytes": len(payload)}
        match parsed.what:
            case "frame":
                told["to"] = parsed.other
                self._frame(told, payload)
            case "ack":
                _receipt(told, payload)
            case "definition":
                told |= {"scope": parsed.scope, "item": f"{parsed.kind}/{parsed.other}", "text": text_of(payload)}
            case "status" | "state" | "live" | "answer":
                if parsed.other:
                    told["item"] = parsed.other
                told["content"] = json_of(payload)
            case _:
                told["text"] = text_of(payload)
        return told

    def _frame(self, told: Told, payload: bytes) -> None:
        try:
            envelope = frames.envelope(payload)
            told |= {"epoch": f"{envelope.epoch:08x}", "seq": envelope.seq}
            message = frames.decode_body(envelope)
        except WireError as err:
            told |= {"kind": "bad", "why": str(err), "hex": payload[:SHOWN_BYTES].hex()}
            return
        names = self._names.setdefault((told["node"], envelope.epoch), HeardNumbers())
        if isinstance(message, Heartbeat):
            told["kind"] = "heartbeat"
            told["last_seq"] = message.last_seq
            told["frontiers"] = {names.group(number): clock(at) for number, at in message.frontiers}
            return
        names.learn(message)
        if message.birth is not None:
            before = message.birth.predecessor
            told["birth"] = {
                "version": message.birth.version,
                "journal": f"{message.birth.journal:016x}",
                "predecessor": f"{before[0]:08x}/{before[1]}" if isinstance(before, tuple) else before and LOST,
            }
        if message.flush is not None:
            told["flush"] = message.flush
        if message.leave is not None:
            told["leave"] = f"{message.leave:08x}"
        for members in message.members:
            told.setdefault("members", {})[names.group(members.group)] = [leaf.node for leaf in members.leaves]
        if message.groups:
            told["groups"] = [self._part(part, names) for part in message.groups]
        if message.gaps:
            told["gaps"] = [gap_of(gap) for gap in message.gaps]

    def _part(self, part: GroupPart, names: HeardNumbers) -> Told:
        told: Told = {"group": names.group(part.group), "frontier": clock(part.frontier_us)}
        for word, sections in (("rows", part.sections), ("late", part.late)):
            if sections:
                told[word] = sum(len(section.partials) for section in sections)
        if part.exceptions:
            told["left_out"] = {left.node: clock(left.frontier_us) for left in part.exceptions}
        if part.registers:
            told["registers"] = len(part.registers)
        if self._rows:
            try:
                told["partials"] = [row for section in (*part.sections, *part.late) for row in rows_of(section, names)]
            except WireError as err:
                told["partials"] = [{"bad": str(err)}]
        return told


def rows_of(section: Section, names: HeardNumbers) -> list[Told]:
    """Each row of a section; columns by name where the plan was heard, else by position."""
    plan = names.plans.get(section.plan)
    rows = (section if plan is None else section.named(plan)).partials
    columns = {name: column.tolist() for name, column in rows.states.items()}
    return [
        {
            "start": clock(start),
            "end": clock(end),
            "key": names.keys.get(key, key),
            **{name: values[at] for name, values in columns.items()},
        }
        for at, (start, end, key) in enumerate(
            zip(rows.start.tolist(), rows.end.tolist(), rows.key.tolist(), strict=True)
        )
    ]


def gap_of(gap: Gap) -> Told:
    """A declared loss."""
    return {
        "reason": gap.reason,
        "start": clock(gap.start_us),
        "end": clock(gap.end_us),
        "readings": gap.readings,
        "nodes": list(gap.nodes),
        "groups": [title(group) for group in gap.groups],
    }


def _receipt(told: Told, payload: bytes) -> None:
    told["kind"] = "receipt"
    try:
        receipt = receipts.decode(payload)
    except WireError as err:
        told |= {"kind": "bad", "why": str(err), "hex": payload[:SHOWN_BYTES].hex()}
        return
    told |= {"epoch": f"{receipt.epoch:08x}", "journal": f"{receipt.journal:016x}", "upto": receipt.upto}
    if receipt.above:
        told["above"] = [list(pair) for pair in receipt.above]
    if receipt.quarantined:
        told["quarantined"] = list(receipt.quarantined)
    if receipt.horizon_us != HORIZON_US:
        told["horizon_us"] = receipt.horizon_us


def text_of(payload: bytes) -> str:
    """As text where it is text, else as hex; control characters cannot reach the terminal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return payload[:SHOWN_BYTES].hex() + ("…" if len(payload) > SHOWN_BYTES else "")
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def json_of(payload: bytes) -> object:
    """As JSON, or as text where it is none."""
    try:
        return json.loads(payload)
    except ValueError:
        return text_of(payload)


def line(told: Told) -> str:
    """One line for a person: who, what, how large, and what is in it."""
    kind, node = told["kind"], told.get("node", "")
    head = f"{node or 'all':16} {kind:10} "
    match kind:
        case "foreign":
            return f"{'?':16} {kind:10} {told['topic']}: {told['text']}"
        case "bad":
            return f"{head}{told['bytes']} B: {told['why']} ({told['hex']})"
        case "frame":
            return (
                head
                + f"{told['epoch']}/{told['seq']} to {told['to']}, {told['bytes']} B; "
                + "; ".join(_contents(told))
            )
        case "heartbeat":
            frontiers = ", ".join(f"{group} at {at}" for group, at in told["frontiers"].items())
            return head + f"{told['epoch']} after {told['last_seq']}, {told['bytes']} B; {frontiers}"
        case "receipt":
            above = f", and {told['above']}" if "above" in told else ""
            bad = f", quarantined {told['quarantined']}" if "quarantined" in told else ""
            return head + f"{told['epoch']} all below {told['upto']}{above}{bad}"
        case "definition":
            return head + f"{told['item']} = {told['text'] or '(removed)'}"
        case "cmd":
            return f"{head}{told['text']}"
    content = told["content"]
    item = f"{told['item']} = " if "item" in told else ""
    return head + item + (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


def _contents(told: Told) -> list[str]:
    """What is in a frame, part by part."""
    parts: list[str] = []
    if "birth" in told:
        parts.append(f"birth of {told['birth']['version']} after {told['birth']['predecessor'] or 'nothing'}")
    if "flush" in told:
        parts.append(f"flush after {told['flush']}")
    for group, leaves in told.get("members", {}).items():
        parts.append(f"{group} serves {len(leaves)} leaves")
    for part in told.get("groups", ()):
        text = f"{part['group']}: {part.get('rows', 0)} rows"
        if "late" in part:
            text += f", {part['late']} late"
        if part["frontier"]:
            text += f", up to {part['frontier']}"
        if "left_out" in part:
            text += f", without {', '.join(part['left_out'])}"
        parts.append(text)
        parts.extend(f"  {json.dumps(row, ensure_ascii=False)}" for row in part.get("partials", ()))
    parts += [f"LOST {gap['start']} to {gap['end']}: {gap['reason']}" for gap in told.get("gaps", ())]
    return parts or ["empty"]
