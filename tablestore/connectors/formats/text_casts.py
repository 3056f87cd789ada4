"""Whole columns of text to typed columns, for the texts of which it is plain that ``row_values`` reads them alike.

Arrow's casts are fast and take a few texts that ``row_values`` refuses, and the other way round. Each function here
gives a column and a mask: where the mask is false, nothing is said about the text, and ``row_values`` has to look.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tablestore.connectors.formats.column_texts import bytes_of
from tablestore.connectors.formats.types import in_years_1_to_9999

Cast = tuple[pa.Array, np.ndarray | None]
"""A typed column, and for each row whether its text was read; None if all were. Unread rows are NULL."""

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
_FLOAT = r"^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?$"


def cast_texts(texts: pa.Array, data_type: pa.DataType, *, separator: str) -> Cast:
    """Read a column of text as a flat type other than binary; NULL stays NULL."""
    if pt.is_string(data_type):
        return texts, None
    if pt.is_boolean(data_type):
        return _booleans(texts)
    try:
        return _all(texts, data_type, separator), None
    except pa.ArrowInvalid:
        pass
    # Some text is not plain: leave out those that do not look it, and what is left one by one if it has to be.
    mask = pc.fill_null(pc.match_substring_regex(texts, _pattern(data_type)), fill_value=True)
    plain = pc.if_else(mask, texts, pa.scalar(None, texts.type))
    read = np.array(mask.to_numpy(zero_copy_only=False))
    try:
        return _all(plain, data_type, separator), read
    except pa.ArrowInvalid:
        return _halves(plain, data_type, separator, read)


def _halves(texts: pa.Array, data_type: pa.DataType, separator: str, read: np.ndarray) -> Cast:
    """Cast what can be cast by halving: a number out of range or a 30th of February looks as plain as others."""
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
        pa.ArrowInvalid: some text is not plainly a value of the type.
    """
    if pt.is_integer(data_type):
        # Arrow reads 0x1f, which Java does not.
        _refuse(_has_letter(texts, "x"))
        return texts.cast(data_type)
    if pt.is_decimal(data_type):
        return texts.cast(data_type)
    if pt.is_floating(data_type):
        # By way of double, as Flink does it: straight to float would round some numbers the other way.
        numbers = texts.cast(pa.float64()).cast(data_type, safe=False)
        _refuse(not pc.all(pc.is_finite(numbers), min_count=0).as_py())
        return numbers
    if pt.is_timestamp(data_type):
        # Arrow takes shorter forms, either separator, and any zone offset where there has to be one.
        least = 20 if data_type.tz else 19
        starts, ends, data = _spans(texts)
        _refuse(bool((ends - starts < least).any()))
        if len(starts):
            _refuse(bool((data[starts + 10] != ord(separator)).any()))
            _refuse(bool(data_type.tz) and bool((data[ends - 1] != ord("Z")).any()))
    values = texts.cast(data_type)
    _refuse(not in_years_1_to_9999(values))
    return values


def _refuse(doubt: bool) -> None:
    if doubt:
        msg = "a text in another form"
        raise pa.ArrowInvalid(msg)


def _spans(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the texts that are not NULL begin and end, and the bytes they are in."""
    _, offsets, data = texts.buffers()
    width = np.int64 if pt.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = ends[:-1], ends[1:]
    if texts.null_count:
        there = texts.is_valid().to_numpy(zero_copy_only=False)
        starts, ends = starts[there], ends[there]
    return starts, ends, np.frombuffer(data if data is not None else b"", np.uint8)


def _has_letter(texts: pa.Array, letter: str) -> bool:
    """Tell whether a letter is in any text, in either case; may be wrong by a yes if it is hidden under a NULL."""
    return bool(((bytes_of(texts) | 0x20) == ord(letter)).any())
