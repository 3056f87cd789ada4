"""A table is made whole or not at all, and drop removes what create made: files, topic, consumer groups."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.kafka import topic_storage
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import has_offsets
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import delete_topic, ensure_topic
from snapshot.delta.log import DeltaLog
from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    InvalidInputError,
    NotFoundError,
    TableStoreError,
    UnavailableError,
)
from snapshot.schema.ddl_text import as_schema
from snapshot.storage import Storage
from tablestore import TableStore, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop, create_if_absent
from tablestore.ddl.table_definition import TableDefinition
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table
from tests.harness.spark_tables import DDL, Follower, frame, log_options, make, rows
from tests.harness.waiting import PATIENCE_SECONDS


def assert_no_table(path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"TableStore\.create"):
        TableContext.open(str(path))


def test_b45_g20_a_key_table_is_made_opened_and_dropped(
    spark: SparkSession, kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """A table with a log has files and a topic with one partition per bucket; `create` makes both and `drop` removes
    them."""
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "orders"
    made = make(spark, path, servers, name)
    opened = TableStore.open(spark, path)
    assert (opened.primary_key, opened.partition_by, opened.options.buckets) == (("id",), (), 2)
    opened.schema.add("x", "integer").fields[0].nullable = True
    assert [(f.name, f.nullable) for f in opened.schema.fields] == [("id", False), ("v", True)]
    assert rows(opened.read()) == {}
    assert opened.snapshots()[0].operation == "create"
    shape = describe_topic(client, name)
    assert shape is not None
    assert shape.partitions == 2

    made.write(frame(spark, [(1, "a")]))
    assert rows(opened.read()) == {1: "a"}
    group = f"tablestore-{TableContext.open(str(path)).spec.table_id}"
    assert has_offsets(client, group, name, 2)

    opened.drop()
    assert not path.exists()
    assert describe_topic(client, name) is None
    assert not has_offsets(client, group, name, 2)
    with pytest.raises(NotFoundError, match="orders"):
        TableStore.open(spark, path)


def test_o24_a_topic_is_named_as_the_folder_unless_it_is_given(
    kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """`kafka.topic`: the topic of the table; by default it has the name of the table's folder."""
    name = topic()
    log = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    schema = as_schema("id bigint not null")
    more = {"primary_key": ["id"], "partition_by": [], "log_system": "kafka"}
    made = create_drop.create(TableDefinition(str(tmp_path / name), schema, options=log, **more))
    assert made.options.log is not None
    assert made.options.log.kafka.topic == name
    assert describe_topic(client, name) is not None
    create_drop.drop_at(str(tmp_path / name), {}, made.allowed)
    with pytest.raises(InvalidInputError, match=r"'kafka\.topic': expected a topic name"):
        create_drop.create(TableDefinition(str(tmp_path / "a b"), schema, options=log, **more))


def test_o21_an_append_table_and_a_table_without_a_log_stream_and_read_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without `log.system`, a stream reads the table's files."""
    for key in (False, True):
        table = make(spark, tmp_path / f"key-{key}", key=key)
        table.write(frame(spark, [(1, "a"), (2, "b")]))
        reader = Follower(tmp_path / f"checkpoint-{key}", table.read_stream)
        assert rows(table.read()) == {1: "a", 2: "b"}
        assert sorted(row[:3] for row in reader.rows()) == [(1, "a", "insert"), (2, "b", "insert")]
        assert table.recover() == []
        table.drop()
        assert not Path(table.path).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"log.formt": "json"}, ("log.formt", "log.format")),
        ({"kafka.topic": ""}, ("kafka.topic", "required")),
        ({"kafka.bootstrap.servers": None}, ("kafka.bootstrap.servers", "required")),
        ({"topic": "t"}, ("topic", "kafka.topic")),
        ({"scan.startup.mode": "x"}, ("scan.startup.mode", "scan_mode")),
        ({"bucket": "0"}, ("bucket", "got '0'")),
        ({"log.system": "pulsar"}, ("log.system", "pulsar", "kafka")),
        ({"log.format": "avro"}, ("log.format", "json", "arrow", "avro")),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_made(
    spark: SparkSession, kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str], change, words
) -> None:
    name = topic()
    given = {k: v for k, v in {**log_options(kafka.bootstrap_servers, name), **change}.items() if v is not None}
    system = None if "log.system" in change else "kafka"
    with pytest.raises(InvalidInputError) as caught:
        TableStore.create(spark, tmp_path / "t", DDL, primary_key=["id"], log_system=system, options=given)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "t").exists()
    assert describe_topic(client, name) is None


