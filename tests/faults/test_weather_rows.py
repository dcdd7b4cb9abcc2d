"""Controls of the weather: what its comparisons have to find, and what they have to allow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.faults.tree import SECOND, DefaultBroker
from tests.faults.weather_definitions import DefinedRows, Definitions
from tests.faults.weather_devices import AFTER_US, BEFORE_US, Device, DeviceRows, Watched
from tests.faults.weather_tree import EXTRA, MORE_QUERY, WeatherTree, query_of

START_US = 1_700_000_000 * SECOND
END_US = START_US + 2 * SECOND


class StillDevice(Device):
    """A device that never published, with readings."""

    def __init__(self, folder: Path, gateway: str, sure: Sequence[int], doubtful: Sequence[int] = ()) -> None:
        super().__init__(gateway, DefaultBroker("local", folder, 1), START_US)
        self._sure = [(START_US + at, 100) for at in sure]
        self._doubtful = [(START_US + at, 100) for at in doubtful]


def test_a_complete_row_of_a_device_has_every_reading_that_its_broker_has_taken(tmp_path: Path) -> None:
    """What the broker may have taken counts or not; then the sum is not compared."""
    rows = DeviceRows([StillDevice(tmp_path, "gw-1-1", (0, 5, 10))])
    perhaps = DeviceRows([StillDevice(tmp_path, "gw-1-1", (0, 5), (10,))])

    def wrong(of: DeviceRows, count: int, total: float) -> str:
        return of.wrong("machine=gw-1-1", START_US, END_US, {"count": count, "sum": total})

    assert wrong(rows, 3, 3.0) == ""
    assert wrong(rows, 2, 2.0) == "2 readings, not 3"
    assert wrong(rows, 4, 4.0) == "4 readings, not 3"
    assert wrong(rows, 3, 3.01) == "the sum is 301, not 300"
    assert [wrong(perhaps, count, count) for count in (2, 3)] == ["", ""]
    assert wrong(perhaps, 1, 1.0) == "1 readings, not 2 to 3"
    assert rows.windows(2 * SECOND, END_US) == {("machine=gw-1-1", START_US)}


@pytest.mark.parametrize(
    ("gateway", "node", "broker"), [("gw-1-1", False, False), ("gw-1-2", True, True), ("gw-2-1", False, True)]
)
def test_a_row_of_a_device_may_lack_readings_only_where_they_may_be_lost(
    tmp_path: Path, gateway: str, *, node: bool, broker: bool
) -> None:
    """protocol 3.1: a subscription of QoS 1 outlives a stop of the node; a broker without a store forgets it."""
    device = StillDevice(tmp_path, gateway, (0,))
    rows, process, local = DeviceRows([device]), Watched("n", ["true"], tmp_path), Watched("b", ["true"], tmp_path)

    def excused(end_us: int = END_US) -> bool:
        return rows.excused(gateway, end_us - 2 * SECOND, end_us, process, local)

    assert not excused()
    process.noted.add(START_US, END_US)
    assert excused() == node
    process.noted.spans.clear()
    local.noted.add(START_US, END_US)
    assert excused() == broker
    local.noted.spans.clear()
    device.noted.add(START_US, END_US)
    assert excused()
    assert not excused(START_US - BEFORE_US)
    assert not excused(END_US + AFTER_US + 2 * SECOND)


def test_a_complete_row_of_an_altered_query_is_of_its_revision_and_of_the_gateways_it_names(tmp_path: Path) -> None:
    """protocol 6.3: others may be in it, too, from when they serve the query."""
    tree = WeatherTree(tmp_path)
    readings = {source: tree.readings(tree.begin_us + 20 * SECOND, source) for source in ("few", "more")}
    definitions = Definitions(tree, Random(1))
    definitions.queries["extra-2", 7] = query_of("extra-2", EXTRA["extra-2"])
    definitions.queries[MORE_QUERY, 8] = query_of(MORE_QUERY, EXTRA[MORE_QUERY])
    rows, nodes = DefinedRows(definitions, readings), tuple(tree.gateways)
    start_us = (tree.begin_us // (3 * SECOND) + 2) * 3 * SECOND
    place = ("extra-2", "", start_us, start_us + 3 * SECOND)
    inside = [each for each in readings["few"] if start_us <= each.time_us < place[3]]
    of = {node: sum(each.node == node for each in inside) for node in nodes}
    values = {"count": float(len(inside)), "sum": float(sum(each.value for each in inside))}
    assert rows.wrong(place, 7, values, nodes) == ""
    assert "nobody published" in rows.wrong(place, 6, values, nodes)
    assert "readings, not" in rows.wrong(place, 7, {**values, "count": values["count"] - 1}, nodes)
    assert "readings, not" in rows.wrong(place, 7, {**values, "count": values["count"] + 1}, nodes)
    assert ", not {" in rows.wrong(place, 7, {**values, "sum": 0.0}, nodes)
    assert rows.wrong(place, 7, {"count": float(len(inside) - of[nodes[0]])}, nodes[1:]) == ""

    key, start_us = f"machine={nodes[0]}", (tree.begin_us // SECOND + 4) // 2 * 2 * SECOND
    place = (MORE_QUERY, key, start_us, start_us + 2 * SECOND)
    count = sum(each.node == nodes[0] and start_us <= each.time_us < place[3] for each in readings["more"])
    assert rows.wrong(place, 8, {"count": count}, nodes) == ""
    assert rows.wrong(place, 8, {"count": count - 1}, nodes) != ""
    definitions.changed_us[nodes[0]] = [start_us]
    assert rows.wrong(place, 8, {"count": count - 1}, nodes) == ""
    assert rows.wrong(place, 8, {"count": count + 1}, nodes) != ""
