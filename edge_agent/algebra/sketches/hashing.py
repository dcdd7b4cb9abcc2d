"""Hashes values as DataSketches does, so that its sketches and ours can be merged.

Source: MurmurHash3_x64_128 (Appleby, public domain) over the eight bytes of a double, little endian, seed 9001; -0.0 is
hashed as 0.0. Compared with the library in tests/laws/test_sketches.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

SEED: Final = 9001  # the default seed of all DataSketches libraries
SEED_HASH: Final = 0xCC93  # 16 bits of the hash of the seed, a field of theta sketches
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_31, _33 = np.uint64(31), np.uint64(33)


def hashed(values: NDArray[np.float64]) -> tuple[Hashes, Hashes]:
    """(first, second 64 bits) of the hash of each value. values: shape (k,), float64, finite; k may be 0."""
    block = (values + 0.0).view(np.uint64) * _C1
    block = ((block << _31) | (block >> _33)) * _C2
    begun = np.uint64(SEED ^ 8)  # 8: the length of a value in bytes
    first = (block ^ begun) + begun
    low, high = _mixed(first), _mixed(first + begun)
    low = low + high
    return low, high + low


def _mixed(x: Hashes) -> Hashes:
    x = (x ^ (x >> _33)) * _F1
    x = (x ^ (x >> _33)) * _F2
    mixed: Hashes = x ^ (x >> _33)
    return mixed
