"""Keys as bits: a set of whole numbers or dates answers as a Python set does."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.merge.key_bitmap import KeyBitmap

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def bits_of(keys: pa.ChunkedArray) -> KeyBitmap | None:
    """Hold keys that come in arrays."""
    ends = pc.min_max(keys)
    return KeyBitmap.of(pa.array([ends["min"].as_py(), ends["max"].as_py()], keys.type), keys.chunks)


@given(low=LONGS, steps=st.sets(st.integers(0, 2_000)), asked=st.lists(LONGS), near=st.lists(st.integers(-9, 2_009)))
def test_it_answers_as_a_set_does(low: int, steps: set[int], asked: list[int], near: list[int]) -> None:
    low = min(low, (1 << 63) - 3_000)
    held = {low + step for step in steps}
    keys = [*asked, *(max(low + step, -(1 << 63)) for step in near)]
    bits = bits_of(pa.chunked_array([list(held)[:3], list(held)[3:]], pa.int64()))
    assert bits is not None
    assert bits.lacks(pa.array(keys, pa.int64())).to_pylist() == [key not in held for key in keys]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32()])
def test_each_kind_of_whole_number(kind: pa.DataType) -> None:
    assert KeyBitmap.can_hold(kind)
    keys = pa.array([-3, 0, 100], pa.int32()).cast(kind)
    bits = bits_of(pa.chunked_array([keys]))
    assert bits is not None
    asked = pa.array([-3, -2, 0, 99, 100], pa.int32()).cast(kind)
    assert bits.lacks(asked.slice(1)).to_pylist() == [True, False, True, False]
    if pa.types.is_date32(kind):
        assert bits.lacks(pa.array([dt.date(1970, 1, 1)])).to_pylist() == [False]


def test_what_is_no_whole_number_or_lies_too_far_apart_is_not_held() -> None:
    assert not any(
        map(KeyBitmap.can_hold, [pa.string(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.decimal128(9)])
    )
    assert bits_of(pa.chunked_array([[0, (1 << 28) - 1]])) is not None
    assert bits_of(pa.chunked_array([[0, 1 << 28]])) is None
    assert bits_of(pa.chunked_array([[-(1 << 63), (1 << 63) - 1]])) is None
    nothing = bits_of(pa.chunked_array([], pa.int64()))
    assert nothing is not None
    assert nothing.lacks(pa.array([0, 1, -1])).to_pylist() == [True, True, True]
