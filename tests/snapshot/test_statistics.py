"""What files say of their values leaves out no row that somebody asks for: not NaN, not -0.0, not the year 12000."""

from __future__ import annotations

import json
import math
import os
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.staging import parquet_writer
from snapshot.staging.parquet_writer import ROW_GROUP_ROWS, ParquetFiles
from snapshot.storage import Storage
from tablestore import TableStore, open_local

NAN = math.nan
STRUCT = pa.struct({"y": pa.float64(), "t": pa.struct({"z.z": pa.float32()})})


def written(path: Path, *batches: pa.RecordBatch) -> tuple[list[pq.ParquetFile], list[dict[str, Any]]]:
    """Write batches by one writer; return its files and what Delta is told of them."""
    writer = ParquetFiles(Storage.at(path), batches[0].schema, prefix="f", target_bytes=1 << 30)
    for batch in batches:
        writer.write(batch)
    files = writer.close()
    return [pq.ParquetFile(path / file.path) for file in files], [json.loads(file.stats) for file in files]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("values", [[1.0, NAN, 3.0], [NAN], [None, NAN, -1.0]])
def test_a_column_that_holds_nan_has_no_bounds(tmp_path: Path, kind: pa.DataType, values: list[float]) -> None:
    numbers = pa.record_batch({"x": pa.array(values, kind), "y": pa.array([2.0] * len(values), kind)})
    (file,), (stats,) = written(tmp_path, numbers)
    assert file.metadata.row_group(0).column(0).statistics is None
    assert stats["minValues"] == stats["maxValues"] == {"y": 2.0}
    assert stats["numRecords"] == len(values)


def test_row_groups_and_files_of_large_values_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers hold a row group of large values in memory, and so does the writer."""
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 1 << 20)
    values = [os.urandom(1 << 16) for _ in range(100)]
    whole = pa.record_batch({"x": pa.array(values, pa.binary())})
    writer = ParquetFiles(Storage.at(tmp_path), whole.schema, prefix="f", target_bytes=3 << 20)
    for batch in (whole.slice(0, 70), *(whole.slice(n, 1) for n in range(70, 100))):
        writer.write(batch)
        assert writer._waiting_bytes < 1 << 20
    files = [pq.ParquetFile(tmp_path / file.path) for file in writer.close()]
    assert [value for file in files for value in file.read().column("x").to_pylist()] == values
    groups = [[file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] for file in files]
    assert all(rows <= 16 for file in groups for rows in file)
    assert all(sum(file) <= 4 * 16 for file in groups)


def test_nan_that_comes_late_begins_a_file(tmp_path: Path) -> None:
    """Rows keep their order, and files without NaN keep their bounds."""
    ones = pa.record_batch({"x": pa.array([1.0] * ROW_GROUP_ROWS)})
    late = pa.record_batch({"x": pa.array([NAN, 7.0])})
    files, stats = written(tmp_path, ones, late, ones)
    assert [each["maxValues"] for each in stats] == [{"x": 1.0}, {}]
    assert [file.metadata.num_rows for file in files] == [ROW_GROUP_ROWS, ROW_GROUP_ROWS + 2]


def test_floats_in_nested_columns_have_no_bounds(tmp_path: Path) -> None:
    kind = pa.struct([("x", pa.float64()), ("n", pa.int64())])
    rows = pa.record_batch({"s": pa.array([{"x": NAN, "n": 1}], kind), "l": pa.array([[NAN]], pa.list_(pa.float32()))})
    (file,), _ = written(tmp_path, rows)
    group = file.metadata.row_group(0)
    has = {group.column(number).path_in_schema: group.column(number).statistics for number in range(3)}
    assert has["s.x"] is None
    assert has["l.list.element"] is None
    assert has["s.n"].max == 1


@pytest.mark.parametrize(
    ("kind", "values", "bounds"),
    [
        (pa.date32(), [4_000_000], None),
        (pa.date32(), [-800_000, 0], None),
        (pa.date32(), [-719_162, 2_932_896], ("0001-01-01", "9999-12-31")),
        (pa.timestamp("us"), [2**61], None),
        (pa.timestamp("us", "UTC"), [-(2**61), 0], None),
        (
            pa.timestamp("us", "UTC"), [-62_135_596_800_000_000, 253_402_300_799_999_000],
            ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"),
        ),
        (pa.timestamp("us"), [1_000], ("1970-01-01T00:00:00.001", "1970-01-01T00:00:00.001")),
        (pa.timestamp("us"), [1], None),
    ],
)  # fmt: skip
def test_dates_beyond_what_python_knows_have_no_bounds(
    tmp_path: Path, kind: pa.DataType, values: list[int], bounds: tuple[str, str] | None
) -> None:
    _, (stats,) = written(tmp_path, pa.record_batch({"d": pa.array(values, kind)}))
    expected = ({}, {}) if bounds is None else ({"d": bounds[0]}, {"d": bounds[1]})
    assert (stats["minValues"], stats["maxValues"]) == expected


@pytest.mark.usefixtures("delta_scans")
@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_spark_and_local_readers_find_odd_values(spark: SparkSession, tmp_path: Path, key: bool) -> None:
    """NaN is greater than any number, -0.0 is 0.0, and a year may have five digits."""
    # Values that come often get a dictionary, by which Spark skips too.
    odd = [(1, 1.0), (2, NAN), (3, -0.0), (4, -0.0), (5, 6.0), *((number, -1.0) for number in range(6, 20))]
    frame = spark.createDataFrame(odd, "id bigint, x double")
    dates = "date_add(date'2024-01-01', cast(id * 1000000 as int)) d"
    dated = frame.selectExpr("id", "x", "named_struct('y', x) s", dates)
    table = TableStore.create(spark, tmp_path / "t", dated.schema, primary_key=["id"] if key else [])
    table.write(dated.coalesce(1))
    if key:
        table.compact()
    wanted = {
        "x > 5": {2, 5},
        "x >= 5": {2, 5},
        "x = CAST('NaN' AS DOUBLE)": {2},
        "NOT (x < 5)": {2, 5},
        "s.y > 5": {2, 5},
        "x = 0": {3, 4},
        "x >= 0 AND x < 1": {3, 4},
        "d > DATE '9000-01-01' AND id < 6": {3, 4, 5},
        "d < DATE '6000-01-01'": {1},
    }
    parts = [table.read().where(each).select(F.lit(each), "id") for each in wanted]
    found = {(row[0], row[1]) for row in reduce(DataFrame.union, parts).collect()}
    assert found == {(condition, number) for condition, ids in wanted.items() for number in ids}
    for condition, ids in wanted.items():
        local = open_local(tmp_path / "t").to_arrow(["id"], condition)
        assert (condition, set(local["id"].to_pylist())) == (condition, ids)
    if not key:
        table.delete("x > 5 OR x = 0")
        assert table.read().where("x >= 0").count() == 1
        assert table.read().count() == 1 + 14


def test_files_of_others_are_read_right(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may leave NaN out of their bounds, as delta-rs does."""
    TableStore.create(spark, tmp_path / "t", "id bigint, x double, s struct<y: double, t: struct<`z.z`: float>>")
    nested = pa.array([{"y": n, "t": {"z.z": n}} for n in (1.0, NAN)], STRUCT)
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1, 2], "x": [1.0, NAN], "s": nested}), mode="append")
    table = TableStore.open(spark, tmp_path / "t")
    others = spark.read.format("delta").load(str(tmp_path / "t"))
    for condition in ("x > 5", "s.y > 5", "s.t.`z.z` > 5"):
        assert others.where(condition).count() == 0
        for least in (0, 1 << 20):  # by Spark's Delta reader, by our own
            monkeypatch.setattr("tablestore.read.base_table_columns._BYTES_MIN", least)
            assert [row.id for row in table.read().where(condition).collect()] == [2]
        assert open_local(tmp_path / "t").to_arrow(["id"], condition.replace("`", '"'))["id"].to_pylist() == [2]
    table.delete("x > 5 AND s.y > 5")
    assert [row.id for row in table.read().collect()] == [1]


