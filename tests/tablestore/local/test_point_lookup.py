"""``LocalTable.get``: the row with a key, found without reading its bucket."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from snapshot.staging import parquet_writer
from tablestore import LocalTable, open_local
from tests.tablestore.local.local_tables import LOGS, table_of


@pytest.mark.parametrize("kind", ["a key and a log", "a key, partitions and lookup"])
def test_a_row_is_found_by_its_key(make: Callable[..., LocalTable], kind: str) -> None:
    table = make(**LOGS[kind])
    table.write(table_of([(n, f"v{n}", n, "ab"[n % 2]) for n in range(200)]))
    table.compact()
    table.write(table_of([(7, "new", None, "b")]))
    table.delete("id = 9")
    both = len(table.primary_key) > 1
    for n in (0, 7, 100, 9, 1000):
        key = (n, "ab"[n % 2]) if both else n
        expected = table.to_arrow(filter=f"id = {n}").to_pylist()
        assert table.get(key) == (expected[0] if expected else None)
    named = {"id": 7, "part": "b"} if both else {"id": 7}
    assert table.get(named, columns=["v"]) == {"v": "new"}
    assert table.get(named, snapshot=1, columns=["v"]) == {"v": "v7"}
    for wrong in (None, (1, "a", 2), {"v": 1}, {}):
        with pytest.raises(InvalidInputError, match="get: key: expected a value of each of"):
            table.get(wrong)
    with pytest.raises(InvalidInputError, match=r"key: column 'id': expected int64, got a Python str.*; convert it\.$"):
        table.get({**named, "id": "7"})
    with pytest.raises(InvalidInputError, match="no primary key"):
        make().get(1)


def filtered(file: Path) -> set[str]:
    """Return the columns of a file that have a Bloom filter."""
    found = duckdb.execute(
        "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL", [str(file)]
    )
    return {name for (name,) in found.fetchall()}


def test_keys_of_types_that_readers_may_hash_differently_are_not_filtered(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "_FILTERED_ROWS", 10)
    table = make("x decimal(9,2), n int", primary_key=["x"], bucket=1)
    table.write([{"x": Decimal(n) / 4, "n": n} for n in range(1, 100)])
    table.compact()
    assert [filtered(file) for file in Path(table.path).rglob("*.parquet")] == [set(), set()]
    assert table.get(Decimal("2.5")) == {"x": Decimal("2.50"), "n": 10}


@pytest.mark.parametrize("key", ["id", "name", "both"])
def test_a_lookup_finds_each_row_in_old_files_and_new_ones(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, spark: SparkSession, key: str
) -> None:
    monkeypatch.setattr(parquet_writer, "_FILTERED_ROWS", 1_000)
    names = ["id", "name"] if key == "both" else [key]
    table = make("id bigint, name string, x double, n int", primary_key=names)
    order = np.random.default_rng(0).permutation(6_000)
    data = pa.table({
        "id": order, "name": [f"name {n}" for n in order], "x": order / 2, "n": pa.array(order % 7, pa.int32()),
    })  # fmt: skip
    expected = {row["id"]: row for row in data.to_pylist()}
    with monkeypatch.context() as before:
        before.setattr(parquet_writer, "_can_be_sought", lambda kind: False)
        table.write(data)
        table.compact()
    old = list(Path(table.path).glob("_bucket=*/*.parquet"))
    assert [filtered(file) for file in old] == [set(), set()]

    def check(*more: int) -> None:
        for number in [*random.Random(key).sample(range(6_000), 30), *more]:
            row = expected.get(number)
            given = {"id": number, "name": f"name {number}"}
            assert table.get({name: given[name] for name in names}) == row

    check(6_000)
    changed = data.slice(0, 3_000).set_column(2, "x", pa.array([0.5] * 3_000))
    table.write(changed)
    expected |= {row["id"]: row for row in changed.to_pylist()}
    (new,) = (path for path in Path(table.path, "_changes").glob("00000-*.parquet") if filtered(path))
    assert filtered(new) == set(names)
    check(6_000)
    gone = int(order[0])
    table.delete(f"id = {gone}")
    del expected[gone]
    check(gone)
    table.compact()
    assert [filtered(file) for file in set(Path(table.path).glob("_bucket=*/*.parquet")) - set(old)] == [set(names)] * 2
    check(gone, 6_000)
    table.write(data.slice(0, 1))
    expected[gone] = data.slice(0, 1).to_pylist()[0]
    table.alter.add_column("note", "string")
    expected = {number: {**row, "note": None} for number, row in expected.items()}
    check(gone)
    table.close()
    check(gone)
    # Spark and DuckDB skip by the filters, too.
    table.compact()
    for number in (int(order[5]), 6_000):
        rows = spark.read.format("delta").load(table.path).where(f"id = {number} AND name = 'name {number}'")
        assert [row.n for row in rows.collect()] == ([number % 7] if number in expected else [])
        assert open_local(table.path).count(f"id = {number}") == (number in expected)
