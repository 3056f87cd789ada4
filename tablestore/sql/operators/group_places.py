"""The rows that a changed group has at its first places, before and after the change, computed by DuckDB in a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.quoting import quoted
from tablestore.normalize.segments import HASH
from tablestore.sql.operators.row_multiset import COUNT, RowMultiset, query

RANK = "_rank"
"""Name of the column with the place of a row in its group, from 1."""
_MANY_ROWS = 10_000


@dataclass(frozen=True)
class Order:
    """A column to order by."""

    column: str
    descending: bool
    nulls_first: bool

    @property
    def method(self) -> str:
        """The method of a Spark column for this order."""
        return f"{'desc' if self.descending else 'asc'}_nulls_{'first' if self.nulls_first else 'last'}"

    @property
    def text(self) -> str:
        """The ORDER BY item."""
        direction = "DESC" if self.descending else "ASC"
        return f"{quoted(self.column)} {direction} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True)
class Places:
    """The rows of each group that are in the result.

    Attributes:
        groups: names of the columns that identify a group; none if all rows are one group.
        order: the columns by which a group is ordered; rows that are equal in them are ordered by their other columns.
        first: the first place, from 1.
        last: the last place.
        ranked: whether the place is a column of the result.
        grows: whether rows are only added, so that those after the last place can be forgotten.
    """

    groups: tuple[str, ...]
    order: tuple[Order, ...]
    first: int
    last: int
    ranked: bool = False
    grows: bool = False


def change_places(
    db: duckdb.DuckDBPyConnection,
    state: RowMultiset,
    changes: pa.Table,
    columns: Sequence[str],
    places: Places,
    outputs: Sequence[str],
) -> pa.Table:
    """Change a state, and return how its groups' places change.

    Args:
        db: runs the queries.
        state: the rows of the groups; rows that need not be known are left out.
        changes: ``_hash``, ``_count`` (positive for added rows, negative for retracted ones) and the columns.
        columns: names of the columns.
        places: which rows are in the result.
        outputs: names of the columns of the result.

    Returns:
        The outputs, ``_rank`` if ``ranked``, and ``_count``: how many copies of the row have come (positive) or gone.
    """
    named = ", ".join(map(quoted, columns))
    net = query(db, _summed(named, "changes"), changes=changes)
    if not net.num_rows:
        return query(db, _difference(named, places, outputs), old_rows=net, new_rows=net)
    hashes = np.unique(net.column(HASH).to_numpy())
    old = query(db, _summed(named, "held"), held=_candidates(db, state.rows(hashes), net, named, places))
    new = query(db, _summed(named, "(FROM old UNION ALL BY NAME FROM net)"), old=old, net=net)
    if places.grows:
        new = query(db, _kept(named, places), new_rows=new)
        gone = f"SELECT {HASH}, -{COUNT} AS {COUNT}, {named} FROM old"
        net = query(db, _summed(named, f"(FROM new UNION ALL BY NAME {gone})"), old=old, new=new)
    state.put(net)
    return query(db, _difference(named, places, outputs), old_rows=old, new_rows=new)


def _candidates(db: duckdb.DuckDBPyConnection, held: pa.Table, net: pa.Table, named: str, places: Places) -> pa.Table:
    """Return the rows of a state that can be at the places before or after a change; of few rows, all.

    A row is not if at least as many copies are before it, or equal to it, as there are places and copies that go.
    """
    if held.num_rows < _MANY_ROWS:
        return held
    going = sum(int(pc.sum(pc.min_element_wise(each.column(COUNT), 0)).as_py() or 0) for each in (held, net))
    number = places.last - going
    order = ", ".join([*(each.text for each in places.order), named])
    by = ", ".join(map(quoted, places.groups))
    first = f"ORDER BY {order} LIMIT {number}"
    if places.groups:
        first = f"QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {order}) <= {number}"
    text = f"SELECT * FROM held WHERE {COUNT} < 0 UNION ALL (SELECT * FROM held WHERE {COUNT} > 0 {first})"
    return query(db, text, held=held)


def _summed(named: str, rows: str) -> str:
    """Return the query that adds up the copies of each row, and leaves out rows without any."""
    sums = f"SELECT {HASH}, sum({COUNT})::BIGINT AS {COUNT}, {named}"
    return f"{sums} FROM {rows} GROUP BY ALL HAVING sum({COUNT}) <> 0"


def _kept(named: str, places: Places) -> str:
    """Return the query for the rows up to the last place, since those after it never come up."""
    below = _below(named, places, "new_rows", HASH)
    return f"SELECT {HASH}, {_copies(1, places.last)} AS {COUNT}, {named} FROM ({below}) WHERE {_is_in(1, places.last)}"


def _below(named: str, places: Places, rows: str, *more: str) -> str:
    """Return the query that counts how many rows of the group are before each row; of a row's copies, the first."""
    by = f"PARTITION BY {', '.join(map(quoted, places.groups))} " if places.groups else ""
    order = ", ".join([*(each.text for each in places.order), named])
    kept = "".join(f"{each}, " for each in more)
    return (
        f"SELECT {kept}{named}, {COUNT}, (sum({COUNT}) OVER ({by}ORDER BY {order} ROWS UNBOUNDED PRECEDING))::BIGINT "
        f"- {COUNT} AS _below FROM {rows} WHERE {COUNT} > 0"
    )


def _is_in(first: int, last: int) -> str:
    return f"_below < {last} AND _below + {COUNT} >= {first}"


def _copies(first: int, last: int) -> str:
    return f"least(_below + {COUNT}, {last}) - greatest(_below, {first - 1})"


def _difference(named: str, places: Places, outputs: Sequence[str]) -> str:
    first, last = places.first, places.last
    rank = f", {RANK}" if places.ranked else ""

    def top(rows: str, sign: str) -> str:
        if places.ranked:
            ranks = f"unnest(range(greatest(_below, {first - 1}) + 1, least(_below + {COUNT}, {last}) + 1)) AS {RANK}"
            copies = f"{named}, {ranks}, {sign}1 AS {COUNT}"
        else:
            copies = f"{named}, {sign}({_copies(first, last)}) AS {COUNT}"
        return f"SELECT {copies} FROM ({_below(named, places, rows)}) WHERE {_is_in(first, last)}"

    chosen = f"{', '.join(map(quoted, outputs))}{rank}"
    rows = f"{top('new_rows', '')} UNION ALL {top('old_rows', '-')}"
    return f"SELECT {chosen}, sum({COUNT})::BIGINT AS {COUNT} FROM ({rows}) GROUP BY ALL HAVING sum({COUNT}) <> 0"
