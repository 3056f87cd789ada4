"""Every public call over a Spark Connect session: it works, or is refused at the call with what to do."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore import (
    Catalog,
    TableStore,
    connectors,
    when_matched,
    when_not_matched,
    when_not_matched_by_source,
)
from tablestore.inspect.frames import Inspector
from tablestore.sql.catalog.table_frames import ConnectorTable
from tablestore.table.alter import Alter
from tablestore.table.maintenance import Maintenance
from tablestore.table.open_table import TableConsumers, TableLog, TableTags
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import AVAILABLE, frame, make, rows
from tests.harness.waiting import PATIENCE_SECONDS, until

Case = Callable[["World"], None]
CASES: dict[str, Case] = {}
DDL = "id bigint, v string"


@dataclass(frozen=True)
class World:
    """What a case works on."""

    remote: SparkSession
    folder: Path
    wire: Wire
    topic: Callable[[], str]

    def table(self, *, log: bool = False, key: bool = True, **options: object) -> TableStore:
        """Make a table of ``(id, v)`` with the rows 1, 2 and 3; with ``log``, in Kafka."""
        place = self.folder / f"table-{len(list(self.folder.iterdir()))}"
        servers, topic = (self.wire.servers, self.topic()) if log else ("", "")
        made = make(self.remote, place, servers, topic, key=key, **options)
        made.write(self.frame([(1, "a"), (2, "b"), (3, "c")]))
        return made

    def frame(self, given: list[tuple[Any, ...]], ddl: str = DDL) -> DataFrame:
        """Make a frame that Spark does not take for local, so that its rows are staged in tasks."""
        return frame(self.remote, given, ddl).repartition(2)

    def catalog(self) -> Catalog:
        """Make a catalog whose connector tables are on the broker."""
        made = Catalog(self.remote, self.folder / "warehouse")
        made.sql(f"SET 'tablestore.addresses' = 'broker:9092={self.wire.servers}'")
        made.sql("SET 'tablestore.trigger' = 'available-now'")
        return made

    def kafka_table(self, connector: str) -> dict[str, object]:
        """Give the options of a connector's table with a topic of its own."""
        formats = {"format": "json"} if connector == "kafka" else {"key.format": "json", "value.format": "json"}
        more = {"scan.startup.mode": "earliest-offset"} if connector == "kafka" else {"primary-key": "id"}
        topic = self.wire.make(self.topic(), 2)
        return {"properties.bootstrap.servers": self.wire.servers, "topic": topic, **formats, **more}


def case(names: str) -> Callable[[Case], Case]:
    """Say which public calls a case makes."""

    def add(function: Case) -> Case:
        CASES[names] = function
        return function

    return add


@case("create open for_path exists drop drop_at path schema primary_key partition_by options")
def _(world: World) -> None:
    path = world.folder / "t"
    made = TableStore.create(world.remote, path, DDL, primary_key="id", partition_by="id", if_not_exists=True)
    assert (made.path, made.primary_key, made.partition_by) == (str(path), ("id",), ("id",))
    opened = TableStore.for_path(world.remote, path)
    assert opened.schema == made.schema
    assert opened.options == made.options
    assert TableStore.exists(world.remote, path)
    TableStore.open(world.remote, path).drop()
    assert not TableStore.exists(world.remote, path)
    world.table(log=True).drop()
    kept = world.table(log=True)
    TableStore.drop_at(kept.path)
    assert not TableStore.exists(world.remote, kept.path)


