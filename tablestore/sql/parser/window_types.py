"""Time windows as a query declares them: kind, time column and size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.parser.functions.calls import called

START, END, TIME = "window_start", "window_end", "window_time"
_META: Final = "windowed"
_UNITS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800}


class WindowKind(StrEnum):
    """Kinds of time windows."""

    TUMBLE = "TUMBLE"
    HOP = "HOP"
    CUMULATE = "CUMULATE"
    SESSION = "SESSION"


#: Names of the arguments after the table and its time column, in order.
ARGUMENTS: Final = {
    WindowKind.TUMBLE: ("SIZE", "OFFSET"),
    WindowKind.HOP: ("SLIDE", "SIZE", "OFFSET"),
    WindowKind.CUMULATE: ("STEP", "SIZE", "OFFSET"),
    WindowKind.SESSION: ("GAP",),
}


@dataclass(frozen=True)
class Windows:
    """Time windows over a table.

    Attributes:
        kind: kind of the windows.
        column: the event time column.
        size_us: size of a window, for SESSION the gap that ends a session, in microseconds.
        step_us: time between the starts (for CUMULATE, the ends) of consecutive windows, in microseconds.
        offset_us: time by which window starts are shifted from the epoch, in microseconds.
        partition: columns by which sessions are partitioned.
    """

    kind: WindowKind
    column: str
    size_us: int
    step_us: int
    offset_us: int = 0
    partition: tuple[str, ...] = ()

    def put(self, table: exp.Table) -> exp.Table:
        """Attach the windows to a table of a query, and return the table."""
        table.meta[_META] = self
        return table


def windows_of(node: exp.Expr) -> Windows | None:
    """Return the windows attached to a table of a query, or None."""
    windows = node.meta.get(_META)
    return windows if isinstance(windows, Windows) else None


def take_windows(node: exp.Expr) -> Windows | None:
    """Return the windows attached to a table of a query, or None, and detach them."""
    windows = windows_of(node)
    node.meta.pop(_META, None)
    return windows


def microseconds(interval: exp.Expr) -> int:
    """Return the length in microseconds of an interval with a single unit.

    Raises:
        RefusedError: the expression is not such an interval.
    """
    unit = interval.args.get("unit") if isinstance(interval, exp.Interval) else None
    seconds = _UNITS.get(unit.name.upper().removesuffix("S")) if unit is not None else None
    value = interval.this
    if seconds is None or not isinstance(value, exp.Literal):
        raise RefusedError(interval, "expected an interval of one unit, such as INTERVAL '10' MINUTE")
    try:
        return round(float(value.name) * seconds * 1_000_000)
    except ValueError:
        raise RefusedError(interval, f"expected a number in the interval, got {value.name!r}") from None


def names_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that a query sees in a table with windows: the table's own and the window columns."""
    return (*names, START, END, TIME)


def modern(tree: exp.Expr) -> None:
    """Rewrite legacy ``GROUP BY TUMBLE(ts, INTERVAL ...)`` as windows over the table, in place.

    Raises:
        RefusedError: the SELECT does not read exactly one table, or the function or its arguments are not supported.
    """
    for select in list(tree.find_all(exp.Select)):
        group = select.args.get("group")
        for each in list(group.expressions) if group is not None else []:
            kind = called(each)
            if kind in {WindowKind.TUMBLE, WindowKind.HOP, WindowKind.SESSION}:
                _modernize(select, each, WindowKind(kind))


def _modernize(select: exp.Select, call: exp.Expr, kind: WindowKind) -> None:
    clause, group = select.args.get("from_"), select.args["group"]
    table = clause.this if clause is not None else None
    time, *intervals = call.expressions
    if not isinstance(table, exp.Table) or select.args.get("joins") or windows_of(table) is not None:
        reason = f"{kind} in GROUP BY goes with one table in FROM. Use TABLE({kind}(TABLE t, DESCRIPTOR(...), ...))."
        raise RefusedError(call, reason)
    if not isinstance(time, exp.Column) or len(intervals) != (2 if kind is WindowKind.HOP else 1):
        reason = (
            f"{kind} in GROUP BY takes a column and {'two intervals' if kind is WindowKind.HOP else 'an interval'}."
        )
        raise RefusedError(call, reason)
    sizes = [microseconds(each) for each in intervals]
    others = tuple(each.name for each in group.expressions if isinstance(each, exp.Column))
    Windows(kind, time.name, sizes[-1], sizes[0], partition=others if kind is WindowKind.SESSION else ()).put(table)
    group.set("expressions", [each for each in group.expressions if each is not call])
    group.append("expressions", exp.column(START))
    group.append("expressions", exp.column(END))
    said = {f"{kind}_START": START, f"{kind}_END": END, f"{kind}_ROWTIME": TIME}
    for node in list(select.find_all(exp.Anonymous)):
        name = node.name.upper()
        if name == f"{kind}_PROCTIME":
            raise RefusedError(node, f"{name} is not supported: windows use event time.")
        if name in said:
            if said[name] == TIME and kind is not WindowKind.SESSION:
                # Each window has one. Of a session, Spark computes it.
                group.append("expressions", exp.column(TIME))
            column = exp.column(said[name])
            node.replace(exp.alias_(column, said[name]) if node.parent is select else column)