@pytest.mark.parametrize(
    ("ddl", "more", "word"),
    [
        ("id bigint, _kind string", {}, "_kind"),
        ("id bigint, ID string", {}, "case"),
        ("id bigint, i interval day", {}, "interval"),
        ("id bigint nonsense", {}, "DDL"),
        (DDL, {"primary_key": ["nope"]}, "nope"),
        (DDL, {"partition_by": ["id", "v"]}, "every column"),
        ("id double, v string", {"primary_key": ["id"]}, "has type double; allowed are boolean, tinyint, smallint"),
        ("id string collate UTF8_LCASE, v string", {"primary_key": ["id"]}, "UTF8_LCASE"),
    ],
)
def test_a_wrong_schema_is_refused_and_nothing_is_made(spark: SparkSession, tmp_path: Path, ddl, more, word) -> None:
    with pytest.raises(InvalidInputError, match=word):
        TableStore.create(spark, tmp_path / "t", ddl, **more)
    assert not (tmp_path / "t").exists()


def test_a_table_that_exists_is_not_touched(
    spark: SparkSession, kafka: object, tmp_path: Path, topic: Callable[[], str]
) -> None:
    servers, name = kafka.bootstrap_servers, topic()
    table = make(spark, tmp_path / "t", servers, name)
    table.write(frame(spark, [(1, "a")]))
    with pytest.raises(AlreadyExistsError, match="open it, or drop it"):
        make(spark, tmp_path / "t", servers, topic())
    assert rows(table.read()) == {1: "a"}
    assert table.write(frame(spark, [(2, "b")])) is not None


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").write_text("dear")
    write_deltalake(tmp_path / "delta", pa.table({"id": [1]}))
    for folder, word in (("letters", "to-mother"), ("delta", "does not belong to the store")):
        with pytest.raises(AlreadyExistsError, match=word):
            make(spark, tmp_path / folder)
    assert (tmp_path / "letters" / "to-mother.txt").read_text() == "dear"
    assert DeltaTable(tmp_path / "delta").version() == 0


