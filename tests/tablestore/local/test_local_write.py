"""A table written without Spark: the same rows, log and errors as with it."""

from __future__ import annotations

import datetime as dt
import random
import sys
import threading
from collections import Counter
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
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, StructType

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from snapshot.schema.ddl_text import as_schema, columns_of
from tablestore import LocalTable, TableStore, create_local, open_local, when_matched
from tablestore.local import repeatable, staging
from tablestore.table.handle import TableHandle
from tablestore.write.writer import Writer
from tests.harness.faults import failing
from tests.harness.table_audit import audit
from tests.harness.waiting import PATIENCE_SECONDS
from tests.tablestore.local.local_tables import COLUMNS, LOGS, Model, Row, rows_of, table_of

CONDITIONS: list[tuple[str, Callable[[Row], bool]]] = [
    ("id % 3 = 0", lambda row: row[0] % 3 == 0),
    ("n > 5", lambda row: row[2] is not None and row[2] > 5),
    ("part = 'a' AND v LIKE '%1'", lambda row: row[3] == "a" and row[1] is not None and row[1].endswith("1")),
    ("part = 'b'", lambda row: row[3] == "b"),
    ("v IS NULL", lambda row: row[1] is None),
    ("id > 1000", lambda row: row[0] > 1000),
]


def step(table: LocalTable, model: Model, dice: random.Random, number: int) -> None:
    """Do a random statement to the table and to the model."""
    rows: list[Row] = [
        (
            dice.randrange(30),
            dice.choice([None, f"{number}.{n}"]),
            dice.choice([None, dice.randrange(10)]),
            dice.choice("ab"),
        )
        for n in range(dice.randrange(1, 12))
    ]
    text, matches = dice.choice(CONDITIONS)
    what = dice.choice(
        ["write"] * 4 + ["delete", "update", "overwrite", "overwrite where", "truncate", "compact", "keys"]
    )
    if what == "write":
        table.write(table_of(rows))
        model.write(rows)
    elif what == "delete":
        table.delete(text)
        model.replace(matches, lambda row: None)
    elif what == "keys" and table.primary_key:
        keys = {tuple(row[i] for i in model.key) for row in rows}
        table.delete(table_of(rows))
        model.replace(lambda row: tuple(row[i] for i in model.key) in keys, lambda row: None)
    elif what == "update":
        table.update(text, {"v": "coalesce(v, '') || '!'", "N": 7})
        model.replace(matches, lambda row: (row[0], (row[1] or "") + "!", 7, row[3]))
    elif what == "overwrite":
        table.overwrite(table_of(rows))
        model.rows = []
        model.write(rows)
    elif what == "overwrite where":
        inside = [row for row in rows if matches(row)]
        table.overwrite(table_of(inside), text)
        model.replace(matches, lambda row: None)
        model.write(inside)
    elif what == "truncate":
        table.truncate()
        model.rows = []
    elif what == "compact":
        table.compact()


@pytest.mark.parametrize("kind", LOGS)
def test_statements_do_what_a_list_of_rows_does(make: Callable[..., LocalTable], kind: str) -> None:
    table = make(**LOGS[kind])
    positions = {"id": 0, "part": 3}
    dice = random.Random(kind)
    model = Model(tuple(positions[name] for name in table.primary_key))
    states = [Counter(model.rows)]
    for number in range(25):
        before = table.snapshots(1)[0].id
        step(table, model, dice, number)
        assert rows_of(table) == Counter(model.rows), number
        if table.snapshots(1)[0].id > before:
            states.append(Counter(model.rows))
    report = table.verify()
    assert report.ok, report
    assert rows_of(open_local(table.path)) == states[-1]
    # The changes of all snapshots add up to the rows.
    folded: Counter[Row] = Counter()
    by_key: dict[tuple[Any, ...], Row] = {}
    for batch in table.changes(0):
        for row in batch.to_pylist():
            values: Row = (row["id"], row["v"], row["n"], row["part"])
            change, key = row["_change_type"], tuple(values[i] for i in model.key)
            if not model.key:
                folded[values] += 1 if change in ("insert", "update_postimage") else -1
            elif change == "delete":
                by_key.pop(key, None)
            elif change != "update_preimage":
                by_key[key] = values
    assert (Counter(by_key.values()) if model.key else +folded) == states[-1]


