"""Values that Delta cannot keep in a partition column are refused, however they come, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from snapshot.errors import InvalidInputError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore import open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, rewriting, write

EMPTY = r"partition column 'v' must not contain the empty string, which Delta cannot distinguish from NULL; 1 of 2 rows"


def make(path: Path, schema: StructType, partition: str, *, key: bool, **options: object) -> TableContext:
    return create_drop.create(
        str(path),
        schema,
        primary_key=["id"] if key else [],
        partition_by=[partition],
        log_system=None,
        options={"bucket": 1, **options},
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
