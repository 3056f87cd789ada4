"""A schema change that dies half way, and changes at the same time, leave a table that is right."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DecimalType, DoubleType, IntegerType, LongType, StringType, StructType, TimestampNTZType

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from snapshot.schema.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from snapshot.schema.spark_types import with_physical_names
from snapshot.storage import Storage
from tablestore import create_local
from tablestore.ddl.alter import alter
from tablestore.write.writer import Writer
from tests.harness.altered_table import Altered
from tests.harness.faults import Crash, failing
from tests.harness.log_audit import verify

SCHEMA = StructType().add("id", "long", False).add("a", "integer").add("b", "string")
FIRST = [{"id": n, "a": n, "b": f"b{n}"} for n in range(4)]


def log(kafka: Any, topic: Callable[[], str], log_format: str = "json") -> dict[str, Any]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "log.format": log_format}


@pytest.mark.parametrize("point", ["before commit", "after commit", "after publish"])
def test_a_change_is_made_or_not_wherever_it_dies(
    point: str, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = Altered(tmp_path / "t", SCHEMA, log=log(kafka, topic))
    table.write(FIRST)
    faults = {
        "before commit": failing(Storage, "put_new"),
        "after commit": failing(Storage, "put_new", after=True),
        "after publish": failing(KafkaPublisher, "publish", after=True),
    }
    with faults[point], pytest.raises(Crash):
        table.alter(RenameColumn("a", "n"), DropColumn("b"), AddColumn("b", IntegerType()))
    if point == "before commit":
        table.alter(RenameColumn("a", "n"), DropColumn("b"), AddColumn("b", IntegerType()))
    else:
        table.states.append((with_physical_names(table.table.spec.schema_json), table.states[-1][1]))
    # Another process goes on.
    table.close()
    table = Altered.again(table)
    table.write([{"id": 1, "n": 7, "b": 7}, {"id": 9, "n": 9, "b": None}])
    table.check_all()
    report = verify(table.table)
    assert (report.ok, report.pending) == (True, ()), report
    table.close()


@pytest.mark.parametrize(("name", "after"), [("alter", False), ("alter", True), ("commit", False), ("commit", True)])
def test_a_compaction_that_dies_leaves_the_rows(name: str, after: bool, tmp_path: Path) -> None:
    """Its first commit gives the root the columns too; its second drops what was folded."""
    table = Altered(tmp_path / "t", SCHEMA)
    table.write(FIRST)
    table.compact()
    table.alter(DropColumn("b"), AddColumn("b", LongType()), WidenColumn("a", LongType()))
    table.write([{"id": 1, "a": 1 << 40, "b": 5}])
    with failing(DeltaLog, name, after=after), pytest.raises(Crash):
        table.compact()
    while table.table.files.latest() > len(table.states) - 1:
        table.states.append(table.states[-1])
    table.check_all()
    table.compact()
    table.check_all()
    assert DeltaTable(table.path).to_pyarrow_table().column_names == ["id", "a", "b_2", "_bucket"]
    assert table.table.files.layout(table.table.files.latest()).changes == ()


def test_an_old_writer_and_an_old_publisher_go_on_with_the_columns_of_now(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Their handles were opened before the change."""
    table = Altered(tmp_path / "t", SCHEMA, log=log(kafka, topic, "arrow"))
    table.write(FIRST)
    table.alter(DropColumn("b"), AddColumn("c", StringType()))
    table.write([{"id": 5, "a": 5, "c": "five"}])
    table.alter(RenameColumn("c", "d"), WidenColumn("a", LongType()))
    stale = Writer(table.table, None)
    table.alter(AddColumn("e", DoubleType()))
    table.write([{"id": 6, "a": 1 << 40, "d": "six"}], writer=stale)
    table.compact()
    table.check_all()
    assert verify(table.table).ok
    table.close()


def test_of_many_changes_and_writes_at_once_none_is_lost(tmp_path: Path) -> None:
    table = Altered(tmp_path / "t", SCHEMA)
    start = Barrier(6)

    def work(n: int) -> None:
        opened = table.table
        start.wait()
        if n % 2:
            alter(opened, [AddColumn(f"c{n}", IntegerType())], publish=lambda _: None)
        else:
            Altered.write_by(Writer(opened, None), [{"id": n, "a": n, "b": "b"}])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert sorted(table.table.spec.schema.fieldNames()) == ["a", "b", "c1", "c3", "c5", "id"]
    assert [row["id"] for row in table.rows()] == [0, 2, 4]