@case("write count read metrics")
def _(world: World) -> None:
    table, told = world.table(log=True), []
    table.metrics = told.append
    pandas = pytest.importorskip("pandas")
    for number, given in enumerate(
        (
            [{"id": 4, "v": "0"}],
            pa.table({"id": [4], "v": ["1"]}),
            pandas.DataFrame({"id": [4], "v": ["2"]}),
            world.frame([(4, "3")]),
            world.remote.range(4, 5).select("id", F.lit("4").alias("v")),
        )
    ):
        made = table.write(given)
        assert made is not None
        assert rows(table.read()) == {1: "a", 2: "b", 3: "c", 4: str(number)}
    assert {each.what for each in told} >= {"write", "publish"}
    assert table.count() == 4
    assert table.read(snapshot=1, columns="id").count() == 3
    wider = world.frame([(4, "5", 1)], f"{DDL}, n int")
    table.write(wider, merge_schema=True)
    assert table.schema.fieldNames() == ["id", "v", "n"]
    with pytest.raises(InvalidInputError, match="unknown"):
        table.write(world.frame([(4, "5", 1)], f"{DDL}, m int"))
    assert table.verify().ok


@case("delete update overwrite truncate merge")
def _(world: World) -> None:
    for key in (True, False):
        table = world.table(log=True, key=key, **({} if key else {"log__format": "arrow"}))
        table.update("id = 2", {"v": F.upper("v")})
        table.delete(F.col("id") == 3)
        assert rows(table.read()) == {1: "a", 2: "B"}
        source = world.frame([(2, "merged"), (9, "new")])
        table.merge(
            source,
            "id",
            [when_matched().update({"v": "source.v"}), when_not_matched().insert(),
             when_not_matched_by_source().delete()],
        )  # fmt: skip
        assert rows(table.read()) == {2: "merged", 9: "new"}
        table.overwrite(world.frame([(7, "x")]), "id = 7")
        table.overwrite(world.frame([(8, "y")]))
        assert rows(table.read()) == {8: "y"}
        with pytest.raises(InvalidInputError, match="delete: where"):
            table.delete("nothing = 1")
        with pytest.raises(InvalidInputError, match="update: set"):
            table.update("id = 8", {"v": F.col("nothing")})
        table.truncate()
        assert table.count() == 0
        assert table.verify().ok
    keyed = world.table()
    keyed.delete([{"id": 1}])
    keyed.delete(world.frame([(2,)], "id bigint"))
    assert rows(keyed.read()) == {3: "c"}


@case("snapshots history changes refresh verify recover compact")
def _(world: World) -> None:
    table = world.table(log=True)
    table.write(world.frame([(1, "A")]))
    assert [each.id for each in table.refresh().snapshots(2)] == [2, 1]
    assert [row.snapshot_id for row in table.history(1).collect()] == [2]
    assert {tuple(row)[:2] for row in table.changes(1).collect()} == {(1, "A")}
    assert table.compact() is not None
    assert (
        rows(table.read())
        == rows(world.remote.read.format("delta").load(table.path).select("id", "v"))
        == {1: "A", 2: "b", 3: "c"}
    )
    assert [entry.kind for entry in table.recover()] == ["compact"]
    assert table.verify().ok


@case(
    "alter() alter.add_column alter.rename_column alter.move_column alter.widen_column alter.drop_column "
    "alter.allow_null alter.comment_column alter.set_options alter.reset_options alter.merge_schema"
)
def _(world: World) -> None:
    table = world.table()
    alter = table.alter
    alter()
    alter.add_column("n", "int")
    alter.widen_column("n", "bigint")
    alter.rename_column("n", "m")
    alter.move_column("m", first=True)
    alter.allow_null("v")
    alter.comment_column("v", "what it says")
    assert table.schema.fieldNames() == ["m", "id", "v"]
    alter.drop_column("m")
    alter.set_options({"snapshot.retention": "2 d"})
    alter.reset_options("snapshot.retention")
    assert alter.merge_schema(world.frame([(1, 2)], "id bigint, k int")).columns == ["id", "k", "v"]
    assert rows(table.read().select("id", "v")) == {1: "a", 2: "b", 3: "c"}


