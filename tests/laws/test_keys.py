"""Keys as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.key import key_labels, key_text

texts = st.text(alphabet="ab%,=2C5é ", max_size=6)


@given(labels=st.dictionaries(texts.filter(bool), texts, max_size=4), other=texts.filter(bool))
def test_a_key_is_taken_apart_into_the_labels_it_was_made_of(labels: dict[str, str], other: str) -> None:
    by = tuple(dict.fromkeys([*labels, other]))
    text = key_text(tuple(sorted(labels.items())), by)
    assert key_labels(text) == {name: labels.get(name, "") for name in by}
    assert list(key_labels(text)) == list(by)


def test_keys_are_written_as_documented() -> None:
    assert key_text((("site", "a"), ("unit", "3")), ("site", "unit")) == "site=a,unit=3"
    assert key_text((("site", "a,b=50%"),), ("site",)) == "site=a%2Cb%3D50%25"
    assert key_text((("site", "a"),), ()) == ""
    assert key_labels("") == {}
