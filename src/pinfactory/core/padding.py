"""Arrays padded to a length that many share, so that one compiled program serves them all."""

import numpy as np


def padded_length(n_rows: int) -> int:
    """Return the next of the lengths 64, 96, 128, 192, 256, …: at most half as long again."""
    length = 64
    while length < n_rows:
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return length


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """Append rows of zeros."""
    if len(array) == length:
        return array
    result = np.zeros((length, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result