@case(
    "maintenance.expire maintenance.expire_partitions maintenance.rollback maintenance.remove_orphans "
    "tags.all tags.create tags.delete tags.expire log.repair log.shows_uncommitted"
)
def _(world: World) -> None:
    table = world.table(log=True)
    table.write(world.frame([(1, "A")]))
    table.tags.create("kept", 1)
    table.maintenance.rollback("kept")
    assert rows(table.read()) == {1: "a", 2: "b", 3: "c"}
    table.compact()
    assert table.maintenance.expire(older_than="0 s", keep_last=1).snapshots > 0
    assert rows(table.read(tag="kept")) == {1: "a", 2: "b", 3: "c"}
    assert [tag.name for tag in table.tags.all()] == ["kept"]
    table.tags.delete("kept")
    table.tags.create("short", retained="1 ms")
    # The clock of a file system may not move between two calls.
    assert until(table.tags.expire) == ["short"]
    assert table.maintenance.remove_orphans(dry_run=True).files == ()
    assert not table.log.shows_uncommitted
    assert table.log.repair().ok
    days = TableStore.create(
        world.remote, world.folder / "days", "day date, v string", partition_by="day",
        options={"partition.expiration-time": "7 d", "partition.timestamp-formatter": "yyyy-MM-dd"},
    )  # fmt: skip
    days.write(world.remote.sql("SELECT DATE '2020-01-01' AS day, 'old' AS v UNION ALL SELECT current_date(), 'new'"))
    days.maintenance.expire_partitions()
    assert [row.v for row in days.read().collect()] == ["new"]


@case(
    "inspect.snapshots inspect.files inspect.partitions inspect.buckets inspect.schemas inspect.options "
    "inspect.log inspect.consumers inspect.tags inspect.of inspect.compacted"
)
def _(world: World) -> None:
    table = world.table(log=True)
    for name, call in inspect.getmembers(table.inspect, inspect.ismethod):
        if name == "of":
            assert call("snapshots").count() == 2
        elif not name.startswith("_"):
            assert call().columns, name
    table.compact()
    assert table.inspect.compacted().count() == table.read().count()


@case("read_stream write_stream consumers.all consumers.reset")
def _(world: World) -> None:
    source, sink = world.table(log=True), world.table(log=True)
    for number in range(2):
        source.write(world.frame([(3, f"c{number}"), (4, "d")]))
        query = sink.write_stream(
            source.read_stream(consumer="copy", max_snapshots=1),
            checkpoint=world.folder / "checkpoint",
            trigger=AVAILABLE,
            query_name="copy",
            transform=lambda batch: batch.withColumn("v", F.upper("v")),
        )
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert rows(sink.read()) == {1: "A", 2: "B", 3: f"C{number}", 4: "D"}
    assert [each.name for each in source.consumers.all()] == ["copy"]
    source.consumers.reset("copy")
    assert sink.verify().ok
    eventual = world.table(log=True, log__consistency="eventual")
    query = eventual.read_stream(state=world.folder / "state").writeStream.format("memory").queryName("folded")
    query = query.option("checkpointLocation", str(world.folder / "memory")).trigger(**AVAILABLE).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert rows(world.remote.table("folded").select("id", "v")) == {1: "a", 2: "b", 3: "c"}


@case("format('tablestore')")
def _(world: World) -> None:
    remote, table = world.remote, world.table(log=True)
    world.frame([(4, "d")]).write.format("tablestore").mode("append").save(table.path)
    assert rows(remote.read.format("tablestore").load(table.path)) == {1: "a", 2: "b", 3: "c", 4: "d"}
    remote.sql(f"CREATE OR REPLACE TEMPORARY VIEW here USING tablestore OPTIONS (path '{table.path}')")
    remote.sql("INSERT INTO here VALUES (5, 'e')")
    assert remote.sql("SELECT v FROM here WHERE id = 5").collect()[0].v == "e"
    stream = table.read_stream().select("id", "v").writeStream.format("tablestore").trigger(**AVAILABLE)
    copy = world.table(log=True)
    query = stream.option("checkpointLocation", str(world.folder / "c")).option("path", copy.path).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert rows(copy.read()) == rows(table.read())
    assert copy.verify().ok


