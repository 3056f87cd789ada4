"""Rows from other libraries get the table's types, or are refused before anything is written."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from pyarrow import dataset
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.schema.ddl_text import as_schema
from snapshot.schema.spark_types import table_schema
from snapshot.schema.spec import TableSpec
from tablestore import TableStore, create_local, open_local, when_matched, when_not_matched
from tablestore.write.tabular_input import read_loosely, read_tabular
from tests.harness.spark_tables import rows, state

ZONE = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2026, 5, 1, 12, 0, 0, 5, ZONE)
PAIRS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def spec_of(ddl: str, *key: str) -> TableSpec:
    columns = table_schema(as_schema(ddl), key)
    return TableSpec(table_id="t", schema_json=columns.json(), primary_key=key, partition_by=(), properties={})


def read(data: object, ddl: str, *key: str) -> pa.Table:
    return read_tabular(data, spec_of(ddl, *key)).read_all()


def values(data: object, data_type: str) -> list[Any]:
    """Return the values of column ``x`` as read for a table's column of this type; a text is a query for DuckDB."""
    table = read(duckdb.sql(data) if isinstance(data, str) else data, f"x {data_type}")
    assert table.schema.types == spec_of(f"x {data_type}").arrow.types
    return table["x"].to_pylist()


class Stream:
    """An object that is tabular only by Arrow's protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return PAIRS.__arrow_c_stream__(requested_schema)


SOURCES: dict[str, Callable[[], object]] = {
    "pandas": PAIRS.to_pandas,
    "pandas with Arrow types": lambda: PAIRS.to_pandas(types_mapper=pandas.ArrowDtype),
    "table": lambda: PAIRS,
    "batch": lambda: PAIRS.to_batches()[0],
    "list of batches": PAIRS.to_batches,
    "iterator of batches": lambda: iter(PAIRS.to_batches(max_chunksize=1)),
    "reader": PAIRS.to_reader,
    "polars": lambda: polars.from_arrow(PAIRS),
    "duckdb": lambda: duckdb.sql("SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(id, v)"),
    "dicts": PAIRS.to_pylist,
    "stream": Stream,
}


@pytest.mark.parametrize("source", SOURCES)
def test_rows_of_any_library_get_the_tables_types(source: str) -> None:
    table = read(SOURCES[source](), "ID int, v string")
    assert table.schema == pa.schema([("ID", pa.int32()), ("v", pa.string())])
    assert [tuple(row.values()) for row in table.to_pylist()] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("data", "data_type", "expected"),
    [
        (pandas.DataFrame({"x": [1.0, None]}), "bigint", [1, None]),
        (pandas.DataFrame({"x": [1, None]}, dtype="Int16"), "int", [1, None]),
        (pandas.DataFrame({"x": ["a", np.nan, None]}), "string", ["a", None, None]),
        (pandas.DataFrame({"x": [np.nan, np.nan]}), "string", [None, None]),
        (pandas.DataFrame({"x": []}), "timestamp", []),
        (pandas.DataFrame({"x": [NOON, None]}).to_dict("records"), "timestamp", [NOON, None]),
        (pandas.DataFrame({"x": [1, None]}, dtype="Int64").to_dict("records"), "int", [1, None]),
        (pandas.DataFrame({"x": pandas.Categorical(["a", "b", "a"])}), "string", ["a", "b", "a"]),
        (pandas.DataFrame({"x": [{"a": 1}, None]}), "map<string, int>", [[("a", 1)], None]),
        (pandas.DataFrame({"x": [Decimal("1.5"), 2]}), "decimal(5, 2)", [Decimal("1.50"), Decimal(2)]),
        (pandas.DataFrame({"x": [pandas.Timestamp(NOON), pandas.NaT]}), "timestamp", [NOON, None]),
        (polars.DataFrame({"x": ["a", "b"]}, schema={"x": polars.Categorical}), "string", ["a", "b"]),
        (polars.DataFrame({"x": [[1], None]}), "array<int>", [[1], None]),
        (polars.DataFrame({"x": [None, None]}), "map<string, int>", [None, None]),
        (pa.table({"x": pa.array([5], pa.uint64())}), "tinyint", [5]),
        (pa.table({"x": pa.array([5], pa.int64())}), "decimal(3, 1)", [Decimal(5)]),
        (pa.table({"x": pa.array([5], pa.int64())}), "double", [5.0]),
        (pa.table({"x": pa.array([0.5], pa.float32())}), "double", [0.5]),
        (pa.table({"x": pa.array([b"ab"], pa.binary(2))}), "binary", [b"ab"]),
        (pa.table({"x": pa.array([bytes(16)], pa.uuid())}), "binary", [bytes(16)]),
        (pa.table({"x": pa.array([1000], pa.timestamp("ns"))}), "timestamp_ntz", [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (pa.table({"x": pa.array([dt.date(2026, 1, 2)], pa.date64())}), "date", [dt.date(2026, 1, 2)]),
        ("SELECT sum(i) x FROM range(3) t(i)", "int", [3]),
        ("SELECT {'a': 1, 'b': 'c'} x", "struct<a: bigint, b: string>", [{"a": 1, "b": "c"}]),
        ([{"x": NOON}, {}], "timestamp", [NOON, None]),
        ([{}, {"x": 1}, {"x": 2.5}], "float", [None, 1.0, 2.5]),
        ([{"x": [{"a": 1}, {}]}], "array<struct<a: int, b: string>>", [[{"a": 1, "b": None}, {"a": None, "b": None}]]),
        ([], "string", []),
        (iter([]), "string", []),
    ],
)  # fmt: skip
def test_values_that_a_column_can_hold_are_converted(data: object, data_type: str, expected: list[object]) -> None:
    assert values(data, data_type) == expected


def test_not_a_number_is_a_number_except_in_pandas() -> None:
    given = {"x": [float("nan")]}
    assert str(values([{"x": float("nan")}], "double")) == str(values(pa.table(given), "double")) == "[nan]"
    assert values(pandas.DataFrame(given), "double") == [None]


@pytest.mark.parametrize(
    ("data", "data_type", "message"),
    [
        (pa.table({"x": ["1"]}), "int", "column 'x': expected int32, got string; cast it"),
        (pa.table({"x": [1]}), "string", "column 'x': expected string, got int64; cast it"),
        (pa.table({"x": [0.1]}), "float", "expected float, got double; cast it"),
        (pa.table({"x": [0.1]}), "decimal(3, 1)", "expected decimal128.3, 1., got double"),
        (pa.table({"x": [True]}), "int", "expected int32, got bool"),
        (pa.table({"x": [2**40]}), "int", "expected int32, got int64 with a value that does not fit: .*1099511627776"),
        (pa.table({"x": [1000]}), "decimal(3, 1)", "got int64 with a value that does not fit"),
        (pa.table({"x": [2**60 + 1]}), "double", "does not fit"),
        (pa.table({"x": pa.array([1], pa.timestamp("ns", "UTC"))}), "timestamp", "does not fit: .*lose data"),
        (pa.table({"x": pa.array([1], pa.timestamp("us"))}), "timestamp", "give it a time zone before"),
        (pa.table({"x": pa.array([1], pa.timestamp("us", "UTC"))}), "timestamp_ntz", "remove its time zone"),
        (pa.table({"x": [{"a": 1, "b": 2}]}), "struct<a: bigint>", "expected struct<a: int64>, got struct<a: int64, b"),
        (pa.table({"x": [[None, 1]]}), "array<string>", "expected list<element: string>, got list<"),
        (pandas.DataFrame({"x": pandas.period_range("2026-01", periods=1)}), "bigint", "expected int64, got .*period"),
        (pandas.DataFrame({"x": [1.5]}), "bigint", "expected int64, got double with a value that does not fit"),
        (pandas.DataFrame({"x": ["a", 1]}), "string", "expected string, got a Python int in row 1"),
        ([{"x": 1}, {"x": "b"}], "int", "expected int32, got a Python str in row 1"),
        ([{"x": 1}, {"x": 2.5}], "int", "got a Python float in row 1"),
        ([{"x": True}], "int", "got a Python bool in row 0"),
        ([{"x": 2**40}], "int", "expected int32, got a value that does not fit"),
        ([{"x": 2**80}], "bigint", "expected int64, got a value that does not fit"),
        ([{"x": 0.5}], "decimal(3, 1)", "got a Python float in row 0"),
        ([{"x": NOON}], "date", "got a Python datetime in row 0"),
        ([{"x": 5}], "timestamp", "got a Python int in row 0"),
        ([{"x": dt.datetime(2026, 1, 1)}], "timestamp", "got a datetime without a time zone in row 0"),
        ([{"x": NOON}], "timestamp_ntz", "got a datetime with a time zone in row 0"),
        ([{"x": [pandas.NaT]}], "array<timestamp_ntz>", "column 'x.element': .*got a Python NaTType .*write None"),
        ([{"x": pandas.Timestamp(1001)}], "timestamp_ntz", "got 1970-01-01 00:00:00.000001001 in row 0, which"),
        ([{"x": [pandas.Timestamp(1, tz=ZONE)]}], "array<timestamp>", "column 'x.element': .* which has nanoseconds"),
        (pandas.DataFrame({"x": [pandas.Timestamp(1), 5]}).head(1), "timestamp_ntz", "which has nanoseconds; round it"),
        (pandas.DataFrame({"x": pandas.arrays.SparseArray([1])}), "int", "'x': Arrow has no type for pandas' Sparse"),
        (pandas.DataFrame({"x": [1j]}), "int", "column 'x': Arrow has no type for pandas' complex128; convert it"),
        ([{"x": "\ud800"}], "string", "column 'x': expected string, got a value that does not fit: .* surrogates"),
        ([{"x": {"a": 1, "z": 2}}], "struct<a: int>", r"got a dict with unknown fields \['z'\]"),
        ([{"x": {"k": [{"a": "1"}]}}], "map<string, array<struct<a: int>>>", "column 'x.value.element.a'.* Python str"),
        ([{"x": 1, "X": 2}], "int", r"columns \['x', 'X'\] have the same name"),
        (pandas.DataFrame([[1, 2]], columns=["x", "x"]), "int", r"columns \['x'\] have the same name"),
        ([{"x": 1}, {"y": 2}], "int", r"unknown \['y'\]"),
        (pa.table({"y": [1]}), "int", r"missing \['x'\] and unknown \['y'\]"),
        ([{"x": 1}, 5], "int", r"rows: expected a Spark, .* got a list of \['dict', 'int'\]"),
        (polars.LazyFrame({"x": [1]}), "int", "got a LazyFrame; call its collect"),
        (polars.DataFrame({"x": [["a"]]}, {"x": polars.List(polars.Enum(["a"]))}), "array<string>", "'x': .*list<"),
        ({"x": [1]}, "int", "got a dict; put a row into a list"),
        (dataset.dataset(PAIRS), "int", r"got a InMemoryDataset; call its scanner\(\).to_reader\(\)"),
        (dataset.dataset(PAIRS).scanner(), "int", r"got a Scanner; call its to_reader\(\)"),
        (iter([1]), "int", "got a list_iterator"),
        ((n for n in range(2)), "int", "got a generator; yield dicts or record batches"),
        (iter([{"x": 1}, 5]), "int", r"got a list of \['dict', 'int'\]"),
        (iter([{"x": 1}, {"x": "a"}]), "int", "column 'x': expected int32, got a Python str in row 1"),
        (iter([{"y": 1}]), "int", r"missing \['x'\] and unknown \['y'\]"),
        ([PAIRS, PAIRS], "int", r"got a list of \['Table'\]; make one table of them"),
        (Path("x.parquet"), "int", "got a PosixPath; read the file first"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name_expected_and_given_type(
    data: object, data_type: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        values(data, data_type)


REQUIRED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("s", pa.struct([pa.field("n", pa.int32(), nullable=False)])),
        pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False))),
    ]
)
NESTED: list[dict[str, Any]] = [{"id": 1, "s": {"n": 5}, "l": [1, 2]}, {"id": 2, "s": None, "l": None}]
LIBRARIES: dict[str, Callable[[pa.Table], object]] = {
    "Arrow": lambda rows: rows,
    "pandas": lambda rows: rows.to_pandas(types_mapper=pandas.ArrowDtype),
    "polars": polars.from_arrow,
    "DuckDB": duckdb.from_arrow,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_fields_that_no_library_declares_not_null_are_checked(tmp_path: Path, library: str) -> None:
    table = create_local(tmp_path / "t", REQUIRED, primary_key="id")
    table.write(LIBRARIES[library](pa.Table.from_pylist(NESTED)))
    assert table.to_arrow().sort_by("id").to_pylist() == NESTED
    for wrong, where in (({"s": {"n": None}, "l": [1]}, "s.n"), ({"s": {"n": 1}, "l": [None, 1]}, "l.element")):
        rows = pa.Table.from_pylist([{"id": 3, **wrong}, NESTED[0]])
        with pytest.raises(InvalidInputError, match=f"NOT NULL field '{where}' must not contain NULL"):
            table.write(LIBRARIES[library](rows))
    assert table.snapshots(1)[0].id == 1


def test_statements_set_columns_with_fields_that_are_not_null(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", REQUIRED, primary_key="id")
    table.merge(NESTED, "id", [when_matched().update(), when_not_matched().insert()])
    assert table.to_arrow().sort_by("id").to_pylist() == NESTED
    changed = when_matched("source.id = 2").update({"s": "{'n': source.id + 1}", "l": "source.l"})
    table.merge(NESTED, "id", [changed])
    table.update("id = 1", {"s": "NULL", "l": "[id]"})
    assert table.to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "s": None, "l": [1]},
        {"id": 2, "s": {"n": 3}, "l": None},
    ]
    for wrong in ({"s": "{'n': NULL}"}, {"l": "[NULL, id]"}):
        with pytest.raises(InvalidInputError, match="must not contain NULL"):
            table.update("id = 1", wrong)


def test_a_reader_is_read_batch_by_batch_and_its_types_are_checked_first() -> None:
    taken = []

    def batches(last: int) -> Iterator[pa.RecordBatch]:
        for number in (1, 2, last):
            taken.append(number)
            yield pa.record_batch({"x": [number]})

    schema = pa.schema([("x", pa.int64())])
    with pytest.raises(InvalidInputError, match="expected string, got int64"):
        read_tabular(pa.RecordBatchReader.from_batches(schema, batches(3)), spec_of("x string"))
    assert not taken
    reader = read_tabular(pa.RecordBatchReader.from_batches(schema, batches(2**40)), spec_of("x int"))
    assert (reader.read_next_batch()["x"].to_pylist(), taken) == ([1], [1])
    with pytest.raises(InvalidInputError, match="column 'x': expected int32, got int64 with a value"):
        reader.read_all()


def test_rows_of_an_iterator_are_read_by_the_batch() -> None:
    taken = []

    def given(last: object) -> Iterator[dict[str, object]]:
        for number in range(40_000):
            taken.append(number)
            yield {"X": number, "y": pandas.NA} if number < 20_000 else {"X": number}
        yield {"X": last} if isinstance(last, str) else {"z": last}

    spec = spec_of("x bigint, y string")
    reader = read_tabular(given(""), spec)
    first = reader.read_next_batch()
    assert first.schema == pa.schema([("x", pa.int64()), ("y", pa.string())])
    assert 0 < first.num_rows == len(taken) < 20_000
    second = reader.read_next_batch()
    assert second["x"].to_pylist() == taken[first.num_rows :]
    assert second["y"].null_count == second.num_rows
    with pytest.raises(InvalidInputError, match=r"'x': .* a Python str in row 7232; .* counted from row 32768 of"):
        reader.read_all()
    with pytest.raises(InvalidInputError, match=r"unknown columns \['z'\] after row 32768; .* have \['X', 'y'\]"):
        read_tabular(given(1), spec).read_all()
    assert read_tabular(iter([]), spec).read_all().num_rows == 0
    assert read_loosely(iter([{"x": 1, "z": 2}]), spec).to_pylist() == [{"x": 1, "z": 2}]


def test_batches_of_an_iterator_have_one_schema() -> None:
    given = iter([pa.record_batch({"x": [1], "y": [2]}), pa.record_batch({"y": [1], "x": [2]})])
    with pytest.raises(InvalidInputError, match=r"one schema, x: int64\ny: int64; number 1 is y: int64"):
        read(given, "x bigint, y bigint")


def test_an_error_of_a_source_keeps_its_class() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [1]})
        message = "the source is gone"
        raise KeyError(message)

    for read in (lambda given, spec: read_tabular(given, spec).read_all(), read_loosely):
        with pytest.raises(KeyError, match="the source is gone"):
            read(pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches()), spec_of("x bigint"))


def test_rows_of_any_columns_keep_the_types_that_the_table_does_not_decide() -> None:
    """A merge's source may have more columns, and ``merge_schema`` widens types by values that do not fit."""
    given = pa.table({"id": [1], "big": [2**40], "n": pa.array([3], pa.uint16()), "kind": ["a"]})
    given = given.set_column(3, "kind", given["kind"].dictionary_encode())
    found = read_loosely(given, spec_of("id int, big int, v string"))
    assert found.schema == pa.schema(
        [("id", pa.int32()), ("big", pa.int64()), ("n", pa.int32()), ("kind", pa.string())]
    )


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableStore:
    return TableStore.create(spark, tmp_path / "t", "id int, v string", primary_key="id", options={"bucket": 2})


