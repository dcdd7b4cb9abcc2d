"""The kinds of numpy arrays that states and readings are made of."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Array = NDArray[Any]  # a column of states: float64, int64, or object (Python ints beyond 64 bits, cells)

NO_INTS: Final[Ints] = np.zeros(0, np.int64)
