"""Option ``rowkind.field``: a column says the kind of each row, in every way to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore import LocalTable, TableStore, open_local
from tests.harness.waiting import PATIENCE_SECONDS

COLUMNS = "k int, v string, kind string"
FIRST = [(1, "a", "+I"), (2, "b", "+U"), (3, "c", "+I")]
SECOND = [(1, "x", "-U"), (1, "z", "+U"), (2, None, "-D"), (4, "d", "-D")]
LEFT = [(1, "z", "+U"), (3, "c", "+I")]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableStore:
    return TableStore.create(
        spark, tmp_path / "t", COLUMNS, primary_key=["k"], options={"rowkind.field": "kind", "bucket": 2}
    )


def local(table: TableStore, frame: DataFrame) -> None:
    opened: LocalTable = open_local(table.path)
    with opened:
        opened.write(frame.toArrow())


def streamed(table: TableStore, frame: DataFrame) -> None:
    folder = Path(table.path).parent
    source = folder / f"rows-{len(table.snapshots())}"
    frame.coalesce(1).write.parquet(str(source))
    rows = frame.sparkSession.readStream.schema(frame.schema).parquet(str(source))
    query = table.write_stream(rows, checkpoint=folder / f"c{source.name}", trigger={"availableNow": True})
    assert query.awaitTermination(int(PATIENCE_SECONDS))


WAYS: dict[str, Callable[[TableStore, DataFrame], Any]] = {
    "rows": lambda table, frame: table.write(frame),
    "job": lambda table, frame: table.write(frame.repartition(3, "k").sortWithinPartitions("v")),
    "format": lambda table, frame: frame.coalesce(1).write.format("tablestore").mode("append").save(table.path),
    "local": local,
    "streamed": streamed,
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_upserts_and_deletes_by_their_column(spark: SparkSession, table: TableStore, way: str) -> None:
    for rows in (FIRST, SECOND):
        WAYS[way](table, spark.createDataFrame(rows, COLUMNS))
    assert sorted(map(tuple, table.read().collect())) == LEFT


@pytest.mark.parametrize("way", WAYS)
def test_a_row_before_an_update_that_has_another_key_is_deleted(
    spark: SparkSession, table: TableStore, way: str
) -> None:
    for rows in (FIRST, [(1, "a", "-U"), (9, "a", "+U")]):
        WAYS[way](table, spark.createDataFrame(rows, COLUMNS))
    assert sorted(map(tuple, table.read().collect())) == [(2, "b", "+U"), (3, "c", "+I"), (9, "a", "+U")]


@pytest.mark.parametrize("way", ["rows", "job"])
def test_a_row_before_an_update_leaves_a_partial_update(spark: SparkSession, tmp_path: Path, way: str) -> None:
    options = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
    options |= {"rowkind.field": "kind"}
    table = TableStore.create(spark, tmp_path / "t", COLUMNS, primary_key=["k"], options=options)
    for rows in (FIRST, [(1, "a", "-U"), (2, "a", "-D")]):
        WAYS[way](table, spark.createDataFrame(rows, COLUMNS))
    assert sorted(map(tuple, table.read().collect())) == [(1, "a", "+I"), (3, "c", "+I")]


SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("options", "left"), [({}, {1: 4, 2: 2}), (SUM, {1: 6, 2: 2, 3: 0})])
def test_rows_before_updates_may_be_ignored(
    spark: SparkSession, tmp_path: Path, way: str, options: dict[str, str], left: dict[int, int]
) -> None:
    """The rows before updates alone, by whatever column says so: deletes still remove a row, or what it adds up to."""
    options = {"rowkind.field": "kind", "ignore-update-before": "true", **options}
    table = TableStore.create(spark, tmp_path / "t", "k int, v int, kind string", primary_key=["k"], options=options)
    for rows in ([(1, 2, "+I"), (2, 2, "+I"), (3, 3, "+I")], [(1, 4, "+U"), (2, 2, "-U"), (3, 3, "-D")]):
        WAYS[way](table, spark.createDataFrame(rows, table.schema))
    assert {row.k: row.v for row in table.read().collect()} == left


REMOVING = {**SUM, "aggregation.remove-record-on-delete": "true", "rowkind.field": "kind"}


@pytest.mark.parametrize("way", WAYS)
def test_where_deletes_remove_the_row_updates_still_replace_a_value(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """As in Paimon: a row before an update is not a delete."""
    table = TableStore.create(spark, tmp_path / "t", "k int, v int, kind string", primary_key=["k"], options=REMOVING)
    for rows in ([(1, 2, "+I"), (1, 5, "+I"), (2, 2, "+I")], [(1, 5, "-U")], [(1, 6, "+U"), (2, 1, "-D")]):
        WAYS[way](table, spark.createDataFrame(rows, table.schema))
    assert [(row.k, row.v) for row in table.read().collect()] == [(1, 8)]
    table.delete([{"k": 1}])
    assert table.count() == 0


def test_where_deletes_remove_the_row_updates_of_what_cannot_be_taken_back_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {**REMOVING, "fields.v.aggregate-function": "max"}
    table = TableStore.create(spark, tmp_path / "t", "k int, v int, kind string", primary_key=["k"], options=options)
    table.write([{"k": 1, "v": 5, "kind": "+I"}, {"k": 2, "v": 5, "kind": "+I"}])
    table.write([{"k": 1, "v": None, "kind": "-D"}])
    with pytest.raises(InvalidInputError, match=r"'max', which does not support retraction.*ignore-update-before=true"):
        table.write([{"k": 2, "v": 5, "kind": "-U"}, {"k": 2, "v": 1, "kind": "+U"}])
    assert [(row.k, row.v) for row in table.read().collect()] == [(2, 5)]


def test_rows_before_updates_may_be_ignored_from_some_time_on(spark: SparkSession, table: TableStore) -> None:
    table.write(spark.createDataFrame(FIRST, COLUMNS))
    table.write(spark.createDataFrame([(1, "a", "-U")], COLUMNS))
    table.alter.set_options({"ignore-update-before": True})
    table.write(spark.createDataFrame([(2, "b", "-U"), (3, None, "-D")], COLUMNS))
    assert sorted(map(tuple, table.read().collect())) == [(2, "b", "+U")]


def test_deletes_may_be_ignored_from_some_time_on_and_back(spark: SparkSession, table: TableStore) -> None:
    """A fact of Paimon's tests: deletes that came before stay, also when they are compacted after it."""
    table.write(spark.createDataFrame(FIRST, COLUMNS))
    table.write(spark.createDataFrame([(1, "a", "-D")], COLUMNS))
    table.alter.set_options({"ignore-delete": True})
    table.write(spark.createDataFrame([(2, "b", "-D"), (3, None, "-U")], COLUMNS))
    table.compact()
    assert sorted(row.k for row in table.read().collect()) == [2, 3]
    table.alter.reset_options("ignore-delete")
    table.write(spark.createDataFrame([(2, "b", "-D")], COLUMNS))
    assert [row.k for row in table.read().collect()] == [3]