def test_every_verb_takes_them(spark: SparkSession, table: TableStore) -> None:
    table.write(PAIRS.to_pandas())
    table.write(polars.DataFrame({"v": ["c", "x", "d"], "id": [3, 4, 4]}))
    assert rows(table.read()) == {1: "a", 2: "b", 3: "c", 4: "d"}
    table.delete([{"id": 3}])
    table.write([{"id": 1, "v": None, "_change_type": "delete"}])
    source = duckdb.sql("SELECT * FROM (VALUES (2, 'm', 1.5), (7, 'n', 2.5)) t(id, v, more)")
    table.merge(source, ["id"], [when_matched().update({"v": F.col("source.v")}), when_not_matched().insert()])
    assert rows(table.read()) == {2: "m", 4: "d", 7: "n"}
    table.overwrite(PAIRS, "id < 5")
    assert rows(table.read()) == {1: "a", 2: "b", 7: "n"}
    table.write([{"id": 1, "v": "a", "score": 0.5}], merge_schema=True)
    assert table.read().where("id = 1").collect()[0].asDict() == {"id": 1, "v": "a", "score": 0.5}
    assert table.write([]) is None
    assert table.read(columns="id").columns == ["id"]


def test_refused_rows_leave_the_table_alone(table: TableStore) -> None:
    table.write(PAIRS)
    before = state(table)
    for verb in (table.write, table.overwrite):
        with pytest.raises(InvalidInputError, match="column 'id': expected int32, got string"):
            verb(pa.table({"id": ["1"], "v": ["a"]}))
    with pytest.raises(InvalidInputError, match="must not contain NULL"):
        table.write([{"id": None, "v": "a"}])
    with pytest.raises(InvalidInputError, match="column 'id'"):
        table.delete(pa.table({"id": ["1"]}))
    assert state(table) == before


