"""Converts typed state to plain values and back, for the slots of a spool and the root's decision row.

`encode` follows the value, `decode` the declared type. A dataclass whose fields are keyword-only becomes a map by field
name (without the unit `_us`; the metadata WRITTEN of a field replaces its name). Any other dataclass or named tuple
becomes a list in the order of its fields; for fields missing at the end of the list, `decode` takes the defaults. A map
with keys other than texts becomes a list of [*key, value]. Groups, queries and rows have their own forms, below.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import numpy as np

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import cut_from_text
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import ALL

T = TypeVar("T")
_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None), np.ndarray, Frame})  # the spool stores these as is
_TEXT: Final = frozenset({str})
_UNIT: Final = "_us"
WRITTEN: Final = "written"  # key in the metadata of a field: its name in the plain map


def encode(value: Any, rows: Callable[[Partials], object] | None = None) -> Any:
    """Turn a value of a declared type into plain values. rows: converts Partials, instead of `rows_to_plain`."""
    kind: Any = type(value)
    return value if kind in _PLAIN else _encoder(kind)(value, rows)


def encode_without(value: Any, names: tuple[str, ...]) -> Any:
    """As `encode`, with None for these fields of a dataclass, for those that are stored elsewhere."""
    kind: Any = type(value)
    return _encoder_without(kind, names)(value, None)


def decode(kind: type[T], plain: Any, pages: Callable[[Any], Partials] | None = None) -> T:
    """The value of type `kind` that `encode` turned into `plain`. pages: reverses the `rows` given to `encode`."""
    value: T = _decoder(cast("Any", kind))(plain, pages)
    return value


@dataclass(frozen=True, slots=True)
class Untyped:
    """A value whose type the reader learns only later. content: a typed value to write, or plain values if read."""

    content: Any
    pages: Callable[[Any], Partials] | None = None

    def decode(self, kind: type[T]) -> T:
        """The value as the given type."""
        return decode(kind, self.content, self.pages)


Encoder = Callable[[Any, "Callable[[Partials], object] | None"], Any]
Decoder = Callable[[Any, "Callable[[Any], Partials] | None"], Any]


@cache
def _encoder(kind: Any) -> Encoder:
    if issubclass(kind, list | tuple):
        return _encode_sequence
    if kind is dict:
        return _encode_dict
    if kind is Partials:
        return lambda value, rows: (rows or rows_to_plain)(value)
    if kind is Untyped:
        return lambda value, rows: encode(value.content, rows)
    if kind in _OWN:
        return lambda value, rows: _OWN[kind][0](value)
    if kind is set or kind is frozenset:
        return lambda value, rows: [encode(each, rows) for each in sorted(value)]
    if is_dataclass(kind):
        return _dataclass_encoder(kind)
    return lambda value, rows: value  # numpy scalars


def _encode_sequence(value: Any, rows: Any) -> list[Any]:
    if _PLAIN.issuperset(map(type, value)):
        return list(value)
    return [each if type(each) in _PLAIN else encode(each, rows) for each in value]


def _encode_dict(value: dict[Any, Any], rows: Any) -> Any:
    if _TEXT.issuperset(map(type, value)):
        return {key: each if type(each) in _PLAIN else encode(each, rows) for key, each in value.items()}
    return [[*_key_parts(key), encode(each, rows)] for key, each in value.items()]


@cache
def _encoder_without(kind: Any, names: tuple[str, ...]) -> Encoder:
    return _dataclass_encoder(kind, names)


def _dataclass_encoder(kind: Any, without: tuple[str, ...] = ()) -> Encoder:
    names, by_name = _names(kind)
    written, found = tuple(names.values()), attrgetter(*names) if len(names) > 1 else None
    places = tuple(place for place, name in enumerate(names) if name in without)

    def by_position(value: Any, rows: Any) -> list[Any]:
        parts = [getattr(value, name) for name in names] if found is None else list(found(value))
        for place in places:
            parts[place] = None
        return [each if type(each) in _PLAIN else encode(each, rows) for each in parts]

    return (lambda value, rows: dict(zip(written, by_position(value, rows), strict=True))) if by_name else by_position


@cache
def _decoder(kind: Any) -> Decoder:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [each for each in args if each is not types.NoneType]
        of, only = _decoder(kinds[0]), len(kinds) == 1  # in a union of several types only the first becomes a list
        return lambda plain, pages: of(plain, pages) if plain is not None and (only or type(plain) is list) else plain
    if origin in (list, set):
        each = _decoder(args[0])
        return lambda plain, pages: origin(each(item, pages) for item in plain)
    if origin is tuple:
        return _tuple_decoder(args)
    if origin is dict:
        return _dict_decoder(*args)
    if kind is Partials:
        return lambda plain, pages: (pages or rows_from_plain)(plain)
    if kind is Untyped:
        return Untyped
    if kind in _OWN:
        return lambda plain, pages: _OWN[kind][1](plain)
    if is_dataclass(kind):
        return _dataclass_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda plain, pages: kind(*plain)
    return lambda plain, pages: plain


def _tuple_decoder(args: tuple[Any, ...]) -> Decoder:
    if args[-1] is Ellipsis:
        each = _decoder(args[0])
        return lambda plain, pages: tuple(each(item, pages) for item in plain)
    of = [_decoder(arg) for arg in args]
    return lambda plain, pages: tuple(one(item, pages) for one, item in zip(of, plain, strict=True))


def _dict_decoder(key: Any, value: Any) -> Decoder:
    of = _decoder(value)
    if key is str:
        return lambda plain, pages: {name: of(each, pages) for name, each in plain.items()}
    if isinstance(key, type) and issubclass(key, tuple):
        return lambda plain, pages: {key(*parts): of(each, pages) for *parts, each in plain}
    key_of = _decoder(key)
    return lambda plain, pages: {key_of(one, pages): of(each, pages) for one, each in plain}


def _dataclass_decoder(kind: Any) -> Decoder:
    names, by_name = _names(kind)
    hints = typing.get_type_hints(kind)
    of = {name: _decoder(hints[name]) for name in names}
    written = {written: name for name, written in names.items()}
    if by_name:
        return lambda plain, pages: kind(
            **{written[name]: of[written[name]](each, pages) for name, each in plain.items() if name in written}
        )
    least = sum(field.default is MISSING and field.default_factory is MISSING for field in fields(kind))

    def by_position(plain: Any, pages: Any) -> Any:
        if not least <= len(plain) <= len(names):
            raise ValueError(f"{kind.__name__} has {len(names)} fields, got {len(plain)}")
        return kind(*(of[name](each, pages) for name, each in zip(names, plain, strict=False)))

    return by_position


@cache
def _names(kind: Any) -> tuple[dict[str, str], bool]:
    """Returns (field -> its name in the plain map, whether the class becomes a map instead of a list)."""
    of = fields(kind)
    names = {field.name: field.metadata.get(WRITTEN, field.name.removesuffix(_UNIT)) for field in of}
    return names, bool(of) and all(field.kw_only for field in of)


def _key_parts(key: object) -> list[object]:
    plain = encode(key)
    return plain if isinstance(key, tuple) else [plain]


def rows_to_plain(rows: Partials) -> dict[str, object]:
    """Turn rows into a map of arrays."""
    return {"start": rows.start, "end": rows.end, "key": rows.key, "states": dict(rows.states)}


def rows_from_plain(plain: Mapping[str, Any]) -> Partials:
    """Reverse `rows_to_plain`."""
    return Partials(plain["start"], plain["end"], plain["key"], dict(plain["states"]))


def _group_to_plain(group: Group) -> list[object]:
    return list(group.plain)


def _group_from_plain(plain: Any) -> Group:
    source, where, by, lateness_us, late, gap_us, max_us, node, text = plain
    return Group(source, where, tuple(by), int(lateness_us), late, cut_from_text(int(gap_us), int(max_us), text), node)


def _query_to_plain(query: Query) -> dict[str, object]:
    plain = asdict(query)
    return {**plain, "window": {"type": query.window.type, **plain["window"]}}


def _query_from_plain(plain: Mapping[str, Any]) -> Query:
    window_fields = dict(plain["window"])
    window = ALL[window_fields.pop("type")](**window_fields)
    aggregates = tuple(
        Aggregate(each["fn"], each["name"], tuple((name, value) for name, value in each["params"]))
        for each in plain["aggregates"]
    )
    return Query(**{**plain, "window": window, "by": tuple(plain["by"]), "aggregates": aggregates})


_OWN: Final[Mapping[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    Group: (_group_to_plain, _group_from_plain),
    Query: (_query_to_plain, _query_from_plain),
}
