"""Converts whole columns to text with Arrow's casts, byte-identical to DuckDB's text and several times as fast.

Arrow's text may differ for very small and very large floats and for decimals with many trailing zeros. In these cases,
and for nested columns, the functions return None and the caller must use DuckDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import any_true

_FLOATS_FROM, _FLOATS_TO = 1e-3, 1e10
"""In this range, both Arrow and DuckDB write floats without an exponent."""
_SCALE_MAX = 6
"""Up to this scale, neither Java nor Arrow writes small decimals with an exponent."""
_ODD_MAX = 0.02
"""Maximum fraction of values that are rewritten one by one."""
_ESCAPED_BELOW, _QUOTE, _BACKSLASH = 0x20, ord('"'), ord("\\")


def plain_texts(column: pa.Array, *, separator: str = " ", plain: bool) -> pa.Array | None:
    """Return the values of a column as text, without quotes and without the ``ending`` of their type.

    Args:
        column: the values; dates and timestamps must be within the years 1 to 9999.
        separator: the separator of date and time.
        plain: whether to write decimals without an exponent.

    Returns:
        Strings, NULL where the column is NULL; None if Arrow cannot write the column.
    """
    data_type = column.type
    if pt.is_string(data_type):
        return column
    if pt.is_integer(data_type) or pt.is_boolean(data_type) or pt.is_date(data_type):
        return column.cast(pa.string())
    if pt.is_float64(data_type):
        return _floats(column)
    if pt.is_timestamp(data_type):
        return _timestamps(column, separator)
    if pt.is_time(data_type):
        return _without_zeros(column.cast(pa.string()))
    if pt.is_decimal(data_type):
        return _decimals(column, plain=plain)
    return None


class Pieces(NamedTuple):
    """Texts of a column's values, with a prefix and a suffix; kept separate because joining them costs a copy."""

    before: str
    texts: pa.Array
    after: str

    def filled(self, null: str) -> list[pa.Array | str]:
        """Return the parts to join, with ``null`` in place of NULL values."""
        if not self.texts.null_count:
            return [self.before, self.texts, self.after]
        return [pc.fill_null(self.whole(), null)]

    def whole(self) -> pa.Array:
        """Return the joined texts; NULL values stay NULL."""
        if not self.before and not self.after:
            return self.texts
        return pc.binary_join_element_wise(self.before, self.texts, self.after, "")


def json_pieces(column: pa.Array, *, separator: str, plain: bool) -> Pieces | None:
    """Return the values of a column as JSON; None if Arrow cannot write them. See ``plain_texts`` for the arguments."""
    data_type = column.type
    if pt.is_string(data_type):
        return None if _needs_escapes(column) else Pieces('"', column, '"')
    texts = plain_texts(column, separator=separator, plain=plain)
    if texts is None:
        return None
    return Pieces('"', texts, ending(data_type) + '"') if pt.is_temporal(data_type) else Pieces("", texts, "")


def ending(data_type: pa.DataType) -> str:
    """Return the suffix that ``plain_texts`` omits from the texts of a type."""
    return "Z" if pt.is_timestamp(data_type) and data_type.tz else ""


def joined(parts: Sequence[pa.Array | str], rows: int) -> pa.Array:
    """Return the row-wise concatenation of text columns (without NULL) and constant strings."""
    merged: list[pa.Array | str] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif not isinstance(part, str) or part:
            merged.append(part)
    if not any(isinstance(part, pa.Array) for part in merged):
        return pa.repeat("".join(merged), rows)
    return pc.binary_join_element_wise(*merged, "")


def bytes_of(texts: pa.Array) -> np.ndarray:
    """Return the bytes of all texts; they may include bytes of NULL slots."""
    bounds, data = bounds_and_bytes(texts)
    return data[bounds[0] : bounds[-1]] if len(texts) else data[:0]


def bounds_and_bytes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return where texts (or binary values) begin, the end of the last one, and the bytes that these places are in."""
    _, offsets, data = texts.buffers()
    width = np.int64 if texts.type in (pa.large_string(), pa.large_binary()) else np.int32
    bounds = np.frombuffer(offsets or b"", width)[texts.offset : texts.offset + len(texts) + 1]
    return bounds, np.frombuffer(data or b"", np.uint8)


def _needs_escapes(texts: pa.Array) -> bool:
    data = bytes_of(texts)
    return bool(((data < _ESCAPED_BELOW) | (data == _QUOTE) | (data == _BACKSLASH)).any())


def _floats(column: pa.Array) -> pa.Array | None:
    size = pc.abs(column)
    within = pc.and_(pc.greater_equal(size, _FLOATS_FROM), pc.less(size, _FLOATS_TO))
    if not pc.all(pc.or_(within, pc.equal(size, 0)), min_count=0).as_py():
        return None
    texts = column.cast(pa.string())
    whole = pc.equal(pc.floor(column), column)
    if any_true(whole):
        return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    return texts


def _timestamps(column: pa.Array, separator: str) -> pa.Array:
    """Return timestamps as text, without trailing zeros in the fractional seconds."""
    texts = _without_zeros(column.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string()))
    if separator != " ":
        texts = pc.utf8_replace_slice(texts, 10, 11, separator)
    return texts


def _without_zeros(texts: pa.Array) -> pa.Array:
    """Return texts, each with a point, without the zeros and the point at their end."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, characters="0"), characters=".")


def _decimals(column: pa.Array, *, plain: bool) -> pa.Array | None:
    """Return decimals as text, like Java's ``stripTrailingZeros().toString()``.

    Trailing zeros are removed; unless ``plain``, a multiple of ten then has an exponent (``1E+2``).
    """
    scale = column.type.scale
    if not 0 <= scale <= _SCALE_MAX:
        return None
    texts = column.cast(pa.string())
    if scale:
        texts = _without_zeros(texts)
    if plain:
        return texts
    odd = pc.and_(pc.ends_with(texts, "0"), pc.not_equal(texts, "0"))
    count = pc.sum(odd).as_py() or 0
    if not count:
        return texts
    if count > max(1, len(texts) * _ODD_MAX):
        return None
    odd = pc.fill_null(odd, fill_value=False)
    values = [str(Decimal(text).normalize()) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(values, pa.string()))