def test_data_of_any_library_is_written(make: Callable[..., LocalTable]) -> None:
    table = make("id bigint, v string, at timestamp, price decimal(10,2)", primary_key=["id"])
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    table.write([{"id": 1, "v": "dict", "at": at, "price": Decimal("1.5")}])
    frame = pandas.DataFrame({"id": [2], "v": ["pandas"], "at": [pandas.Timestamp(at)], "price": [Decimal(2)]})
    table.write(frame)
    arrow = table.to_arrow()
    table.write(arrow.slice(0, 1).set_column(0, "id", pa.array([3])))
    table.write(arrow.slice(0, 1).set_column(0, "id", pa.array([4])).to_batches()[0])
    table.write(arrow.slice(0, 1).set_column(0, "id", pa.array([5])).to_reader())
    table.write(
        duckdb.sql(
            "SELECT 6 AS id, 'duckdb' AS v, TIMESTAMPTZ '2026-01-01 00:00:00Z' AS at, 6.5::DECIMAL(4,2) AS price"
        )
    )
    found = {row["id"]: (row["v"], row["at"], row["price"]) for row in table.to_arrow().to_pylist()}
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    assert found[2] == ("pandas", at, Decimal(2))
    assert found[6] == ("duckdb", at, Decimal("6.50"))


def latin() -> pa.Array:
    """Return a string that Arrow takes and that is not UTF-8."""
    return pa.array([b"\xe4a"]).view(pa.string())


