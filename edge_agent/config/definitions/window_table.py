"""The `window` table of a query, generated from the registry of window types (algebra/windows)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

from edge_agent.algebra.plugin_calls import error_text
from edge_agent.algebra.windows import ALL, GUARDS, REFUSED, Spec, broken_law
from edge_agent.algebra.windows.declaration import NEEDED, Setting
from edge_agent.config.checking.checker import (
    BAD,
    REQUIRED,
    Key,
    Report,
    ValueType,
    complete,
    one_of,
    read_table,
    type_of,
)
from edge_agent.config.checking.composite_types import write_table
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.quantities import Duration, Instant, Zone
from edge_agent.config.checking.value_types import BROUGHT, AsWritten, Choice, Flag, Number, Text, left_out
from edge_agent.config.definitions.conditions import Condition

MOST_TEXT: Final = 64  # characters of a text in a window, which frames contain
WORDS: Final = (  # all window types of the language; those not in the registry are reported as not supported yet
    *("tumbling", "sliding", "session", "count_tumbling", "count_sliding", "punctuation", "state"),
    *("fixed_band", "calendar"),
)
_MEANT: Final = (  # (word of another tool, our word), where the spelling is not similar
    *(("hopping", "sliding"), ("hop", "sliding"), ("tumble", "tumbling"), ("fixed", "tumbling")),
    *(("daily", "calendar"), ("weekly", "calendar"), ("monthly", "calendar"), ("count", "count_tumbling")),
    ("condition", "state"),
)


@dataclass(frozen=True, slots=True)
class ShortText(AsWritten):
    """A text of at most MOST_TEXT characters; a whole number is read as its text."""

    text: ClassVar[Text] = Text("a text", empty=True, longest=MOST_TEXT)

    def read(self, value: Any, at: Path, report: Report) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return self.text.read(str(value) if whole else value, at, report)


def _kind(setting: Setting) -> ValueType:
    match setting.kind:
        case "duration":
            return Duration(setting.low, setting.high, setting.most)
        case "instant":
            return Instant()
        case "word":
            return Choice(setting.words)
        case "zone":
            return Zone()
        case "count":
            hint = f"a plain number, {setting.low} to {setting.high}"
            return Number(setting.low, setting.high, whole=True, hint=hint)
        case "condition":
            return Condition("a condition", empty=setting.default is not NEEDED)
        case "text":
            return ShortText()
        case "flag":
            return Flag()
    raise ValueError(f"window key {setting.name}: no kind {setting.kind!r}")


def _key(setting: Setting) -> Key:
    default = REQUIRED if setting.default is NEEDED else setting.default
    return Key(setting.name, _kind(setting), default, setting.about)


@cache
def keys_of_window(word: str) -> tuple[Key, ...]:
    """The keys of a window type; also of one from an installed package."""
    return tuple(_key(setting) for setting in ALL[word].KEYS)


LATER_WINDOWS: Final = tuple(word for word in WORDS if word not in ALL)


@dataclass(frozen=True, slots=True)
class WindowTable(AsWritten):
    """The `window` table. Its key `type` determines the other keys."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, Mapping):
            return report.wrong(
                at, value, f"wanted a table, got {type_of(value)}", '{type = "tumbling", length = "1m"}'
            )
        word = value.get("type")
        if word is None:
            return report.wrong(at, None, '"type" is missing', one_of("", (*ALL, *LATER_WINDOWS)))
        known = Choice(tuple(ALL), LATER_WINDOWS, "window type", left_out(REFUSED), _MEANT, BROUGHT)
        if known.read(word, (*at, "type"), report) is BAD:
            return BAD
        keys = keys_of_window(word)
        own = {name: item for name, item in value.items() if name != "type"}
        if not report.lenient and (other := _elsewhere(word, own)) is not None:
            return report.unknown(at, *other)
        values = read_table(keys, own, at, report)
        if not complete(values):
            return BAD
        inside = {key.inside: values[key.name] for key in keys}
        try:
            spec = ALL[word](**inside)
            if lost := [key for key in keys if not hasattr(spec, key.inside)]:
                where = f"{type(spec).__module__}.{type(spec).__name__}"
                raise TypeError(f"{where} needs a property {lost[0].inside}, the value of its key {lost[0].name}")
            wrong = spec.wrong()
        except (Exception, SystemExit) as err:
            if word not in GUARDS:
                raise
            return report.wrong((*at, "type"), word, f"its package ({GUARDS[word].package}): {error_text(err)}")
        if wrong is None or (wrong.live and (report.unit_us is not None or report.unbounded)):
            if why := broken_law(spec):
                return report.wrong((*at, "type"), word, f"its package ({GUARDS[word].package}): {why}")
            return spec
        texts = {key.name: key.kind.write(values[key.name]) for key in keys if values[key.name] is not None}
        hint = wrong.hint
        if isinstance(hint, int):
            hint = str(next(key.kind.write(hint) for key in keys if key.name == wrong.key))
        return report.wrong((*at, wrong.key), value.get(wrong.key), wrong.why.format_map(texts), hint)

    def write(self, value: Any) -> object:
        return write_window(value)


def _elsewhere(word: str, own: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str] | None:
    """For `slide` in a tumbling window: the arguments (name, names, hint) of Report.unknown; else None."""
    family = word.rpartition("tumbling")[0] + "sliding" if word.endswith("tumbling") else ""
    if family in ALL and "slide" in own:
        return "slide", (), f'a {word} window has no slide; use type = "{family}"'
    return None


def window_text(window: Spec) -> str:
    """The window in a few words, such as `sliding 10m every 1m` or `session, gap 5s`."""
    table = {name: str(value) for name, value in write_window(window).items()}
    word, text = table.pop("type"), ""
    if word in {"tumbling", "sliding"}:
        text = f" {table.pop('length')}" + (f" every {table.pop('slide')}" if "slide" in table else "")
    return f"{word}{text}" + "".join(f", {name} {value}" for name, value in table.items())


def write_window(window: Spec) -> dict[str, object]:
    """The `window` table of a window; reading it returns the same window."""
    keys = keys_of_window(window.type)
    values = {key.inside: getattr(window, key.inside) for key in keys}
    return {"type": window.type, **write_table(keys, values)}
