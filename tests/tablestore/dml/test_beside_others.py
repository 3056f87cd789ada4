"""Frames and statements in Spark while others change columns or let snapshots expire: no error is Spark's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import DataLostError, InvalidInputError, TableReplacedError
from tablestore import TableStore, create_local, open_local, when_matched, when_not_matched
from tablestore.dml import copy_on_write, merge_on_read
from tablestore.read import anti_join_scan, base_table_columns, bitmap_scan
from tests.harness.beside import beside

ROWS = [{"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "b", "n": 2}]
MERGE = [
    when_matched().update({"n": "target.n + source.n"}),
    when_not_matched().insert({"id": "source.id", "n": "source.n"}),
]
KEYS = {"key": ["id"], "no key": []}
ANEW = "dropped and created again"


def source(table: TableStore) -> DataFrame:
    return table._handle.spark.createDataFrame([(2, 5), (3, 5)], "id bigint, n int")


def new_rows(table: TableStore) -> DataFrame:
    return table._handle.spark.createDataFrame([(2, "b", 3)], "id bigint, v string, n int")


NAMES_V: dict[str, Callable[[TableStore], Any]] = {
    "write": lambda t: t.write(new_rows(t)),
    "overwrite": lambda t: t.overwrite(new_rows(t)),
    "overwrite where": lambda t: t.overwrite(new_rows(t), "v = 'b'"),
    "update": lambda t: t.update("v = 'b'", {"n": "n + 1"}),
    "delete": lambda t: t.delete("v = 'b'"),
    "merge": lambda t: t.merge(source(t), "id", [when_matched("target.v = 'b'").delete()]),
}
"""Statements that need a column ``v``."""
OTHERS: dict[str, tuple[Callable[[TableStore], Any], dict[int, int | None]]] = {
    "update": (lambda t: t.update("id = 2", {"n": "n + 1"}), {1: 1, 2: 3}),
    "delete": (lambda t: t.delete("id = 2"), {1: 1}),
    "merge": (lambda t: t.merge(source(t), "id", MERGE), {1: 1, 2: 7, 3: 5}),
    "truncate": (lambda t: t.truncate(), {}),
}


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[..., TableStore]:
    made: list[TableStore] = []

    def create(kind: str) -> TableStore:
        options = {"bucket": 2, "compaction.auto": False} if KEYS[kind] else {}
        path = tmp_path / f"t{len(made)}"
        with create_local(path, "id bigint, v string, n int", primary_key=KEYS[kind], options=options) as table:
            table.write(ROWS)
        made.append(TableStore.open(spark, path))
        return made[-1]

    return create


def between(patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let another process act between the planning and the running of a statement, once."""
    left = [act]
    for module, name in ((merge_on_read, "run_staging"), (copy_on_write, "found_by")):
        real = getattr(module, name)

        def late(*args: Any, real: Callable[..., Any] = real, **kwargs: Any) -> Any:
            if left:
                left.pop()()
            return real(*args, **kwargs)

        patch.setattr(module, name, late)


