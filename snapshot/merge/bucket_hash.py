"""Hashes of key columns: a row's bucket, Spark's ``pmod(hash(key columns), buckets)``, and 64-bit hashes of keys.

Spark's ``hash`` is Murmur3_x86_32 with seed 42, chained: the hash of one column is the seed of the next, and a NULL
leaves the seed as it is (``org.apache.spark.sql.catalyst.expressions.Murmur3Hash``). Its string hash differs from the
reference Murmur3 in the tail: the bytes after the last whole word are mixed in one by one, each sign-extended.
Because it equals Spark's, any Spark user can compute the bucket of a key.

Keys of type float or double are refused by `key_types_allowed`, although `bucket_of` can hash them: NaN has many bit
patterns and -0.0 equals 0.0, and Spark, DuckDB, JSON and the log's consumers do not agree on which of them are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapshot.errors import InvalidInputError

Hashes: TypeAlias = npt.NDArray[np.uint32]

SEED = 42
_OTHER_SEED = 0x9747B28C
"""The seed of the lower half of `key_hashes`; the upper half has Spark's."""
LONG_DIGITS = 18
"""Decimals of at most this many digits are hashed as the long of their unscaled value (Spark's MAX_LONG_DIGITS)."""


def key_types_allowed(data_type: pa.DataType) -> bool:
    """Return whether a column of this type may be part of a primary key.

    Returns:
        True for boolean, integers, decimal, string, binary, date, time and timestamp; False for float, double and
        nested.
    """
    return _is_hashable(data_type) and not pa.types.is_floating(data_type)


def bucket_of(batch: pa.RecordBatch, columns: Sequence[str], buckets: int) -> npt.NDArray[np.int32]:
    """Compute the bucket of each row, from 0 on, bit for bit as Spark's ``pmod(hash(columns...), buckets)``.

    Args:
        batch: The rows.
        columns: Names of the key columns, in the order in which the hash chains them.
        buckets: How many buckets there are; at least 1.

    Raises:
        InvalidInputError: A column has a type that has no hash (nested, interval), or ``buckets`` is less than 1.
    """
    if buckets < 1:
        message = f"bucket: expected a number of at least 1, got {buckets}"
        raise InvalidInputError(message)
    hashes = _hashed(batch, columns, SEED)
    return np.mod(hashes.view(np.int32), np.int32(buckets)).astype(np.int32)


def key_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each row's key; different keys may have the same one.

    Raises:
        InvalidInputError: A column has a type that has no hash.
    """
    upper, lower = (_hashed(batch, columns, seed).astype(np.uint64) for seed in (SEED, _OTHER_SEED))
    return (upper << np.uint64(32)) | lower


def _hashed(batch: pa.RecordBatch, columns: Sequence[str], seed: int) -> Hashes:
    """Hash the columns as Spark's ``hash`` does, which has the seed ``SEED``."""
    hashes = np.full(batch.num_rows, seed, dtype=np.uint32)
    for name in columns:
        array = batch.column(name)
        if not _is_hashable(array.type):
            message = (
                f"key column '{name}': expected a boolean, integer, decimal, string, binary, date, time or timestamp "
                f"type, got {array.type}. Choose another key column"
            )
            raise InvalidInputError(message)
        if array.null_count == 0:
            hashes = _hash_column(array, hashes)
        else:
            is_null = array.is_null().to_numpy(zero_copy_only=False)
            hashes = np.where(is_null, hashes, _hash_column(array, hashes))
    return hashes


def _is_hashable(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_boolean(data_type)
        or types.is_signed_integer(data_type)
        or types.is_float32(data_type)
        or types.is_float64(data_type)
        or types.is_decimal(data_type)
        or _is_bytes(data_type)
        or types.is_date32(data_type)
        or types.is_timestamp(data_type)
        or types.is_time64(data_type)
    )


def _is_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    )


