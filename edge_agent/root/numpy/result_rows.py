"""The current rows of results: the numpy counterpart of gold.results.

Rules (docs/protocol.md): a row is revised if its set of readings or its coverage changes (7.2). A row of a newer
definition replaces that of an older one, never the other way round (6.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from edge_agent.algebra.coverage import Coverage
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow, superseded
from edge_agent.root.numpy.rows import Row, WindowAnswers

Name = tuple[str, int]  # key, and the end if rows with equal start may differ in it, else 0


@dataclass(frozen=True, slots=True)
class NewRow:
    """A computed row. at: its index in `answers`. by_end: rows with equal start may differ in their end."""

    node: str
    key: str
    start_us: int
    end_us: int
    answers: WindowAnswers
    at: int
    coverage: Coverage
    by_end: bool = False

    @property
    def name(self) -> Name:
        """The identity of the row among the rows with its start."""
        return self.key, self.end_us if self.by_end else 0


@dataclass(slots=True)
class ResultRows:
    """rows: (query, node) -> start -> name -> row. Withdrawn rows are kept, so that their revision numbers continue."""

    rows: dict[tuple[str, str], dict[int, dict[Name, Row]]] = field(default_factory=dict)

    def put(self, new: NewRow) -> Row | None:
        """Write a row. Returns the row as written; None if it is unchanged, or a newer definition has this row."""
        query = new.answers.query
        starts = self.rows.setdefault((query.id, new.node), {})
        named = starts.get(new.start_us)
        before = None if named is None else named.get(new.name)
        if before is not None:
            if before.definition_revision > query.revision:
                return None
            if before.definition_revision == query.revision and not before.withdrawn:
                like = (new.end_us, new.answers.readings[new.at], new.coverage)
                if (before.end, before.readings, before.coverage) == like:
                    return None
        row = new.answers.row(
            new.at,
            (new.node, new.key, new.start_us, new.end_us),
            new.coverage,
            revision=0 if before is None else before.revision + 1,
        )
        if named is None:
            named = starts[new.start_us] = {}
        named[new.name] = row
        return row

    def stands(self, query: str, node: str, key: str, start_us: int) -> Row | None:
        """The current row of a session; None if there is none or it is withdrawn."""
        row = self.rows.get((query, node), {}).get(start_us, {}).get((key, 0))
        return None if row is None or row.withdrawn else row

    def supersede(self, over: SupersededRows) -> Iterator[Row]:
        """Withdraw rows of a revision that turn out to belong to a newer one."""
        for named in self.rows.get((over.query, over.node), {}).values():
            for name, row in named.items():
                mine = row.definition_revision == over.revision and not row.withdrawn
                if mine and superseded(row.start, row.end, over.from_us, over.after_us):
                    yield self._withdraw(named, name)

    def withdraw(self, gone: WithdrawnWindow) -> Iterator[Row]:
        """Withdraw the rows of a window between markers."""
        named = self.rows.get((gone.query, gone.node), {}).get(gone.start_us, {})
        for name, row in named.items():
            if row.definition_revision == gone.revision and not row.withdrawn and row.end == gone.end_us:
                yield self._withdraw(named, name)

    def withdraw_row(self, row: Row) -> Row:
        """Withdraw the row of a session."""
        return self._withdraw(self.rows[row.query, row.node][row.start], (row.key, 0))

    @staticmethod
    def _withdraw(named: dict[Name, Row], name: Name) -> Row:
        """Mark one of the rows with a start as withdrawn. Reasons: root/decision/withdrawals.py."""
        named[name] = replace(named[name], withdrawn=True, revision=named[name].revision + 1)
        return named[name]

    def free(self, query: str, node: str, floor_us: int) -> Iterator[Row]:
        """Forget and yield rows that end by floor_us. Stops at the first row that starts later: most are in order."""
        starts = self.rows.get((query, node), {})
        old = []
        for start_us, named in starts.items():
            if start_us > floor_us:
                break
            if all(row.end <= floor_us for row in named.values()):
                old.append(start_us)
        for start_us in old:
            yield from starts.pop(start_us).values()
