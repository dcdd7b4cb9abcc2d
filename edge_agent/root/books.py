"""Checks whether the books balance: no reading is lost without a record, and none counts twice. Pure.

Rule (docs/protocol.md 9.1): produced = stored + pending + declared lost + late + quarantined, checked node by node and
link by link from the book that every node publishes and from the root's tables. A reading that several groups ask for
counts once in each; a reading that travels in several whole windows counts once in each of these.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

ROOT: Final = "root"
SHOWN: Final = 5  # at most so many former parents are named of a node
LINE_FIELDS: Final = (3, 4)  # of a child in a book, see Line: the last one may be missing


@dataclass(frozen=True, slots=True)
class Line:
    """The frames that a parent applied from one child.

    epoch: the epoch in force. next: its next seq. readings (None: not known) and refused (frames that had no effect)
    count over the unbroken line of epochs up to this one.
    """

    epoch: int
    next: int
    readings: int | None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class NodeBook:
    """The book that one node published. book: as `Gateway.book` or `Merger.book`, with `refused` readings at a gateway.

    late_word: the node does not answer and was not stopped in order, so it may have sent more since. believed: whether
    another node names it as its parent. Its lines about children that name another parent accuse these only then,
    because a gateway could pose as a merger. retired: nodes that configuration retires there, as far as it says so.
    """

    node: str
    parent: str
    book: Mapping[str, Any]
    late_word: bool = False
    believed: bool = True
    retired: frozenset[str] = frozenset()

    @property
    def leaf(self) -> bool:
        """Whether the node is a gateway."""
        return "taken" in self.book

    def number(self, name: str) -> int:
        """A number of the book; 0 if it is missing."""
        found = self.book.get(name, 0)
        return found if isinstance(found, int) else 0

    @property
    def produced(self) -> int:
        """Readings produced at a gateway: those that a query uses, refused values, and those that never got a time."""
        taken = self.number("taken") + self.number("added") - self.number("outside")
        return taken + self.number("refused") + self.number("undated")

    @property
    def lines(self) -> dict[str, Line]:
        """Child -> frames that this merger applied from it. Only of a `readable` book."""
        return {child: Line(*line) for child, line in self.book.get("children", {}).items()}

    @property
    def readable(self) -> bool:
        """Whether the book is that of a node. A node may publish anything; it must not end the audit of the others."""
        children, off = self.book.get("children", {}), self.book.get("off") or {}
        lines = list(children.values()) if isinstance(children, Mapping) else [None]
        right = all(isinstance(line, (list, tuple)) and len(line) in LINE_FIELDS and _integers(line) for line in lines)
        right = right and isinstance(self.book.get("parents", {}), Mapping)
        return right and isinstance(off, (Mapping, list, tuple)) and all(isinstance(name, str) for name in off)


@dataclass(frozen=True, slots=True)
class RootBook:
    """The root's book, from its tables.

    lines: child -> frames that the root applied from it. applied: child -> readings that the decisions applied; None:
    not counted from the beginning. stored: child -> readings in rows of bronze.messages that took effect. doubled: rows
    that occur twice there. uncounted: rows written by a version that did not count readings. late: readings in
    ops.late. unknown: reason -> number of gap records of unknown size. retired: nodes that configuration retires there.
    """

    name: str = ROOT
    lines: Mapping[str, Line] = field(default_factory=dict)
    applied: Mapping[str, int] | None = None
    stored: Mapping[str, int] = field(default_factory=dict)
    doubled: tuple[str, ...] = ()
    uncounted: int = 0
    late: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()


@dataclass(slots=True)
class Audit:
    """The result of the audit.

    off: one text per imbalance: where, and by how much. unheard: nodes without a book, or only with an old one.
    unknown: nodes and links that cannot be checked, because a number is missing. pending: node -> readings that are
    open at the node or on the way to its parent. former: readings known only from the parent's book, such as those of a
    lost spool.
    """

    root: RootBook
    nodes: tuple[NodeBook, ...]
    off: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    pending: dict[str, int] = field(default_factory=dict)
    former: int = 0

    @property
    def produced(self) -> int:
        return self.former + sum(node.produced for node in self.nodes if node.leaf)

    @property
    def stored(self) -> int:
        """Readings in rows that took effect, without those in ops.late."""
        return sum(self.root.stored.values()) - self.root.late

    @property
    def lost(self) -> int:
        """Readings declared lost, where their number is known."""
        return sum(node.number("lost") for node in self.nodes)

    @property
    def late(self) -> int:
        """Readings in ops.late, or dropped at the gateway by `late = "drop"` or "per_window"."""
        return self.root.late + sum(node.number("dropped") for node in self.nodes if node.leaf)

    @property
    def quarantined(self) -> int:
        """Readings refused by a sensor, or without a time."""
        return sum(node.number("refused") + node.number("undated") for node in self.nodes if node.leaf)

    @property
    def rest(self) -> int:
        """Produced - (stored + pending + lost + late + quarantined)."""
        return self.produced - (self.stored + sum(self.pending.values()) + self.lost + self.late + self.quarantined)


def _integers(line: Sequence[Any]) -> bool:
    """Whether the fields of a line are integers; the number of readings may be unknown."""
    return all(isinstance(value, int) or (at == 2 and value is None) for at, value in enumerate(line))


def audit(root: RootBook, nodes: Iterable[NodeBook]) -> Audit:
    """Checks every node, every link and the whole."""
    every = tuple(nodes)
    out = Audit(root, tuple(node for node in every if node.readable))
    out.unheard += [f"{node.node}: its books are not those of a node" for node in every if not node.readable]
    lines = {root.name: dict(root.lines)}
    for node in out.nodes:
        _balance_node(out, node)
        if not node.leaf:
            lines[node.node] = node.lines
    known = {node.node: node for node in out.nodes}
    retired = root.retired.union(*(node.retired for node in out.nodes if node.believed and not node.leaf))
    for node in out.nodes:
        if node.parent in lines:
            elsewhere = {
                name: line[node.node] for name, line in lines.items() if name != node.parent and node.node in line
            }
            doubted = {name: line for name, line in elsewhere.items() if name in known and not known[name].believed}
            believed = {name: line for name, line in elsewhere.items() if name not in doubted}
            earlier = _of_earlier_spools(out, node, believed)
            certain = [line for name, line in believed.items() if name not in earlier]
            line, forgotten = lines[node.parent].get(node.node), _forgotten(node, lines)
            _balance_link(out, node, line, certain, doubted, forgotten=forgotten)
        else:
            _without_book(out, node.parent, f"it is the parent of {node.node}", retired)
    for parent, found in lines.items():
        for child in sorted(found.keys() - known.keys()):
            out.former += found[child].readings or 0
            _without_book(out, child, f"{parent} applied {_many(found[child].readings)} from it", retired)
    _balance_root(out)
    if not out.off and out.rest:
        if out.unknown or out.unheard:
            out.unknown.append(
                f"the whole: {_many(abs(out.rest))} {'not accounted for' if out.rest > 0 else 'too many'}"
            )
        else:
            out.off.append(f"the whole: {_difference(out.rest)}")
    return out


def _without_book(out: Audit, node: str, what: str, retired: Container[str]) -> None:
    """Note a node without a book. Of one that is retired none will come: what it had besides is unknown for good."""
    if node in retired:
        out.unknown.append(f"{node}: it is retired and its books are deleted; {what}")
    else:
        out.unheard.append(f"{node}: it has no book; {what}")


def _balance_node(out: Audit, node: NodeBook) -> None:
    """Check that readings taken or received = sent + open + dropped + lost."""
    number = node.number
    if node.leaf:
        out.pending[node.node] = number("open") + number("waiting")
        spent = number("left") + number("open") + number("outside") + number("dropped")
        rest = number("taken") + number("added") - spent
        if rest:
            groups = ", ".join(node.book.get("off") or ())
            out.off.append(
                f"{node.node}: {_difference(rest)} between sensors and rows" + (f" ({groups})" if groups else "")
            )
        rest = number("left") - number("sent") - number("lost") - number("waiting")
        where = "between rows and frames"
    else:
        out.pending[node.node] = number("open")
        rest = number("received") - number("sent") - number("lost") - number("open")
        where = "between children's frames and its own"
        if all(line.readings is not None for line in node.lines.values()):
            former = number("received") - sum(line.readings or 0 for line in node.lines.values())
            out.former += max(former, 0)
            if former > 0:  # no book tells a lost spool from a frame that counted twice
                text = "came from a child's spool that was lost, if not counted twice"
                out.unknown.append(f"{node.node}: {_many(former)} {text}")
            if former < 0:  # 1.2: a repeat counts nowhere, whether the spool that was lost had sent it or not
                out.unknown.append(f"{node.node}: {_many(-former)} of its children left out as repeats of a lost spool")
    if not node.book.get("whole", False):
        out.unknown.append(f"{node.node}: its spool is older than its books")
    elif rest:
        out.off.append(f"{node.node}: {_difference(rest)} {where}")


def _of_earlier_spools(out: Audit, child: NodeBook, elsewhere: Mapping[str, Line]) -> set[str]:
    """The nodes among those in `elsewhere` that the child does not name as former parents: they applied readings of an
    earlier spool of it. Notes these readings. A child of an older version names none.
    """
    parents = child.book.get("parents")
    earlier = set() if parents is None else elsewhere.keys() - parents.keys()
    for name in sorted(name for name in earlier if elsewhere[name].readings):
        out.unknown.append(f"{child.node}: {name} applied {_many(elsewhere[name].readings)} of an earlier spool of it")
        out.former += elsewhere[name].readings or 0
    return earlier


def _forgotten(child: NodeBook, lines: Mapping[str, Mapping[str, Line]]) -> list[str]:
    """Why parents may have applied more of a child than they count: one text per reason. lines: parent -> its lines."""
    parents = child.book.get("parents") or {}
    gone = [name for name, known in parents.items() if not known or child.node not in lines.get(name, {})]
    texts = [f"no book says how many readings {name}, a former parent, applied" for name in gone[:SHOWN]]
    texts += [f"nor {len(gone) - SHOWN} more"] if len(gone) > SHOWN else []
    journals = child.number("journals")
    if journals > 0:
        often = "once" if journals == 1 else f"{journals} times"
        texts.append(f"its parent lost its spool {often}, with what it had counted")
    return texts


def _balance_link(
    out: Audit,
    child: NodeBook,
    line: Line | None,
    elsewhere: Iterable[Line],
    doubted: Mapping[str, Line],
    *,
    forgotten: Sequence[str],
) -> None:
    """Check that the parent applied no more readings than the child sent, and all once the last frame is applied.

    elsewhere: lines of the child at its earlier parents (1.5); readings applied there count as sent and applied too.
    doubted: the same, of nodes that no node names as its parent: they count only if the child has sent so many.
    forgotten: see `_forgotten`.
    """
    sent, name = child.number("sent"), f"{child.node} -> {child.parent}"
    if line is None:
        line = Line(-1, 0, 0)
    for other in elsewhere:
        line = _added(line, other)
    for place, other in doubted.items():
        more = _added(line, other)
        if other.readings is not None and other.readings >= 0 and (more.readings or 0) <= sent:
            line = more
        else:
            why = f"{place} says that it applied {_many(other.readings)} of it, too, and no child names {place}"
            out.unknown.append(f"{name}: {why}")
    if line.readings is None or not child.book.get("whole", False):
        out.unknown.append(f"{name}: the books of child and parent do not begin at the same frame")
        return
    between = sent - line.readings
    same = line.epoch == child.number("epoch")
    if child.late_word and (between < 0 or (same and line.next > child.number("seq") + 1)):
        out.unheard.append(f"{child.node}: it does not answer, and its last book is older than its last frames")
        out.former += max(-between, 0)
        out.pending[child.node] = out.pending.get(child.node, 0) + max(between, 0)
        return
    if between < 0 and not same:  # the parent still counts the line of an earlier spool
        out.unknown.append(
            f"{name}: {line.readings} applied, {sent} sent: its spool is new or a copy, and {child.parent} has not "
            "taken its frames yet"
        )
        out.former += line.readings
        out.pending[child.node] = out.pending.get(child.node, 0) + sent
        return
    if between < 0:
        out.off.append(f"{name}: {_many(-between)} counted twice: {line.readings} applied, {sent} sent")
        return
    through = same and line.next > child.number("seq") and not child.number("former")
    if between and forgotten:
        out.unknown.append(f"{name}: {_many(between)} sent and not known to be applied: {'; '.join(forgotten)}")
        if through:
            return
    if through and between and not (line.refused or child.number("lost_frames")):
        out.off.append(f"{name}: {_many(between)} lost: all frames applied, {sent} sent, {line.readings} applied")
        return
    if line.refused or child.number("lost_frames"):
        frames = line.refused + child.number("lost_frames")
        out.unknown.append(f"{name}: {frames} frames without usable content, of at most {_many(between)}")
        if through:
            return
    out.pending[child.node] = out.pending.get(child.node, 0) + between


def _added(line: Line, other: Line) -> Line:
    """A line with what another parent applied of the same child."""
    unknown = line.readings is None or other.readings is None
    readings = None if unknown else (line.readings or 0) + (other.readings or 0)
    return replace(line, readings=readings, refused=line.refused + other.refused)


def _balance_root(out: Audit) -> None:
    """Check that readings in rows = readings that the decisions applied = readings in the lines of the children."""
    root = out.root
    out.off += [f"bronze.messages: {row} occurs twice" for row in root.doubled]
    if root.uncounted:
        out.unknown.append(f"bronze.messages: {root.uncounted} rows of an older version do not count their readings")
        return
    if root.applied is None:
        out.unknown.append("ops.batches: no decision counts the readings in bronze.messages")
        return
    for child in sorted(root.applied.keys() | root.stored.keys()):
        rest = root.applied.get(child, 0) - root.stored.get(child, 0)
        if rest:
            out.off.append(f"bronze.messages, rows of {child}: {_difference(rest)} between decisions and rows")
        line = root.lines.get(child)
        if line is not None and line.readings is not None:
            former = root.applied.get(child, 0) - line.readings
            out.former += former
            if former:
                out.unknown.append(f"{child}: {_many(former)} came from a spool that was lost")


def _difference(rest: int) -> str:
    return f"{_many(rest)} lost" if rest > 0 else f"{_many(-rest)} counted twice"


def _many(readings: int | None) -> str:
    if readings is None:
        return "an unknown number of readings"
    return f"{readings} reading" + ("" if readings == 1 else "s")