def test_each_type_that_widens_is_read_from_old_files(tmp_path: Path) -> None:
    pairs = [
        ("byte", IntegerType()), ("short", DoubleType()), ("integer", LongType()), ("long", DecimalType(20, 0)),
        ("integer", DecimalType(14, 3)), ("float", DoubleType()), ("decimal(5,2)", DecimalType(30, 4)),
    ]  # fmt: skip
    schema = StructType().add("id", "long", False)
    for n, (name, _) in enumerate(pairs):
        schema = schema.add(f"c{n}", name)
    table = Altered(tmp_path / "t", schema)
    row = {"id": 1, **{f"c{n}": Decimal(2) if name == "decimal(5,2)" else 2 for n, (name, _) in enumerate(pairs)}}
    table.write([row])
    table.alter(*[WidenColumn(f"c{n}", kind) for n, (_, kind) in enumerate(pairs)])
    table.check_all()
    table.compact()
    table.write([row | {"id": 2, "c3": Decimal(2), "c4": Decimal(2)}])
    table.check_all()
    # The first timestamp without zone asks readers for more than the table did before.
    table.alter(AddColumn("t", TimestampNTZType()))
    table.compact()
    table.check_all()
    root = DeltaTable(table.path)
    assert root.protocol().reader_features == ["timestampNtz"]
    table.compact()
    assert DeltaTable(table.path).version() == root.version(), "the root has its columns"


@pytest.mark.parametrize("log_format", ["json", "arrow"])
def test_an_eventual_log_takes_the_changes_that_its_old_records_allow(
    log_format: str, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = Altered(tmp_path / "t", SCHEMA, log=log(kafka, topic, log_format) | {"log.consistency": "eventual"})
    table.write(FIRST)
    for refused, words in (
        ([RenameColumn("a", "c")], "cannot be renamed"),
        ([WidenColumn("a", DoubleType())], "cannot become double"),
        ([DropColumn("b"), AddColumn("b", StringType())], "existed before"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            table.alter(*refused)
    table.alter(DropColumn("b"), AddColumn("c", StringType(), first=True), WidenColumn("a", LongType()))
    for name in ("b", "`B`"):
        with pytest.raises(InvalidInputError, match="existed before"):
            table.alter(AddColumn(name, StringType()))
    table.alter(AddColumn("`d.e`", LongType()))
    table.alter(DropColumn("d.e"))
    table.write([{"id": 1, "a": 1 << 40, "c": "x"}, {"id": 9, "a": None, "c": None}])
    table.compact()
    for snapshot, (_, rows) in enumerate(table.states):
        assert len(table.rows(snapshot)) == len(rows)
    report = verify(table.table)
    assert report.ok, report
    table.close()


@pytest.mark.parametrize("log_format", ["json", "arrow"])
def test_an_eventual_log_is_read_after_changes_within_its_columns(
    log_format: str, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Two fields of one type change places, which the layout of a record does not tell."""
    columns = "id int not null, s struct<a: int, b: int>, l array<struct<n: smallint, t: string>>, m map<string, int>"
    options = log(kafka, topic, log_format) | {"log.consistency": "eventual"}
    table = create_local(tmp_path / "t", columns, primary_key="id", log_system="kafka", options=options)
    rows = [{"id": 1, "s": {"a": 1, "b": 2}, "l": [{"n": 3, "t": "x"}, None], "m": [("k", 4)]}, {"id": 2}]
    table.write(rows)
    table.alter.move_column("s.b", first=True)
    table.alter.move_column("l.element.t", first=True)
    table.alter.widen_column("l.element.n", "int")
    table.alter.widen_column("m.value", "bigint")
    table.write([{**rows[0], "id": 3, "m": [("k", 1 << 40)]}])

    read = [row for batch in table.tail(scan_mode="earliest", follow=False) for row in batch.to_pylist()]
    nothing = {"s": None, "l": None, "m": None}
    expected = [rows[0], {"id": 2, **nothing}, {**rows[0], "id": 3, "m": [("k", 1 << 40)]}]
    assert [{name: row[name] for name in expected[0]} for row in sorted(read, key=lambda row: row["id"])] == expected
    report = table.verify()
    assert report.ok, report
    table.close()
