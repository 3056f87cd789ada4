"""Values that Delta cannot keep in a partition column are refused, however they come, and change nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from snapshot.errors import InvalidInputError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore import open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, rewriting, write

EMPTY = r"partition column 'v' must not contain the empty string, which Delta cannot distinguish from NULL; 1 of 2 rows"


def make(path: Path, schema: StructType, partition: str, *, key: bool, **options: object) -> TableContext:
    return create_drop.create(
        TableDefinition(
            str(path),
            schema,
            primary_key=["id"] if key else [],
            partition_by=[partition],
            options={"bucket": 1, **options},
        )
    )


@pytest.mark.parametrize(
    "options", [None, {}, {"changelog-producer": "lookup"}, {"merge-engine": "partial-update"}], ids=str
)
def test_an_empty_string_is_refused(tmp_path: Path, options: dict[str, object] | None) -> None:
    """None stands for a table without a key."""
    table = make(tmp_path / "t", SCHEMA, "v", key=options is not None, **(options or {}))
    writer = Writer(table, None)
    write(writer, [(1, "a"), (2, None)] if options is None else [(1, "a")])
    before, files = open_local(tmp_path / "t").to_arrow().to_pylist(), set(tmp_path.rglob("*.parquet"))
    with pytest.raises(InvalidInputError, match=EMPTY):
        write(writer, [(3, "b"), (4, "")])
    assert table.files.latest() == 1
    assert open_local(tmp_path / "t").to_arrow().to_pylist() == before
    assert set(tmp_path.rglob("*.parquet")) == files


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("name", ["p", "_" + "n" * 254, "name/" * 40], ids=["short", "long", "escaped"])
def test_values_and_names_too_long_for_a_folder_are_stored(
    tmp_path: Path, spark: SparkSession, name: str, *, key: bool
) -> None:
    values = ["x" * 5_000, "x" * 4_999 + "y", "\u20ac" * 40, "short", None]
    schema = StructType().add("id", "long").add(name, "string")
    rows = [{"id": number, name: value} for number, value in enumerate(values)]
    make(tmp_path / "t", schema, name, key=key)
    with open_local(tmp_path / "t") as table:
        table.write(rows)
        table.compact()
        assert table.to_arrow().sort_by("id").to_pylist() == rows
        assert table.count(f"\"{name}\" = '{values[1]}'") == 1
        found = DeltaTable(tmp_path / "t").to_pyarrow_table(columns=["id", name]).sort_by("id")
        assert found.to_pylist() == rows
        by_spark = spark.read.format("delta").load(table.path).select("id", f"`{name}`").orderBy("id")
        assert [row.asDict() for row in by_spark.collect()] == rows
        for file in (tmp_path / "t").rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                os.utime(file, (0, 0))
        assert table.maintenance.remove_orphans().files == ()
        table.delete("id = 0")
        assert table.count() == len(rows) - 1


def test_an_update_to_an_empty_string_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t", SCHEMA, "v", key=False)
    writer = Writer(table, None)
    write(writer, [(1, "a"), (2, "b")])
    with pytest.raises(InvalidInputError, match=EMPTY):
        writer.replace(rewriting(table, lambda row: (row[0], "") if row[0] == 1 else row), kind="update")
    assert table.files.latest() == 1


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("day", [-719_163, 2_932_897])
def test_a_date_beyond_the_years_that_readers_know_is_refused(tmp_path: Path, key: bool, day: int) -> None:
    table = make(tmp_path / "t", StructType().add("id", "long").add("d", "date"), "d", key=key)
    columns = {"id": pa.array([1]), "d": pa.array([day], pa.date32())}
    more = {KIND: pa.array([int(RowKind.INSERT)], pa.int8()), SEQ: pa.array([0])} if key else {}
    refused = "partition column 'd' must not contain dates outside the years 1 to 9999"
    with pytest.raises(InvalidInputError, match=refused):
        Writer(table, None).write(lambda stager: stager.stage([pa.record_batch({**columns, **more})], 0))
    assert table.files.latest() == 0
