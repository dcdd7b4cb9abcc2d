"""Limits of the fields of messages, and checks that all parts of a frame share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from edge_agent.errors import WireError
from edge_agent.wire.cbor import a_text, an_array, an_int, shown

TIME_LIMIT_US: Final = 2**62  # bound of |time|, so that the sum of two times fits 64 bits
MAX_PLANS: Final = 2**16
MAX_GROUPS: Final = 2**16
MAX_NODES: Final = 2**20  # node numbers of one epoch: a merger numbers every gateway below it
MAX_SEQ: Final = 2**62
MAX_BIRTH_FRAMES: Final = 2**16  # frames of one birth: up to 8 GB
MAX_REVISION: Final = 2**62
EPOCH_LIMIT: Final = 2**32 - 1  # frames contain the first 32 bits of an epoch's id
ID_LIMIT: Final = 2**64 - 1
NAME: Final = 256  # most characters of a name of a column or label, and of an id (ids have at most 64)
TEXT: Final = 65_536  # most characters of a key, a filter or a definition
NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")

T = TypeVar("T")


def a_time(value: object, what: str) -> int:
    """Check a time: microseconds within +-2^62, where -2^62 is minus infinity. Raises: WireError."""
    return an_int(value, -TIME_LIMIT_US, TIME_LIMIT_US, what)


def a_node(value: object, what: str) -> str:
    """Check the id of a node. Raises: WireError."""
    if type(value) is str and NODE_ID.fullmatch(value):
        return value
    raise WireError(f"{what}: wanted a node id [a-z0-9-]{{1,32}}, got {shown(value)}")


def maybe(read: Callable[..., T], value: object, *rest: Any) -> T | None:
    """Read an optional value: None for null, else the result of `read`."""
    return None if value is None else read(value, *rest)


def each(read: Callable[[object], T], value: object, what: str) -> tuple[T, ...]:
    """Read an array: the results of `read` for each item. Raises: WireError."""
    return tuple(read(item) for item in an_array(value, what, 0))


def names(value: object, what: str, longest: int = NAME) -> tuple[str, ...]:
    """Check an array of texts. Raises: WireError."""
    return each(lambda item: a_text(item, what, longest), value, what)


def seq_ranges(value: object, upto: int, most: int | None = None) -> tuple[tuple[int, int], ...]:
    """Check inclusive, ascending ranges of seqs above `upto`, the first missing seq. Raises: WireError."""
    out: list[tuple[int, int]] = []
    beyond = upto
    for pair in an_array(value, "ranges above", 0, most):
        first, last = an_array(pair, "range", 2, 2)
        out.append(
            (an_int(first, beyond + 1, MAX_SEQ, "first of a range"), an_int(last, first, MAX_SEQ, "last of a range"))
        )
        beyond = last
    return tuple(out)
