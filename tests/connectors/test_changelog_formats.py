"""Tables of the ``kafka`` connector whose messages are changes: read in batch and as a stream, and written."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import CorruptedError, InvalidInputError
from tablestore.connectors import read, read_stream, write, write_stream
from tablestore.connectors.spark.changes_left import left_of
from tablestore.spark.changelog import changelog
from tests.connectors.harness.changelog_messages import OP, message_of
from tests.connectors.harness.lab import Lab
from tests.connectors.harness.tasks import as_task
from tests.connectors.harness.wire import Record
from tests.harness.spark_tables import AVAILABLE
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
KV, CHANGES = "k INT, v STRING", "k INT, v STRING, _change_type STRING"
FORMATS = pytest.mark.parametrize("name", OP)
A, B, C = {"k": 1, "v": "a"}, {"k": 1, "v": "b"}, {"k": 2, "v": "c"}
MOVED = {"k": 3, "v": "c"}
HISTORY = [(None, A), (None, C), (A, B), (C, MOVED), (B, None)]


def send(lab: Lab, topic: str, name: str, *changes: tuple[Any, Any], **more: Any) -> None:
    records = [Record(json.dumps(message_of(name, *change) | more).encode()) for change in changes]
    lab.wire.send(topic, records)


def options(lab: Lab, topic: str, name: str, **more: str) -> dict[str, str]:
    return {
        "properties.bootstrap.servers": lab.wire.servers, "topic": topic, "format": name,
        "scan.startup.mode": "earliest-offset", **more,
    }  # fmt: skip


@FORMATS
def test_a_table_of_changes_is_read_as_rows_and_as_changes(lab: Lab, made: Topics, name: str) -> None:
    """In batch by PRIMARY KEY, whose columns an update may change, and as changes where the schema asks for them."""
    topic = made()
    send(lab, topic, name, *HISTORY[:4])
    assert lab.read(topic, KV, format=name, primary_key="k") == [B, MOVED]
    send(lab, topic, name, HISTORY[4])
    lab.wire.send(topic, [Record(None)])
    assert lab.read(topic, "v STRING, k INT", format=name, primary_key="k") == [{"v": "c", "k": 3}]
    expected = [
        (1, "a", "insert"), (2, "c", "insert"), (1, "a", "update_preimage"), (1, "b", "update_postimage"),
        (2, "c", "update_preimage"), (3, "c", "update_postimage"), (1, "b", "delete"),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in lab.read(topic, CHANGES, format=name)] == expected
    stream = lab.stream(topic, f"{CHANGES}, _seq BIGINT", format=name)
    assert [tuple(row.values()) for row in stream.run()] == [
        (*row, at) for row, at in zip(expected, [0, 1, 2, 2, 3, 3, 4], strict=True)
    ]
    with pytest.raises(InvalidInputError, match="add '_change_type STRING'"):
        lab.stream(topic, KV, format=name)
    with pytest.raises(InvalidInputError, match=r"Set option 'primary-key', read with tablestore.connectors.read\(\)"):
        lab.read(topic, KV, format=name)


def test_a_table_without_a_key_has_each_row_as_often_as_it_was_added(
    spark: SparkSession, lab: Lab, made: Topics
) -> None:
    """Changes of one row may be in several partitions, as Flink's sink has them without a message key."""
    topic, name = made(2), "maxwell-json"
    send(lab, topic, name, (None, A), (None, A), (None, C), (A, B), ts=1_600_000_000)
    lab.wire.send(topic, [Record(json.dumps(message_of(name, C, None)).encode(), partition=1)])
    given = options(lab, topic, name, **{"metadata.at": "value.ingestion-timestamp", "metadata.p": "partition"})
    found = read(spark, "kafka", f"{KV}, at TIMESTAMP, p INT", given).collect()
    at = dt.datetime.fromtimestamp(1_600_000_000)
    assert sorted(map(tuple, found)) == [(1, "a", at, 0), (1, "b", at, 0)]
    with pytest.raises(InvalidInputError, match=r"column 'm': rows with a MAP cannot be compared.*PRIMARY KEY"):
        read(spark, "kafka", "k INT, m MAP<STRING, INT>", options(lab, topic, name))