def test_types_that_only_spark_knows_apart_arrive(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "at timestamp, local timestamp_ntz, d decimal(20, 3), m map<string, struct<a: int>>, b binary, l array<date>"
    table = TableStore.create(spark, tmp_path / "types", ddl)
    row = {
        "at": NOON, "local": dt.datetime(2026, 5, 1, 12), "d": Decimal("12.345"), "m": {"k": {"a": 1}}, "b": b"x",
        "l": [dt.date(2026, 1, 2)],
    }  # fmt: skip
    table.write([row])
    assert table.read().toArrow().to_pylist() == [row | {"m": [("k", {"a": 1})]}]


@pytest.mark.parametrize("threshold", ["48MB", "1000"], ids=["local", "in Spark's tasks"])
def test_the_last_row_of_a_key_counts_whatever_the_size(spark: SparkSession, table: TableStore, threshold: str) -> None:
    name = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(name)
    spark.conf.set(name, threshold)
    try:
        table.write(pa.table({"id": [n % 3 for n in range(25_000)], "v": [str(n) for n in range(25_000)]}))
    finally:
        spark.conf.set(name, before)
    assert rows(table.read()) == {0: "24999", 1: "24997", 2: "24998"}


@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 3), slice(0, 0)], ids=["whole", "slice", "no rows"])
def test_nested_columns_that_pyspark_does_not_take_arrive(spark: SparkSession, tmp_path: Path, part: slice) -> None:
    """NULL rows of NOT NULL fields, slices of maps with NULL, and arrays without rows."""
    ddl = "`a.b` int, `c``d` struct<n: int not null>, m map<int, timestamp_ntz>, l array<binary>"
    table = TableStore.create(spark, tmp_path / "nested", ddl)
    nested: list[dict[str, Any]] = [
        {"a.b": 1, "c`d": None, "m": None, "l": [b"x"]},
        {"a.b": 2, "c`d": {"n": 5}, "m": None, "l": []},
        {"a.b": 3, "c`d": None, "m": [(1, dt.datetime(2026, 5, 1))], "l": None},
    ]
    given = pa.Table.from_pylist(nested, open_local(table.path).schema)[part]
    table.write(given)
    assert open_local(table.path).to_arrow().sort_by("a.b").to_pylist() == nested[part]


@pytest.mark.parametrize("key", [[], ["`"]], ids=["no key", "key"])
def test_a_column_may_have_a_backtick_in_its_name(spark: SparkSession, tmp_path: Path, key: list[str]) -> None:
    table = TableStore.create(spark, tmp_path / "names", "```` int, v int", primary_key=key)
    table.write(spark.range(3).select(F.col("id").cast("int").alias("`"), F.lit(1).alias("v")))
    assert open_local(table.path).to_arrow().sort_by("`").to_pylist() == [{"`": n, "v": 1} for n in range(3)]


def test_rows_are_read_while_another_thread_imports_pandas(tmp_path: Path) -> None:
    half = "from tablestore.write.tabular_input import is_pandas\nassert not is_pandas([])\nDataFrame = list\n"
    (tmp_path / "pandas.py").write_text(half)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", "import pandas"], env=os.environ | {"PYTHONPATH": path}, check=True)
