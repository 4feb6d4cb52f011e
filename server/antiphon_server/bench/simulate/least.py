"""Least squares without negative parts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_RIDGE = 1e-3
_SWEEPS = 2000


def least(matrix: Array, target: Array, start: Array) -> Array:
    """x >= 0 that minimises ``|matrix x - target|``, by coordinate descent; of several it is one near
    ``start``."""
    size = len(start)
    matrix = np.vstack([matrix, _RIDGE * np.eye(size)])
    target = np.concatenate([target, _RIDGE * start])
    gram, right = matrix.T @ matrix, matrix.T @ target
    x = np.array(start, dtype=float)
    for _ in range(_SWEEPS):
        before = x.copy()
        for index in range(size):
            rest = right[index] - gram[index] @ x + gram[index, index] * x[index]
            x[index] = max(0.0, rest / gram[index, index])
        if np.abs(x - before).max() < 1e-7:
            break
    return x
