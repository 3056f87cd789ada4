"""A bitmap as a set of integer keys; a lookup takes less than half the time of a hash table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa

_SPAN_MAX = 1 << 28
"""Maximum difference between the smallest and the largest key: a bitmap of 32 MB."""


class KeyBitmap:
    """A set of keys of one integer or date column.

    Attributes:
        low: the smallest key.
        high: the largest key.
    """

    def __init__(self, low: int, high: int) -> None:
        """Create an empty set of keys between ``low`` and ``high``."""
        self.low = low
        self.high = high
        self._bits = np.zeros((((high - low + 1) >> 6) + 1) << 3, np.uint8)

    @staticmethod
    def can_hold(data_type: pa.DataType) -> bool:
        """Return whether the set can hold keys of a type."""
        return bool(pa.types.is_signed_integer(data_type) or pa.types.is_date32(data_type))

    @classmethod
    def of(cls, ends: pa.Array, keys: Iterable[pa.Array]) -> Self | None:
        """Return the set of some keys, None if they are too far apart; memory is that of it and of one array of keys.

        Args:
            ends: the smallest and the largest key; both NULL if there are none.
            keys: the keys, without NULL.
        """
        low, high = (0, 0) if ends.null_count else map(int, numbers_of(ends))
        bitmap = cls.between(low, high)
        if bitmap is not None:
            for some in keys:
                bitmap.add(numbers_of(some))
        return bitmap

    @classmethod
    def between(cls, low: int, high: int) -> Self | None:
        """Return an empty set of keys between ``low`` and ``high``; None if the range is too large."""
        return cls(low, high) if high - low < _SPAN_MAX else None

    @property
    def words(self) -> np.ndarray:
        """The bits, starting at ``low``, 64 per int64, least significant bit first."""
        return self._bits.view("<i8")

    def add(self, numbers: np.ndarray) -> None:
        """Add keys (int64)."""
        places = numbers - self.low
        if len(self._bits) > len(places) << 3:
            np.bitwise_or.at(self._bits, places >> 3, _bit(places))
            return
        # For dense keys, packing booleans takes a quarter of the time of setting single bits.
        are_set = np.zeros(len(self._bits) << 3, bool)
        are_set[places] = True
        self._bits |= np.packbits(are_set, bitorder="little")

    def __len__(self) -> int:
        """Return the number of keys."""
        return int(np.bitwise_count(self._bits.view(np.uint64)).sum(dtype=np.int64))

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each number (int64) whether it is in the set."""
        # A number below the smallest key becomes a very large one, and all too large ones the bit after the last.
        after = np.uint64(self.high - self.low + 1)
        places = np.minimum((numbers - self.low).view(np.uint64), after).view(np.int64)
        return np.asarray(self._bits[places >> 3] & _bit(places), bool)

    def lacks(self, keys: pa.Array) -> pa.Array:
        """Return a mask of the keys that are not in the set; no key may be NULL."""
        return pa.array(~self.holds(numbers_of(keys)))


def numbers_of(keys: pa.Array) -> np.ndarray:
    """Return keys as int64, dates as days since the epoch."""
    plain = keys.cast(pa.int32()) if pa.types.is_date32(keys.type) else keys
    return np.asarray(plain.to_numpy(zero_copy_only=False), np.int64)


def _bit(places: np.ndarray) -> np.ndarray:
    return np.asarray(np.left_shift(1, places & 7), np.uint8)
