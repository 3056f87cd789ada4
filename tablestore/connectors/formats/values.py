"""Parsers of single values from text, following Flink's formats; all row formats share them.

These functions are the reference implementation. The bulk casts (``text_casts``) parse only texts for which their
result is certain to be the same, and leave all others to these functions. Parsed values have the form that ``pa.array``
stores: dates are days, timestamps are microseconds, times are nanoseconds of the day.

Where Flink would silently change a value, these functions raise an error: a fraction in an integer, a number too large
for its decimal type, ``yes`` as a boolean, February 30.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Reader = Callable[[str], Any]

_SHOWN_MAX = 80
_SPACE = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` removes."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})([ T])([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z?)"
)
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_EPOCH = dt.datetime(1970, 1, 1)
_FIRST_DAY = _EPOCH.toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
_DIGITS_MAX = 10_000
"""Longer decimals are rejected without parsing, because arithmetic on them would be slow."""


class UnfitError(ValueError):
    """Raised when a text, or a part of a payload, is not a valid value of the expected type."""

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


def shown(value: object) -> str:
    """Return a value's representation for a message, truncated to a readable length."""
    text = value if isinstance(value, str) else str(value)
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}... ({len(text)} characters)"


def value_reader(data_type: pa.DataType, *, separator: str) -> Reader:
    """Return the function that parses a text to a flat type.

    Args:
        data_type: a flat type other than binary.
        separator: the separator of date and time, a space or ``T``.
    """
    if pt.is_string(data_type):
        return str
    if pt.is_boolean(data_type):
        return _boolean
    if pt.is_integer(data_type):
        return lambda text: _integer(text, data_type)
    if pt.is_floating(data_type):
        return lambda text: _floating(text, data_type)
    if pt.is_decimal(data_type):
        return lambda text: _decimal(text, data_type.precision, data_type.scale)
    if pt.is_date(data_type):
        return _date
    if pt.is_time(data_type):
        return _time
    return lambda text: _timestamp(text, separator, "Z" if data_type.tz else "")


def _boolean(text: str) -> bool:
    word = text.strip(_SPACE).lower()
    if word not in ("true", "false"):
        msg = f"expected true or false, got {shown(text)}"
        raise UnfitError(msg)
    return word == "true"


def _integer(text: str, data_type: pa.DataType) -> int:
    word = text.strip(_SPACE)
    if not _INTEGER.fullmatch(word):
        msg = f"expected an integer, got {shown(text)}"
        raise UnfitError(msg)
    digits = word.lstrip("+-0")
    if len(digits) <= 20:
        number = int(word)
        if -(1 << (data_type.bit_width - 1)) <= number < 1 << (data_type.bit_width - 1):
            return number
    msg = f"expected an integer of {data_type.bit_width} bits, got {shown(text)}"
    raise UnfitError(msg)


def whole(text: str) -> str:
    """Return an integral number such as ``1.0`` or ``1e3`` in integer notation, any other text unchanged."""
    if len(text) > _DIGITS_MAX:
        return text
    number = Decimal(text)
    if number.adjusted() > 20 or number != number.to_integral_value(context=Context(prec=len(text) + 25)):
        return text
    return str(int(number))


def _floating(text: str, data_type: pa.DataType) -> float:
    word = text.strip(_SPACE)
    if word in _NOT_FINITE:
        return _NOT_FINITE[word]
    if not _NUMBER.fullmatch(word):
        msg = f"expected a number, got {shown(text)}"
        raise UnfitError(msg)
    number = float(word)
    if pt.is_float32(data_type):
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if math.isinf(number):
        msg = f"expected a number within the range of {data_type}, got {shown(text)}"
        raise UnfitError(msg)
    return number


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    word = text.strip(_SPACE)
    if len(word) > _DIGITS_MAX or not _NUMBER.fullmatch(word):
        msg = f"expected a number, got {shown(text)}"
        raise UnfitError(msg)
    number = Decimal(word)
    if number.is_zero() or number.adjusted() < -scale - 1:
        return Decimal((0, (0,), -scale))
    if number.adjusted() < precision - scale:
        # Round half up, as Flink does. Rounding can add a digit that does not fit: 9.995 becomes 10.00.
        number = number.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, Context(prec=len(word) + 80))
        if number.adjusted() < precision - scale:
            return number if number else abs(number)
    msg = f"expected a number that fits decimal({precision},{scale}), got {shown(text)}"
    raise UnfitError(msg)


def _date(text: str) -> int:
    match = _DATE.fullmatch(text)
    try:
        if match:
            return dt.date.fromisoformat(text).toordinal() - _FIRST_DAY
    except ValueError:
        pass  # no such day; raise the error below
    msg = f"expected a date as 2024-01-31, got {shown(text)}"
    raise UnfitError(msg)


def _time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match:
        hour, minute, second = (int(match[i]) for i in (1, 2, 3))
        if hour < 24 and minute < 60 and second < 60:
            # Spark's times have microsecond precision; truncate further digits.
            micros = int((match[4] or "0").ljust(6, "0")[:6])
            return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + micros * 1000
    msg = f"expected a time as 12:30:00.5, got {shown(text)}"
    raise UnfitError(msg)


def _timestamp(text: str, separator: str, zone: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match and match[4] == separator and match[9] == zone:
            year, month, day, hour, minute, second = (int(match[i]) for i in (1, 2, 3, 5, 6, 7))
            moment = dt.datetime(year, month, day, hour, minute, second)
            # Spark's timestamps have microsecond precision; truncate further digits.
            return (moment - _EPOCH) // _MICROSECOND + int((match[8] or "0").ljust(6, "0")[:6])
    except ValueError:
        pass  # no such day or time; raise the error below
    msg = f"expected a timestamp as 2024-01-31{separator}12:30:00.5{zone}, got {shown(text)}"
    raise UnfitError(msg)