def _hash_column(array: pa.Array, seeds: Hashes) -> Hashes:
    """Hash one column, each row with its own seed; the result of NULL rows is arbitrary."""
    data_type = array.type
    types = pa.types
    if _is_bytes(data_type):
        return _hash_strings(array, seeds)
    if types.is_decimal(data_type):
        return _hash_decimals(array.cast(pa.decimal128(data_type.precision, data_type.scale)), seeds)
    if types.is_boolean(data_type):
        return _hash_ints(_numbers(array.cast(pa.int32())), seeds)
    if types.is_float32(data_type):
        return _hash_ints(_bits(array.cast(pa.float32()), pa.int32(), np.float32), seeds)
    if types.is_float64(data_type):
        return _hash_longs(_bits(array, pa.int64(), np.float64), seeds)
    if types.is_timestamp(data_type):
        return _hash_longs(_numbers(array.cast(pa.timestamp("us", data_type.tz)).view(pa.int64())), seeds)
    if types.is_time64(data_type):
        return _hash_longs(_numbers(array.cast(pa.time64("ns")).view(pa.int64())), seeds)
    if types.is_int64(data_type):
        return _hash_longs(_numbers(array), seeds)
    if types.is_date32(data_type):
        return _hash_ints(_numbers(array.view(pa.int32())), seeds)
    return _hash_ints(_numbers(array.cast(pa.int32())), seeds)


def _numbers(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    numbers: npt.NDArray[np.signedinteger] = (array.fill_null(0) if array.null_count else array).to_numpy()
    return numbers


def _bits(array: pa.Array, as_type: pa.DataType, dtype: type[np.floating]) -> npt.NDArray[np.signedinteger]:
    """Return the bits of floats as Java's ``floatToIntBits`` does, with a single NaN, and with -0.0 as 0.0."""
    numbers = _numbers(array.view(as_type)).view(dtype)
    numbers = np.where(numbers == 0, dtype(0), np.where(np.isnan(numbers), dtype(np.nan), numbers))
    return np.abs(numbers, where=np.isnan(numbers), out=numbers).view(as_type.to_pandas_dtype())


def _hash_ints(numbers: npt.NDArray[np.signedinteger], seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, numbers.astype(np.int32, copy=False).view(np.uint32)), np.uint32(4))


def _hash_longs(numbers: npt.NDArray[np.signedinteger], seeds: Hashes) -> Hashes:
    words = numbers.astype(np.int64, copy=False).view(np.uint64)
    low = words.astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), np.uint32(8))


def _hash_strings(array: pa.Array, seeds: Hashes) -> Hashes:
    wide = pa.large_string() if array.type in (pa.string_view(), pa.string(), pa.large_string()) else pa.large_binary()
    array = array.cast(wide)
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return _hash_bytes(data, offsets[:-1], np.diff(offsets), seeds)


def _hash_decimals(array: pa.Array, seeds: Hashes) -> Hashes:
    """Hash unscaled values, like Spark as longs if they fit, else as the bytes of Java's ``BigInteger.toByteArray``."""
    rows = len(array)
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8)[array.offset * 16 : (array.offset + rows) * 16]
    if array.type.precision <= LONG_DIGITS:
        return _hash_longs(np.ascontiguousarray(raw.view("<i8").reshape(rows, 2)[:, 0]), seeds)
    big_endian = np.ascontiguousarray(raw.reshape(rows, 16)[:, ::-1])
    sign = np.where(big_endian[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
    differs = big_endian != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 16)
    # toByteArray keeps one more leading byte if the first bit would otherwise have the wrong sign.
    top = big_endian[np.arange(rows), np.minimum(first, 15)]
    keeps_sign_byte = (first == 16) | ((top ^ sign) >= 0x80)
    start = first - keeps_sign_byte
    return _hash_bytes(big_endian.reshape(-1), np.arange(rows) * 16 + start, 16 - start, seeds)


def _hash_bytes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: Hashes
) -> Hashes:
    """Mix in whole little-endian words, then the remaining bytes one by one, for all rows at once."""
    hashes = seeds.copy()
    words = np.ndarray((max(len(data) - 3, 0),), dtype="<u4", buffer=data, strides=(1,))
    whole = lengths // 4
    rows = np.flatnonzero(whole > 0)
    position = 0
    while len(rows):
        hashes[rows] = _mix(hashes[rows], words[starts[rows] + 4 * position])
        position += 1
        rows = rows[whole[rows] > position]
    for tail in range(3):
        rows = np.flatnonzero(lengths - whole * 4 > tail)
        byte = data[starts[rows] + whole[rows] * 4 + tail].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[rows] = _mix(hashes[rows], byte)
    return _finish(hashes, lengths.astype(np.uint32))


def _mix(hashes: Hashes, words: Hashes) -> Hashes:
    words = words * np.uint32(0xCC9E2D51)
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    hashes = hashes ^ (words * np.uint32(0x1B873593))
    hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    return hashes * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: Hashes, lengths: Hashes | np.uint32) -> Hashes:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