@pytest.mark.parametrize("schema", ["v array<string>", "v struct<w: string>"])
def test_text_that_is_not_utf_8_is_refused_within_values_too(make: Callable[..., LocalTable], schema: str) -> None:
    """The log could not be given it after the commit, and no reader could show it."""
    values = latin()
    if "array" in schema:
        column: pa.Array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
    else:
        column = pa.StructArray.from_arrays([values], ["w"])
    table = make(schema)
    with pytest.raises(InvalidInputError, match="column 'v': a string is not UTF-8 text"):
        table.write(pa.table({"v": column}))
    assert table.count() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.write([{"id": 1}]), r"missing \['v', 'n', 'part'\]"),
        (lambda t: t.write([{"id": "one", "v": "", "n": 1, "part": ""}]), "column 'id': expected int64"),
        (lambda t: t.write([{"id": None, "v": "", "n": 1, "part": ""}]), "'id' must not contain NULL"),
        (lambda t: t.write(pa.table({"id": [1.5], "v": [""], "n": [1], "part": [""]})), "'id': expected int64, got d"),
        (lambda t: t.write("rows"), "expected a .*DataFrame, .* got a str"),
        (lambda t: t.write(table_of([]), batch=("job", -1)), r"batch: expected a pair \(name, number\)"),
        (lambda t: t.delete("nothing > 1"), "delete: where 'nothing > 1': there is no column 'nothing'"),
        (lambda t: t.delete("sum(n) > 1"), "an aggregate cannot stand"),
        (lambda t: t.update("n = 1", {}), "update: set: expected new values by column"),
        (lambda t: t.update("n = 1", {"x": 1}), "'x' is not a column"),
        (lambda t: t.update("n = 1", "n = 2"), "update: set: expected new values by column, .* got 'n = 2'"),
        (lambda t: t.update("n = 1", {"n": 1, "N": 2}), "'N' is set twice"),
        (lambda t: t.update("n = 1", {"n": "'text'"}), "column 'n': expected int32, got string"),
        (lambda t: t.update("TRUE", {"n": "n + 2147483640"}), "Nothing was written|does not fit"),
        (
            lambda t: t.update("TRUE", {"v": "CAST(v AS INT)::VARCHAR"}),
            r"set: DuckDB cannot evaluate it: [^.]*\. Nothing was written\.$",
        ),
        (lambda t: t.write(table_of([(3, "x", 1, "a")]).set_column(1, "v", latin())), "column 'v': .* not UTF-8"),
        (lambda t: t.merge(table_of([(1, "x", 1, "a")]), "id", when_matched().delete()), "merge: when expects clauses"),
        (lambda t: t.overwrite(table_of([(9, "x", 1, "b")]), "part = 'a'"), "every row must satisfy where; 1 of 1"),
        (lambda t: t.delete([{"v": "x"}]), r"lacks key columns \['id'\]"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(make: Callable[..., LocalTable], call: Any, message: str) -> None:
    table = make(primary_key=["id"])
    table.write(table_of([(1, "a", 10, "a"), (2, "b", None, "a")]))
    rows, files = rows_of(table), set(Path(table.path).rglob("*.parquet"))
    with pytest.raises(InvalidInputError, match=message):
        call(table)
    assert rows_of(table) == rows
    assert len(table.snapshots()) == 2
    assert set(Path(table.path).rglob("*.parquet")) == files


def test_a_write_of_many_rows_goes_through_threads_and_the_last_row_of_a_key_wins(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FEW_ROWS", 1_000)
    monkeypatch.setattr(staging, "cores", lambda: 2)
    table = make(primary_key=["id"], log=True)
    ids = np.random.default_rng(0).integers(0, 3_000, 20_000)
    data = pa.table({
        "id": ids, "v": pa.array(map(str, range(20_000))), "n": pa.array(range(20_000), pa.int32()),
        "part": ["a"] * 20_000,
    })  # fmt: skip
    table.write(pa.Table.from_batches(data.to_batches(max_chunksize=500)))
    last = {int(key): number for number, key in enumerate(ids)}
    assert {row[0]: row[2] for row in rows_of(table)} == last
    # All rows of a key are in one thread: the log has one change of each.
    published = [row for batch in table.tail(scan_mode="earliest", follow=False) for row in batch.to_pylist()]
    assert Counter((row["id"], row["n"]) for row in published) == Counter(last.items())
    assert table.verify().ok

    files = set(Path(table.path).rglob("*.parquet"))
    bad = pa.concat_tables(
        [data.slice(0, 15_000), data.slice(15_000, 1).set_column(0, "id", pa.array([None], pa.int64()))]
    )
    with pytest.raises(InvalidInputError, match=r"'id' must not contain NULL.*Nothing was written"):
        table.write(pa.Table.from_batches(bad.to_batches(max_chunksize=500)))
    assert set(Path(table.path).rglob("*.parquet")) == files

    def failing() -> Iterator[pa.RecordBatch]:
        yield from data.to_batches(max_chunksize=500)[:20]
        message = "the source is gone"
        raise OSError(message)

    with pytest.raises(OSError, match="the source is gone"):
        table.write(pa.RecordBatchReader.from_batches(data.schema, failing()))
    with pytest.raises(OSError, match="the source is gone"):
        table._handle.write(
            lambda stager: staging.stage_rows(repeatable.Batches(failing, 20_000, 1, data.schema), stager)
        )
    assert set(Path(table.path).rglob("*.parquet")) == files
    assert len(table.snapshots()) == 2


@pytest.mark.parametrize("partitioned", [False, True])
def test_an_append_of_many_rows_goes_through_threads(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    monkeypatch.setattr(staging, "_FEW_ROWS", 1_000)
    monkeypatch.setattr(staging, "cores", lambda: 3)
    real, together = staging.staged_to_arrow, threading.Barrier(3, timeout=60)

    def at_once(*args: Any) -> pa.RecordBatch:
        together.wait()
        return real(*args)

    monkeypatch.setattr(staging, "staged_to_arrow", at_once)
    table = make(partition_by=["part"] if partitioned else [], bucket=1)
    rows: list[Row] = [(n, None, n, f"p{n % 5}") for n in range(10_000)]
    data = pa.Table.from_batches(table_of(rows).to_batches(max_chunksize=700))
    table.write(data)
    assert rows_of(table) == Counter(rows)
    # A partition has as many files as with one thread, and without partitions the changes are in the order of the rows.
    files = list(Path(table.path).rglob("*.parquet"))
    assert len(files) == (5 if partitioned else 3)
    if not partitioned:
        assert [row["id"] for batch in table.changes(0) for row in batch.to_pylist()] == list(range(10_000))

    bad = table_of([*rows[:8_000], (1, None, 1, "")])
    name = "part" if partitioned else "id"
    required = make(pa.schema([f.with_nullable(f.name != name) for f in table.schema]), partition_by=table.partition_by)
    wrong = bad if partitioned else bad.set_column(0, "id", pa.array([*range(8_000), None], pa.int64()))
    with pytest.raises(InvalidInputError, match="Nothing was written"):
        required.write(wrong)

    def one_fails(stager: Any, batches: Any, task: int) -> pa.RecordBatch:
        if task == 1:
            message = "no memory"
            raise MemoryError(message)
        return real(stager, batches, task)

    monkeypatch.setattr(staging, "staged_to_arrow", one_fails)
    with pytest.raises(MemoryError, match="no memory"):
        required.write(data)
    assert list(Path(required.path).rglob("*.parquet")) == []


@pytest.mark.parametrize("memory", [1_000, 1 << 30], ids=["beyond the buffer", "in memory"])
def test_a_stream_is_staged_again_when_another_writer_was_first(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    monkeypatch.setattr(repeatable, "_MEMORY_BYTES", memory)
    table = make(primary_key=["id"], **{"changelog-producer": "lookup"})
    other = open_local(table.path)
    attempts: list[int] = []
    real = Writer.write_staged

    def late(writer: Writer, *args: Any, **kwargs: Any) -> Any:
        if writer is table._handle.writer:
            attempts.append(1)
            if len(attempts) == 1:
                other.write(table_of([(5, "other", 0, "a")]))
        return real(writer, *args, **kwargs)

    monkeypatch.setattr(Writer, "write_staged", late)
    rows: list[Row] = [(n, f"v{n}", n, "a") for n in range(5_000)]
    data = table_of(rows)
    written = table.write(pa.RecordBatchReader.from_batches(data.schema, iter(data.to_batches(max_chunksize=100))))
    assert written is not None
    assert len(attempts) == 2
    assert rows_of(table) == Counter(rows)
    preimages = [
        row
        for batch in table.changes(1)
        for row in batch.to_pylist()
        if row["_commit_version"] == written.id and row["_change_type"] == "update_preimage"
    ]
    assert [(row["id"], row["v"]) for row in preimages] == [(5, "other")]


def test_a_batch_is_written_once(make: Callable[..., LocalTable]) -> None:
    table = make(log=True)
    first = table.write(table_of([(1, "a", 1, "a")]), batch=("job", 1))
    again = open_local(table.path).write(table_of([(1, "a", 1, "a")]), batch=("job", 1))
    assert again is not None
    assert first is not None
    assert again.id == first.id
    assert table.count() == 1
    assert table.write(table_of([])) is None


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
def test_names_that_are_paths_to_arrow_are_names(
    tmp_path: Path, kafka: LocalKafka, topic: Callable[[], str], consistency: str
) -> None:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.topic": topic(),
        "log.consistency": consistency,
    }
    schema = "`.k` BIGINT NOT NULL, `.p` STRING NOT NULL, `.v` STRING"
    with create_local(
        tmp_path / "t", schema, primary_key=[".k", ".p"], partition_by=".p", log_system="kafka", options=options
    ) as table:
        table.write([{".k": 1, ".p": "a", ".v": "x"}, {".k": 1, ".p": "a", ".v": "y"}, {".k": 2, ".p": "b", ".v": "z"}])
        table.overwrite([{".k": 3, ".p": "a", ".v": "w"}, {".k": 3, ".p": "a", ".v": None}], dynamic=True)
        table.update('".k" = 2', {".v": "'u'"})
        table.compact()
        found = [tuple(row.values()) for row in table.to_arrow().to_pylist()]
        assert sorted(found) == [(2, "b", "u"), (3, "a", None)]
        assert table.verify().ok


def test_maintenance_needs_no_spark(make: Callable[..., LocalTable]) -> None:
    options = {"partition.expiration-time": "7 d", "partition.timestamp-formatter": "yyyy-MM-dd"}
    table = make("id bigint, day string", primary_key=["id", "day"], partition_by=["day"], log=True, **options)
    today = dt.datetime.now(dt.UTC).date()
    table.write([{"id": n, "day": str(today - dt.timedelta(days=n))} for n in range(20)])
    table.tags.create("before")
    assert len(table.maintenance.expire_partitions(dry_run=True).partitions) == 13
    report = table.maintenance.expire_partitions()
    assert (len(report.partitions), table.count()) == (13, 7)
    restored = table.maintenance.rollback("before")
    assert restored is not None
    assert table.count() == 20
    table.maintenance.expire(older_than=dt.timedelta(0), keep_last=1)
    with pytest.raises(NotFoundError):
        table.to_arrow(snapshot=2)
    assert table.count(snapshot="before") == 20
    table.alter.add_column("note", "string")
    table.write([{"id": 1, "day": str(today), "note": "new"}])
    assert table.count("note = 'new'") == 1
    assert table.recover() == []
    assert table.verify().ok


def test_other_libraries_read_the_table(make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(primary_key="id")
    table.write(table_of([(1, "a", 1, "a"), (2, None, None, "b")]))
    assert polars.DataFrame(table).sort("id")["v"].to_list() == ["a", None]
    assert table.to_polars(["id"], "id > 1").rows() == [(2,)]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidInputError, match="pip install polars"):
        table.to_polars()
    assert table.to_pandas(["v"], "id = 1")["v"].tolist() == ["a"]
    assert table.scan(["id"]).read_all().num_rows == 2
    assert table.history()["kind"].to_pylist() == ["upsert", "create"]
    assert "1: upsert of 2 rows" in table._repr_html_()
    again = create_local(table.path, COLUMNS, primary_key="id", options={"bucket": 2}, if_not_exists=True)
    assert again.count() == 2
    with pytest.raises(AlreadyExistsError, match=r"primary_key \['id'\], expected \[\]"):
        create_local(table.path, COLUMNS, options={"bucket": 2}, if_not_exists=True)


def test_old_partitions_without_a_region_expire_too(make: Callable[..., LocalTable]) -> None:
    options = {"partition.expiration-time": "7 d", "partition.timestamp-formatter": "yyyy-MM-dd"}
    schema = "id bigint, day string, region string"
    table = make(schema, partition_by=["day", "region"], **{"partition.timestamp-pattern": "$day", **options})
    today = str(dt.datetime.now(dt.UTC).date())
    rows = [("2020-01-01", None), ("2020-01-01", "a"), (today, None), (today, "a"), (None, None)]
    table.write([{"id": n, "day": day, "region": region} for n, (day, region) in enumerate(rows)])
    # The write itself expires what is due.
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3, 4]


def test_a_log_that_cannot_say_deletes_refuses_them(make: Callable[..., LocalTable]) -> None:
    table = make(log=True)
    table.write(table_of([(1, "a", 1, "a")]))
    for statement in (lambda: table.delete("id = 1"), lambda: table.update("id = 1", {"n": 2}), table.truncate):
        with pytest.raises(InvalidInputError, match=r"log.format='json' identifies a deleted row by its primary key"):
            statement()
    assert rows_of(table) == Counter([(1, "a", 1, "a")])


def test_ddl_means_what_it_means_to_spark(spark: SparkSession) -> None:
    for text in (
        COLUMNS,
        "id BIGINT NOT NULL, `a b` INT COMMENT 'of it', c STRING",
        "a TINYINT, b SMALLINT, c INTEGER, d LONG, e FLOAT, f DOUBLE, g DECIMAL(10,2), h DECIMAL, i DEC(5)",
        "a BINARY, b BOOLEAN, c DATE, d TIMESTAMP, e TIMESTAMP_NTZ, f TIMESTAMP_LTZ",
        "a ARRAY<STRUCT<x: INT, y: MAP<STRING, ARRAY<DOUBLE>>>>, b STRUCT<c: STRUCT<d: STRING NOT NULL>>",
    ):
        assert columns_of(text) == StructType.fromDDL(text), text
    for text in ("id", "id bigint PRIMARY KEY", "id interval", "", "id varchar(3", "CHECK (a > 1)"):
        with pytest.raises(InvalidInputError, match="schema: expected Spark's DDL"):
            columns_of(text)


def test_where_spark_runs_its_own_parser_reads_ddl_in_any_thread(spark: SparkSession) -> None:
    text = "id bigint, c string collate UNICODE"
    found: list[StructType] = []
    thread = threading.Thread(target=lambda: found.append(as_schema(text)))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [StructType.fromDDL(text)]


def test_an_arrow_schema_makes_the_same_table(make: Callable[..., LocalTable]) -> None:
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC")), ("plain", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())), ("d", pa.decimal128(20, 3)),
    ])  # fmt: skip
    table = make(schema, primary_key=["id"])
    assert table.schema.equals(schema)
    with pytest.raises(AlreadyExistsError):
        create_local(table.path, schema)
    for wrong, message in [
        (pa.schema([("a", pa.month_day_nano_interval())]), "column 'a': Spark has no type for Arrow's month_day_nano"),
        (pa.schema([("a", pa.uint32())]), "schema: column 'a': Spark has no type for Arrow's uint32"),
        (pa.schema([("a", pa.decimal256(50, 2))]), r"column 'a' has type decimal\(50,2\); expected decimal\(p, s\)"),
        (
            StructType().add("a", StructType().add("b", DecimalType(3, 5))),
            r"column 'a.b' has type decimal\(3,5\); expected decimal\(p, s\)",
        ),
        (pa.table({"a": [1]}), "expected a Spark or Arrow schema, .* got a Table; pass its schema"),
        ({"a": "int"}, "expected a Spark or Arrow schema, .* got a dict"),
        (None, "expected a Spark or Arrow schema, .* got a NoneType"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            create_local(f"{table.path}-2", wrong)
        assert not Path(f"{table.path}-2").exists()
    assert create_local(f"{table.path}-2", schema, primary_key=None).primary_key == ()


def test_spark_and_local_writers_race_on_one_table(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Every row of both is there once, in the table and in the log, and no write is refused."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": (name := topic()), "bucket": 2}
    path = tmp_path / "t"
    create_local(
        path,
        "id bigint, v string",
        primary_key=["id"],
        log_system="kafka",
        options={**options, "compaction.commits": 5},
    )
    errors: list[Exception] = []

    def local(number: int) -> None:
        try:
            with open_local(path) as table:
                for n in range(8):
                    table.write([{"id": number * 100 + n, "v": "local"}, {"id": 1000, "v": f"{number}.{n}"}])
                    table.update(f"id = {number * 100 + n}", {"v": "'updated'"})
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=local, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    table = TableStore.open(spark, path)
    for n in range(6):
        table.write(spark.createDataFrame([(300 + n, "spark"), (1000, f"spark {n}")], "id long, v string"))
    table.delete("id = 300")
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == []
    expected = {number * 100 + n: "updated" for number in (1, 2) for n in range(8)} | {
        300 + n: "spark" for n in range(1, 6)
    }
    found = {row.id: row.v for row in table.refresh().read().collect()}
    found.pop(1000)
    assert found == expected
    assert {row["id"]: row["v"] for row in open_local(path).to_arrow(filter="id < 1000").to_pylist()} == expected
    assert table.verify().ok
    audit(path, kafka.bootstrap_servers, name, 2)


def test_a_conflict_that_does_not_end_is_said(make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.write.optimistic_retry.RETRIES_MAX", 2)
    table = make(primary_key=["id"])
    table.write(table_of([(1, "a", 1, "a")]))
    other = open_local(table.path)
    real = Writer.write_staged

    def late(writer: Writer, *args: Any, **kwargs: Any) -> Any:
        if writer is table._handle.writer:
            other.write(table_of([(2, "b", 1, "a")]))
        return real(writer, *args, **kwargs)

    monkeypatch.setattr(Writer, "write_staged", late)
    with pytest.raises(ConflictError, match="other writers committed 2 times"):
        table.update("id = 1", {"n": 2})
    assert rows_of(table)[1, "a", 1, "a"] == 1


def test_options_that_cannot_be_followed_after_a_write_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = create_local(tmp_path / "t", "id bigint")
    open_local(tmp_path / "t").alter.set_options({"compaction.commits": "7"})
    with failing(TableHandle, "_open_writer", OSError("no")):
        assert table.write([{"id": 1}]) is not None
    assert "opening it with its new options after it failed: OSError: no" in caplog.text
    table.write([{"id": 2}])
    assert table.count() == 2
