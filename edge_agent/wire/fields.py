"""Limits of fields, and checks that all parts of a frame use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from edge_agent.errors import WireError
from edge_agent.wire.cbor import a_text, an_array, an_int, shown

TIME_LIMIT_US: Final = 2**62  # all times lie within +- this, so that sums of two stay within 64 bits
MAX_PLANS: Final = 2**16
MAX_GROUPS: Final = 2**16
MAX_NODES: Final = 2**20  # a merger lists every gateway below it
MAX_SEQ: Final = 2**62
MAX_BIRTH_FRAMES: Final = 2**16  # of one birth; 8 GB
MAX_REVISION: Final = 2**62
EPOCH_LIMIT: Final = 2**32 - 1  # frames carry the first 32 bits of an epoch's id
ID_LIMIT: Final = 2**64 - 1
NAME: Final = 256  # characters of an id, a column or a label name; ids are 64 at most
TEXT: Final = 65_536  # characters of a key, a filter or a definition
NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")

T = TypeVar("T")


def a_time(value: object, what: str) -> int:
    """Microseconds within +-2^62, minus infinity (-2^62) included. Raises: WireError."""
    return an_int(value, -TIME_LIMIT_US, TIME_LIMIT_US, what)


def a_node(value: object, what: str) -> str:
    """A node id. Raises: WireError."""
    if type(value) is str and NODE_ID.fullmatch(value):
        return value
    raise WireError(f"{what}: wanted a node id [a-z0-9-]{{1,32}}, got {shown(value)}")


def maybe(read: Callable[..., T], value: object, *rest: Any) -> T | None:
    """None for null, else the result of `read`."""
    return None if value is None else read(value, *rest)


def each(read: Callable[[object], T], value: object, what: str) -> tuple[T, ...]:
    """The results of `read` for each item of an array. Raises: WireError."""
    return tuple(read(item) for item in an_array(value, what, 0))


def names(value: object, what: str, longest: int = NAME) -> tuple[str, ...]:
    """Texts. Raises: WireError."""
    return each(lambda item: a_text(item, what, longest), value, what)


def seq_ranges(value: object, upto: int, most: int | None = None) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges of sequence numbers, ascending, above `upto`, the first that is missing. Raises: WireError."""
    out: list[tuple[int, int]] = []
    beyond = upto
    for pair in an_array(value, "ranges above", 0, most):
        first, last = an_array(pair, "range", 2, 2)
        out.append(
            (an_int(first, beyond + 1, MAX_SEQ, "first of a range"), an_int(last, first, MAX_SEQ, "last of a range"))
        )
        beyond = last
    return tuple(out)
