"""Windows of time as a query says them: what kind, over which column, how long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError

START, END, TIME = "window_start", "window_end", "window_time"
_META: Final = "windowed"
_UNITS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800}


class WindowKind(StrEnum):
    """Kinds of windows."""

    TUMBLE = "TUMBLE"
    HOP = "HOP"
    CUMULATE = "CUMULATE"
    SESSION = "SESSION"


#: Names of the arguments behind the table and its time, in order.
ARGUMENTS: Final = {
    WindowKind.TUMBLE: ("SIZE", "OFFSET"),
    WindowKind.HOP: ("SLIDE", "SIZE", "OFFSET"),
    WindowKind.CUMULATE: ("STEP", "SIZE", "OFFSET"),
    WindowKind.SESSION: ("GAP",),
}


@dataclass(frozen=True)
class Windows:
    """Windows over a table.

    Attributes:
        kind: of windows.
        column: the event time.
        size_us: microseconds of a window, of a session those without a row that end it.
        step_us: microseconds between the starts (of CUMULATE the ends) of windows.
        offset_us: microseconds by which windows begin later than at the epoch.
        partition: columns that tell sessions apart.
    """

    kind: WindowKind
    column: str
    size_us: int
    step_us: int
    offset_us: int = 0
    partition: tuple[str, ...] = ()

    def put(self, table: exp.Table) -> exp.Table:
        """Put this on a table of a query."""
        table.meta[_META] = self
        return table


def windows_of(node: exp.Expr) -> Windows | None:
    """Give the windows over a table of a query."""
    found = node.meta.get(_META)
    return found if isinstance(found, Windows) else None


def microseconds(interval: exp.Expr) -> int:
    """Read an interval of one unit.

    Raises:
        RefusedError: it is none.
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


def names_of(names: tuple[str, ...], windows: Windows) -> tuple[str, ...]:
    """Give the columns that a query sees in a table with windows."""
    return (*names, START, END, TIME)


def modern(tree: exp.Expr) -> None:
    """Say ``GROUP BY TUMBLE(ts, INTERVAL ...)``, the older way to write it, as windows over the table, in the tree.

    Raises:
        RefusedError: what is read is not one table.
    """
    for select in list(tree.find_all(exp.Select)):
        group = select.args.get("group")
        for each in list(group.expressions) if group is not None else []:
            kind = each.name.upper() if isinstance(each, exp.Anonymous) else ""
            if kind in {WindowKind.TUMBLE, WindowKind.HOP, WindowKind.SESSION}:
                _modernize(select, each, WindowKind(kind))


def _modernize(select: exp.Select, call: exp.Expr, kind: WindowKind) -> None:
    clause, group = select.args.get("from_"), select.args["group"]
    table = clause.this if clause is not None else None
    time, *intervals = call.expressions
    if not isinstance(table, exp.Table) or select.args.get("joins") or windows_of(table) is not None:
        reason = f"{kind} in GROUP BY goes with one table in FROM. Say TABLE({kind}(TABLE t, DESCRIPTOR(...), ...))."
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
            raise RefusedError(node, f"{name} is not supported: windows are of event time.")
        if name in said:
            column = exp.column(said[name])
            node.replace(exp.alias_(column, said[name]) if node.parent is select else column)