@case("connectors.read connectors.write connectors.read_stream connectors.write_stream connectors.read_changes")
def _(world: World) -> None:
    plain, upsert = world.kafka_table("kafka"), world.kafka_table("upsert-kafka")
    connectors.write(world.frame([(1, "a"), (2, "b")]), "kafka", plain)
    assert rows(connectors.read(world.remote, "kafka", DDL, plain)) == {1: "a", 2: "b"}
    stream = connectors.read_stream(world.remote, "kafka", DDL, plain)
    once = {"sink.delivery-guarantee": "exactly-once", "sink.transactional-id-prefix": world.topic()}
    given = {**upsert, **once, "checkpointLocation": str(world.folder / "c")}
    counts = stream.groupBy("id").agg(F.max("v").alias("v"))
    for expected in ({1: "a", 2: "b"}, {1: "a", 2: "z"}):
        query = connectors.write_stream(counts, "upsert-kafka", given, output_mode="update").trigger(**AVAILABLE)
        assert query.start().awaitTermination(PATIENCE_SECONDS)
        assert rows(connectors.read(world.remote, "upsert-kafka", DDL, upsert)) == expected
        world.wire.send(str(plain["topic"]), [Record(json.dumps({"id": 2, "v": "z"}).encode())])
    assert len(world.wire.read(str(upsert["topic"]))) == 3
    changed = connectors.read_changes(world.remote, DDL, upsert, state=world.folder / "state")
    query = changed.writeStream.format("memory").queryName("changed").trigger(**AVAILABLE)
    assert query.option("checkpointLocation", str(world.folder / "m")).start().awaitTermination(PATIENCE_SECONDS)
    assert {tuple(row) for row in world.remote.table("changed").collect()} == {(1, "a", "insert"), (2, "z", "insert")}


@case("connectors.read_with_watermark")
def _(world: World) -> None:
    options = world.kafka_table("kafka")
    world.wire.send(str(options["topic"]), [b'{"id": 1, "t": "2026-01-01 00:00:00"}'])
    timed = connectors.read_with_watermark(
        world.remote, "id bigint, t timestamp_ntz", options, column="t", delay="1 second"
    )
    query = timed.writeStream.format("memory").queryName("timed").trigger(**AVAILABLE)
    assert query.option("checkpointLocation", str(world.folder / "m")).start().awaitTermination(PATIENCE_SECONDS)
    assert world.remote.table("timed").count() == 1


LOOKUP = "INSERT INTO t SELECT k.id, n.name FROM k JOIN names FOR SYSTEM_TIME AS OF k.at AS n ON k.id = n.id"
KAFKA = "'connector' = 'kafka', 'properties.bootstrap.servers' = 'broker:9092', 'format' = 'json'"


