"""Parses a text to plain values with the line of every key. A text that begins with `{` is JSON, any other is TOML.

Two small scanners find the lines, because tomllib and json return values without places.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.durations import format_size
from edge_agent.errors import ConfigError, Problem

Path = tuple[str | int, ...]

MAX_BYTES: Final = 64_000  # limit of one definition: more than any sensible one needs, small compared to a frame
MAX_DEPTH: Final = foreign_json.MAX_DEPTH
MAX_BITS: Final = (10**foreign_json.MAX_DIGITS).bit_length()


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text. lines: path of a key -> its line, from 1; empty if the value does not come from text."""

    value: Mapping[str, object]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of the key at `path`, or else of its nearest enclosing table with a line; None: no line is known."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)


def read(payload: bytes | str | Mapping[str, object], max_bytes: int = MAX_BYTES, *, toml: bool = True) -> Document:
    """Parse a payload. toml: False for texts that software wrote; they must be JSON.

    Raises: ConfigError with one problem, the first that was found.
    """
    if isinstance(payload, Mapping):
        return Document(payload)
    try:
        size = len(payload.encode() if isinstance(payload, str) else payload)
    except UnicodeEncodeError as err:  # bytes of a command line that are not UTF-8
        raise _refused("not UTF-8 text", "use letters of UTF-8") from err
    if size > max_bytes:
        raise _refused(f"{size} bytes; at most {format_size(max_bytes)} are read", "make it smaller")
    try:
        text = payload if isinstance(payload, str) else payload.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise _refused(f"not UTF-8 text: byte {err.start} is 0x{payload[err.start]:02x}", "save it as UTF-8") from err
    if not text.strip():
        raise _refused("empty", "write a TOML or JSON definition")
    try:
        if text.lstrip().startswith("{"):
            value = foreign_json.parse(text, most_bytes=max_bytes)
            lines = _json_lines(text)
        elif not toml:
            raise ValueError("wanted JSON")
        else:
            _few_dots(text)
            value = tomllib.loads(text)
            lines = _toml_lines(text)
        _shallow(value)
    except json.JSONDecodeError as err:
        raise _refused(f"not valid JSON: {err.msg}, column {err.colno}", "", err.lineno) from err
    except tomllib.TOMLDecodeError as err:
        raise _refused(f"not valid TOML: {err}", _toml_hint(text), _line_in(str(err))) from err
    except RecursionError as err:
        raise _refused(f"nested deeper than {MAX_DEPTH} levels", "flatten it") from err
    except ValueError as err:  # such as a number of thousands of digits, or a key given twice
        raise _refused(f"cannot be read: {foreign_json.reason(err)}", "") from err
    return Document(value, lines)


def _refused(why: str, hint: str, line: int | None = None) -> ConfigError:
    problem = Problem("", None, why, hint, line)
    return ConfigError(f"{why}; {hint}" if hint else why, (problem,))


_TOML_NO_KEY: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?"*'
    r"|'''(?:[^']|'(?!''))*+(?:''')?'*"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*",
    re.DOTALL,
)


def _few_dots(text: str) -> None:
    """Refuse dotted keys with many parts: tomllib takes minutes for a key of MAX_BYTES. Raises: RecursionError."""
    bare = _TOML_NO_KEY.sub("s", text)
    if any(piece.count(".") > MAX_DEPTH for piece in re.split(r"[=\[\]{},\n]", bare)):
        raise RecursionError


def _shallow(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number beyond the range of a double")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"an integer of more than {foreign_json.MAX_DIGITS} digits")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _shallow(child, depth + 1)


def _line_in(message: str) -> int | None:
    found = re.search(r"at line (\d+)", message)
    return int(found[1]) if found else None


_BARE_DURATION: Final = re.compile(
    r"^[ \t]*+[A-Za-z0-9_-]++[ \t]*+=[ \t]*+(\d{1,20}(?:\.\d{1,20})?(?:us|ms|s|m|h|d|w))[ \t]*+(?:#.*)?$", re.MULTILINE
)


def _toml_hint(text: str) -> str:
    bare = _BARE_DURATION.search(text)
    if bare:
        return f'write durations in quotes: "{bare[1]}"'
    return "" if re.search(r"[=\[]", text) else "a definition is TOML (key = value) or JSON ({...})"


_JSON_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')


def _json_lines(text: str) -> dict[Path, int]:
    """The lines of the keys and list entries of a valid JSON text."""
    lines: dict[Path, int] = {}
    stack: list[str | int] = []  # current key or index at each level
    line, key_next = 1, False
    for piece in _JSON_PIECE.findall(text):
        if piece not in "\n,:]}" and stack and isinstance(stack[-1], int):
            lines.setdefault(tuple(stack), line)  # the first line of a list entry
        if piece == "\n":
            line += 1
        elif piece == "{":
            stack.append("")
            key_next = True
        elif piece == "[":
            stack.append(0)
            key_next = False
        elif piece in "}]":
            stack.pop()
            key_next = False
        elif piece == ",":
            if isinstance(top := stack[-1], int):
                stack[-1] = top + 1
            key_next = not isinstance(top, int)
        elif key_next and piece.startswith('"'):
            stack[-1] = json.loads(piece) if "\\" in piece else piece[1:-1]
            lines[tuple(stack)] = line
            key_next = False
    return lines


_TOML_NAME: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_TOML_HEAD: Final = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?")
_TOML_KEY: Final = re.compile(rf"\s*({_TOML_NAME}(?:\s*\.\s*{_TOML_NAME})*)\s*=")
_TOML_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"([^"]*)"|'([^']*)'""")
_TOML_TEXT: Final = re.compile(r""""(?:[^"\\]|\\.)*+"?|'[^']*+'?""")


def _toml_lines(text: str) -> dict[Path, int]:
    """The lines of the headers and keys of a valid TOML text. Keys in inline tables have no line of their own."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    head: Path = ()
    depth, fence = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        if fence:  # inside a multi-line string
            fence = "" if fence in raw else fence
            continue
        if depth == 0:
            if header := _TOML_HEAD.fullmatch(raw):
                head = _parts(header[2])
                if header[1] == "[[":
                    counts[head] = counts.get(head, -1) + 1
                    head = (*head, counts[head])
                lines.setdefault(head, number)
            elif key := _TOML_KEY.match(raw):
                lines.setdefault((*head, *_parts(key[1])), number)
        bare = raw
        for mark in ('"""', "'''"):
            if bare.count(mark) % 2:
                fence, bare = mark, bare.partition(mark)[0]
        bare = _TOML_TEXT.sub("", bare).partition("#")[0]
        depth = max(0, depth + bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}"))
    return lines


def _parts(dotted: str) -> Path:
    return tuple(m[1] or m[2] or m[0] for m in _TOML_PART.finditer(dotted))