def of_another_type(table: Any) -> None:
    table.alter.drop_column("v")
    table.alter.add_column("v", "array<int>")


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("verb", NAMES_V)
def test_a_statement_whose_column_is_renamed_or_replaced_is_refused(
    make: Callable[..., TableStore], monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    for alter, step in (
        (lambda other: other.alter.rename_column("v", "w"), "write_staged"),
        (lambda other: other.alter.rename_column("v", "w"), "recover_once"),
        (of_another_type, "write_staged"),
    ):
        table = make(kind)
        beside(monkeypatch, table, alter, step)
        with pytest.raises(InvalidInputError, match=r"\bv\b"):
            NAMES_V[verb](table)
        assert table.snapshots(1)[0].operation == "alter"
        assert sorted(row.n for row in table.read().collect()) == [1, 2]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("verb", OTHERS)
def test_a_statement_that_names_other_columns_is_planned_again(
    make: Callable[..., TableStore], monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    def alter(other: Any) -> None:
        other.alter.rename_column("v", "w")
        other.alter.move_column("n", first=True)
        other.alter.widen_column("n", "bigint")

    call, expected = OTHERS[verb]
    for step in ("write_staged", "recover_once"):
        table = make(kind)
        beside(monkeypatch, table, alter, step)
        call(table)
        assert table.refresh().schema.names == ["n", "id", "w"]
        assert {row.id: row.n for row in table.read().collect()} == expected
    table = make(kind)
    with monkeypatch.context() as patch:
        between(patch, lambda: alter(open_local(table.path)))
        call(table)
    assert {row.id: row.n for row in table.read().collect()} == expected


def let_expire(path: str) -> None:
    """Replace all files of the newest snapshot, and let it expire."""
    with open_local(path) as other:
        other.update("id = 1", {"v": "'new'"})
        if other.primary_key:
            other.compact()
        other.write([{"id": 9, "v": "z", "n": 9}])
        other.maintenance.expire(older_than="0 s", keep_last=1)


@pytest.mark.parametrize("kind", KEYS)
def test_a_statement_whose_snapshot_expires_while_it_runs_is_planned_again(
    make: Callable[..., TableStore], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for verb in ("update", "delete", "merge"):
        call, expected = OTHERS[verb]
        table = make(kind)
        with monkeypatch.context() as patch:
            between(patch, lambda path=table.path: let_expire(path))
            call(table)
        assert {row.id: row.n for row in table.read().collect()} == expected | {9: 9}


@pytest.mark.filterwarnings("ignore:toPandas attempted")
@pytest.mark.parametrize("plan", ["no key", "key", "base", "Delta, no key", "Delta, base", "bitmaps", "anti-join"])
def test_a_frame_whose_snapshot_has_expired_says_so_whatever_the_action(
    make: Callable[..., TableStore], monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    table = make("no key" if "no key" in plan else "key")
    if "no key" not in plan:
        table.compact()
    if plan in ("key", "bitmaps", "anti-join"):
        table.write([{"id": 2, "v": "c", "n": 4}])
    if plan.startswith("Delta"):
        monkeypatch.setattr(base_table_columns, "_BYTES_MIN", 0)
    if plan == "bitmaps":
        monkeypatch.setattr(bitmap_scan, "_BASE_BYTES_MIN", 0)
    if plan == "anti-join":
        monkeypatch.setattr(anti_join_scan, "is_worth_it", lambda *_args, **_more: True)
    frame = table.read()
    let_expire(table.path)
    actions: list[Callable[[], Any]] = [
        frame.collect,
        frame.toPandas,
        frame.toArrow,
        lambda: frame.groupBy("v").count().collect(),
        lambda: frame.write.format("noop").mode("overwrite").save(),
        lambda: table.write(frame),
    ]
    for act in actions:
        with pytest.raises(DataLostError, match=r"snapshot (that it reads )?has expired since") as told:
            act()
        assert len(str(told.value)) < 500
        assert "Traceback" not in str(told.value)
        assert told.value.__cause__ is None
        assert told.value.__suppress_context__


def test_another_error_of_spark_stays_as_it_is(make: Callable[..., TableStore], tmp_path: Path) -> None:
    table = make("no key")
    assert table.read().count() == 2
    table.read().write.parquet(str(tmp_path / "other"))
    other = table._handle.spark.read.parquet(str(tmp_path / "other"))
    for file in (tmp_path / "other").glob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as told:
        other.collect()
    assert not isinstance(told.value, DataLostError)


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("kind", KEYS)
def test_frames_of_a_table_that_was_made_anew_read_nothing_of_the_next(
    spark: SparkSession, tmp_path: Path, kind: str, compacted: bool
) -> None:
    def replace() -> None:
        with create_local(tmp_path / "t", "id bigint, v string, n int", primary_key=KEYS[kind]) as new:
            for row in ROWS:
                new.write([row])
            if compacted:
                new.compact()

    replace()
    table = TableStore.open(spark, tmp_path / "t")
    changes, rows, stream = table.changes(0), table.read(), table.read_stream()
    table.drop()
    replace()
    with pytest.raises(PySparkException, match=ANEW):
        changes.collect()
    with pytest.raises(StreamingQueryException, match=ANEW):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(DataLostError, match="the table was dropped"):
        rows.collect()


@pytest.mark.usefixtures("delta_scans")
@pytest.mark.parametrize("is_used", [True, False], ids=["used before", "not used before"])
@pytest.mark.parametrize("kind", KEYS)
def test_a_frame_that_spark_itself_reads_says_that_its_table_was_dropped_or_made_anew(
    spark: SparkSession, tmp_path: Path, kind: str, is_used: bool
) -> None:
    """Delta reads its log when a frame is first used, and says what it lacks without naming the table."""

    def make(writes: int) -> TableStore:
        with create_local(tmp_path / "t", "id bigint, v string, n int", primary_key=KEYS[kind]) as new:
            for _ in range(writes):
                new.write(ROWS)
            new.compact()
        return TableStore.open(spark, tmp_path / "t")

    def frame(table: TableStore) -> DataFrame:
        rows = table.read()
        if is_used:
            assert rows.count() > 0
        return rows

    old = make(22)
    rows = frame(old)
    old.drop()
    with pytest.raises(DataLostError, match=r"this frame reads file .* there is no table"):
        rows.collect()
    # Its log may be longer or shorter, and frames of it may have been read.
    for writes in (1, 30):
        new = make(writes)
        with pytest.raises(TableReplacedError, match=ANEW):
            rows.collect()
        rows = frame(new)
        assert len(rows.collect()) >= len(ROWS)
        new.drop()