@case(
    "Catalog.sql Catalog.run Catalog.execute Catalog.tables Catalog.columns Catalog.table Catalog.follow "
    "ConnectorTable.read ConnectorTable.write ConnectorTable.read_stream ConnectorTable.write_stream "
    "ConnectorTable.name ConnectorTable.schema ConnectorTable.primary_key ConnectorTable.read_timed"
)
def _(world: World) -> None:
    catalog, topic = world.catalog(), world.wire.make(world.topic())
    done = catalog.run(f"""
        CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED);
        CREATE TABLE names (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED);
        CREATE TABLE k (id BIGINT, v STRING, at AS PROCTIME()) WITH ({KAFKA}, 'topic' = '{topic}',
          'scan.startup.mode' = 'earliest-offset');
        CREATE TABLE e (id BIGINT, t TIMESTAMP(3), WATERMARK FOR t AS t - INTERVAL '1' SECOND)
          WITH ({KAFKA}, 'topic' = '{topic}');
        CREATE VIEW w AS SELECT id, UPPER(v) AS v FROM t;
        SET 'execution.runtime-mode' = 'batch';
        INSERT INTO names VALUES (1, 'one'), (2, 'two');
        INSERT INTO k VALUES (1, 'a'), (2, 'b'), (1, 'c');
    """)
    assert len(list(done)) == 8
    assert catalog.tables() == ["e", "k", "names", "t", "w"]
    assert (catalog.columns("k"), catalog.columns("w")) == (("id", "v", "at"), ())
    table = catalog.table("k")
    assert isinstance(table, ConnectorTable)
    assert (table.name, table.primary_key, table.schema.fieldNames()) == ("k", (), ["id", "v"])
    table.write(world.frame([(3, "d")]))
    assert table.read().count() == 4
    timed = catalog.table("e")
    assert isinstance(timed, ConnectorTable)
    assert timed.read_timed().isStreaming
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    for text in (
        # A lookup join is computed per micro-batch, on the server.
        LOOKUP,
        "INSERT INTO t SELECT id, CAST(COUNT(*) AS STRING) FROM k WHERE id > 2 GROUP BY id",
        "CREATE TEMPORARY TABLE p (id BIGINT, n BIGINT) WITH ('connector' = 'print'); "
        "INSERT INTO p SELECT id, COUNT(*) FROM k GROUP BY id",
    ):
        (query,) = catalog.sql(text).queries
        assert query.awaitTermination(PATIENCE_SECONDS)
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    found = catalog.sql("SELECT * FROM w").frame
    assert found is not None
    assert rows(found) == {1: "ONE", 2: "TWO", 3: "1"}
    for text in (
        "DELETE FROM t WHERE id > 11",
        "UPDATE t SET v = 'x' WHERE id = 11",
        "INSERT OVERWRITE t SELECT 1, 'y'",
    ):
        catalog.sql(text)
    found = catalog.sql("SELECT id, v FROM t").frame
    assert found is not None
    assert rows(found) == {1: "y"}
    copied = table.write_stream(
        table.read_stream().where("id = 3").select("id", "v"),
        checkpoint=str(world.folder / "c"), trigger=AVAILABLE,
    )  # fmt: skip
    assert copied.awaitTermination(PATIENCE_SECONDS)
    assert table.read().count() == 5
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(InvalidInputError, match=r"follow: .*Spark Connect .*INSERT"):
        catalog.follow(catalog.sql("SELECT * FROM k"), print)
    with pytest.raises(InvalidInputError, match=r"lookup join with further tables.*Spark Connect"):
        catalog.sql(f"{LOOKUP} JOIN (SELECT 1 AS id) AS w ON w.id = k.id")


@pytest.mark.parametrize("names", CASES, ids=lambda names: names.split()[0])
def test_a_call_works_over_connect(
    remote: SparkSession, wire: Wire, topic: Callable[[], str], tmp_path: Path, names: str
) -> None:
    CASES[names](World(remote, tmp_path, wire, topic))


def _public(of: type, prefix: str = "") -> set[str]:
    return {prefix + name for name in dir(of) if not name.startswith("_")}


def test_no_public_call_is_left_out() -> None:
    """A new call of the API needs a case here."""
    parts = {"alter": Alter, "maintenance": Maintenance, "tags": TableTags, "consumers": TableConsumers,
             "log": TableLog, "inspect": Inspector}  # fmt: skip
    public = _public(TableStore) | _public(Catalog, "Catalog.") | _public(ConnectorTable, "ConnectorTable.")
    public |= {name for part, of in parts.items() for name in _public(of, f"{part}.")} | {"alter()"}
    public |= {f"connectors.{name}" for name in connectors.__all__}
    tried = {name for names in CASES for name in names.split()}
    assert public - tried == {"ConnectorTable.connector"} & public
    assert tried - public == {"format('tablestore')"}
