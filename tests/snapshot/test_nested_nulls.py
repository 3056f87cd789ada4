"""NOT NULL within columns, as Spark's batches have them: the fields of a row that is NULL are NULL."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapshot.errors import InvalidInputError
from snapshot.schema.nested_nulls import as_nullable, refuse_nested_nulls
from snapshot.schema.system_columns import conform
from tablestore import create_local

INNER = pa.struct([pa.field("c", pa.string()), pa.field("d", pa.int32(), nullable=False)])
ROW = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", INNER)])
SCHEMA = pa.schema(
    [("s", ROW), ("l", pa.list_(ROW)), ("m", pa.map_(pa.string(), pa.field("value", ROW, nullable=False)))]
)
LOOSE = pa.schema([(field.name, as_nullable(field.type)) for field in SCHEMA])


def test_values_are_the_same_with_the_declared_types() -> None:
    rng = random.Random(7)
    for _ in range(200):
        made = [
            {
                "s": _row(rng, 0.3),
                "l": None if rng.random() < 0.3 else [_row(rng, 0.3) for _ in range(rng.randrange(3))],
                "m": None if rng.random() < 0.3 else [(key, _row(rng, 0)) for key in "ab"[: rng.randrange(3)]],
            }
            for _ in range(rng.randrange(6))
        ]
        given = pa.RecordBatch.from_pylist(made, LOOSE).slice(rng.randrange(len(made) + 1))
        refuse_nested_nulls(given, SCHEMA)
        found = conform(given, SCHEMA)
        found.validate(full=True)
        assert found.schema == SCHEMA
        file = io.BytesIO()
        pq.write_table(pa.Table.from_batches([found]), file)
        assert found.to_pylist() == given.to_pylist() == pq.read_table(file).to_pylist()


def _row(rng: random.Random, gone: float) -> dict[str, Any] | None:
    if rng.random() < gone:
        return None
    return {"a": rng.randrange(9), "b": None if rng.random() < 0.4 else {"c": rng.choice("xy"), "d": 5}}


def test_a_null_field_of_a_row_that_is_null_is_none() -> None:
    there = {"a": 1, "b": {"c": "x", "d": 2}}
    gone = pa.array([True, False, True])
    schema = pa.schema([("s", ROW)])
    for declared in (as_nullable(ROW), ROW):
        children = [pa.array([None, there[each.name], None], each.type) for each in declared]
        given = pa.record_batch([pa.StructArray.from_arrays(children, fields=list(declared), mask=gone)], ["s"])
        refuse_nested_nulls(given, schema)
        for batch, wanted in ((given, [None, there, None]), (given.slice(2), [None])):
            found = conform(batch, schema)
            assert found.to_pylist() == [{"s": each} for each in wanted]
            pq.write_table(pa.Table.from_batches([found]), io.BytesIO())


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"s": {"a": None, "b": None}}, "s.a"),
        ({"s": {"a": 1, "b": {"c": None, "d": None}}}, "s.b.d"),
        ({"l": [None, {"a": None, "b": None}]}, "l.element.a"),
        ({"m": [("a", None)]}, "m.value"),
        ({"m": [("a", {"a": 1, "b": {"c": "x", "d": None}})]}, "m.value.b.d"),
    ],
)
def test_a_null_where_the_type_says_not_null_is_refused(row: dict[str, Any], path: str) -> None:
    given = pa.RecordBatch.from_pylist([{}, row], LOOSE)
    with pytest.raises(InvalidInputError, match=f"NOT NULL field '{path}' must not contain NULL; 1 values"):
        refuse_nested_nulls(given, SCHEMA)


def test_what_is_beneath_an_array_or_a_map_that_is_null_is_left_out() -> None:
    made = [{"a": n, "b": None} for n in range(3)]
    inner, gone, offsets = pa.array(made, as_nullable(ROW)), pa.array([True, False]), pa.array([0, 2, 3], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, inner, LOOSE.field("l").type, mask=gone)
    maps = pa.MapArray.from_arrays(offsets, pa.array(["x", "y", "z"]), inner, LOOSE.field("m").type, mask=gone)
    given = pa.record_batch([pa.nulls(2, LOOSE.field("s").type), lists, maps], LOOSE.names)
    refuse_nested_nulls(given, SCHEMA)
    found = conform(given, SCHEMA)
    found.validate(full=True)
    assert found.to_pylist() == [{"s": None, "l": None, "m": None}, {"s": None, "l": made[2:], "m": [("z", made[2])]}]


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("names", ["s", "ls", "b"])
def test_rows_that_are_null_are_written_in_any_order_of_the_keys(tmp_path: Path, names: str, key: bool) -> None:
    there = {"s": "x", "l": [1], "b": b"x"}
    types = {"s": pa.string(), "l": pa.list_(pa.int64()), "b": pa.binary()}
    row = pa.struct([pa.field(name, types[name], nullable=False) for name in names])
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("r", row)])
    held = {name: there[name] for name in names}
    rows = pa.table(
        [pa.array([-255, -1976460832, 277363, 8814], pa.int32()), pa.array([None, held, held, None], row)],
        schema=schema,
    )
    with create_local(tmp_path / "t", schema, primary_key=["id"] if key else []) as table:
        table.write(rows)
        for _ in ("changes", "compacted"):
            assert table.to_arrow().sort_by("id").to_pylist() == rows.sort_by("id").to_pylist()
            table.compact()


@pytest.mark.parametrize("log_format", ["json", "debezium-json", "arrow"])
def test_a_log_with_rows_that_are_null_is_verified(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], log_format: str
) -> None:
    """The NULL values of a map are rows with a field that is NOT NULL; NaN makes verify compare value by value."""
    kind = pa.map_(pa.float64(), pa.struct([pa.field("n", pa.int32(), nullable=False)]))
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "log.format": log_format}
    with create_local(tmp_path / "t", pa.schema([("m", kind)]), log_system="kafka", options=options) as table:
        rows = [{"m": [(math.nan, None), (2.0, {"n": 1})]}, {"m": None}, {"m": [(1.5, None)]}]
        table.write(pa.Table.from_pylist(rows, table.schema))
        assert table.verify().ok
        (found,) = table.tail(scan_mode="earliest", follow=False)
        assert str(found.select(["m"]).to_pylist()) == str(rows)
