"""Windows of one gateway and windows between markers in random fleets: the oracle's, over crashes and losses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.windows import Punctuation
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.config.in_force.known_definitions import Publication
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.effort import seeds
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.fleets import GRACE
from tests.support.simulation.marker_fleets import MarkedFleet, marked
from tests.support.simulation.world import RootHost


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
def test_windows_between_markers_and_of_one_gateway_are_the_oracles(chaos: object) -> None:
    """protocol 1.3, 3.1, 4, 5.1, 5.4, 6.2 and 8.3: complete in the end, none missing, none twice."""
    assert callable(chaos)
    assert marked(seeds(4_000, 6), chaos) == []


def test_a_definition_published_later_takes_the_readings_there_are_of_one_common_stream() -> None:
    """protocol 6.5: rows of a central window are readings, so other functions find all they need."""
    fleet = MarkedFleet(4_084, calm(Random(4_084)))
    assert fleet.run() == []
    host = fleet.world.hosts["root"]
    assert isinstance(host, RootHost)
    query = fleet.queries[4]
    assert query.window == Punctuation("central")
    other = replace(query, aggregates=(Aggregate("min", "least"), Aggregate("count", "n")))
    published = [Publication("", query.id, query.revision, canonical_query(other))]
    found: list[list[Row]] = []
    for at in (0, 20, 80):
        root = NumpyRoot(host.journal, grace_us=GRACE)
        rows: list[Row] = []
        for number, (now_us, objects) in enumerate(host.files):
            for node, message, received_us in objects:
                root.take(node, message, received_us)
            if number == at:
                root.decider.published(published)
            rows += root.step(now_us)
        found.append([row for row in rows if row.query == query.id and row.values.keys() == {"least", "n"}])
    first, *later = ({(row.key, row.start, row.end): row.values for row in rows} for rows in found)
    assert all(len(rows) > 3 for rows in later)
    assert all(rows.items() <= first.items() for rows in later)
