"""Returns freed memory to the system: the allocator would keep it after a burst, and it counts against the unit's
limit.
"""

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