def test_columns_may_have_any_names_where_rows_are_counted(spark: SparkSession) -> None:
    names = ["_copies", "_copy", "copies", "shown", "_shown", "r0", "m0"]
    rows = [(*range(7), kind, n) for n, kind in enumerate(["insert", "insert", "delete", "insert"])]
    found = left_of(spark.createDataFrame(rows, [*names, "_change_type", "_seq"]), ["m0"])
    assert (found.columns, [tuple(row) for row in found.collect()]) == (names, [tuple(range(7))] * 2)


def test_keys_may_have_any_names_where_changes_of_a_key_are_joined(spark: SparkSession) -> None:
    names = ["change", "_changelog", "pair", "k1", "row"]
    rows = [(1, 2, 3, 4, "old", "insert", 0), (1, 2, 3, 4, "new", "insert", 1)]
    given = spark.createDataFrame(rows, [*names, "_change_type", "_seq"])
    found = changelog(given, given.select(names).schema, names[:4], carried=["_seq"])
    assert found.columns == [*names, "_change_type", "_seq"]
    assert sorted(tuple(row) for row in found.collect()) == [
        (1, 2, 3, 4, "new", "update_postimage", 1), (1, 2, 3, 4, "old", "update_preimage", 1)
    ]  # fmt: skip


def test_metadata_of_the_value_is_shown_beside_that_of_the_message(lab: Lab, made: Topics) -> None:
    topic = made()
    source = {"db": "shop", "table": "items", "ts_ms": 1_600_000_000_123}
    send(lab, topic, "debezium-json", (A, B), source=source, ts_ms=1_600_000_001_000)
    columns = "k INT, t STRING, at TIMESTAMP_LTZ, ntz TIMESTAMP, day DATE, o BIGINT, _change_type STRING"
    keys = {"t": "source.table", "at": "source.timestamp", "ntz": "ingestion-timestamp", "day": "ingestion-timestamp"}
    metadata = {f"metadata.{column}": f"value.{key}" for column, key in keys.items()} | {"metadata.o": "offset"}
    with as_task(0, spark__sql__session__timeZone="Asia/Tokyo"):
        found = lab.read(topic, columns, value__format="debezium-json", format=None, **metadata)
    shown = {
        "k": 1, "t": "items", "at": dt.datetime(2020, 9, 13, 12, 26, 40, 123000, tzinfo=dt.UTC),
        "ntz": dt.datetime(2020, 9, 13, 21, 26, 41), "day": dt.date(2020, 9, 13), "o": 0,
    }  # fmt: skip
    assert found == [shown | {"_change_type": kind} for kind in ("update_preimage", "update_postimage")]
    with pytest.raises(InvalidInputError, match=r"'value.nothing' in column 't'.*value.source.timestamp"):
        lab.read(topic, "k INT, t STRING", format="debezium-json", primary_key="k", metadata__t="value.nothing")
    with pytest.raises(InvalidInputError, match=r"'value.database' in column 't'.*: topic, .*timestamp-type; for"):
        lab.read(topic, "k INT, t STRING", metadata__t="value.database")
    with pytest.raises(InvalidInputError, match=r"metadata 'value.sql-type' \(MAP<STRING, INT>\) cannot be cast"):
        lab.read(topic, "k INT, t STRING", format="canal-json", primary_key="k", metadata__t="value.sql-type")
    with pytest.raises(
        InvalidInputError, match=r"'value.table' in column 't'.*for writing: headers, header-list, timestamp"
    ):
        lab.write(topic, "k INT, t STRING", [(1, "x")], format="canal-json", metadata__t="value.table")


