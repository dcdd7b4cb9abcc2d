from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.checking.documents import MAX_BYTES, read
from edge_agent.errors import ConfigError

TOML = """\
# a comment with [brackets] = and "quotes
top = 1
[window]
type = "sliding" # [not.a.header]
"odd key" = { a = 1, b = "}" }
list = [
  1, # ]
  2,
]
text = \"\"\"
[not.a.header]
no = 1
\"\"\"
[[things]]
x = 1
[[things]]
x = 2
[a.b."c d"]
e.f = 3
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("window",), 3),
        (("window", "type"), 4),
        (("window", "odd key"), 5),
        (("window", "odd key", "a"), 5),
        (("window", "list", 1), 6),
        (("window", "text"), 10),
        (("things", 0, "x"), 15),
        (("things", 1, "x"), 17),
        (("a", "b", "c d", "e", "f"), 19),
        (("window", "no"), 3),
        (("nowhere",), None),
    ],
)
def test_every_key_of_a_toml_text_has_its_line(path: tuple[str | int, ...], line: int | None) -> None:
    assert read(TOML).line(path) == line


def test_every_key_of_a_json_text_has_its_line() -> None:
    text = '{"a": 1,\n "b": {"c": [1,\n 2, {"d": "x, \\" {"}]\n},\n "e": []}'
    document = read(text)
    paths: list[tuple[str | int, ...]] = [("a",), ("b",), ("b", "c", 0), ("b", "c", 1), ("b", "c", 2, "d"), ("e",)]
    assert [document.line(p) for p in paths] == [1, 2, 2, 3, 3, 5]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\xff\xfe", "not UTF-8 text: byte 0 is 0xff"),
        (b"hello", "not valid TOML"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON: Extra data"),
        (b'{"a": 1, "a": 2}', 'key "a" is given twice'),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": 1e999}', "beyond the range"),
        (b"a = inf", "beyond the range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b'{"a": ' * 30 + b"1" + b"}" * 30, "nested deeper"),
        (b'{"a":' + b"[" * 50_000, "nested deeper"),
        (b"a = " + b"[" * 5_000, "nested deeper"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"lateness = 5s", 'write durations in quotes: "5s"'),
        (b"x" * (MAX_BYTES + 1), "64kB"),
        (b"a = '\x00'", "not valid TOML"),
    ],
)
def test_what_cannot_be_read_is_one_line(payload: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(payload)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_an_error_of_syntax_names_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        read("a = 1\nb = \n")
    assert caught.value.problems[0].line == 2


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_break_the_reader(payload: bytes) -> None:
    try:
        read(payload)
    except ConfigError as err:
        assert err.problems  # noqa: PT017 - any other exception fails the test


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.sampled_from([None, 1]))
def test_lines_never_disagree_with_the_parser(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    document = read(text)
    assert document.value == value
    assert {path[0] for path in document.lines} == set(value)
    assert all(1 <= line <= text.count("\n") + 1 for line in document.lines.values())


def test_a_text_with_a_byte_order_mark_is_read() -> None:
    assert read(b"\xef\xbb\xbfa = 1").value == {"a": 1}
