"""Decides which rows of bronze.messages no result can need any more (docs/protocol.md 8.4). Pure.

Rows expire by plan. An exception are windows between markers that overlap, or whose markers cut one common stream: a
later window may need readings from any earlier time, so their rows stay while a node serves the group.
"""

from __future__ import annotations

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.needed import needed_us
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import identity
from edge_agent.wire.heads import Parts

Expiring = tuple[str, int, int, int]  # node, epoch, plan, time


def expiring(decider: Decider, state: RootState, parts: Parts) -> list[Expiring]:
    """Returns (node, epoch, plan, time) for each plan: no result needs parts of this plan that end before the time.

    parts: heads of the frames that have not taken effect.
    """
    waiting: dict[EpochKey, int] = {}
    for (node, epoch, _seq), found in parts.items():
        line = EpochKey(node, epoch)
        waiting[line] = min([waiting.get(line, -NEVER_US), *(part.latest_end_us for part in found)])
    out = []
    known: dict[bytes, int | None] = {}  # many epochs have the same plan
    for line, dictionary in decider.parent.dictionaries.items():
        for number, (group, plan) in dictionary.plans.items():
            digest = identity(group, plan)
            if digest not in known:
                known[digest] = needed_us(group, plan, decider, state)
            before_us = known[digest]
            if before_us is not None:
                out.append((*line, number, min(before_us, waiting.get(line, before_us))))
    return out


def over(decider: Decider, state: RootState, parts: Parts) -> list[EpochKey]:
    """Returns the epochs that have ended and whose rows no result can need any more.

    Rows of some windows between markers stay, as in `expiring`. parts: heads of the frames that have not taken effect.
    """
    waiting, found = {EpochKey(node, epoch) for node, epoch, _seq in parts}, []
    for line, dictionary in decider.parent.dictionaries.items():
        if line in decider.parent.inbox.epochs or line in waiting:
            continue
        plans = [each for each in dictionary.plans.values() if identity(*each) in state.plans]  # others have no rows
        needed = [needed_us(group, plan, decider, state) for group, plan in plans]
        latest_us = state.extent.get(line, (NEVER_US, NEVER_US))[1]
        if all(before_us is not None and latest_us < before_us for before_us in needed):
            found.append(line)
    return found
