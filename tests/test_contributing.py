"""CONTRIBUTING.md: an aggregate, a window type, a column kind and a driver are one file and one line each."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.registries import unlisted

TOP: Final = Path(__file__).resolve().parents[1]
TEXT: Final = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES: Final = re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)
LINES: Final = re.findall(r"```diff\n (\S+)\n(.*?)```", TEXT, re.DOTALL)

USED: Final = """
import numpy as np
from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.aggregates.base import Column
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.partials.row_validation import check_column
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.row_sizes import of_row
from edge_agent.config.definitions.definitions import parse_definition, parse_sensor
from tests.support.published.reference import drivers, functions, windows
from tests.support.published.schema import schemas, text_of
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.sensors.node_sensors import Sensors
from edge_agent.wire.columns import forms

made = {"source": "up", "window": {"type": "shift", "first": "6h"}, "aggregates": ["midrange"]}
query = parse_definition("query", "q", made).value
assert query.window.edges(0, 86_400_000_000).tolist()[:2] == [21_600_000_000, 50_400_000_000]
basis = aggregates.basis_of(query.aggregates, None)
value = np.array([1.0, 2.0, 9.0])
readings = aggregates.Readings(np.arange(3), value, np.arange(3))
states = aggregates.lift(readings, Segments.runs(np.zeros(1, np.int64), 3), basis, None)
assert aggregates.lower(query.aggregates[0], states, None).value.tolist() == [5.0]

COLUMNS.add({"status": Column("status", "bits")})
column, start = np.array([1, 6]), np.zeros(2, np.int64)
decoded, _ = forms.decode(forms.encode(column, start), 2, 2, "status", start)
assert decoded.tolist() == [1, 6] and check_column("status", "i", -1) is KINDS["bits"]
assert aggregates.convert({"status": column, "count": column}, -1, None)["status"] is column
assert of_row(("status",), None, 5.0).most > 0

sensors = Sensors(SystemClock())
sensors.configure([parse_sensor("up", {"driver": "uptime", "every": "100ms"})], {})
(read,) = sensors.poll(SystemClock().now_us(), everything=True)
assert read.batch.value[0] > 0
(again,) = sensors.poll(SystemClock().now_us() - 3_600_000_000, everything=True)  # the clock was set back
assert len(again.batch.value) == 1
assert "`uptime`" in drivers() and "`shift`" in windows() and "`midrange`" in functions()
assert all(word in "".join(map(text_of, schemas().values())) for word in ("uptime", "shift", "midrange"))
"""


ASKED: Final = """
from edge_agent.config.definitions.definitions import parse_definition, parse_sensor

parse_definition("query", "q", {"source": "up", "window": {"type": "shift"}, "aggregates": ["midrange"]})
parse_sensor("up", {"driver": "uptime"})
"""


def copied(tree: Path) -> None:
    for room in ("edge_agent", "tests/support"):
        shutil.copytree(TOP / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))


def applied(tree: Path) -> None:
    """The examples, written into a copy of the tree."""
    for path, content in FILES:
        (tree / path).write_text(content)
    for path, diff in LINES:
        text = (tree / path).read_text()
        lines = diff.splitlines()
        before = "\n".join(line[1:] for line in lines if line[0] in " -")
        after = "\n".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"CONTRIBUTING.md does not show {path} as it is"
        (tree / path).write_text(text.replace(before, after))


def test_each_example_is_one_file_and_one_line() -> None:
    assert len(FILES) == len(LINES) == 4
    for _, diff in LINES:
        assert [line[0] for line in diff.splitlines()].count("+") == 1


def test_the_examples_are_all_there_is_to_do(tmp_path: Path) -> None:
    copied(tmp_path)
    applied(tmp_path)
    done = subprocess.run([sys.executable, "-c", USED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the examples."""
    tree = tmp_path_factory.mktemp("newcomer")
    copied(tree)
    applied(tree)
    return tree


@pytest.fixture
def without(newcomer: Path) -> Iterator[Callable[[str, str, str], Path]]:
    """Changes one text of a file, for the time of a test. Returns the tree."""
    before: dict[Path, str] = {}

    def change(path: str, text: str, to: str = "") -> Path:
        file = newcomer / path
        before[file] = file.read_text()
        assert before[file].count(text) == 1
        file.write_text(before[file].replace(text, to))
        return newcomer

    yield change
    for file, content in before.items():
        file.write_text(content)


@pytest.mark.parametrize(("path", "names"), [(path, diff.splitlines()[-1][1:]) for path, diff in LINES])
def test_a_line_that_is_forgotten_is_named_with_its_file(
    path: str, names: str, without: Callable[[str, str, str], Path]
) -> None:
    (said,) = unlisted(without(path, names, ""))
    (file,) = [file for file, _ in FILES if file.endswith(f"/{names.strip(' ,').strip(chr(34))}.py")]
    assert said.startswith(f"{file}: add {names.strip(' ,')} to ")
    assert f" in {path}," in said


MIDRANGE: Final = "edge_agent/algebra/aggregates/families/midrange.py"
SHIFT: Final = "edge_agent/algebra/windows/shift.py"
BITS: Final = "edge_agent/algebra/columns/bits.py"
UPTIME: Final = "edge_agent/ports/sensors/uptime.py"


@pytest.mark.parametrize(
    ("path", "fact", "instead", "said"),
    [
        (MIDRANGE, "FAMILY =", "OTHER =", "define FAMILY, a Family (edge_agent/algebra/aggregates/base.py)"),
        (MIDRANGE, "    columns=(),  # min and max exist\n", "", "missing 1 required positional argument: 'columns'"),
        (MIDRANGE, '("min", "max")', '("min", "most")', "component 'most' is needed and does not exist"),
        (MIDRANGE, 'Function("midrange"', 'Function("avg"', "function 'avg' exists already; choose another name"),
        (SHIFT, 'type: ClassVar[str] = "shift"', "", 'a class in it needs `type: ClassVar[str] = "shift"`'),
        (SHIFT, "    KEYS:", "    OTHER:", "class Shift lacks KEYS of its own"),
        (SHIFT, "class Shift(Tumbling)", "class Shift", "class Shift lacks wrong, longest_us, one_length, unit_us"),
        (SHIFT, "def first_us", "def other", "Shift needs a property first_us, the value of its key first"),
        (BITS, "KINDS =", "OTHER =", "define KINDS, a tuple of ColumnKind (edge_agent/algebra/columns/kind.py)"),
        (BITS, "        grows=False,\n", "", "missing 1 required keyword-only argument: 'grows'"),
        (BITS, 'name="bits"', 'name="count"', "column kind 'count' exists already"),
        (UPTIME, "DRIVER: Final", "OTHER: Final", "define DRIVER, a Driver (edge_agent/config/definitions/drivers.py)"),
        (UPTIME, "    ends=False,\n", "", "missing 1 required keyword-only argument: 'ends'"),
        (UPTIME, 'name="uptime"', 'name="boot"', "DRIVER is named 'boot', its file 'uptime'"),
    ],
)
def test_a_fact_that_is_forgotten_is_a_line_that_names_it_and_its_file(
    path: str, fact: str, instead: str, said: str, without: Callable[[str, str, str], Path]
) -> None:
    tree = without(path, fact, instead)
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=tree, capture_output=True, text=True, check=False)
    line = done.stderr.splitlines()[-1]
    assert line.startswith((f"TypeError: {path}: ", f"TypeError: {path.removesuffix('.py').replace('/', '.')}."))
    assert said in line