def test_a_clone_is_no_table_of_the_store(spark: SparkSession, tmp_path: Path) -> None:
    """A clone has the definition of its table, whose id it would share, and lists files by absolute paths."""
    table = make(spark, tmp_path / "t", key=False)
    table.write(frame(spark, [(1, "a")]))
    clone = f"{tmp_path}/clone"
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{table.path}`")
    for use in (partial(TableStore.open, spark), open_local, spark.read.format("tablestore").load):
        with pytest.raises((CorruptedError, PySparkException), match=r"another tool made this Delta table \(CLONE\)"):
            use(clone)
    assert rows(table.read()) == {1: "a"}


def test_the_changes_of_a_table_are_no_table(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a")]))
    for use in (open_local, create_drop.drop_at):
        with pytest.raises(NotFoundError, match=r"_changes: .* Open the folder of the table"):
            use(f"{table.path}/_changes")
    assert rows(table.read()) == {1: "a"}


@pytest.mark.parametrize(("partitions", "records", "word"), [(3, 0, "bucket=3"), (2, 1, "records of somebody else")])
def test_a_topic_that_does_not_fit_is_refused_and_kept(
    spark: SparkSession, kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str],
    partitions: int, records: int, word: str,
) -> None:  # fmt: skip
    name = topic()
    ensure_topic(client, name, partitions=partitions, retention_ms=None, compacted=False)
    if records:
        producer = client.producer(None)
        producer.produce(name, b"theirs", partition=0)
        producer.flush(PATIENCE_SECONDS)
    with pytest.raises(TableStoreError, match=word):
        make(spark, tmp_path / "t", kafka.bootstrap_servers, name)
    assert describe_topic(client, name) is not None
    assert not (tmp_path / "t").exists()


def test_an_empty_topic_that_was_there_is_used_and_kept_by_drop(
    spark: SparkSession, kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name = topic()
    ensure_topic(client, name, partitions=2, retention_ms=None, compacted=False)
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, name)
    table.write(frame(spark, [(1, "a")]))
    table.drop()
    assert not (tmp_path / "t").exists()
    assert describe_topic(client, name) is not None
    delete_topic(client, name)


def test_a_broker_that_does_not_answer_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap\.servers"):
        make(spark, tmp_path / "t", "127.0.0.1:1", "nowhere")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(("call", "hit"), [("put", 2), ("put", 3), ("delete", 1)])
def test_a_create_that_fails_takes_back_what_it_made(
    kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str], call: str, hit: int
) -> None:
    name, full = topic(), UnavailableError("the disk is full")
    owner, method = (Storage, "put") if call == "put" else (DeltaLog, "create")
    with failing(owner, method, full, hits=range(hit, hit + 1)), pytest.raises(UnavailableError, match="full"):
        make_table(tmp_path / "t", kafka.bootstrap_servers, name)
    assert not (tmp_path / "t").exists()
    assert describe_topic(client, name) is None


POINTS = [
    (Storage, "put", 1), (topic_storage, "ensure_topic", 1), (Storage, "put", 2), (topic_storage, "claim", 1),
    (Storage, "put", 3), (DeltaLog, "create", 1), (DeltaLog, "create", 2), (Storage, "delete", 1),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "call", "hit"), POINTS, ids=lambda p: getattr(p, "__name__", str(p)))
def test_a_create_that_dies_anywhere_leaves_no_half_made_table(
    kafka: object,
    client: KafkaClient,
    tmp_path: Path,
    topic: Callable[[], str],
    owner,
    call: str,
    hit: int,
    after: bool,
) -> None:
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    with failing(owner, call, after=after, hits=range(hit, hit + 1)), pytest.raises(Crash):
        make_table(path, servers, name)
    is_whole = (call, hit, after) in (("create", 2, True), ("delete", 1, False), ("delete", 1, True))
    # Between making the topic and writing down its id, nothing proves whose it is: then it is used and never deleted.
    unproven = (call, hit, after) in (("ensure_topic", 1, True), ("put", 2, False))
    if is_whole:
        table = TableContext.open(str(path))
    else:
        assert_no_table(path)
        table = make_table(path, servers, name, bucket=2 if unproven else 4)
    assert table.spec.owns_topic is not unproven
    create_drop.drop(table)
    assert not path.exists()
    assert (describe_topic(client, name) is None) is not unproven


def test_a_creator_killed_after_the_topic_leaves_it_to_the_next_create(
    kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str]
) -> None:
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    script = f"""
import os, signal
from pathlib import Path
from log_system.kafka import topic_storage
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table
try:
    with failing(topic_storage, "ensure_topic", after=True):
        make_table(Path({str(path)!r}), {servers!r}, {name!r})
except Crash:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert describe_topic(client, name) is not None
    assert_no_table(path)
    assert not make_table(path, servers, name).spec.owns_topic


def test_a_topic_that_somebody_uses_since_a_create_died_is_theirs(
    kafka: object, client: KafkaClient, tmp_path: Path, topic: Callable[[], str]
) -> None:
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    with failing(topic_storage, "ensure_topic", after=True), pytest.raises(Crash):
        make_table(path, servers, name)
    producer = client.producer(None)
    producer.produce(name, b"theirs", partition=0)
    producer.flush(PATIENCE_SECONDS)
    with pytest.raises(AlreadyExistsError, match="somebody else"):
        make_table(path, servers, name)
    assert describe_topic(client, name) is not None
    assert not path.exists()


DROP_POINTS = [
    (Storage, "put", 1), (create_drop, "remove_log", 1), (topic_storage, "delete_topic", 1), (Storage, "put", 2),
    (topic_storage, "delete_groups", 1), (create_drop, "remove_log", 2), (Storage, "delete_tree", 1),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "call", "hit"), DROP_POINTS, ids=lambda p: getattr(p, "__name__", str(p)))
def test_a_drop_that_dies_anywhere_is_finished_by_the_next_create(
    kafka: object,
    client: KafkaClient,
    tmp_path: Path,
    topic: Callable[[], str],
    owner,
    call: str,
    hit: int,
    after: bool,
) -> None:
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    table = make_table(path, servers, name)
    with failing(owner, call, after=after, hits=range(hit, hit + 1)), pytest.raises(Crash):
        create_drop.drop(table)
    if (call, hit) == ("put", 1) or (call, hit, after) == ("remove_log", 1, False):
        # Nothing is gone yet: the table is still there, and whoever uses it on may.
        with pytest.raises(AlreadyExistsError):
            make_table(path, servers, name)
        create_drop.drop(TableContext.open(str(path)))
    else:
        assert_no_table(path)
    again = make_table(path, servers, name)
    assert again.spec.table_id != table.spec.table_id
    assert again.spec.owns_topic


@pytest.mark.parametrize("finish", ["drop", "create"])
def test_a_drop_that_died_within_the_delta_log_is_finished(
    kafka: object, tmp_path: Path, finish: str, topic: Callable[[], str]
) -> None:
    """Earlier versions removed the entries one after another."""
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    table = make_table(path, servers, name)
    for version in (1, 2):
        table.files.log.commit(version, add=[], info={"kind": "compact"})
    with failing(create_drop, "remove_log"), pytest.raises(Crash):
        create_drop.drop(table)
    (path / "_changes" / "_delta_log" / f"{0:020d}.json").unlink()
    if finish == "drop":
        create_drop.drop_at(str(path))
        assert not path.exists()
    assert make_table(path, servers, name).files.latest() == 0


def test_of_several_creators_at_once_one_makes_the_table(
    kafka: object, tmp_path: Path, topic: Callable[[], str]
) -> None:
    servers, name, path, start = kafka.bootstrap_servers, topic(), tmp_path / "t", Barrier(4)

    def create(_: int) -> str:
        start.wait()
        try:
            return make_table(path, servers, name).spec.table_id
        except TableStoreError as error:
            return error.kind

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(create, range(4)))
    winners = [each for each in made if each != "already-exists"]
    assert len(winners) == 1, made
    assert TableContext.open(str(path)).spec.table_id == winners[0]


def test_create_if_not_exists_returns_the_table_or_names_the_difference(spark: SparkSession, tmp_path: Path) -> None:
    path, ddl = tmp_path / "t", "id int, day date, v string"

    def create(
        columns: str = ddl, *, key: str = "id", partition_by: str | tuple[str, ...] = "day", **options: object
    ) -> TableStore:
        given = {"bucket": 2, **options}
        return TableStore.create(
            spark, path, columns, primary_key=key, partition_by=partition_by, options=given, if_not_exists=True
        )

    assert not TableStore.exists(spark, path)
    create().write([{"id": 1, "day": None, "v": "a"}])
    assert TableStore.exists(spark, path)
    again = create(**{"compaction.auto": False})
    assert (again.count(), again.primary_key, again.partition_by) == (1, ("id",), ("day",))
    again.alter.set_options({"compaction.auto": False})
    assert TableStore.for_path(spark, path).count() == create().count() == 1
    with pytest.raises(AlreadyExistsError, match=r"exists with columns \['id', 'day', 'v'\], expected \['id', 'v'\]"):
        create("id int, v string", partition_by=())
    with pytest.raises(AlreadyExistsError, match="with column 'id' 'int NOT NULL', expected 'bigint NOT NULL'"):
        create(ddl.replace("int", "bigint"))
    with pytest.raises(AlreadyExistsError, match=r"primary_key \['id'\], expected \['v'\]"):
        create(key="v")
    with pytest.raises(AlreadyExistsError, match="option 'bucket' '2', expected '3'"):
        create(bucket=3)
    with pytest.raises(InvalidInputError, match="unknown option 'buckets'"):
        create(buckets=3)
    with pytest.raises(AlreadyExistsError, match="a table exists already"):
        TableStore.create(spark, path, ddl)


def test_two_programs_that_create_one_table_if_it_does_not_exist_get_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is faster between the look and the creation."""
    path, make = tmp_path / "t", create_if_absent.create

    def slow(*args: object, **given: object) -> TableContext:
        make(*args, **given)
        return make(*args, **given)

    monkeypatch.setattr(create_if_absent, "create", slow)
    assert TableStore.create(spark, path, DDL, if_not_exists=True).count() == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(AlreadyExistsError, match="expected an empty folder"):
        TableStore.create(spark, tmp_path / "other", DDL, if_not_exists=True)
