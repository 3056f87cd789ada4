"""Columns that other Delta writers have added to a table without a key: rewritten files keep their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore import LocalTable, TableStore, create_local, open_local, when_matched, when_not_matched

Table = LocalTable | TableStore
Seen = dict[int, tuple[Any, ...]]
"""The values of rows by id, as other tools read them: ours, then theirs."""
THEIRS = {3: ("c", "x", {"f": 1.5}), 4: ("d", None, None), 5: ("e", "y", {"f": None})}
BEFORE: Seen = {1: ("a", None, None), 2: ("b", None, None), **THEIRS}
OWN = pa.table({"id": pa.array([2, 3, 6], pa.int64()), "v": ["m2", "m3", "m6"], "p": pa.array([0, 0, 0], pa.int32())})
MERGE = [
    when_matched("source.id = 2").delete(),
    when_matched().update({"v": "source.v"}),
    when_not_matched().insert({"id": "source.id", "v": "source.v"}),
]


def new_rows(table: Table, rows: pa.Table) -> Any:
    if isinstance(table, LocalTable):
        rows = rows.select([name for name in rows.column_names if name in table.schema.names])
    return rows if isinstance(table, LocalTable) else table._handle.spark.createDataFrame(rows)


STATEMENTS: dict[str, tuple[Callable[[Table], Any], Seen]] = {
    "delete": (lambda t: t.delete("id = 3"), {n: row for n, row in BEFORE.items() if n != 3}),
    "delete a file": (lambda t: t.delete("id > 2"), {n: row for n, row in BEFORE.items() if n <= 2}),
    "update": (
        lambda t: t.update("id in (1, 3)", {"v": "'new'"}),
        BEFORE | {1: ("new", None, None), 3: ("new", *THEIRS[3][1:])},
    ),
    "overwrite": (
        lambda t: t.overwrite(new_rows(t, OWN.slice(1, 1)), "id = 3"),
        BEFORE | {3: ("m3", None, None)},
    ),
    "overwrite all": (lambda t: t.overwrite(new_rows(t, OWN)), {n: (f"m{n}", None, None) for n in (2, 3, 6)}),
    "merge": (
        lambda t: t.merge(new_rows(t, OWN), "id", MERGE),
        {1: BEFORE[1], 3: ("m3", *THEIRS[3][1:]), 4: BEFORE[4], 5: BEFORE[5], 6: ("m6", None, None)},
    ),
    "compact": (lambda t: t.compact(), BEFORE),
}


def seen(path: Path) -> Seen:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    found = {row["id"]: (row["v"], row["more"], row["deep"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(params=["local", "spark"])
def at(request: pytest.FixtureRequest) -> Callable[[Path], Table]:
    """Return what opens a table."""
    if request.param == "local":
        return open_local
    spark: SparkSession = request.getfixturevalue("spark")
    return lambda path: TableStore.open(spark, path)


def make(path: Path, partition_by: list[str]) -> None:
    """Make a table of a file of ours and one of another writer, whose columns have names that ours take later."""
    with create_local(path, "id bigint, v string, p int", partition_by=partition_by) as table:
        table.write([{"id": 1, "v": "a", "p": 0}, {"id": 2, "v": "b", "p": 0}])
    deep = pa.array([row[2] for row in THEIRS.values()], pa.struct([("f", pa.float64())]))
    theirs = {
        "id": pa.array(THEIRS, pa.int64()),
        "v": [row[0] for row in THEIRS.values()],
        "p": pa.array([0, 0, 0], pa.int32()),
        "more": [row[1] for row in THEIRS.values()],
        "deep": deep,
        "nothing": pa.nulls(3),
    }
    write_deltalake(path, pa.table(theirs), mode="append", schema_mode="merge")


@pytest.mark.parametrize(
    ("at", "partition_by"),
    [("local", []), ("local", ["p"]), ("spark", [])],
    indirect=["at"],
    ids=["local", "partitioned", "spark"],
)
@pytest.mark.parametrize("name", STATEMENTS)
def test_values_stay_for_others(
    tmp_path: Path, at: Callable[[Path], Table], name: str, partition_by: list[str]
) -> None:
    path, (run, expected) = tmp_path / "t", STATEMENTS[name]
    make(path, partition_by)
    assert seen(path) == BEFORE
    run(at(path))
    assert seen(path) == expected
    with open_local(path) as table:
        assert table.schema.names == ["id", "v", "p"]
        assert {row["id"]: row["v"] for row in table.to_arrow().to_pylist()} == {
            n: row[0] for n, row in expected.items()
        }
        changes = pa.Table.from_batches(table.changes(0)).to_pylist()
        assert {row["id"] for row in changes if row["_change_type"] == "insert"} >= {1, 2, 3, 4, 5}
        assert all(set(row) & {"more", "_other_more", "_other_deep"} == set() for row in changes)


@pytest.mark.parametrize("name", ["delete", "update", "merge", "compact"])
def test_values_stay_beside_columns_of_the_same_name(tmp_path: Path, at: Callable[[Path], Table], name: str) -> None:
    path, (run, expected) = tmp_path / "t", STATEMENTS[name]
    make(path, [])
    with open_local(path) as table:
        for column in ("more", "_other_more"):
            table.alter.add_column(column, "int")
        table.alter.drop_column("p")
        table.update("id = 4", {"more": 7, "_other_more": 8})
    run(at(path))
    assert seen(path) == expected
    with open_local(path) as table:
        own = {row["id"]: (row["more"], row["_other_more"]) for row in table.to_arrow().to_pylist()}
    assert own == {number: (7, 8) if number == 4 else (None, None) for number in expected}


def test_files_with_a_column_whose_type_is_unknown_are_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with create_local(path, "id bigint") as table:
        table.write([{"id": 1}])
        inner = pa.array([{"nothing": None}], pa.struct([("nothing", pa.null())]))
        theirs = pa.table({"id": pa.array([2], pa.int64()), "deep": inner})
        write_deltalake(path, theirs, mode="append", schema_mode="merge")
        for statement in (lambda: table.update("id = 1", {"id": 3}), table.compact):
            with pytest.raises(
                InvalidInputError, match=r"'deep.nothing', .*of another Delta writer.*'void' is not supported"
            ):
                statement()
        assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 2]