@FORMATS
def test_changes_are_written_with_their_key_and_read_again(lab: Lab, made: Topics, name: str) -> None:
    topic = made()
    rows = [
        (1, "a", "insert"), (1, "a", "update_preimage"), (1, "b", "update_postimage"), (2, "c", "insert"),
        (2, "c", "delete"),
    ]  # fmt: skip
    given = {
        "format": None, "key__format": "json", "key__fields": "k", "value__format": name,
        "value__fields_include": "EXCEPT_KEY",
    }  # fmt: skip
    lab.write(topic, CHANGES, rows, **given)
    pairs = lab.wire.pairs(topic)
    assert [key for key, _ in pairs] == [b'{"k":1}'] * 3 + [b'{"k":2}'] * 2
    assert pairs[1][1] == json.dumps(message_of(name, {"v": "a"}, None), separators=(",", ":")).encode().replace(
        b'"old":null,', b""
    )
    assert lab.read(topic, KV, primary_key="k", **given) == [B]
    kinds = {"update_preimage": "delete", "update_postimage": "insert"}
    expected = [(k, v, kinds.get(kind, kind)) for k, v, kind in rows]
    assert [tuple(row.values()) for row in lab.read(topic, CHANGES, **given)] == expected
    lab.write(topic, KV, [(7, "rows without a kind are inserts")], **given)
    assert [row["k"] for row in lab.read(topic, KV, primary_key="k", **given)] == [1, 7]


def test_a_message_that_is_no_change_is_named(lab: Lab, made: Topics) -> None:
    topic = made()
    send(lab, topic, "debezium-json", (None, A))
    lab.wire.send(topic, [Record(b'{"before":null,"after":{"k":1},"op":"u"}')])
    where = rf"topic '{topic}', partition 0, offset 1, value \(debezium-json\), field 'before'.*REPLICA IDENTITY"
    with pytest.raises(CorruptedError, match=where):
        lab.read(topic, KV, format="debezium-json", primary_key="k")
    ignoring = {"format": "debezium-json", "primary_key": "k", "debezium-json.ignore-parse-errors": "true"}
    assert lab.read(topic, KV, **ignoring) == [A]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("kafka", {"primary_key": "k"}, "'kafka' table with 'json' format doesn't support defining a PRIMARY KEY"),
        ("kafka", {"format": "debezium-json", "key__fields": "k"}, "INSERT-only records.* Give 'key.format'"),
        ("kafka", {"format": "debezium-json", "primary_key": "x"}, "'primary-key': 'x' is not a physical column"),
        ("kafka", {"format": "debezium-avro-confluent"}, "Missing required .* debezium-avro-confluent.url"),
        ("kafka", {"format": "canal-json", "canal-json.table.includes": "a"}, "'canal-json.table.includes'.*include"),
        ("upsert-kafka", {"primary_key": "k", "value__format": "debezium-json"}, "as value format.* insert-only mode"),
        ("upsert-kafka", {"primary_key": "k", "key__format": "ogg-json"}, "as key format.* insert-only mode"),
    ],
)
def test_options_that_do_not_fit_are_refused(lab: Lab, kind: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        lab.read("no-topic", KV, kind, **given)


def test_a_table_with_a_schema_is_read_only(lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match=r"doesn't support 'debezium-json.schema-include'"):
        lab.write("no-topic", KV, [(1, "a")], format="debezium-json", **{"debezium-json.schema-include": "true"})


def test_updating_results_are_written_with_the_rows_they_replace(
    spark: SparkSession, lab: Lab, made: Topics, tmp_path: Any
) -> None:
    """An update of Spark's has no row before, so it is refused; changes keep their order, with a parallelism too."""
    topic, copy = made(), made(3)
    send(lab, topic, "debezium-json", *HISTORY)
    given = options(lab, topic, "debezium-json")
    frame = read_stream(spark, "kafka", CHANGES, given)
    into = options(lab, copy, "canal-json", checkpointLocation=str(tmp_path / "c"), **{"sink.parallelism": "2"})
    with pytest.raises(InvalidInputError, match="add column '_change_type'"):
        write_stream(frame.groupBy("k").count(), "kafka", into, output_mode="update")
    write_stream(frame, "kafka", into, output_mode="update").trigger(**AVAILABLE).start().awaitTermination(
        PATIENCE_SECONDS
    )
    found = read(spark, "kafka", KV, into).collect()
    assert list(map(tuple, found)) == [(3, "c")]
    keyed = into | {"topic": made(), "primary-key": "k"}
    write(read(spark, "kafka", CHANGES, given), "kafka", keyed)
    assert list(map(tuple, read(spark, "kafka", KV, keyed).collect())) == [(3, "c")]
