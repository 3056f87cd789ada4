"""Joins of changing rows by any columns, without Spark, against a loop over both sides after every micro-batch."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapshot.merge.duckdb_engine import spilling
from snapshot.row_kind import CHANGE_TYPE
from snapshot.storage import Storage
from tablestore.normalize import segments
from tablestore.normalize.segments import HASH
from tablestore.spark.changelog import SIGN
from tablestore.sql.operators import row_multiset
from tablestore.sql.operators.row_join import JoinSide, RowJoin
from tablestore.sql.operators.stateful import Task
from tests.sql.changes import SIGNS

Row = tuple[Any, ...]
Columns = list[tuple[str, list[Any]]]
KINDS = {
    "a": pa.int32(), "x": pa.string(), "l": pa.list_(pa.int32()), "a_key": pa.int64(),
    "b": pa.int64(), "y": pa.string(), "m": pa.map_(pa.string(), pa.int32()),
}  # fmt: skip
SCHEMA = pa.schema(
    [(HASH, pa.int64()), (SIGN, pa.int64()), ("_is_left", pa.bool_()), *((name, kind) for name, kind in KINDS.items())]
)
KEYS = [None, 1, 2, 3]
LEFT = [("a", KEYS), ("x", ["p", "q", None]), ("l", [[1], None])]
#: The places of NULL.
NONE = (0, 2, 1)
RIGHT = [("b", KEYS), ("y", ["p", "q", None]), ("m", [[("k", 1)], None])]


def changes_of(chance: random.Random, live: Counter[Row], columns: Columns) -> list[tuple[Row, int]]:
    """Add and retract a few rows, by the places of their values."""
    found: list[tuple[Row, int]] = []
    for _ in range(chance.randrange(5)):
        there = sorted(live.elements())
        if there and chance.random() < 0.5:
            row, sign = chance.choice(there), -1
        else:
            row, sign = tuple(chance.randrange(len(values)) for _, values in columns), 1
        live[row] += sign
        live += Counter()
        found.append((row, sign))
    return found


def as_table(left: list[tuple[Row, int]], right: list[tuple[Row, int]], pairs: int) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for changes, columns, is_left in ((left, LEFT, True), (right, RIGHT, False)):
        for row, sign in changes:
            values = {name: each[place] for (name, each), place in zip(columns, row, strict=True)}
            if is_left:
                values["a_key"] = values["a"]
            # Two keys share a hash.
            key = (values["a" if is_left else "b"] or 0) % 2 + (10 if pairs == 2 and row[1] == 1 else 0)
            rows.append({HASH: key, SIGN: sign, "_is_left": is_left, **values})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def wanted_of(left: Counter[Row], right: Counter[Row], pairs: int, kept: tuple[bool, bool]) -> Counter[Row]:
    def matches(one: Row, other: Row) -> bool:
        known = one[0] and other[0] and (pairs == 1 or (one[1] != 2 and other[1] != 2))
        return bool(known) and one[:pairs] == other[:pairs]

    found: Counter[Row] = Counter()
    for one, copies in left.items():
        for other, others in right.items():
            if matches(one, other):
                found[one, other] += copies * others
        if kept[0] and not any(matches(one, other) for other in right):
            found[one, NONE] += copies
    for other, others in right.items():
        if kept[1] and not any(matches(one, other) for one in left):
            found[NONE, other] += others
    return found


def places_of(row: dict[str, Any], columns: Columns) -> Row:
    return tuple(values.index(row[name]) for name, values in columns)


@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize("kept", [(False, False), (True, False), (False, True), (True, True)])
def test_a_join_of_changing_rows_is_that_of_both_sides(
    kept: tuple[bool, bool], pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NULL in keys, copies of rows, keys with one hash, repeated micro-batches, small segments."""
    chance = random.Random(f"{kept}-{pairs}")
    monkeypatch.setattr(segments, "_MEMORY_BYTES", chance.choice([0, 1 << 20]))
    monkeypatch.setattr(row_multiset, "_BATCH_ROWS", 3)
    one = JoinSide(("a", "x", "l"), ("a_key", "x")[:pairs], is_kept=kept[0])
    step = RowJoin(one, JoinSide(("b", "y", "m"), ("b", "y")[:pairs], is_kept=kept[1]))
    left: Counter[Row] = Counter()
    right: Counter[Row] = Counter()
    result: Counter[Row] = Counter()
    for batch in range(20):
        rows = as_table(changes_of(chance, left, LEFT), changes_of(chance, right, RIGHT), pairs)
        outcomes = []
        for _ in range(2):
            with spilling(memory_limit="256MB") as db:
                found = list(step.run(Task(db, Storage.at(tmp_path), batch), rows))
            outcomes.append(sorted((row for each in found for row in each.to_pylist()), key=repr))
        assert outcomes[0] == outcomes[1], "a micro-batch that is repeated gives the same"
        for row in outcomes[0]:
            result[places_of(row, LEFT), places_of(row, RIGHT)] += SIGNS[row[CHANGE_TYPE]]
        assert min(result.values(), default=0) >= 0, "what goes was there"
        result += Counter()
        assert result == wanted_of(left, right, pairs, kept), batch
