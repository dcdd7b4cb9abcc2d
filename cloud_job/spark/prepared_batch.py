"""The part of a micro-batch that needs no Spark: the decision on the messages read, and its row of ops.batches.

Nothing is written here, so a batch can be tried on a copy of the state (cloud_job/spark/batch_guard.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cloud_job.ingest.intake import Intake
from edge_agent.root.completeness import Decision
from edge_agent.root.decision import transition
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import TableRow, Work
from edge_agent.wire.heads import Parts

if TYPE_CHECKING:
    import pyarrow as pa

    from cloud_job.spark.slice_cache import Applied

log = logging.getLogger("headwater.root")


class Decided(NamedTuple):
    """A decision and its work. stored: rows for bronze.messages; None: no rows. applied: frames that took effect ->
    heads of their parts.
    """

    stored: pa.Table | None
    decision: Decision
    applied: Applied
    work: Work

    @property
    def changes_nothing(self) -> bool:
        """Whether no table changes besides ops.batches and ops.nodes."""
        return self.stored is None and not self.decision.effects and self.work.nothing


def decided(intake: Intake, state: RootState, *, flush: bool = False) -> Decided:
    """Take the decision on the messages of the intake. Changes the state, and the intake's decider and parts."""
    decider, parts = intake.decider, intake.parts
    stored = intake.table() if intake.rows["batch"] else None
    applied: Parts = {}

    def take(decision: Decision) -> Parts:
        keys = ((effect.node, effect.epoch, effect.seq) for effect in decision.effects)
        applied.update((key, found) for key in keys if (found := parts.pop(key, None)))
        return applied

    state.own(intake.batch, intake.owner)
    decision, work = transition.decided(decider, state, intake.now_us, take, unread=intake.unread, flush=flush)
    if beyond := decider.take_beyond():
        log.warning("root.beyond_bounds", extra={"batch": intake.batch, **beyond})
    return Decided(stored, decision, applied, work)


def row_of(made: Decided, intake: Intake, names: Sequence[str], state: bytes) -> TableRow:
    """The row of ops.batches. names: of the files that were read. state: content of that column, see state_log.py."""
    decision, work = made.decision, made.work
    frontiers = [
        {"source": g.source, "where": g.where, "by": g.by, "frontier": view.frontier_us}
        for g, view in decision.groups.items()
    ]
    return {
        "number": work.number,
        "owner": intake.owner,
        "decided_us": decision.now_us,
        "elapsed_us": intake.decider.elapsed_us,
        "files": list(names),
        "messages": intake.messages,
        "effects": len(decision.effects),
        "frontiers": json.dumps(frontiers),
        "work": work.dumps(),
        "state": state,
    }
