"""Kinds of state columns: every fact of each is there, and each form is implemented by the wire."""

from __future__ import annotations

import dataclasses

import pytest

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.columns.kind import LETTER_WORDS, LETTERS, ColumnKind, Form
from edge_agent.algebra.partials.row_validation import check_column
from edge_agent.errors import WireError
from edge_agent.wire.columns.forms import CODECS

FACTS = [field.name for field in dataclasses.fields(ColumnKind)]


def test_every_column_is_of_a_known_kind_and_every_kind_is_used() -> None:
    used = {column.kind for column in COLUMNS.values()}
    assert not used - KINDS.keys(), "no file that edge_agent/algebra/columns/__init__.py lists has these kinds"
    assert not KINDS.keys() - used, "no Column of a family in edge_agent/algebra/aggregates/families has these kinds"


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_is_forgotten_is_named(fact: str) -> None:
    facts = {name: getattr(KINDS["count"], name) for name in FACTS}
    with pytest.raises(TypeError, match=fact):
        ColumnKind(**{name: value for name, value in facts.items() if name != fact})


def test_every_form_has_letters_and_a_codec() -> None:
    """Their Spark types: tests/cloud/test_plan.py."""
    assert LETTERS.keys() == set(Form), "Form and LETTERS of edge_agent/algebra/columns/kind.py"
    assert CODECS.keys() == set(Form), "Form and CODECS of edge_agent/wire/columns/forms.py"
    assert LETTER_WORDS.keys() == set("".join(letters for pair in LETTERS.values() for letters in pair))


@pytest.mark.parametrize(
    ("name", "letter", "says"),
    [
        ("count", "O", "wanted integers of 64 bits, got integers of up to 128 bits"),
        ("sum", "f", "wanted integers of 64 bits or integers of up to 128 bits, got floats"),
        ("hll", "T", "wanted HLL sketches, got theta sketches"),
    ],
)
def test_a_column_of_other_values_is_refused_in_words(name: str, letter: str, says: str) -> None:
    with pytest.raises(WireError, match=says):
        check_column(name, letter, -1)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_facts_of_a_kind_fit_together(kind: ColumnKind) -> None:
    cells = {Form.MULTISET, Form.SERIES, Form.BYTES}
    assert kind.grows == bool(cells.intersection(kind.forms))
    assert (kind.renumber is not None) == bool({Form.NODE, Form.SERIES}.intersection(kind.forms))
    assert not kind.arrivals or kind.of_reading
    for scale in (None, -1):
        few, many = kind.size(1, scale, 1), kind.size(1, scale, 1e6)
        assert 0 < few.expected <= many.expected
        assert few.expected <= kind.bytes + few.most
        assert (many.most > few.most) == kind.grows
