"""Flink's functions of time in Spark SQL: ``FLOOR`` and ``CEIL`` of a time, and those of the current time.

``DATE_TRUNC`` returns an instant, whatever its argument is, so a ``TIMESTAMP`` would pass through the session's time
zone, in which some times do not exist. Here the distance to the result is computed by the clock, and added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROCTIME: Final = "PROCTIME"
# Spark's own functions that are not here, NOW and CURRENT_TIME, are not those of the micro-batch.
_CLOCK: Final = (
    "CAST(CAST(CAST(SUBSTRING_INDEX(CAST(LOCALTIMESTAMP() AS STRING), ' ', -1) AS TIME(6)) AS TIME(0)) AS TIME(6))"
)
NOW: Final[Mapping[str, str]] = {
    PROCTIME: "DATE_TRUNC('MILLISECOND', CURRENT_TIMESTAMP())",
    "CURRENT_ROW_TIMESTAMP": "CURRENT_TIMESTAMP()",
    "LOCALTIMESTAMP": "LOCALTIMESTAMP()",
    "NOW": "CURRENT_TIMESTAMP()",
    "LOCALTIME": _CLOCK,
    "CURRENT_TIME": _CLOCK,
}
"""Functions without arguments, in Spark SQL."""
WITHOUT_BRACKETS: Final = ("LOCALTIMESTAMP", "LOCALTIME", "CURRENT_TIME")
"""Those that are called by their name alone."""

_SECONDS: Final = "EXTRACT(SECOND FROM {clock})"
_BY_CLOCK: Final[Mapping[str, tuple[str, str]]] = {
    "MILLISECOND": ("{clock} - MAKE_DT_INTERVAL(0, 0, 0, " + _SECONDS + " % 0.001)", "'0.001' SECOND"),
    "SECOND": ("{clock} - MAKE_DT_INTERVAL(0, 0, 0, " + _SECONDS + " % 1)", "'1' SECOND"),
    "MINUTE": ("{clock} - MAKE_DT_INTERVAL(0, 0, 0, " + _SECONDS + ")", "'1' MINUTE"),
    "HOUR": ("{clock} - MAKE_DT_INTERVAL(0, 0, MINUTE({clock}), " + _SECONDS + ")", "'1' HOUR"),
}
BY_DATE: Final[Mapping[str, tuple[str, str]]] = {
    "DAY": ("{date}", "'1' DAY"),
    # A week starts on Sunday, as in Flink.
    "WEEK": ("DATE_SUB({date}, DAYOFWEEK({date}) - 1)", "'7' DAY"),
    "MONTH": ("TRUNC({date}, 'MONTH')", "'1' MONTH"),
    "QUARTER": ("TRUNC({date}, 'QUARTER')", "'3' MONTH"),
    "YEAR": ("TRUNC({date}, 'YEAR')", "'1' YEAR"),
    # A century begins with the year 1, a decade with 0.
    "DECADE": ("ADD_MONTHS(TRUNC({date}, 'YEAR'), -12 * (YEAR({date}) % 10))", "'10' YEAR"),
    "CENTURY": ("ADD_MONTHS(TRUNC({date}, 'YEAR'), -12 * ((YEAR({date}) - 1) % 100))", "'100' YEAR"),
    "MILLENNIUM": ("ADD_MONTHS(TRUNC({date}, 'YEAR'), -12 * ((YEAR({date}) - 1) % 1000))", "'1000' YEAR"),
}
_NEVER_STAYS: Final = ("DECADE", "CENTURY", "MILLENNIUM")
"""Units of which ``CEIL`` of the very beginning of one is the next one, as in Flink."""
UNITS: Final = (*_BY_CLOCK, *BY_DATE)
"""The units that a time can be rounded to."""


def rounded(time: str, unit: str, *, up: bool) -> str:
    """Return ``FLOOR(time TO unit)``, or CEIL if ``up``, in Spark SQL; the result has the type of the time."""
    clock = f"CAST({time} AS TIMESTAMP_NTZ)"
    if unit in _BY_CLOCK:
        start, length = _BY_CLOCK[unit]
        goal = _goal(start.format(clock=clock), clock, length, up=up)
        return f"({time} + ({goal} - {clock}))"
    start, length = BY_DATE[unit]
    begin = f"CAST({start.format(date=f'CAST({time} AS DATE)')} AS TIMESTAMP_NTZ)"
    goal = f"({begin} + INTERVAL {length})" if up and unit in _NEVER_STAYS else _goal(begin, clock, length, up=up)
    # An instant is off by an hour if the clock was changed in between, which the second step corrects.
    near = f"({time} + ({goal} - {clock}))"
    return f"({near} + ({goal} - CAST({near} AS TIMESTAMP_NTZ)))"


MONTHS: Final = ("MONTH", "QUARTER", "YEAR")
"""Units of as many days as the calendar has."""


def months_between(unit: str, start: str, end: str) -> str:
    """Return ``TIMESTAMPDIFF(unit, start, end)`` for one of ``MONTHS``, in Spark SQL.

    From the 31st of January to the last day of February is a month, as adding one has it; Spark counts none.
    """
    one, other = f"CAST({start} AS TIMESTAMP_NTZ)", f"CAST({end} AS TIMESTAMP_NTZ)"
    return f"TIMESTAMPDIFF({unit}, {_in_month_of(other, one)}, {_in_month_of(one, other)})"


def _in_month_of(late: str, early: str) -> str:
    """Return the earlier time, on the day of the later one if that is a last day and the month has no such day."""
    is_last = f"{early} <= {late} AND DAY({late}) = DAY(LAST_DAY(CAST({late} AS DATE)))"
    days = f"IF({is_last}, GREATEST(DAY({early}) - DAY({late}), 0), 0)"
    return f"({early} - MAKE_DT_INTERVAL({days}))"


def cut(time: str, digits: int) -> str:
    """Return a time in Spark SQL without the digits of its second that come after the given number of them."""
    over = f"EXTRACT(SECOND FROM {time}) % {10.0**-digits:.{digits}f}"
    return f"({time} - MAKE_DT_INTERVAL(0, 0, 0, {over}))"


def _goal(start: str, clock: str, length: str, *, up: bool) -> str:
    return f"IF({start} = {clock}, {clock}, {start} + INTERVAL {length})" if up else f"({start})"
