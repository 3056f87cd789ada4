"""Flink's error messages, one by one: each has its counterpart here, which names the same option.

Nothing has been done by then, and no broker asked. The cases are those of the reference's table of exact messages
(its section 6.4), in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.connectors import write_stream
from tablestore.connectors.option_names import Connector, Side
from tablestore.connectors.spark.sink import Sink
from tablestore.connectors.table import KafkaTable
from tablestore.sql import SqlError, parse
from tests.connectors.harness.lab import named, schema_of

READ, WRITE = Side.SOURCE, Side.SINK
BASE = {"topic": "t", "properties__bootstrap__servers": "127.0.0.1:1"}
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "kafka": {**BASE, "format": "json"},
    "upsert-kafka": {**BASE, "key__format": "json", "value__format": "json", "primary_key": "k_a"},
}
COLUMNS = "k_a INT, b STRING, ts TIMESTAMP_LTZ"
KEYED = {"format": None, "key__format": "json", "value__format": "json", "key__fields": "k_a"}
BOTH = (READ, WRITE)
EXACTLY = {"sink__delivery_guarantee": "exactly-once"}
Case = tuple[str, tuple[Side, ...], dict[str, Any], tuple[str, ...]]

CASES: dict[str, Case] = {
    "upsert, no PK": ("upsert-kafka", BOTH, {"primary_key": None}, ("PRIMARY KEY", "'primary-key'")),
    "kafka with PK": ("kafka", BOTH, {"primary_key": "k_a"}, ("PRIMARY KEY", "'primary-key'", "'upsert-kafka'")),
    "unknown option": ("kafka", BOTH, {"no.such": "1"}, ("Unsupported options found for 'kafka': no.such", "topic")),
    "key.fields on upsert": ("upsert-kafka", BOTH, {"key__fields": "b"}, ("Unsupported options", "key.fields")),
    "startup mode on upsert": (
        "upsert-kafka", BOTH, {"scan__startup__mode": "latest-offset"}, ("Unsupported options", "scan.startup.mode"),
    ),
    "prefix with ALL": (
        "upsert-kafka", BOTH, {"key__fields_prefix": "k_"},
        ("'key.fields-prefix'", "'value.fields-include'", "EXCEPT_KEY"),
    ),
    "key column lacks the prefix": (
        "kafka", BOTH, {**KEYED, "key__fields": "b", "key__fields_prefix": "k_", "value__fields_include": "EXCEPT_KEY"},
        ("'key.fields'", "'key.fields-prefix'", "'b'"),
    ),
    "one buffer option only": (
        "upsert-kafka", (WRITE,), {"sink__buffer_flush__max_rows": 1},
        ("'sink.buffer-flush.max-rows'", "'sink.buffer-flush.interval'"),
    ),
    "the other buffer option only": (
        "upsert-kafka", (WRITE,), {"sink__buffer_flush__interval": "1 s"},
        ("'sink.buffer-flush.max-rows'", "'sink.buffer-flush.interval'"),
    ),
    "missing value format": ("upsert-kafka", BOTH, {"value__format": None}, ("'value.format'",)),
    "missing key format": ("upsert-kafka", BOTH, {"key__format": None}, ("'key.format'",)),
    "missing servers": ("kafka", BOTH, {"properties__bootstrap__servers": None}, ("properties.bootstrap.servers",)),
    "neither topic option": ("kafka", (READ,), {"topic": None}, ("'topic'", "'topic-pattern'")),
    "neither topic option of upsert": ("upsert-kafka", BOTH, {"topic": None}, ("'topic'", "'topic-pattern'")),
    "both topic options": ("kafka", (READ,), {"topic_pattern": "t.*"}, ("'topic'", "'topic-pattern'")),
    "bad pattern": ("kafka", BOTH, {"topic": None, "topic_pattern": "[a"}, ("'topic-pattern'", "'[a'")),
    "watermark alignment": (
        "kafka", BOTH, {"scan__watermark__alignment__group": "g"},
        ("scan.watermark.alignment.group", "Each micro-batch reads all partitions", "'maxRowsPerTrigger'"),
    ),
    "watermark strategy": (
        "upsert-kafka", BOTH, {"scan__watermark__emit__strategy": "on-event"},
        ("scan.watermark.emit.strategy", "Watermarks move with each micro-batch"),
    ),
    "topic list as sink": ("kafka", (WRITE,), {"topic": "t1;t2"}, ("several topics", "'topic'", "METADATA")),
    "pattern as sink": ("kafka", (WRITE,), {"topic": None, "topic_pattern": "t.*"}, ("topic-pattern", "METADATA")),
    "topic list as upsert sink": ("upsert-kafka", (WRITE,), {"topic": "t1;t2"}, ("several topics", "'topic'")),
    "key.format without key.fields": ("kafka", BOTH, {**KEYED, "key__fields": None}, ("'key.format'", "'key.fields'")),
    "key.fields without key.format": ("kafka", BOTH, {**KEYED, "key__format": None}, ("'key.format'", "'key.fields'")),
    "unknown key field": ("kafka", BOTH, {**KEYED, "key__fields": "zz"}, ("'zz'", "key.fields", "physical column")),
    "timestamp mode without its option": (
        "kafka", (READ,), {"scan__startup__mode": "timestamp"}, ("'scan.startup.timestamp-millis'", "'timestamp'"),
    ),
    "specific offsets without their option": (
        "kafka", (READ,), {"scan__startup__mode": "specific-offsets"},
        ("'scan.startup.specific-offsets'", "'specific-offsets'"),
    ),
    "bad offset syntax": (
        "kafka", (READ,),
        {"scan__startup__mode": "specific-offsets", "scan__startup__specific_offsets": "0:42;1:300"},
        ("'scan.startup.specific-offsets'", "'partition:0,offset:42;partition:1,offset:300'", "'0:42;1:300'"),
    ),
    "specific offsets, several topics": (
        "kafka", (READ,),
        {"topic": "t;u", "scan__startup__mode": "specific-offsets",
         "scan__startup__specific_offsets": "partition:0,offset:42"},
        ("specific offset", "single topic", "scan.startup.specific-offsets"),
    ),
    "bad enum": (
        "kafka", BOTH, {"scan__startup__mode": "first"},
        ("'scan.startup.mode'", "expected", "earliest-offset", "latest-offset", "group-offsets", "timestamp",
         "specific-offsets"),
    ),
    "exactly-once without prefix": (
        "kafka", (WRITE,), EXACTLY, ("sink.transactional-id-prefix", "'sink.delivery-guarantee'", "'exactly-once'"),
    ),
    "round-robin with key": (
        "kafka", (WRITE,), {**KEYED, "sink__partitioner": "round-robin"}, ("'round-robin'", "'key.fields'"),
    ),
    "unknown partitioner class": (
        "kafka", (WRITE,), {"sink__partitioner": "no.such.Cls"}, ("'no.such.Cls'", "'sink.partitioner'"),
    ),
    "both JSON flags true": (
        "kafka", (READ,), {"json__fail_on_missing_field": "true", "json__ignore_parse_errors": "true"},
        ("json.fail-on-missing-field", "json.ignore-parse-errors"),
    ),
    "unknown metadata key, read": (
        "kafka", (READ,), {"metadata__ts": "timestampx"},
        ("'timestampx'", "'ts'", "topic, partition, headers, header-list, leader-epoch, offset, timestamp, time"),
    ),
    "unknown metadata key, write": (
        "kafka", (WRITE,), {"metadata__ts": "timestampx"},
        ("'timestampx'", "'ts'", "for writing: headers, header-list, timestamp"),
    ),
    "sink.parallelism = 0": ("kafka", (WRITE,), {"sink__parallelism": 0}, ("'sink.parallelism'", "'0'")),
}  # fmt: skip


def use(connector: str, side: Side, given: Mapping[str, Any]) -> KafkaTable:
    """Open a table for reading or writing, as far as that goes without a broker: there is none."""
    options = {**GIVEN[connector], **given}
    if side is READ:
        return KafkaTable.of(Connector(connector), named(options), schema_of(COLUMNS), READ)
    return Sink.open(Connector(connector), named(options), schema_of(COLUMNS), is_stream=False).table


@pytest.mark.parametrize("case", CASES)
def test_each_message_of_flinks_has_one_that_names_the_same_option(case: str) -> None:
    connector, sides, given, words = CASES[case]
    for side in sides:
        with pytest.raises(InvalidInputError) as caught:
            use(connector, side, given)
        assert not [word for word in words if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize("case", ["one buffer option only", "exactly-once without prefix", "sink.parallelism = 0"])
def test_a_table_that_is_only_read_does_not_mind_what_is_wrong_with_its_sink(case: str) -> None:
    connector, _, given, _ = CASES[case]
    assert use(connector, READ, given).options.topics == ("t",)


def test_a_group_is_generated_where_flink_asks_for_one() -> None:
    """Its message "Property group.id is required" has no counterpart: see C04."""
    table = KafkaTable.of(Connector.KAFKA, named(GIVEN["kafka"]), schema_of(COLUMNS), READ)
    assert table.options.group_id == "KafkaSource-t"


def test_an_enforced_primary_key_is_refused() -> None:
    with pytest.raises(SqlError, match="NOT ENFORCED"):
        parse("CREATE TABLE t (a INT, PRIMARY KEY (a)) WITH ('connector' = 'upsert-kafka')")


def test_updates_into_a_standard_table_name_the_mode_and_the_way_out(spark: Any, tmp_path: Path) -> None:
    counted = spark.readStream.format("rate").load().groupBy("value").count()
    given = {**named(GIVEN["kafka"]), "checkpointLocation": str(tmp_path)}
    with pytest.raises(InvalidInputError, match=r"doesn't support consuming update changes.*'update'.*'upsert-kafka'"):
        write_stream(counted, "kafka", given, output_mode="update")
