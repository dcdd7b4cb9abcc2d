"""Freed memory back to the system: after a burst the allocator would keep it, and the limit of the unit counts it."""

from __future__ import annotations

import gc


def trim() -> None:
    """Collect garbage and give back whole free pages. Without glibc nothing happens."""
    import ctypes  # most processes never need it

    gc.collect()
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    release.argtypes, release.restype = (ctypes.c_size_t,), ctypes.c_int
    release(0)
