"""docs/architecture.md is true: its rooms are the folders, its walks name functions that exist and that run."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from edge_agent.recording.parser import parse
from edge_agent.recording.tree import Tree

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = (ROOT / "docs/architecture.md").read_text()
STEP: Final = re.compile(r"^\d+\. `([a-z_/]+\.py)` `([\w.]+)`", re.M)
MOST_FILES: Final = 60  # that a reading passes: more would not fit into a stranger's head
IN_PROCESS: Final = ("edge_agent/machines/", "edge_agent/algebra/", "edge_agent/root/", "edge_agent/wire/")
ELSEWHERE: Final = (
    "edge_agent/machines/lander.py",
    "edge_agent/wire/landing.py",
    "edge_agent/wire/heads.py",
)  # a recording has no lander and no landing files
LISTS: Final = {  # folders whose files a list outside them names
    "edge_agent/algebra/aggregates/families": "edge_agent/algebra/aggregates/__init__.py",
    "edge_agent/ports/sensors": "edge_agent/config/definitions/drivers.py",
}
RECORDING: Final = {
    "unit": "ms",
    "queries": [{"id": "mean", "window": {"type": "tumbling", "length": 1000}, "aggregates": ["avg"]}],
    "streams": {"g1": [[100, "a", 7], [900, "b", 3], [2400, "a", 5]], "g2": [[150, "a", 2], [2500, "a", 1]]},
    "topology": {"hall": ["g1", "g2"], "root": ["hall"]},
}


def walk(heading: str) -> list[tuple[str, str]]:
    """(file, function) of each step below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return STEP.findall(section)


READING: Final = walk("The way of a reading")
LATE: Final = walk("The way of a late reading")
DECISION: Final = walk("The way of a decision")


def functions(path: str) -> set[str]:
    """Qualified names of the functions and classes of a file."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse((ROOT / path).read_text()), "")
    return found


def answers() -> list[tuple[str, str]]:
    """(file, function or '') of each answer below "Where to look"."""
    section = PAGE.partition("## Where to look\n")[2]
    return re.findall(r"`([a-z_/]+\.py)`(?: `([\w.]+)`)?", section)


@pytest.fixture(scope="module")
def executed() -> set[tuple[str, str]]:
    """(file, function name) of all product code that runs while a recording passes gateways, a merger and a root."""
    tree = Tree(parse(json.dumps(RECORDING), "walk"))
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.add((path.relative_to(ROOT).as_posix(), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        assert list(tree.run())
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(("path", "name"), [*dict.fromkeys(READING + LATE + DECISION)])
def test_a_step_names_a_function_that_exists(path: str, name: str) -> None:
    assert name in functions(path)


@pytest.mark.parametrize(("path", "name"), answers())
def test_an_answer_names_a_file_and_a_function_that_exist(path: str, name: str) -> None:
    assert name in functions(path) | {""}


def test_the_steps_of_machines_algebra_and_root_run_when_a_reading_passes(executed: set[tuple[str, str]]) -> None:
    steps = [step for step in READING + DECISION if step[0].startswith(IN_PROCESS) and step[0] not in ELSEWHERE]
    assert len(steps) > 25
    assert not [step for step in steps if (step[0], step[1].rpartition(".")[2]) not in executed]


def test_a_reading_passes_few_files() -> None:
    assert 40 < len({path for path, _ in READING}) <= MOST_FILES


def test_the_rooms_are_the_folders() -> None:
    listed = set(re.findall(r"^\| `([a-z_/]+)/` \|", PAGE, re.M))
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for room in ("edge_agent", "cloud_job")
        for path in (ROOT / room).rglob("*.py")
    }
    assert listed == folders


def rooms() -> list[str]:
    """Every folder of the product that is a package."""
    return sorted(
        path.parent.relative_to(ROOT).as_posix()
        for name in ("edge_agent", "cloud_job")
        for path in (ROOT / name).rglob("__init__.py")
    )


@pytest.mark.parametrize("room", rooms())
def test_the_init_of_a_folder_lists_its_files(room: str) -> None:
    """Each file and folder is in its docstring, or in the list of a registry; the docstring lists nothing else."""
    folder = ROOT / room
    source = (folder / "__init__.py").read_text()
    inside = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    inside.discard("__init__")
    listed = source + (ROOT / LISTS[room]).read_text() if room in LISTS else source
    assert not sorted(name for name in inside if not re.search(rf"\b{name}\b", listed))
    contents = ast.get_docstring(ast.parse(source)) or ""
    entries = re.findall(r"^(?:- |)([a-z_]+(?:, [a-z_]+)*)/?(?::|  )", contents, re.M)
    assert not sorted({name for entry in entries for name in entry.split(", ")} - inside)
