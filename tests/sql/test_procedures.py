"""CALL: maintenance of store tables in SQL, by the names of Paimon's procedures."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.sql import Catalog, SqlError
from tablestore.table.store import TableStore


def test_tags_rollback_and_expiry(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("CREATE TABLE t (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    for value in "abc":
        catalog.sql(f"INSERT INTO t VALUES (1, '{value}')")
    table = catalog.table("t")
    assert isinstance(table, TableStore)

    def call(text: str) -> list[tuple[str, ...]]:
        return list(catalog.sql(f"CALL {text}").rows)

    def value() -> str:
        return str(table.read().collect()[0]["v"])

    def tags() -> dict[str, int]:
        return {tag.name: tag.snapshot.id for tag in table.tags.all()}

    assert call("sys.create_tag(`table` => 'default.t', tag => 'one', snapshot_id => CAST(1 AS BIGINT))") == [
        ("Success",)
    ]
    call("create_tag('t', 'three')")
    first, second = sorted((each.id, each.timestamp_ms) for each in table.snapshots())[1:3]
    assert call(f"sys.create_tag_from_timestamp('t', 'two', {first[1]})") == [("two", str(second[0]))]
    assert tags() == {"one": 1, "two": 2, "three": 3}

    assert call("sys.rollback_to('t', 2)") == [("3", "4")]
    assert value() == "b"
    assert call("sys.rollback_to(`table` => 't', tag => 'one')") == [("4", "5")]
    assert value() == "a"
    assert call("sys.rollback_to_as_latest('t', '', 5)") == [("5", "5", "5")]
    assert call("sys.rollback_to_as_latest('t', 'one')") == [("5", "1", "5")]
    with pytest.raises(InvalidInputError, match="CALL rollback_to_as_latest: expected one of the arguments"):
        call("sys.rollback_to_as_latest('t', 'one', 1)")
    assert call(f"sys.rollback_to_timestamp('t', {second[1]})") == [("5", "6")]
    assert value() == "b"

    call("sys.delete_tag('t', 'one, three')")
    call("sys.rename_tag('t', 'two', 'second')")
    assert tags() == {"second": 2}
    with pytest.raises(NotFoundError, match="two"):
        call("sys.rename_tag(`table` => 't', tagName => 'two', targetTagName => 'other')")
    call("sys.rename_tag('t', 'second', 'two')")
    assert tags() == {"two": 2}
    assert call("sys.expire_tags('t', '2020-01-01 00:00:00')") == [("No expired tags.",)]
    assert call("sys.expire_tags(`table` => 't', older_than => '2999-01-01 00:00:00')") == [("two",)]
    assert tags() == {}

    call("sys.compact(`table` => 't', order_strategy => 'none', compact_strategy => 'full')")
    assert table.snapshots(1)[0].operation == "compact"
    assert call("sys.expire_snapshots('t', '', 2, '2020-01-01 00:00:00')") == [("0",)]
    (gone,) = call("sys.expire_snapshots(`table` => 't', retain_max => 3)")
    assert int(gone[0]) > 0
    assert value() == "b"
    assert call("sys.remove_orphan_files('t', dry_run => TRUE)")[0] == ("0",)
    assert call("sys.remove_orphan_files('t', '2020-01-01', TRUE, 5, 'distributed')")[0] == ("0",)

    before = len(table.snapshots())
    assert call("sys.expire_snapshots(`table` => 't', older_than => '2999-01-01 00:00:00', retain_min => 1)") != [
        ("0",)
    ]
    assert len(table.snapshots()) < before


@pytest.mark.parametrize(
    "call", ["rollback_to_timestamp('t', 999999999999999)", "create_tag_from_timestamp('t', 'u', 999999999999999)"]
)
def test_a_time_that_is_out_of_range_is_refused(spark: SparkSession, tmp_path: Path, call: str) -> None:
    catalog = Catalog(spark, tmp_path)
    catalog.sql("CREATE TABLE t (id INT)")
    with pytest.raises(InvalidInputError, match=r"'timestamp': expected milliseconds since 1970.*, got 9999"):
        catalog.sql(f"CALL sys.{call}")


def test_a_tag_with_a_time_expires(spark: SparkSession, tmp_path: Path) -> None:
    """By ``expire_tags``, and by expiry of snapshots; the files that only it kept go with it."""
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("CREATE TABLE t (id INT)")
    for number in range(4):
        catalog.sql(f"INSERT INTO t VALUES ({number})")
    table = catalog.table("t")
    assert isinstance(table, TableStore)

    def call(text: str) -> list[tuple[str, ...]]:
        return list(catalog.sql(f"CALL sys.{text}").rows)

    call("create_tag('t', 'stays', 1)")
    call("create_tag(`table` => 't', tag => 'hour', snapshot_id => 2, time_retained => '90 min')")
    call("create_tag('t', 'moment', 3, '1 ms')")
    call("create_tag_from_timestamp('t', 'first', 0, '36500 d')")
    call("rename_tag('t', 'hour', 'renamed')")
    shown = catalog.sql("SELECT tag_name, time_retained FROM t$tags WHERE tag_name <> 'renamed'").frame
    assert shown is not None
    assert {tuple(row) for row in shown.collect()} == {
        ("stays", None), ("moment", "PT0.001S"), ("first", "PT876000H")
    }  # fmt: skip
    (renamed,) = (tag for tag in table.tags.all() if tag.name == "renamed")
    assert renamed.retained_ms is not None
    assert 80 * 60_000 < renamed.retained_ms <= 90 * 60_000
    time.sleep(0.1)
    assert table.maintenance.expire(dry_run=True).tags == ("moment",)
    assert call("expire_tags('t')") == [("moment",)]
    assert call("expire_tags('t')") == [("No expired tags.",)]

    table.tags.create("short", 1, retained=timedelta(milliseconds=1))
    table.tags.delete("stays")
    table.tags.delete("first")
    catalog.sql("INSERT OVERWRITE t VALUES (9)")
    time.sleep(0.1)
    report = table.maintenance.expire(older_than="0 s", keep_last=1)
    assert report.tags == ("short",)
    assert "Expired tags: short." in str(report)
    assert [tag.name for tag in table.tags.all()] == ["renamed"]
    assert sorted(row["id"] for row in table.read(tag="renamed").collect()) == [0, 1]
    for wrong in ("soon", "0 s"):
        with pytest.raises(InvalidInputError, match="'retained': expected a duration"):
            call(f"create_tag('t', 'x', 1, '{wrong}')")


def test_a_tag_that_expires_gives_the_files_of_an_expired_snapshot_back(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    made = table.tags.create("short", retained="1 s")
    catalog.sql("INSERT OVERWRITE t VALUES (9)")
    table.maintenance.expire(older_than="0 s", keep_last=1)
    (old,) = (tmp_path / "w" / "t" / file.path for file in made.layout.base)
    assert old.exists(), "the tag keeps it"
    time.sleep(1.1)
    assert table.tags.expire() == ["short"]
    assert not old.exists()


def test_older_than_is_by_the_clock_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1); CALL sys.create_tag('t', 'now')")
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    made = table.tags.all()[0]
    at = datetime.fromtimestamp(made.created_ms / 1000, UTC)
    text = (at + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    catalog.sql("SET 'table.local-time-zone' = 'Asia/Tokyo'")
    assert catalog.sql(f"CALL sys.expire_tags('t', '{text}')").rows == (("No expired tags.",),)
    catalog.sql("SET 'table.local-time-zone' = 'UTC'")
    assert catalog.sql(f"CALL sys.expire_tags('t', '{text}')").rows == (("now",),)


def test_consumers_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("""
        CREATE TABLE t (id INT, day STRING) PARTITIONED BY (day)
            WITH ('partition.expiration-time' = '7 d', 'partition.timestamp-formatter' = 'yyyy-MM-dd',
                'partition.expire-auto' = 'false');
        INSERT INTO t VALUES (1, '2020-01-01'), (2, '2999-01-01');
    """)
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    for name in ("one", "two", "other"):
        query = (
            table.read_stream(consumer=name, scan_mode="earliest")
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def consumers() -> dict[str, int]:
        return {each.name: each.snapshot for each in table.consumers.all()}

    read = consumers()["two"]
    catalog.sql("CALL sys.reset_consumer('t', 'one', 1)")
    assert consumers() == {"one": 0, "two": read, "other": read}
    catalog.sql("CALL sys.reset_consumer(`table` => 't', consumer_id => 'one')")
    catalog.sql("CALL sys.clear_consumers(`table` => 't', excluding_consumers => 'o.*')")
    assert consumers() == {"other": read}
    assert catalog.sql("CALL sys.expire_partitions('t')").rows == (("day=2020-01-01",),)
    assert catalog.sql("CALL sys.expire_partitions('t')").rows == (("No expired partitions.",),)
    assert [row["id"] for row in table.read().collect()] == [2]


def test_partitions_expire_by_arguments_instead_of_options(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("""
        CREATE TABLE t (id INT, dt STRING, hm STRING) PARTITIONED BY (dt, hm);
        INSERT INTO t VALUES (1, '20200101', '01:00'), (2, '20200102', '02:00'), (3, '29990101', '01:00');
    """)

    def expired(arguments: str) -> list[str]:
        return [row[0] for row in catalog.sql(f"CALL sys.expire_partitions('t', {arguments})").rows]

    assert expired("'1 d', 'yyyy-MM-dd'") == ["No expired partitions."]
    with pytest.raises(
        InvalidInputError, match=r"'partition.timestamp-pattern': expected '\$name' of partition columns"
    ):
        expired("'1 d', 'yyyyMMdd', '$day'")
    with pytest.raises(InvalidInputError, match=r"'partition.expiration-time': expected a duration"):
        expired("'soon'")
    days = (datetime.now(UTC) - datetime(2020, 1, 1, 2, tzinfo=UTC)).days
    of_both = (
        "timestamp_formatter => 'yyyyMMdd HH:mm', timestamp_pattern => '$dt $hm', expire_strategy => 'values-time'"
    )
    assert expired(f"expiration_time => '{days} d', {of_both}") == ["dt=20200101/hm=01:00"]
    catalog.sql("ALTER TABLE t SET ('partition.timestamp-formatter' = 'yyyyMMdd')")
    assert expired("expiration_time => '1 d'") == ["dt=20200102/hm=02:00"]
    with pytest.raises(InvalidInputError, match=r"it has no such option: set it by alter.set_options\(\), or give it"):
        expired("''")
    assert [row["id"] for row in catalog.sql("SELECT id FROM t").frame.collect()] == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.create_branch('t', 'b')", r"column 6: procedure 'create_branch' is not supported: a table has no bran"),
        ("sys.create_tags('t', 'b')", r"'create_tags' is not supported: Did you mean 'create_tag'\?"),
        ("sys.nothing('t')", r"'nothing' is not supported: there are compact, create_tag"),
        (
            "sys.repair_earliest_snapshot('t', 5)",
            r"'repair_earliest_snapshot' is not supported: a table does not go on",
        ),
        ("sys.create_tag('t')", r"procedure 'create_tag' needs argument 'tag'"),
        ("sys.create_tag('t', '')", r"procedure 'create_tag' needs argument 'tag'"),
        ("sys.create_tag('t', 'x', 'y', 'z')", r"takes no further argument"),
        ("sys.create_tag('t', tag => 'x', time_retained => 1)", r"column 38: argument 'time_retained': expected"),
        ("sys.create_tag('t', tags => 'x')", r"has no argument 'tags': Did you mean 'tag'\?"),
        ("sys.create_tag('t', tag => 'x', tag => 'y')", r"argument 'tag' is given twice"),
        ("sys.create_tag('t', tag => 1)", r"argument 'tag': expected a text in single quotes"),
        ("sys.create_tag('t', 1)", r"argument 'tag': expected a text in single quotes"),
        ("sys.create_tag('t', 'x', 1 + 1)", r"expected a constant"),
        ("sys.create_tag('t' AS x)", r"expected ',' or '\)'"),
        ("sys.create_tag('other.t', 'x')", r"a warehouse is one database"),
        ("sys.compact('t', compact_strategy => 'minor')", r"argument 'compact_strategy': expected 'full', got 'minor'"),
        ("sys.compact('t', partitions => 'p=0')", r"argument 'partitions' is not supported: the whole table"),
        ("cat.sys.compact('t')", r"procedure 'cat' is not supported"),
        ("sys.compact('t'", r"unexpected end of statement"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SqlError, match=message):
        Catalog(_no_spark, tmp_path).sql(f"CALL {text}")


def test_what_is_wrong_in_the_table_is_said(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    catalog.sql("""
        CREATE TABLE t (id INT); INSERT INTO t VALUES (1);
        CREATE TABLE topic (id INT) WITH ('connector' = 'kafka', 'topic' = 't',
            'properties.bootstrap.servers' = 'h:1', 'format' = 'json');
    """)
    for text, error, message in (
        ("compact('nobody')", NotFoundError, "nobody"),
        ("compact('topic')", InvalidInputError, "CALL compact: 'topic' is a table of a connector"),
        ("rollback_to('t')", InvalidInputError, "expected one of the arguments"),
        ("rollback_to('t', 'a', 1)", InvalidInputError, "expected one of the arguments"),
        ("rollback_to('t', 9)", NotFoundError, "there is no snapshot 9"),
        ("create_tag_from_timestamp('t', 'x', 32503680000000)", NotFoundError, "no snapshot is newer"),
        ("expire_tags('t', 'soon')", InvalidInputError, "'older_than': expected a time such as"),
        ("expire_snapshots('t', 0)", InvalidInputError, "keep_last=0"),
        ("clear_consumers('t', '(')", InvalidInputError, "including_consumers"),
        ("expire_partitions('t')", InvalidInputError, "partition.expiration-time"),
    ):
        with pytest.raises(error, match=message):
            catalog.sql(f"CALL sys.{text}")


def _no_spark() -> SparkSession:
    raise AssertionError