@pytest.mark.usefixtures("delta_scans")
def test_a_base_that_others_have_rewritten_is_read_right(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of delta-rs leave NaN out; those of this program's changes do not."""
    ddl = "id bigint, x double, s struct<y: double>"
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["id"], options={"bucket": 1})
    table.write([{"id": n, "x": x, "s": {"y": x}} for n, x in ((1, 1.0), (2, NAN), (3, -0.0), (4, 2.0))])
    table.compact()
    table.write([{"id": 4, "x": NAN, "s": {"y": NAN}}])
    other = DeltaTable(tmp_path / "t")
    assert other.optimize.z_order(["x"])["numFilesAdded"] == 1
    (add,) = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()
    assert add["max.x"] == 2.0
    for merged in (False, True):
        if merged:
            table.compact()
            table.write([{"id": 5, "x": 0.5, "s": {"y": 0.5}}])
            table.compact()
            DeltaTable(tmp_path / "t").optimize.z_order(["x"])
        for condition, ids in (("x > 5", [2, 4]), ("s.y > 5", [2, 4]), ("NOT (x < 5)", [2, 4]), ("x = 0", [3])):
            for least in (0, 1 << 20):  # by Spark's Delta reader if nothing is to be merged, by our own
                monkeypatch.setattr("tablestore.read.base_table_columns._BYTES_MIN", least)
                assert sorted(row.id for row in table.read().where(condition).collect()) == ids
            assert sorted(open_local(tmp_path / "t").to_arrow(["id"], condition)["id"].to_pylist()) == ids
    table.delete("x > 5")
    assert sorted(row.id for row in table.read().collect()) == [1, 3, 5]
