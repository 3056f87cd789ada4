"""Reads by pyarrow give what the merge in DuckDB gives; where they cannot, DuckDB merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapshot.errors import CorruptedError, DataLostError, InvalidInputError
from snapshot.merge.merge_reader import MergeReader
from snapshot.staging.parquet_writer import ROW_GROUP_ROWS
from tablestore import LocalTable
from tablestore.read.split_planner import snapshot_splits
from tablestore.read.splits import MergedSplit

Make = Callable[..., LocalTable]
COLUMNS = "id bigint, v string, n int, part string, tags array<string>"
MANUAL = {"compaction.auto": "false"}


def some(dice: np.random.Generator, count: int = 300) -> pa.Table:
    """Return rows of random keys, the same key several times."""
    ids = dice.integers(-200, 200, count)
    values = [None if n % 7 == 0 else f"v{n}" for n in dice.integers(0, 1000, count)]
    tags = [None if n == 0 else ["t"] * int(n) for n in dice.integers(0, 4, count)]
    parts = [f"p{n % 3}" for n in ids]
    numbers = pa.array(dice.integers(0, 9, count), pa.int32())
    return pa.table({"id": ids, "v": values, "n": numbers, "part": parts, "tags": tags})


def splits(table: LocalTable, columns: Sequence[str] | None, snapshot: int, tasks: int) -> list[MergedSplit]:
    return snapshot_splits(table._table.files, snapshot, tasks=tasks, columns=columns)


def counted(batches: Iterator[pa.RecordBatch]) -> tuple[Counter[str], set[pa.Schema]]:
    found = list(batches)
    return Counter(repr(row) for batch in found for row in batch.to_pylist()), {batch.schema for batch in found}


def assert_same(table: LocalTable, *, plain: bool = True, snapshots: Sequence[int] | None = None) -> None:
    """Compare every snapshot, read by pyarrow and merged by DuckDB, with all columns and with some."""
    for snapshot in snapshots or [each.id for each in table.snapshots()]:
        for columns in (None, ["v", "n"]):
            found = splits(table, columns, snapshot, 3)
            for split in [*found, *(replace(each, emit_changes=False) for each in found)]:
                assert (split.plain() is not None) == (plain or not split.changes)
                with MergeReader(split.schema, split.primary_key, stored=split.stored) as engine:
                    merged = counted(
                        engine.merged(split.base, split.changes, columns=columns, emit_changes=split.emit_changes)
                    )
                assert counted(split.read()) == merged


@pytest.mark.parametrize("producer", ["input", "lookup"])
@pytest.mark.parametrize("compacts", [False, True])
def test_it_reads_what_duckdb_merges(make: Make, producer: str, compacts: bool) -> None:
    dice = np.random.default_rng(4)
    table = make(COLUMNS, primary_key=["id"], **MANUAL, **({} if producer == "input" else {"changelog-producer": producer}))  # fmt: skip  # noqa: E501
    for step in range(6):
        table.write(some(dice))
        table.delete(f"n = {step}")
        table.update(f"id % 5 = {step % 5}", {"v": "'updated'"})
        if compacts and step == 2:
            table.compact()
    table.tags.create("before")
    expected = counted(table.to_batches())
    table.write(some(dice))
    assert_same(table)
    assert counted(table.to_batches(snapshot="before")) == expected


def test_partition_values_are_columns(make: Make) -> None:
    dice = np.random.default_rng(5)
    table = make(COLUMNS, primary_key=["id", "part"], partition_by=["part"], **MANUAL)
    table.write(some(dice))
    table.compact()
    assert_same(table, snapshots=[table.snapshots(1)[0].id])
    table.write(some(dice))
    assert_same(table, plain=False, snapshots=[table.snapshots(1)[0].id])


def test_a_key_that_partitions_the_table_is_merged_by_duckdb(make: Make) -> None:
    table = make("id bigint, v string, n int", primary_key=["id"], partition_by=["id"], **MANUAL)
    rows = pa.table({"id": [1, 2], "v": ["a", "b"], "n": pa.array([1, 2], pa.int32())})
    table.write(rows)
    table.compact()
    assert_same(table, snapshots=[table.snapshots(1)[0].id])
    table.write(rows.slice(1))
    assert_same(table, plain=False, snapshots=[table.snapshots(1)[0].id])


def test_columns_that_came_later_or_were_widened_are_read_by_duckdb(make: Make) -> None:
    dice = np.random.default_rng(6)
    table = make(COLUMNS, primary_key=["id"], **MANUAL)
    table.write(some(dice))
    table.alter.rename_column("part", "zone")
    newest = table.snapshots(1)[0].id
    assert_same(table, snapshots=[newest])
    table.alter.add_column("note", "string")
    table.write(some(dice).rename_columns(["id", "v", "n", "zone", "tags"]))
    newest = table.snapshots(1)[0].id
    assert all(split.plain() is None for split in splits(table, None, newest, 3))
    assert all(split.plain() is not None for split in splits(table, ["v", "n"], newest, 3))
    found = {row["id"]: row["note"] for row in table.to_arrow(["id", "note"]).to_pylist()}
    assert found
    assert set(found.values()) == {None}
    table.alter.widen_column("n", "bigint")
    newest = table.snapshots(1)[0].id
    assert all(split.plain() is None for split in splits(table, ["v", "n"], newest, 3))
    assert table.to_arrow(["n"]).schema.field("n").type == pa.int64()


@pytest.mark.parametrize("key", ["string", "date"])
def test_keys_of_dates_and_strings(make: Make, key: str) -> None:
    table = make(f"k {key}, v string, n int", primary_key=["k"], **MANUAL)
    keys: list[Any] = [date(1969, 12, 1) + timedelta(n) for n in range(60)]
    for step in range(3):
        found = pa.array([each if key == "date" else str(each) for each in keys[step * 5 :]])
        table.write(pa.table({"k": found, "v": [f"{step}"] * len(found), "n": pa.array(range(len(found)), pa.int32())}))
    assert_same(table, plain=key == "date")


def test_keys_that_are_far_apart_are_merged_by_duckdb(make: Make) -> None:
    table = make("id bigint, v string, n int", primary_key=["id"], bucket=1, **MANUAL)
    table.write(pa.table({"id": [0, 1 << 40], "v": ["a", "b"], "n": pa.array([1, 2], pa.int32())}))
    assert_same(table, plain=False)


def test_row_groups_whose_rows_are_all_replaced_are_skipped(make: Make) -> None:
    table = make("id bigint, v string, n int", primary_key=["id"], bucket=1, **MANUAL)
    count = ROW_GROUP_ROWS * 2 + 100
    ids = np.arange(count)
    rows = pa.table({"id": ids, "v": pa.array(ids.astype(str)), "n": pa.array(ids % 7, pa.int32())})
    table.write(rows)
    table.write(rows.slice(0, ROW_GROUP_ROWS).set_column(2, "n", pa.repeat(pa.scalar(9, pa.int32()), ROW_GROUP_ROWS)))
    numbers = np.where(ids < ROW_GROUP_ROWS, 9, ids % 7)
    expected = rows.set_column(2, "n", pa.array(numbers, pa.int32()))
    for columns in (["id", "v", "n"], ["n", "v"], ["id"]):
        found = table.to_arrow(columns)
        assert found.sort_by([(name, "ascending") for name in columns]).equals(
            expected.select(columns).sort_by([(name, "ascending") for name in columns]).cast(found.schema)
        )


def test_filters_hold_for_current_rows_only(make: Make) -> None:
    table = make(COLUMNS, primary_key=["id"], **MANUAL)
    dice = np.random.default_rng(7)
    for _ in range(3):
        table.write(some(dice))
    rows = table.to_arrow().to_pylist()
    found = table.to_arrow(filter="n > 4").to_pylist()
    assert Counter(map(repr, found)) == Counter(repr(row) for row in rows if row["n"] > 4)


@pytest.mark.parametrize("columns", [(), ("v", "nope")])
def test_columns_that_are_missing_or_unknown_are_errors(make: Make, columns: tuple[str, ...]) -> None:
    table = make(COLUMNS, primary_key=["id"], **MANUAL)
    table.write(some(np.random.default_rng(9)))
    (split, *_) = splits(table, None, table.snapshots(1)[0].id, 1)
    with pytest.raises(InvalidInputError, match="columns"):
        list(replace(split, columns=columns).read())


@pytest.mark.parametrize("compacts", [False, True])
def test_a_damaged_file_is_named(make: Make, compacts: bool) -> None:
    table = make(COLUMNS, primary_key=["id"], bucket=1, **MANUAL)
    table.write(some(np.random.default_rng(8)))
    if compacts:
        table.compact()
    (split,) = splits(table, None, table.snapshots(1)[0].id, 1)
    path = Path((split.base or split.changes)[0].path)
    content = bytearray(path.read_bytes())
    for place in range(4, 600):
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CorruptedError, match=path.name):
        table.to_arrow()


def test_a_lost_file_is_named(make: Make) -> None:
    table = make(COLUMNS, primary_key=["id"], **MANUAL)
    table.write(some(np.random.default_rng(8)))
    lost = splits(table, None, table.snapshots(1)[0].id, 1)[0].changes[0].path
    Path(lost).unlink()
    with pytest.raises(DataLostError, match="does not exist"):
        table.to_arrow()
