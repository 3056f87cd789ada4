"""Whole numbers as bits: whether a key was changed is one look, where a hash table takes ten times as long."""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

_SPAN_MAX = 1 << 28
"""Numbers between the least key and the greatest: 32 MB of bits."""


class KeyBits:
    """A set of keys of one column of whole numbers or dates."""

    def __init__(self, low: int, high: int, bits: np.ndarray) -> None:
        """Use ``of``."""
        self._low = low
        self._high = high
        self._bits = bits

    @staticmethod
    def can_hold(kind: pa.DataType) -> bool:
        """Tell whether keys of a type are whole numbers."""
        return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind))

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> Self | None:
        """Hold these keys, none of them NULL; None where they lie too far apart."""
        numbers = np.concatenate([_numbers(chunk) for chunk in keys.chunks] or [np.empty(0, np.int64)])
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        if high - low >= _SPAN_MAX:
            return None
        places = numbers - low
        bits = np.zeros(((high - low) >> 3) + 1, np.uint8)
        np.bitwise_or.at(bits, places >> 3, _bit(places))
        return cls(low, high, bits)

    def lacks(self, keys: pa.Array) -> pa.Array:
        """Tell of each key, none of them NULL, whether it is not in the set."""
        numbers = _numbers(keys)
        near = (numbers >= self._low) & (numbers <= self._high)
        places = np.where(near, numbers - self._low, 0)
        found = (self._bits[places >> 3] & _bit(places)).astype(bool)
        return pa.array(~(found & near))


def _numbers(keys: pa.Array) -> np.ndarray:
    plain = keys.cast(pa.int32()) if pa.types.is_date32(keys.type) else keys
    return np.asarray(plain.to_numpy(zero_copy_only=False), np.int64)


def _bit(places: np.ndarray) -> np.ndarray:
    return np.asarray(np.left_shift(1, places & 7), np.uint8)
