"""The rows at the first places of changing groups, without Spark, against a sorted list after every micro-batch."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapshot.errors import CorruptedError, DataLostError
from snapshot.merge.duckdb_engine import spilling
from snapshot.storage import Storage
from tablestore.normalize import segments
from tablestore.normalize.segments import HASH
from tablestore.sql.operators import group_places, row_multiset
from tablestore.sql.operators.group_places import RANK, Order, Places, change_places
from tablestore.sql.operators.row_multiset import COUNT, RowMultiset

Row = tuple[Any, ...]
#: A group, an order, and values of the kinds that a row can have besides.
SCHEMA = pa.schema(
    [
        ("g", pa.string()),
        ("o", pa.float64()),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("t", pa.timestamp("us", "Europe/Berlin")),
        ("d", pa.decimal128(20, 3)),
        ("b", pa.binary()),
        ("s", pa.struct([("x", pa.int32()), ("y.z", pa.string())])),
    ]
)
VALUES: list[list[Any]] = [
    ["a", "b", None],
    [None, 1.0, 2.0, float("inf"), -0.5],
    [None, [1, 2], [2, None]],
    [None, [("a", 1)]],
    [None, dt.datetime(2020, 1, 5, tzinfo=dt.UTC)],
    [None, Decimal("1.500")],
    [None, b"x"],
    [None, {"x": 1, "y.z": "q"}],
]


def changes_of(chance: random.Random, live: Counter[Row], *, grows: bool) -> list[tuple[Row, int]]:
    """Add and retract a few rows, by the places of their values."""
    found: list[tuple[Row, int]] = []
    for _ in range(chance.randrange(8)):
        there = sorted(live.elements())
        if there and not grows and chance.random() < 0.45:
            row = chance.choice(there)
            live[row] -= 1
            found.append((row, -1))
            live += Counter()
        else:
            row = tuple(chance.randrange(len(each)) for each in VALUES)
            live[row] += 1
            found.append((row, 1))
    return found


def as_table(changes: list[tuple[Row, int]], *, grouped: bool) -> pa.Table:
    # Two of the groups share a hash.
    hashes = pa.array([row[0] % 2 if grouped else 0 for row, _ in changes], pa.int64())
    columns = [
        pa.array([VALUES[number][row[number]] for row, _ in changes], field.type) for number, field in enumerate(SCHEMA)
    ]
    counts = pa.array([count for _, count in changes], pa.int64())
    return pa.table([hashes, counts, *columns], names=[HASH, COUNT, *SCHEMA.names])


def places_of(value: dict[str, Any]) -> Row:
    """Return the places of a row's values."""
    value["m"] = None if value["m"] is None else list(dict(value["m"]).items())
    return tuple(each.index(value[name]) for name, each in zip(SCHEMA.names, VALUES, strict=True))


def wanted_of(live: Counter[Row], places: Places) -> Counter[Row]:
    """Return group, order and rank of the rows at the places."""
    found: Counter[Row] = Counter()
    order = places.order[0]

    def by(row: Row) -> tuple[bool, float]:
        value = VALUES[1][row[1]]
        is_null = value is None
        return is_null != order.nulls_first, 0 if is_null else -value if order.descending else value

    for group in range(3) if places.groups else [None]:
        rows = sorted((row for row in live.elements() if group is None or row[0] == group), key=by)
        for rank, row in enumerate(rows[: places.last], 1):
            if rank >= places.first:
                found[(row[0] if places.groups else None, row[1], rank if places.ranked else None)] += 1
    return found


@pytest.mark.parametrize("seed", range(8))
def test_places_are_those_of_a_sorted_list(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties, NULLs, copies, groups with one hash, repeated micro-batches, small segments, and many rows in a group."""
    chance = random.Random(seed)
    monkeypatch.setattr(group_places, "_MANY_ROWS", 0 if seed % 2 else 10**6)
    monkeypatch.setattr(segments, "_MEMORY_BYTES", chance.choice([0, 1 << 20]))
    monkeypatch.setattr(row_multiset, "_BATCH_ROWS", 3)
    first, last = chance.choice([(1, 1), (1, 3), (2, 3)])
    grows = seed % 3 == 0
    order = Order("o", descending=chance.random() < 0.5, nulls_first=chance.random() < 0.5)
    places = Places(("g",) if seed % 4 else (), (order,), first, last, ranked=chance.random() < 0.5, grows=grows)
    live: Counter[Row] = Counter()
    result: Counter[Row] = Counter()
    for batch in range(7):
        changes = as_table(changes_of(chance, live, grows=grows), grouped=bool(places.groups))
        outcomes = []
        for _ in range(2):
            with spilling(memory_limit="256MB") as db:
                state = RowMultiset.open(db, Storage.at(tmp_path), SCHEMA, batch)
                found = change_places(db, state, changes, SCHEMA.names, places, SCHEMA.names)
                state.save()
                state.discard()
            outcomes.append(sorted(found.to_pylist(), key=repr))
        assert outcomes[0] == outcomes[1], "a micro-batch that is repeated gives the same"
        for row in outcomes[0]:
            rank = row.get(RANK)
            result[(*places_of(row), rank)] += row[COUNT]
        assert min(result.values(), default=0) >= 0, "what goes was there"
        result += Counter()
        shown: Counter[Row] = Counter()
        for row, copies in result.items():
            shown[(row[0] if places.groups else None, row[1], row[-1])] += copies
            assert live[row[:-1]] >= copies
        assert shown == wanted_of(live, places), (seed, batch)


def test_a_state_that_is_missing_or_of_other_columns_is_an_error(tmp_path: Path) -> None:
    with spilling(memory_limit="256MB") as db:
        state = RowMultiset.open(db, Storage.at(tmp_path), SCHEMA, 0)
        state.save()
        with pytest.raises(DataLostError, match="state before micro-batch 2 is missing"):
            RowMultiset.open(db, Storage.at(tmp_path), SCHEMA, 2)
        with pytest.raises(CorruptedError, match=r"other columns .*than this one \(g string\)"):
            RowMultiset.open(db, Storage.at(tmp_path), pa.schema([("g", pa.string())]), 1)
