"""Columns of rows in rows: DuckDB 2.0 refuses slices of them, and batches are split by bucket into slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from log_system.formats.thread_duckdb import Duck
from snapshot.duckdb_connection import connect
from tablestore import LocalTable, when_matched
from tablestore.sql.operators.row_multiset import query

COLUMNS = "id INT, r STRUCT<a: STRUCT<b: INT, c: STRING>>, v INT"
ENGINES: dict[str, dict[str, Any]] = {
    "no engine": {},
    "lookup": {"changelog-producer": "lookup"},
    "partial-update": {"merge-engine": "partial-update"},
    "aggregation": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
}


def rows(*ids: int) -> pa.Table:
    made = [{"id": n, "r": {"a": {"b": n, "c": str(n)}} if n % 3 else None, "v": n} for n in ids]
    row = pa.struct([("a", pa.struct([("b", pa.int32()), ("c", pa.string())]))])
    return pa.Table.from_pylist(made, pa.schema([("id", pa.int32()), ("r", row), ("v", pa.int32())]))


SLICE = rows(*range(40)).slice(5, 20)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_takes_slices(make: Callable[..., LocalTable], engine: str) -> None:
    table = make(COLUMNS, primary_key=["id"], bucket=2, **ENGINES[engine])
    table.write(SLICE)
    table.write(SLICE)
    times = 2 if engine == "aggregation" else 1
    expected = [{**row, "v": row["v"] * times} for row in SLICE.to_pylist()]
    assert table.to_arrow().sort_by("id").to_pylist() == expected
    assert table.to_arrow(filter="r.a.b > 10").num_rows == sum(1 for n in range(11, 25) if n % 3)


@pytest.mark.parametrize("engine", ["no engine", "lookup"])
def test_every_statement_takes_slices(make: Callable[..., LocalTable], engine: str) -> None:
    table = make(COLUMNS, primary_key=["id"], bucket=2, **ENGINES[engine])
    table.write(SLICE)
    table.update("id % 2 = 0", {"v": "v + r.a.b"})
    table.delete("r.a.b >= 20")
    table.merge(SLICE.slice(3), "id", [when_matched("target.id > 17").update({"r": "source.r", "v": "-1"})])
    expected = [row for row in SLICE.to_pylist() if row["r"] is None or row["id"] < 20]
    for row in expected:
        if row["id"] % 2 == 0:
            row["v"] = row["v"] * 2 if row["r"] else None
        if row["id"] > 17:
            row["v"] = -1
    assert table.to_arrow().sort_by("id").to_pylist() == expected


def test_formats_and_operators_take_slices() -> None:
    batch = SLICE.to_batches()[0]
    found = Duck("64MB").run("SELECT sum(r.a.b)::INT AS s FROM given", given=batch)
    expected = [{"s": sum(n for n in range(5, 25) if n % 3)}]
    assert found.to_pylist() == expected
    with connect() as db:
        assert query(db, "SELECT sum(r.a.b)::INT AS s FROM given", given=SLICE).to_pylist() == expected
