"""Fast casts of text columns to typed columns, limited to texts that Arrow and ``values`` parse identically.

Arrow's casts are fast, but they accept some texts that ``values`` rejects, and reject some that it accepts. Each
function here returns a column and a mask. Where the mask is false, the text was not parsed, and the caller must parse
it with ``values``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tablestore.connectors.formats.column_texts import bounds_and_bytes, bytes_of
from tablestore.connectors.formats.types import TIME, in_years_1_to_9999

Cast = tuple[pa.Array, np.ndarray | None]
"""A typed column, and a mask of the rows whose text was parsed (None if all were). Other rows are NULL."""

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
_TIME = r"^[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_FLOAT = r"^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?$"


def cast_texts(texts: pa.Array, data_type: pa.DataType, *, separator: str) -> Cast:
    """Cast a text column to a flat type other than binary; NULL stays NULL."""
    if pt.is_string(data_type):
        return texts, None
    if pt.is_boolean(data_type):
        return _booleans(texts)
    try:
        return _all(texts, data_type, separator), None
    except pa.ArrowInvalid:
        pass
    # Some texts cannot be cast safely. Exclude those that do not match the pattern; if the cast still fails, isolate
    # the remaining ones by halving.
    mask = pc.fill_null(pc.match_substring_regex(texts, _pattern(data_type)), fill_value=True)
    plain = pc.if_else(mask, texts, pa.scalar(None, texts.type))
    read = np.array(mask.to_numpy(zero_copy_only=False))
    try:
        return _all(plain, data_type, separator), read
    except pa.ArrowInvalid:
        return _halves(plain, data_type, separator, read)


def _halves(texts: pa.Array, data_type: pa.DataType, separator: str, read: np.ndarray) -> Cast:
    """Cast by repeated halving, to isolate texts that match the pattern but are invalid.

    Examples are a number out of range and February 30.
    """
    parts: list[pa.Array] = []
    spans = [(0, len(texts))]
    while spans:
        start, end = spans.pop()
        try:
            parts.append(_all(texts.slice(start, end - start), data_type, separator))
        except pa.ArrowInvalid:
            if end - start == 1:
                parts.append(pa.nulls(1, data_type))
                read[start] = False
            else:
                middle = (start + end) // 2
                spans += [(middle, end), (start, middle)]
    return pa.concat_arrays(parts), read


def _pattern(data_type: pa.DataType) -> str:
    if pt.is_integer(data_type):
        return r"^-?[0-9]{1,19}$"
    if pt.is_floating(data_type):
        return _FLOAT
    if pt.is_decimal(data_type):
        fraction = rf"(\.[0-9]{{1,{data_type.scale}}})?" if data_type.scale else ""
        return rf"^-?[0-9]{{1,{max(data_type.precision - data_type.scale, 1)}}}{fraction}$"
    if pt.is_time(data_type):
        return _TIME
    return _DATE if pt.is_date(data_type) else _TIMESTAMP


def _booleans(texts: pa.Array) -> Cast:
    true = pc.equal(texts, "true")
    known = pc.fill_null(pc.or_(true, pc.equal(texts, "false")), fill_value=True)
    if pc.all(known, min_count=0).as_py():
        return true, None
    return pc.if_else(known, true, pa.scalar(None, pa.bool_())), np.array(known.to_numpy(zero_copy_only=False))


def _all(texts: pa.Array, data_type: pa.DataType, separator: str) -> pa.Array:
    """Cast a whole column.

    Raises:
        pa.ArrowInvalid: some text is not unambiguously a value of the type.
    """
    if pt.is_integer(data_type):
        # Arrow accepts 0x1f, Java does not.
        _refuse(_has_x(texts))
        return texts.cast(data_type)
    if pt.is_decimal(data_type):
        return texts.cast(data_type)
    if pt.is_floating(data_type):
        # Cast through double, as Flink does; a direct cast to float rounds some numbers differently.
        numbers = texts.cast(pa.float64()).cast(data_type, safe=False)
        _refuse(not pc.all(pc.is_finite(numbers), min_count=0).as_py())
        return numbers
    if pt.is_timestamp(data_type):
        # Arrow also accepts shorter forms, either separator and, for types with a time zone, any zone offset.
        least = 20 if data_type.tz else 19
        starts, ends, data = _spans(texts)
        _refuse(bool((ends - starts < least).any()))
        if len(starts):
            _refuse(bool((data[starts + 10] != ord(separator)).any()))
            _refuse(bool(data_type.tz) and bool((data[ends - 1] != ord("Z")).any()))
    if pt.is_time(data_type):
        return _times(texts)
    values = texts.cast(data_type)
    _refuse(not in_years_1_to_9999(values))
    return values


def _times(texts: pa.Array) -> pa.Array:
    """Cast times as those of a day, since Arrow casts texts to timestamps only.

    Raises:
        pa.ArrowInvalid: some text is not unambiguously a time.
    """
    starts, ends, _ = _spans(texts)
    # Arrow also accepts shorter forms.
    _refuse(bool((ends - starts < 8).any()))
    moments = pc.binary_join_element_wise(pa.scalar("1970-01-01 ", texts.type), texts, pa.scalar("", texts.type))
    micros = moments.cast(pa.timestamp("us")).view(pa.int64())
    return pc.multiply(micros, 1000).view(TIME)


def _refuse(doubt: bool) -> None:
    if doubt:
        msg = "a text in another form"
        raise pa.ArrowInvalid(msg)


def _spans(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the start and end offsets of the non-NULL texts, and the data buffer they point into."""
    bounds, data = bounds_and_bytes(texts)
    starts, ends = bounds[:-1], bounds[1:]
    if texts.null_count:
        there = texts.is_valid().to_numpy(zero_copy_only=False)
        starts, ends = starts[there], ends[there]
    return starts, ends, data


def _has_x(texts: pa.Array) -> bool:
    """Return whether any text contains an ``x`` or ``X``; bytes of NULL slots may cause a false positive."""
    return bool(((bytes_of(texts) | 0x20) == ord("x")).any())
