"""Returns freed memory to the system, which the unit's limit counts, and sets how often a process looks for garbage."""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000  # new objects between two looks for cycles among them; 700 by default


def trim() -> None:
    """Collect garbage and return whole free pages to the system. Without glibc: collect garbage only."""
    import ctypes  # here, because most processes never call this

    gc.collect()
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    release.argtypes, release.restype = (ctypes.c_size_t,), ctypes.c_int
    release(0)


def look_less_often() -> None:
    """Look for cyclic garbage once in YOUNG new objects.

    A commit of thousands of groups makes a hundred thousand objects without a cycle, which live until the next one. By
    default Python goes through all objects of the process several times for them, which took two fifths of it.
    """
    gc.set_threshold(YOUNG, 10, 10)
