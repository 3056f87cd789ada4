"""The options of both connectors: what is required, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.connectors.option_names import SUPPORTED, Connector, Side
from tablestore.connectors.options import ConnectorOptions, Guarantee, parse_options
from tests.connectors.harness.lab import Lab, named
from tests.connectors.harness.wire import Record

Topics = Callable[..., str]
KV = "k INT, v STRING"
BASE = {"topic": "t", "properties__bootstrap__servers": "h1:1,h2:2"}
KAFKA = {**BASE, "format": "json"}
UPSERT = {**BASE, "key__format": "json", "value__format": "json", "primary_key": "k"}


def kafka(side: Side | None = None, **given: Any) -> ConnectorOptions:
    return parse_options(Connector.KAFKA, named({**KAFKA, **given}), side)


def upsert(side: Side | None = None, **given: Any) -> ConnectorOptions:
    return parse_options(Connector.UPSERT, named({**UPSERT, **given}), side)


def test_o01_o12_connector_of_an_upsert_table_is_upsert_kafka(lab: Lab, made: Topics) -> None:
    """`connector` = `upsert-kafka`: reads return one row for each key, writes are upserts; another value is
    rejected."""
    topic = made(cleanup_policy="compact")
    given = {"primary_key": "k", "connector": "upsert-kafka"}
    lab.write(topic, KV, [(1, "a"), (1, "b")], "upsert-kafka", **given)
    assert lab.upsert(topic, KV, "k", **given) == [{"k": 1, "v": "b"}]
    with pytest.raises(InvalidInputError, match="expected 'upsert-kafka' here, got 'kafka'"):
        upsert(connector="kafka")


def test_o25_connector_of_a_standard_table_is_kafka(lab: Lab, made: Topics) -> None:
    """`connector` = `kafka`: an append-only table."""
    topic = made()
    lab.write(topic, KV, [(1, "a"), (1, "b")], connector="kafka")
    assert len(lab.read(topic, KV)) == 2
    with pytest.raises(InvalidInputError, match="expected 'kafka' here, got 'kafka-table'"):
        kafka(connector="kafka-table")


def test_o02_o13_topic_is_where_rows_are_written_and_read(lab: Lab, made: Topics) -> None:
    """`topic` of an upsert table: one topic or a list; it or `topic-pattern` is required."""
    topic, other = made(cleanup_policy="compact"), made()
    lab.write(topic, KV, [(1, "a")], "upsert-kafka", primary_key="k")
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "a"}]
    assert lab.wire.values(other) == []
    lab.write(other, KV, [(2, "b")], "upsert-kafka", primary_key="k")
    assert lab.upsert(f"{topic};{other}", KV, "k") == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    assert lab.upsert(None, KV, "k", topic_pattern=f"{topic}|{other}") == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    with pytest.raises(InvalidInputError, match="Either 'topic' or 'topic-pattern' must be set"):
        upsert(topic=None)


def test_o03_o14_o28_servers_are_a_list_of_which_one_will_do(lab: Lab, made: Topics) -> None:
    """`properties.bootstrap.servers`: a comma-separated list, of which one broker has to answer; required."""
    topic = made()
    servers = f"127.0.0.1:1,{lab.wire.servers}"
    lab.write(topic, KV, [(1, "a")], properties__bootstrap__servers=servers)
    assert lab.read(topic, KV, properties__bootstrap__servers=servers) == [{"k": 1, "v": "a"}]
    for parse in (kafka, upsert):
        with pytest.raises(InvalidInputError, match=r"Missing required options are: properties\.bootstrap\.servers"):
            parse(properties__bootstrap__servers=None)


def test_o04_o15_properties_are_passed_on_and_deserializers_are_not(lab: Lab, made: Topics) -> None:
    """`properties.*`: options of the client, without the prefix; `key.deserializer` has no effect."""
    topic = made()
    given = {
        "properties__client__id": "abc",
        "properties__key__deserializer": "x",
        "properties__value__deserializer": "y",
    }
    lab.write(topic, KV, [(1, "a")], **given)
    assert lab.read(topic, KV, **given) == [{"k": 1, "v": "a"}]
    config = kafka(**given).properties.config
    assert config == {"bootstrap.servers": "h1:1,h2:2", "client.id": "abc"}
    with pytest.raises(InvalidInputError, match=r"'properties\.no\.such\.option'"):
        lab.read(topic, KV, properties__no__such__option="1")


def test_p04_deserializers_cannot_be_set(lab: Lab) -> None:
    """`key.deserializer` and `value.deserializer` are ignored, as in Flink."""
    assert "key.deserializer" not in kafka(properties__key__deserializer="x").properties.config


def test_o05_o16_key_format_of_an_upsert_table_is_required(lab: Lab, made: Topics) -> None:
    """`key.format`: the key has exactly the columns of the PRIMARY KEY, in that format."""
    topic = made(cleanup_policy="compact")
    lab.write(topic, KV, [(1, "a")], "upsert-kafka", primary_key="k")
    assert lab.wire.read(topic)[0].key == b'{"k":1}'
    with pytest.raises(InvalidInputError, match=r"required format option 'key\.format'"):
        upsert(key__format=None)


def test_o07_o18_value_format_of_an_upsert_table_is_required(lab: Lab, made: Topics) -> None:
    """`value.format`: the value is in that format."""
    topic = made(cleanup_policy="compact")
    lab.write(topic, KV, [(1, "a")], "upsert-kafka", primary_key="k")
    assert lab.wire.values(topic) == [b'{"k":1,"v":"a"}']
    with pytest.raises(InvalidInputError, match=r"required format option 'value\.format'"):
        upsert(value__format=None)


def test_o33_format_is_that_of_key_and_value(lab: Lab, made: Topics) -> None:
    """`format` alone is enough; a table without a format is an error."""
    topic = made()
    lab.write(topic, KV, [(1, "a")])
    assert lab.read(topic, KV) == [{"k": 1, "v": "a"}]
    with pytest.raises(InvalidInputError, match=r"'value\.format' or 'format'"):
        kafka(format=None)
    with pytest.raises(InvalidInputError, match="format must be one of"):
        lab.read(topic, KV, format="xml")


def test_c07_format_sets_the_keys_too_and_contradicts_another_value_format(lab: Lab, made: Topics) -> None:
    """`format` with `key.fields` is the format of keys too; `format` with another `value.format` is an error."""
    topic = made()
    lab.write(topic, KV, [(1, "a")], key__fields="k")
    assert lab.wire.pairs(topic) == [(b'{"k":1}', b'{"k":1,"v":"a"}')]
    with pytest.raises(InvalidInputError, match=r"'format'='json' and 'value\.format'='csv' contradict"):
        kafka(value__format="csv")


def test_o34_o36_key_and_value_format_of_a_standard_table(lab: Lab, made: Topics) -> None:
    """`key.format`, `value.format`: the formats of both sides; a key format needs `key.fields`."""
    topic = made()
    keyed = {"key__format": "json", "key__fields": "k", "value__format": "json"}
    lab.write(topic, KV, [(1, "a")], **keyed)
    assert lab.wire.pairs(topic) == [(b'{"k":1}', b'{"k":1,"v":"a"}')]
    with pytest.raises(InvalidInputError, match=r"requires the declaration of .* key fields using 'key\.fields'"):
        kafka(key__format="json")


def test_o35_key_fields_are_the_keys_columns_in_their_order(lab: Lab, made: Topics) -> None:
    """`key.fields` = `b;a`: the key is `{"b":..,"a":..}`; an unknown field is an error that names it."""
    topic = made()
    keyed = {"key__format": "json", "key__fields": "b;a", "value__format": "json"}
    lab.write(topic, "a INT, b INT", [(1, 2)], **keyed)
    assert lab.wire.pairs(topic) == [(b'{"b":2,"a":1}', b'{"a":1,"b":2}')]
    with pytest.raises(InvalidInputError, match="Could not find the field 'zz' in the table schema"):
        lab.read(topic, "a INT", **{**keyed, "key__fields": "zz"})
    with pytest.raises(InvalidInputError, match=r"'key\.fields' can only be declared if a key format is defined"):
        kafka(format=None, value__format="json", key__fields="a")
    with pytest.raises(InvalidInputError, match=r"'key\.fields' names a column twice"):
        kafka(key__fields="a;a")


def test_p02_the_idle_timeout_is_no_option_of_a_table(lab: Lab) -> None:
    """`table.exec.source.idle-timeout` is a setting of the session, and unknown as an option of a table."""
    with pytest.raises(InvalidInputError, match="Unsupported options"):
        kafka(table__exec__source__idle_timeout="1 s")


def test_p05_ignore_parse_errors_skips_a_key_that_is_none(lab: Lab, made: Topics) -> None:
    """`key.json.ignore-parse-errors`: `true` skips a message with an invalid key; by default an error names it."""
    topic = made()
    lab.wire.send(topic, [Record(b'{"k":1,"v":"a"}', b"no json"), Record(b'{"k":2,"v":"b"}', b'{"k":2}')])
    assert lab.upsert(topic, KV, "k", key__json__ignore_parse_errors="true") == [{"k": 2, "v": "b"}]
    with pytest.raises(Exception, match=rf"topic '{topic}', partition 0, offset 0, key \(json\)"):
        lab.upsert(topic, KV, "k")


def test_p06_fail_on_missing_field_decides_about_fields_that_are_not_there(lab: Lab, made: Topics) -> None:
    """`value.json.fail-on-missing-field`: `false` reads a missing field as NULL, `true` is an error that names it."""
    topic = made()
    lab.wire.send(topic, [Record(b'{"k":1}', b'{"k":1}')])
    assert lab.upsert(topic, KV, "k", value__json__fail_on_missing_field="false") == [{"k": 1, "v": None}]
    with pytest.raises(Exception, match="field 'v'"):
        lab.upsert(topic, KV, "k", value__json__fail_on_missing_field="true")


def test_p07_b34_format_options_are_prefixed_with_side_and_format(lab: Lab, made: Topics) -> None:
    """`key.<format>.<option>`, `value.<format>.<option>`: options of one side; those of another format are unknown."""
    topic = made()
    lab.wire.send(topic, [Record(b"no json", b'{"k":1}'), Record(b'{"k":2,"v":"b"}', b'{"k":2}')])
    assert lab.upsert(topic, KV, "k", value__json__ignore_parse_errors="true") == [{"k": 2, "v": "b"}]
    with pytest.raises(Exception, match=r"value \(json\)"):
        lab.upsert(topic, KV, "k", key__json__ignore_parse_errors="true")
    with pytest.raises(InvalidInputError, match=r"Unsupported options.*key\.csv\.ignore-parse-errors"):
        upsert(key__csv__ignore_parse_errors="true")
    with pytest.raises(InvalidInputError, match=r"value\.json\.no-such"):
        lab.upsert(topic, KV, "k", value__json__no_such="1")


def test_g08_formats_know_their_own_options(lab: Lab) -> None:
    """Unknown options of a format are rejected, and so are both JSON flags together."""
    with pytest.raises(InvalidInputError, match=r"fail-on-missing-field.*both|ignore-parse-errors.*both|both"):
        lab.read("t", KV, json__fail_on_missing_field="true", json__ignore_parse_errors="true")
    with pytest.raises(InvalidInputError, match=r"json\.ignore-parse-error"):
        lab.read("t", KV, json__ignore_parse_error="true")


def test_p10_i08_no_jar_is_needed() -> None:
    """`flink-connector-kafka.version`: no jar is needed; confluent-kafka is installed with the package."""
    from importlib.metadata import requires  # noqa: PLC0415

    assert any(need.startswith("confluent-kafka") for need in requires("tablestore") or [])


def test_c01_buffer_options_are_the_newer_pages(lab: Lab) -> None:
    """`sink.buffer-flush.*` exist only on `upsert-kafka`."""
    assert upsert(sink__buffer_flush__max_rows=5, sink__buffer_flush__interval="1 s").buffer_rows == 5
    with pytest.raises(InvalidInputError, match=r"Unsupported options.*sink\.buffer-flush\.max-rows"):
        kafka(sink__buffer_flush__max_rows=5)


def test_c20_durations_take_units_and_a_number_alone_is_milliseconds() -> None:
    """`sink.buffer-flush.interval`: `1000`, `1s`, `1 s` and `1000 ms` are the same, `0` is off."""
    for text in ("1000", "1s", "1 s", "1000 ms", "1 second"):
        assert upsert(sink__buffer_flush__interval=text).buffer_ms == 1000
    assert upsert(sink__buffer_flush__interval="1 min").buffer_ms == 60_000
    assert upsert(sink__buffer_flush__interval="0").buffer_ms == 0
    with pytest.raises(InvalidInputError, match="expected a duration"):
        upsert(sink__buffer_flush__interval="soon")


def test_c22_sink_partitioner_is_no_option_of_an_upsert_table() -> None:
    """An upsert table is always partitioned by its key."""
    with pytest.raises(InvalidInputError, match=r"Unsupported options.*sink\.partitioner.*partitioned by its key"):
        upsert(sink__partitioner="fixed")


def test_c26_the_options_that_the_standard_page_omits_are_there(lab: Lab, made: Topics) -> None:
    """`properties.*`, `key.fields-prefix` and `sink.parallelism` exist on `kafka` too."""
    topic = made()
    given = {
        "format": None, "value__format": "json", "key__format": "json", "key__fields": "k_id",
        "key__fields_prefix": "k_", "value__fields_include": "EXCEPT_KEY", "sink__parallelism": 1,
        "properties__client__id": "x",
    }  # fmt: skip
    lab.write(topic, "k_id INT, v STRING", [(1, "a")], **given)
    assert lab.wire.pairs(topic) == [(b'{"id":1}', b'{"v":"a"}')]


def test_c13_each_kind_of_table_has_its_own_vocabulary() -> None:
    """`kafka.topic` and `log.*` are options of store tables; the connectors reject them."""
    for name in ("kafka__topic", "kafka__bootstrap__servers", "log__system"):
        with pytest.raises(InvalidInputError, match="Unsupported options"):
            kafka(**{name: "x"})


def test_c12_the_connectors_guarantee_is_at_least_once_unless_told() -> None:
    """Sinks are at-least-once by default, unlike the log of a store table."""
    assert kafka(Side.SINK).guarantee is Guarantee.AT_LEAST_ONCE
    assert upsert(Side.SINK).guarantee is Guarantee.AT_LEAST_ONCE


def test_c02_c27_the_newer_pages_names_are_the_options() -> None:
    """The options are those of the newer version of the page."""
    names = {
        "topic", "properties.bootstrap.servers", "key.format", "key.fields-prefix", "value.format",
        "value.fields-include", "sink.parallelism", "sink.buffer-flush.max-rows", "sink.buffer-flush.interval",
    }  # fmt: skip
    assert names <= set(SUPPORTED[Connector.UPSERT])


def test_an_unknown_option_is_refused_with_the_nearest_and_all(lab: Lab) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kafka(sink__parallelizm=2)
    text = str(caught.value)
    assert "Unsupported options found for 'kafka': sink.parallelizm" in text
    assert "Did you mean 'sink.parallelism'?" in text
    assert all(name in text for name in SUPPORTED[Connector.KAFKA])
    with pytest.raises(InvalidInputError, match=r"sink\.semantic\. Use 'sink\.delivery-guarantee'"):
        upsert(sink__semantic="exactly-once")


def test_the_name_of_the_guarantee_until_flink_1_14_is_taken() -> None:
    once = kafka(sink__semantic="exactly-once", sink__transactional_id_prefix="p")
    assert once == kafka(sink__delivery_guarantee="exactly-once", sink__transactional_id_prefix="p")
    assert kafka(sink__semantic="none", sink__delivery_guarantee="at-least-once").guarantee == "none"


def test_partitions_of_an_upsert_table_are_looked_for_as_those_of_others() -> None:
    assert upsert(scan__topic_partition_discovery__interval="1 s").discovery_ms == 1000
    assert upsert().discovery_ms == kafka().discovery_ms == 300_000


def test_g01_names_are_taken_in_any_case() -> None:
    """Option names are case-insensitive and mean the same for sources and sinks; Flink's "Forwarded" has no meaning
    here."""
    parsed = parse_options(Connector.KAFKA, {name.upper(): value for name, value in named(KAFKA).items()}, None)
    assert parsed == kafka()


def test_a_primary_key_on_a_standard_table_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="can't guarantee the semantic of primary key"):
        kafka(primary_key="k")


def test_topic_and_pattern_exclude_each_other() -> None:
    with pytest.raises(InvalidInputError, match="'topic' and 'topic-pattern' shouldn't be set together"):
        kafka(topic_pattern="a.*")


def test_a_metadata_column_is_no_key(lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match="must be a regular, physical column"):
        lab.read("t", "o BIGINT, v STRING", key__fields="o", metadata__o="offset")


def test_a_precision_is_of_a_timestamp_column(lab: Lab, made: Topics) -> None:
    import datetime as dt  # noqa: PLC0415

    topic = made()
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 600_000)
    lab.write(topic, "ts TIMESTAMP", [(moment,)], precision__ts=3)
    assert lab.read(topic, "ts TIMESTAMP", precision__ts=3) == [{"ts": moment}]
    for given, word in [
        ({"precision__v": 3}, "must be a timestamp or a time"),
        ({"precision__x": 3}, "no column"),
        ({"precision__v": 7}, "0 to 6"),
        ({"precision__v__element": 3}, "no column"),
    ]:
        with pytest.raises(InvalidInputError, match=word):
            lab.read("t", KV, **given)


def test_a_missing_topic_is_named_with_its_brokers(lab: Lab) -> None:
    with pytest.raises(NotFoundError, match=r"there is no topic 'nowhere' at properties\.bootstrap\.servers='"):
        lab.read("nowhere", KV)