def test_deletes_that_late_rows_are_known_by_are_ignored_always_or_never(spark: SparkSession, tmp_path: Path) -> None:
    options = {"sequence.field": "s", "ignore-delete": "true"}
    ordered = TableStore.create(spark, tmp_path / "o", "k int, s int", primary_key="k", options=options)
    with pytest.raises(InvalidInputError, match=r"'ignore-delete' cannot change after create with 'sequence\.field'"):
        ordered.alter.reset_options("ignore-delete")
    ordered.alter.set_options({"ignore-delete": True, "compaction.commits": 7})


def test_a_change_type_comes_first_and_verbs_are_as_ever(spark: SparkSession, table: TableStore) -> None:
    table.write(spark.createDataFrame([*FIRST, (4, "d", "+I")], COLUMNS))
    table.write(spark.createDataFrame([(1, "e", "-D", "insert")], f"{COLUMNS}, _change_type string"))
    table.delete("k = 2")
    table.delete([{"k": 3}])
    table.update("k = 4", {"kind": "'-D'"})
    assert sorted(map(tuple, table.read().collect())) == [(1, "e", "-D"), (4, "d", "-D")]


@pytest.mark.parametrize("kind", [None, "insert", ""])
@pytest.mark.parametrize("way", ["rows", "job", "local"])
def test_another_kind_is_refused(spark: SparkSession, table: TableStore, way: str, kind: str | None) -> None:
    with pytest.raises(InvalidInputError, match=r"'rowkind.field' names must be one of \+I, -U, \+U, -D; 1 of 1 rows"):
        WAYS[way](table, spark.createDataFrame([(1, "a", kind)], COLUMNS))
    assert table.count() == 0


@pytest.mark.parametrize(
    ("columns", "key", "field", "reason"),
    [
        ("k int, kind int", "k", "kind", "column 'kind' has type int32; expected STRING"),
        ("k int, v string", "k", "kind", "there is no column 'kind'"),
        ("k string, v string", "k", "k", "column 'k' is in the primary key"),
        ("k int, kind string", "", "kind", "option 'rowkind.field' needs a primary key"),
    ],
)
def test_a_field_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, columns: str, key: str, field: str, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        TableStore.create(spark, tmp_path / "t", columns, primary_key=[*key], options={"rowkind.field": field})


def test_the_column_stays(table: TableStore) -> None:
    with pytest.raises(InvalidInputError, match=r"option 'rowkind\.field' names it"):
        table.alter.drop_column("kind")
