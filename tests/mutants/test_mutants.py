"""The table of mutants cannot rot, and the runner tells a caught mutant from one that survives."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.overlay import Overlay
from tests.mutants.table import ROOT, Mutant, mutants

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


@pytest.mark.slow
def test_a_mutant_is_caught_in_a_copy_and_a_change_that_breaks_nothing_survives(tmp_path: Path) -> None:
    copy = Overlay(tmp_path / "copy")
    breaking = next(mutant for mutant in EVERY if mutant.name == "a receipt goes beyond a hole")
    before = (ROOT / breaking.file).read_text("utf-8")
    assert copy.run(breaking).startswith("caught by tests/machines/test_inbox.py")
    assert copy.run(replace(breaking, instead=f"{breaking.find}  # the same")) == "survived"
    assert copy.run(replace(breaking, instead="if (")).startswith("invalid")
    assert copy.run(replace(breaking, find="no such text")).startswith("invalid")
    assert (copy.folder / breaking.file).read_text("utf-8") == (ROOT / breaking.file).read_text("utf-8") == before
