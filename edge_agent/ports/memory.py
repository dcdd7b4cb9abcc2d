"""Returns freed memory to the system. After a burst the allocator would keep it, and the unit's limit counts it."""

from __future__ import annotations

import gc


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
