"""Time travel with Spark: tags, changes between snapshots, streams that begin at a tag, have an end or a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import StreamingQueryException

from snapshot.errors import DataLostError, InvalidInputError, NotFoundError
from tablestore import TableStore
from tablestore.table import store
from tablestore.write.metrics import Measured
from tests.harness.spark_tables import Follower, changes, fold, frame, make, rows, versions


@pytest.fixture(params=["key and log", "neither"])
def table(request: Any, spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    """Snapshots 1 to 4: two writes, a delete or a write, a write."""
    key = request.param != "neither"
    options = {"key": key, "compaction__auto": False, "snapshot__expire_auto": False}
    made = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic() if key else "", **options)
    made.write(frame(spark, [(1, "a"), (2, "b")]))
    made.write(frame(spark, [(1, "A"), (3, "c")] if key else [(3, "c")]))
    made.write(changes(spark, [(2, None, "delete")]) if key else frame(spark, [(4, "d")]))
    made.write(frame(spark, [(5, "e")]))
    return made


def feed(found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row)[:4] for row in found.collect()), key=str)


def test_what_was_is_read_by_tag_as_changes_and_as_a_stream(
    spark: SparkSession, table: TableStore, tmp_path: Path
) -> None:
    then = rows(table.read(snapshot=2))
    tag = table.tags.create("two", 2)
    assert (tag.name, tag.snapshot.id, [t.name for t in table.tags.all()]) == ("two", 2, ["two"])
    assert rows(table.read(tag="two")) == then

    def read(**options: object) -> DataFrame:
        return spark.read.format("tablestore").load(table.path, **options)

    assert rows(read(versionAsOf=2)) == then == rows(read(timestampAsOf=table.snapshots()[-3].time.isoformat()))
    with pytest.raises(PySparkException, match="options 'versionasof' and 'snapshot' are the same option"):
        read(versionAsOf=2, snapshot=2)
    assert (table.count(snapshot=2), table.count(tag="two")) == (len(then), len(then))
    assert [tuple(row) for row in table.history(2).select("snapshot_id", "rows").collect()] == [(4, 1), (3, 1)]

    # Changes in a batch are those that a stream gives.
    stream = Follower(tmp_path / "all", lambda: table.read_stream(scan_mode="earliest"))
    streamed = stream.rows()
    for after, through in ((0, 4), (2, 4), (3, 3)):
        expected = sorted((row[:4] for row in streamed if after < row[3] <= through), key=str)
        assert feed(table.changes(after, through)) == expected
    assert feed(table.changes("two")) == feed(table.changes(2, 4))
    assert table.changes(0, 1).columns == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    made = table.snapshots()[1]
    assert feed(table.changes("two", made.time)) == feed(table.changes(2, made.id))
    with pytest.raises(InvalidInputError, match="from snapshot 4 to 2: expected the older one first"):
        table.changes(4, "two")
    with pytest.raises(NotFoundError, match="tag 'three' does not exist; the table has two"):
        table.changes("three")

    # A stream begins after a tag, and ends at a snapshot, a tag or a time, also one that is yet to come.
    tagged = Follower(tmp_path / "tagged", lambda: table.read_stream(scan_mode="from-tag", tag="two", until=5))
    assert versions(tagged.rows()) == [3, 4]
    table.write(frame(spark, [(6, "f")]))
    table.write(frame(spark, [(7, "g")]))
    assert versions(tagged.rows()) == [5]
    bounded = Follower(tmp_path / "bounded", lambda: table.read_stream(until="two"))
    found = bounded.rows()
    assert (fold(found), versions(found)) == (then, [2])
    timed = Follower(tmp_path / "timed", lambda: table.read_stream(scan_mode="earliest", until=made.time))
    assert versions(timed.rows()) == list(range(1, made.id + 1))

    look_inside(table)
    after_expiry(spark, table, then, tmp_path)
    take_back(spark, table)


def look_inside(table: TableStore) -> None:
    inspected = {name: getattr(table.inspect, name)() for name in ("snapshots", "files", "options", "tags", "log")}
    assert {row.snapshot_id for row in inspected["snapshots"].collect()} == {s.id for s in table.snapshots()}
    assert inspected["files"].count() > 0
    assert inspected["tags"].collect()[0].tag == "two"
    assert isinstance(inspected["snapshots"].collect()[0].committed_at, datetime)
    assert inspected["log"].count() == (2 if table.options.log else 0)


def after_expiry(spark: SparkSession, table: TableStore, then: dict[int, str], tmp_path: Path) -> None:
    """A tag outlives its snapshot, for whoever reads it; what is gone says so."""
    table.compact()
    report = table.maintenance.expire(older_than="0 s", keep_last=2)
    assert report.oldest == table.snapshots()[-1].id > 4
    assert rows(table.read(tag="two")) == rows(table.read(snapshot=2)) == then
    assert rows(spark.read.format("tablestore").option("path", table.path).option("tag", "two").load()) == then
    assert rows(table.read(tag="two", columns=["id", "v"])) == then
    with pytest.raises(NotFoundError, match="snapshot 3 has expired; the oldest is"):
        table.read(snapshot=3)
    with pytest.raises(DataLostError, match="changes of snapshots 3 to"):
        table.changes("two")
    late = Follower(tmp_path / "late", lambda: table.read_stream(scan_mode="from-tag", tag="two"))
    with pytest.raises(StreamingQueryException, match=r"since tag 'two' \(snapshot 2\) are no longer available"):
        late.rows()
    with pytest.raises(StreamingQueryException, match="Start a new query with scan_mode='full'"):
        Follower(tmp_path / "bounded", table.read_stream).rows()
    table.tags.delete("two")
    assert table.tags.all() == []
    now = {1: "A", 3: "c", 5: "e", 6: "f", 7: "g"} if table.primary_key else dict(enumerate("abcdefg", start=1))
    assert rows(table.read()) == now
    for name in ("2", "2026-01-01", "a/b", ""):
        with pytest.raises(InvalidInputError, match="tag"):
            table.tags.create(name)


def take_back(spark: SparkSession, table: TableStore) -> None:
    """A rollback is a snapshot of changes, and is told to the metrics hook as any write is."""
    told: list[Measured] = []
    table.metrics = told.append
    before, at = rows(table.read()), table.snapshots()[0].id
    table.write(frame(spark, [(50, "x"), (51, "y")]))
    if table.primary_key:
        table.compact()
    made = table.maintenance.rollback(at)
    assert made is not None
    assert (made.operation, rows(table.read())) == ("rollback", before)
    assert {row[2] for row in feed(table.changes(made.id - 1, made.id))} == {"delete"}
    assert table.maintenance.rollback(made.id) is None
    assert [each.what for each in told if each.what not in ("commit", "publish")] == ["write", "rollback"]
    assert [each.rows for each in told if each.what == "publish"] == ([2, 2] if table.primary_key else [])
    assert all(each.seconds > 0 for each in told)

    def broken(_: Measured) -> None:
        raise ValueError

    table.metrics = broken
    assert table.write(frame(spark, [(52, "z")])) is not None


@pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])
def test_partitions_expire_by_the_time_in_their_values(spark: SparkSession, tmp_path: Path, key: bool) -> None:
    today = f"{datetime.now(UTC):%Y%m%d}"
    options = {
        "partition.expiration-time": "7 d",
        "partition.timestamp-pattern": "$day",
        "partition.expire-auto": False,
    }
    made = TableStore.create(
        spark, tmp_path / "t", "id bigint, day string, v string", primary_key=["id"] if key else [],
        partition_by=["day"], options={**options, "partition.timestamp-formatter": "yyyyMMdd", "bucket": 2},
    )  # fmt: skip
    days = ["20200101", "20200102", today, "someday", None]
    made.write(frame(spark, [(n, days[n % 5], str(n)) for n in range(10)], "id bigint, day string, v string"))
    made.compact()
    plan = made.maintenance.expire_partitions(dry_run=True)
    assert plan.partitions == ("day=20200101", "day=20200102")
    assert plan.timeless == ("day=NULL", "day=someday")
    assert made.read().count() == 10
    done = made.maintenance.expire_partitions()
    assert (done.partitions, done.rows, done.snapshot) == (plan.partitions, 4, made.snapshots()[0].id)
    assert {row.day for row in made.read().collect()} == {today, "someday", None}
    assert {row[3] for row in made.changes(done.snapshot - 1).collect()} == {"delete"}
    assert made.maintenance.expire_partitions().partitions == ()
    one = "id bigint, day string, v string"
    made.write(frame(spark, [(20, "20200101", "x")], one))
    made.compact()
    made.write(frame(spark, [(21, today, "x")], one))
    assert made.read().where("id = 20").count() == 1
    made.alter.set_options({"partition.expire-auto": "true", "partition.expiration-check-interval": "0 s"})
    made.write(frame(spark, [(22, today, "x")], one))
    assert made.snapshots()[0].operation == "delete"
    assert made.read().where("id >= 20").count() == 2
    with pytest.raises(InvalidInputError, match=r"'partition.timestamp-pattern': expected '\$name' of partition"):
        TableStore.create(
            spark, tmp_path / "u", "id bigint, day string", partition_by=["day"],
            options={"partition.timestamp-pattern": "$dt"},
        )  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"needs option 'partition\.expiration-time' and partition columns"):
        make(spark, tmp_path / "w").maintenance.expire_partitions()


@pytest.mark.parametrize("table", ["key and log"], indirect=True)
def test_a_named_consumer_keeps_what_it_has_not_read(spark: SparkSession, table: TableStore, tmp_path: Path) -> None:
    reader = Follower(tmp_path / "one", lambda: table.read_stream(consumer="orders-to-search", max_snapshots=1))
    seen = reader.rows()
    assert fold(seen) == rows(table.read())
    (consumer,) = table.consumers.all()
    assert (consumer.name, consumer.snapshot) == ("orders-to-search", 4)
    for number in range(6, 9):
        table.write(frame(spark, [(number, "n")]))
    table.compact()
    report = table.maintenance.expire(older_than="0 s", keep_last=1)
    assert (report.oldest, report.held_by) == (4, "consumer 'orders-to-search'")
    # One that begins anew, its checkpoint lost, goes on where the consumer is.
    anew = Follower(tmp_path / "two", lambda: table.read_stream(consumer="orders-to-search"))
    assert versions(anew.rows()) == [5, 6, 7]
    assert table.consumers.all()[0].snapshot >= 7
    assert table.inspect.consumers().collect()[0].table_lag_rows == 0
    assert versions(reader.rows()) == [5, 6, 7]
    table.write(frame(spark, [(12, "n")]))
    assert anew.rows()[0][:2] == (12, "n")
    newest = table.snapshots()[0].id
    assert table.maintenance.expire(older_than="0 s", keep_last=1).oldest == newest
    table.consumers.reset("orders-to-search", newest)
    table.write(frame(spark, [(13, "n")]))
    third = Follower(tmp_path / "three", lambda: table.read_stream(scan_mode="full", consumer="orders-to-search"))
    assert [row[0] for row in third.rows()] == [13]
    table.consumers.reset("orders-to-search")
    assert table.consumers.all() == []
    with pytest.raises(NotFoundError, match="has no consumers"):
        table.consumers.reset("orders-to-search")
    with pytest.raises(InvalidInputError, match="consumer 'a b'"):
        table.read_stream(consumer="a b")


def test_a_query_that_follows_a_table_goes_on_while_its_snapshots_expire(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Named, a reader is waited for; without a name, what has expired before it came is an error, never a gap."""
    for number, name in enumerate(("", topic())):
        table = make(spark, tmp_path / f"t{number}", kafka.bootstrap_servers, name, compaction__auto=False)
        table.write(frame(spark, [(0, "first"), (1, "first")]))
        feed: list[tuple[Any, ...]] = []

        def source(path: str = table.path, **more: str) -> DataFrame:
            given = {"path": path, "readChangeFeed": "true", "scan-mode": "earliest", **more}
            return spark.readStream.format("tablestore").options(**given).load()

        query = (
            source(consumer="search")
            .writeStream.foreachBatch(lambda batch, _, feed=feed: feed.extend(map(tuple, batch.collect())))
            .option("checkpointLocation", str(tmp_path / f"c{number}"))
            .start()
        )
        slow = Follower(tmp_path / f"slow{number}", source)
        assert versions(slow.rows()) == [1]
        query.processAllAvailable()
        try:
            for batch in range(4):
                table.write(changes(spark, [(batch % 3, f"{batch}", "insert"), ((batch + 1) % 3, None, "delete")]))
                if batch % 2:
                    table.compact()
                table.maintenance.expire(older_than="0 s", keep_last=1)
            query.processAllAvailable()
            assert table.maintenance.expire(older_than="0 s", keep_last=1).oldest >= versions(feed)[-1]
            table.write(frame(spark, [(9, "last")]))
            query.processAllAvailable()
        finally:
            query.stop()
        assert fold(feed) == rows(table.read())
        assert Counter((row[0], row[3]) for row in feed) == Counter({(row[0], row[3]) for row in feed})
        assert len(versions(feed)) == 6
        with pytest.raises(StreamingQueryException, match="has expired"):
            slow.rows()


def test_the_verbs_of_earlier_versions_still_work_and_say_where_they_are_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    table: Any = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a")]))
    with pytest.warns(DeprecationWarning, match=r"table\.tag is deprecated; use table\.tags\.create"):
        table.tag("one")
    with pytest.warns(DeprecationWarning, match=r"use table\.tags\.all\(\)"):
        assert [tag.name for tag in table.tags()] == ["one"]
    with pytest.warns(DeprecationWarning, match=r"use table\.consumers\.all\(\)"):
        assert table.consumers() == []
    for name, place in store._MOVED.items():
        with pytest.warns(DeprecationWarning, match=re.escape(f"use table.{place}")):
            assert getattr(table, name) == attrgetter(place)(table)
    with pytest.raises(AttributeError, match="no attribute 'tagg'"):
        _ = table.tagg
