"""The table of mutants cannot rot, and the runner tells a caught mutant from one that survives."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from tests.mutants.__main__ import caught_by, unbroken
from tests.mutants.in_memory import put_in
from tests.mutants.overlay import Overlay
from tests.mutants.table import ROOT, Mutant, mutants
from tests.mutants.worker import chosen

EVERY = mutants()
RULES = {"security", *re.findall(r"^\*\*(\d\.\d)\*\*", (ROOT / "docs/protocol.md").read_text("utf-8"), re.MULTILINE)}


def test_every_mutant_has_a_name_of_its_own_and_a_rule_of_the_protocol() -> None:
    names = [mutant.name for mutant in EVERY]
    assert len(set(names)) == len(names) >= 60
    assert not [(mutant.name, mutant.rule) for mutant in EVERY if mutant.rule not in RULES]


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_text_of_a_mutant_occurs_once_and_what_takes_its_place_is_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    broken = mutant.broken(text)
    ast.parse(broken)
    assert broken != text


@pytest.mark.parametrize("selection", sorted({test for mutant in EVERY for test in mutant.tests}))
def test_the_tests_that_a_mutant_names_exist(selection: str) -> None:
    path, _, name = selection.partition("::")
    found = functions_of(path)
    assert not name or name in found


@cache
def functions_of(path: str) -> frozenset[str]:
    """The functions of a file, which is parsed once a process: many mutants name tests of the same one."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_a_text_that_is_not_there_once_is_no_mutant() -> None:
    mutant = Mutant("two", "1.1", "a.py", "x = 1", "x = 2", ())
    assert mutant.broken("x = 1\n") == "x = 2\n"
    for text in ("", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="not once"):
            mutant.broken(text)


PRODUCT = """
LIMIT = 3


def decorated(limit=LIMIT):
    @functools.lru_cache
    def times(n):
        return [limit * each for each in range(n)]

    return times(2)


class Box:
    size = LIMIT

    def __init__(self):
        super().__init__()

    @property
    def twice(self):
        return 2 * self.size

    @staticmethod
    def half(n):
        return n // 2
"""


@pytest.mark.parametrize(
    ("find", "instead", "within"),
    [
        ("limit * each", "each", True),
        ("range(n)", "range(n + 1)", True),
        ("return 2 * self.size", "return self.size", True),
        ("n // 2", "n", True),
        ("        super().__init__()\n", "        self.size = 7\n", False),  # it had a cell for the class
        ("LIMIT = 3", "LIMIT = 4", False),
        ("limit=LIMIT", "limit=1", False),
        ("    size = LIMIT", "    size = 1", False),
        ("    @staticmethod\n", "", False),
        ("return 2 * self.size", "return 2 * self.size  # the same", False),
    ],
)
def test_a_break_gets_into_functions_that_are_imported_and_is_refused_where_that_is_not_all(
    find: str, instead: str, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = f"import functools\n{PRODUCT}"
    broken = whole.replace(find, instead)
    (tmp_path / "broken_here.py").write_text(whole)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_here", raising=False)
    module = importlib.import_module("broken_here")
    box = module.Box()
    before = module.decorated(), box.twice, box.half(4)
    assert put_in(tmp_path, "broken_here.py", whole, broken) == within
    assert put_in(tmp_path, "not_imported.py", whole, broken)
    assert ((module.decorated(), box.twice, box.half(4)) != before) == within


def test_selections_choose_tests_in_their_order_and_once(request: pytest.FixtureRequest) -> None:
    item = request.node
    name = item.nodeid.partition("::")[0]
    assert chosen([item], [f"{name}::test_no_such", item.nodeid, name]) == [item]
    assert chosen([item], [f"{name}::test_no_such"]) == []


def test_a_test_that_fails_though_nothing_is_broken_has_caught_nothing() -> None:
    class Copy:
        def fails(self, tests: list[str]) -> str:
            return "caught by b.py::test_2" if "b.py::test_2" in tests else ""

    verdicts = {"one": "caught by a.py::test_1[x", "two": "caught by b.py::test_2", "three": "survived"}
    left = unbroken(cast("Overlay", Copy()), verdicts)
    assert left == {**verdicts, "two": "invalid: b.py::test_2 fails though nothing is broken"}
    assert [caught_by(verdict) for verdict in verdicts.values()] == ["a.py::test_1", "b.py::test_2", ""]


@pytest.mark.slow
def test_a_mutant_is_caught_in_a_copy_and_a_change_that_breaks_nothing_survives(tmp_path: Path) -> None:
    breaking = next(mutant for mutant in EVERY if mutant.name == "a receipt goes beyond a hole")
    before = (ROOT / breaking.file).read_text("utf-8")
    copy = Overlay(tmp_path / "copy", breaking.tests)
    try:
        assert copy.begin() == ""
        assert copy.run(breaking).startswith("caught by tests/machines/test_inbox.py")
        assert copy.run(replace(breaking, instead=f"{breaking.find}  # the same")) == "survived"
        assert copy.run(replace(breaking, instead="if (")).startswith("invalid")
        assert copy.run(replace(breaking, find="no such text")).startswith("invalid")
        assert copy.fails(breaking.tests) == ""
    finally:
        copy.close()
    assert (copy.folder / breaking.file).read_text("utf-8") == (ROOT / breaking.file).read_text("utf-8") == before
