"""The upsert source: the newest row of each key, and a stream of what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from snapshot.errors import CorruptedError, InvalidInputError
from tests.connectors.harness.lab import Lab
from tests.connectors.harness.wire import Record
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
KV = "k INT, v STRING"
CHANGES = f"{KV}, _change_type STRING"


def up(k: int, v: str | None, partition: int = 0) -> Record:
    """Make the record that sets or, without a value, deletes a key."""
    return Record(None if v is None else f'{{"k":{k},"v":"{v}"}}'.encode(), f'{{"k":{k}}}'.encode(), partition)


def test_b08_a_read_is_unique_on_the_primary_key(lab: Lab, made: Topics) -> None:
    """Whatever the topic holds, each key has one row."""
    topic = made(3)
    lab.wire.send(topic, [up(k, f"{n}-{k}", k % 3) for n in range(20) for k in range(10)])
    assert lab.upsert(topic, KV, "k") == [{"k": k, "v": f"19-{k}"} for k in range(10)]


def test_b04_a_row_with_the_same_key_is_overwritten(lab: Lab, made: Topics) -> None:
    """A batch read of N updates of one key has one row, the last."""
    topic = made()
    lab.wire.send(topic, [up(1, str(n)) for n in range(100)])
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "99"}]


def test_b03_a_null_value_deletes_the_key(lab: Lab, made: Topics) -> None:
    """A tombstone deletes its key; a value after it is a row again."""
    topic = made()
    lab.wire.send(topic, [up(1, "a"), up(1, None), up(2, "b"), up(2, None), up(2, "c"), up(3, None)])
    assert lab.upsert(topic, KV, "k") == [{"k": 2, "v": "c"}]


def test_b15_reading_a_compacted_topic_gives_the_latest_values(lab: Lab, made: Topics) -> None:
    """Five versions of one key are read as the last one."""
    topic = made(cleanup_policy="compact")
    for n in range(5):
        lab.write(topic, KV, [(1, str(n))], "upsert-kafka", primary_key="k")
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "4"}]


def test_b13_b15_a_stream_goes_on_while_the_broker_compacts(lab: Lab, made: Topics) -> None:
    """While the broker compacts the topic and removes tombstones, a stream and a batch read both end at the newest
    values."""
    soon = {"segment_ms": "100", "max_compaction_lag_ms": "100", "min_cleanable_dirty_ratio": "0.001"}
    topic = made(cleanup_policy="compact", delete_retention_ms="0", **soon)
    # A stream that had seen 2 and 4 would not hear of their deletes once the tombstones are gone: that is Kafka's rule.
    begun = [up(k, str(n)) for n in range(3) for k in (1, 3)]
    lab.wire.send(topic, begun + [up(k, str(n)) for n in range(9) for k in (1, 2, 3, 4)] + [up(2, None), up(4, None)])
    stream = lab.stream(topic, CHANGES, "upsert-kafka", primary_key="k")
    start = stream.reader.initialOffset()
    stream.at = stream.reader.latestOffset(start, ReadMaxRows(len(begun)))
    rows = stream.rows(start, stream.at)
    until, beats = time.monotonic() + PATIENCE_SECONDS, 0
    while len(left := [each.key for each in lab.wire.read(topic) if each.key != b'{"k":0}']) > 2:
        assert time.monotonic() < until, f"the broker does not compact: {left}"
        # Only what a later write has closed is compacted.
        lab.wire.send(topic, [up(0, str(beats))])
        beats += 1
    rows += stream.run(ReadMaxRows(6))
    newest = {row["k"]: row for row in rows}
    assert [(k, row["v"]) for k, row in sorted(newest.items()) if row["_change_type"] != "delete"] == [
        (0, str(beats - 1)), (1, "8"), (3, "8"),
    ]  # fmt: skip
    assert lab.upsert(topic, KV, "k") == [{"k": k, "v": v} for k, v in [(0, str(beats - 1)), (1, "8"), (3, "8")]]


def test_c06_an_upsert_source_begins_at_the_earliest_offset(lab: Lab, made: Topics) -> None:
    """An upsert table is read from the earliest offset; `scan.startup.*` is rejected."""
    topic = made()
    lab.wire.send(topic, [up(1, "a")])
    lab.wire.commit(f"KafkaSource-{topic}", topic, 1)
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "a"}]
    with pytest.raises(InvalidInputError, match=r"Unsupported options.*scan\.startup\.mode.*earliest"):
        lab.upsert(topic, KV, "k", scan__startup__mode="latest-offset")


def test_b02_a_stream_of_upserts_and_deletes(lab: Lab, made: Topics) -> None:
    """A stream of an upsert table has upserts and deletes, the last of each key in a micro-batch."""
    topic = made()
    stream = lab.stream(topic, CHANGES, "upsert-kafka", primary_key="k")
    lab.wire.send(topic, [up(1, "a"), up(1, "b"), up(2, "c")])
    assert stream.run() == [
        {"k": 1, "v": "b", "_change_type": "update_postimage"},
        {"k": 2, "v": "c", "_change_type": "update_postimage"},
    ]
    lab.wire.send(topic, [up(1, None)])
    assert stream.run() == [{"k": 1, "v": None, "_change_type": "delete"}]


def test_b07_an_upsert_table_needs_a_primary_key(lab: Lab) -> None:
    """An upsert table without PRIMARY KEY is an error, for reads and writes."""
    with pytest.raises(InvalidInputError, match="'upsert-kafka' tables require to define a PRIMARY KEY"):
        lab.read("t", KV, "upsert-kafka")
    with pytest.raises(InvalidInputError, match="'upsert-kafka' tables require to define a PRIMARY KEY"):
        lab.write("t", KV, [(1, "a")], "upsert-kafka")


def test_b09_the_primary_key_decides_what_is_in_the_messages_key(lab: Lab, made: Topics) -> None:
    """With PRIMARY KEY (b, a), the message key has exactly b and a."""
    topic = made(cleanup_policy="compact")
    lab.write(topic, "a INT, b INT, c INT", [(1, 2, 3)], "upsert-kafka", primary_key="b, a")
    assert lab.wire.pairs(topic) == [(b'{"b":2,"a":1}', b'{"a":1,"b":2,"c":3}')]
    assert lab.upsert(topic, "a INT, b INT, c INT", "b,a") == [{"a": 1, "b": 2, "c": 3}]


def test_b10_key_and_value_format_are_required(lab: Lab) -> None:
    """Both formats are required; the error names the missing one."""
    for left_out in ("key.format", "value.format"):
        name = left_out.replace(".", "__")
        with pytest.raises(InvalidInputError, match=f"'{left_out}'"):
            lab.upsert("t", KV, "k", **{name: None})


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
def test_b36_o08_o19_o37_fields_include_decides_where_key_columns_are(lab: Lab, made: Topics, connector: str) -> None:
    """`value.fields-include`: with `ALL`, key columns are in key and value; with `EXCEPT_KEY`, only in the key."""
    more = {"primary_key": "k"} if connector == "upsert-kafka" else {"key__fields": "k"}
    formats = {"key__format": "json", "value__format": "json"}
    for include, value in [("ALL", b'{"k":1,"v":"a"}'), ("EXCEPT_KEY", b'{"v":"a"}'), ("except_key", b'{"v":"a"}')]:
        topic = made(cleanup_policy="compact")
        lab.write(topic, KV, [(1, "a")], connector, **formats, value__fields_include=include, **more)
        assert lab.wire.pairs(topic) == [(b'{"k":1}', value)]
        found = lab.read(topic, KV, connector, **formats, value__fields_include=include, **more)
        assert found == [{"k": 1, "v": "a"}]
    with pytest.raises(InvalidInputError, match="'all' or 'except_key'"):
        lab.read("t", KV, connector, **formats, value__fields_include="NONE", **more)


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
def test_b37_o06_o17_a_prefix_keeps_names_of_key_and_value_apart(lab: Lab, made: Topics, connector: str) -> None:
    """`key.fields-prefix`: the message key has the names without the prefix; it needs `EXCEPT_KEY`."""
    topic = made(cleanup_policy="compact")
    key = {"primary_key": "k_id"} if connector == "upsert-kafka" else {"key__fields": "k_id"}
    formats = {"key__format": "json", "value__format": "json", "key__fields_prefix": "k_", **key}
    columns = "k_id INT, id STRING"
    lab.write(topic, columns, [(1, "x")], connector, **formats, value__fields_include="EXCEPT_KEY")
    assert lab.wire.pairs(topic) == [(b'{"id":1}', b'{"id":"x"}')]
    found = lab.read(topic, columns, connector, **formats, value__fields_include="EXCEPT_KEY")
    assert found == [{"k_id": 1, "id": "x"}]


def test_c25_a_prefix_with_all_is_an_error(lab: Lab) -> None:
    """`value.fields-include` = `ALL` (the default) with `key.fields-prefix` is rejected."""
    with pytest.raises(InvalidInputError, match=r"key prefix .* is not allowed when option 'value.fields-include'"):
        lab.upsert("t", "k_id INT, id STRING", "k_id", key__fields_prefix="k_")


def test_c03_key_fields_is_no_option_of_an_upsert_table(lab: Lab) -> None:
    """`key.fields` is rejected on an upsert table with a hint at PRIMARY KEY, whose columns have the prefix."""
    with pytest.raises(InvalidInputError, match=r"Unsupported options.*key\.fields.*PRIMARY KEY"):
        lab.upsert("t", KV, "k", key__fields="k")
    with pytest.raises(InvalidInputError, match=r"must be prefixed with 'k_' .* but field 'id' is not prefixed"):
        lab.upsert("t", "id INT, v STRING", "id", key__fields_prefix="k_", value__fields_include="EXCEPT_KEY")


def test_p01_with_a_prefix_key_fields_carries_prefixed_names(lab: Lab) -> None:
    """On a `kafka` table, the names in `key.fields` have the prefix."""
    keyed = {"key__format": "json", "value__format": "json", "key__fields_prefix": "k_"}
    with pytest.raises(InvalidInputError, match=r"All fields in 'key.fields' must be prefixed with 'k_'"):
        lab.read("t", "id INT, v STRING", **keyed, key__fields="id", value__fields_include="EXCEPT_KEY")


def test_g12_a_row_of_nothing_but_its_key_is_a_row(lab: Lab, made: Topics) -> None:
    """`EXCEPT_KEY` with all columns in the key: the value is an empty record, not null, which would be a delete."""
    topic = made(cleanup_policy="compact")
    given = {"value__fields_include": "EXCEPT_KEY"}
    lab.write(topic, "k INT", [(1,), (2,)], "upsert-kafka", primary_key="k", **given)
    assert lab.wire.values(topic) == [b"{}", b"{}"]
    lab.write(topic, "k INT, _change_type STRING", [(2, "delete")], "upsert-kafka", primary_key="k", **given)
    assert lab.upsert(topic, "k INT", "k", **given) == [{"k": 1}]


def test_g13_where_key_and_value_disagree_the_value_wins(lab: Lab, made: Topics) -> None:
    """With `ALL`, a message whose key and value differ is read by its value."""
    topic = made()
    lab.wire.send(topic, [Record(b'{"k":2,"v":"a"}', b'{"k":1}')])
    assert lab.upsert(topic, KV, "k") == [{"k": 2, "v": "a"}]


def test_b35_key_and_value_have_a_format_each(lab: Lab, made: Topics) -> None:
    """Options of one side do not affect the other."""
    topic = made()
    lab.wire.send(topic, [Record(b'{"k":1,"v":"a"}', b"no json"), up(2, "b")])
    assert lab.upsert(topic, KV, "k", key__json__ignore_parse_errors="true") == [{"k": 2, "v": "b"}]


def test_a_message_that_is_no_row_does_not_replace_the_one_before(lab: Lab, made: Topics) -> None:
    topic = made()
    records = [Record(b'{"k":1,"v":"a"}', b'{"k":1}'), Record(b"not JSON", b'{"k":1}'), Record(b"{}", None)]
    lab.wire.send(topic, [*records, Record(b'{"k":2,"v":"b"}', b'{"k":2}'), Record(b'{"k":2,"v":"c"}', b'{"k":2}')])
    expected = [{"k": 1, "v": "a"}, {"k": 2, "v": "c"}]
    assert lab.upsert(topic, KV, "k", value__json__ignore_parse_errors="true") == expected
    with pytest.raises(CorruptedError, match="offset 1, value"):
        lab.upsert(topic, KV, "k")


def test_a_null_in_the_primary_key_is_refused(lab: Lab, made: Topics) -> None:
    topic = made(cleanup_policy="compact")
    with pytest.raises(InvalidInputError, match="'k' is part of the PRIMARY KEY and must not be NULL; 1 of 2"):
        lab.write(topic, KV, [(1, "a"), (None, "b")], "upsert-kafka", primary_key="k")


def test_a_message_without_a_key_is_no_row_of_an_upsert_table(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, [Record(b'{"k":1,"v":"a"}'), Record(None), up(2, "b")])
    assert lab.upsert(topic, KV, "k") == [{"k": 2, "v": "b"}]


def test_keys_that_differ_in_their_text_only_are_one_key(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, [up(1, "a"), Record(b'{"k":1,"v":"b"}', b'{ "k": 1 }')])
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "b"}]


def test_a_topic_that_grew_gives_a_row_for_each_partition_that_holds_the_key(lab: Lab, made: Topics) -> None:
    """Keys move when partitions are added; nothing in the old partition says that its row was replaced or deleted."""
    topic = made()
    lab.wire.send(topic, [up(1, "old"), up(2, "old"), up(3, "old")])
    lab.wire.grow(topic, 2)
    lab.wire.send(topic, [up(1, "new", 1), up(2, None, 1), up(4, "new", 1)])
    found = [(row["k"], row["v"]) for row in lab.upsert(topic, KV, "k")]
    assert sorted(found) == [(1, "new"), (1, "old"), (2, "old"), (3, "old"), (4, "new")]
    # What the page says to do: a new topic, to which the newer rows are written last.
    other = made()
    lab.wire.send(other, [up(1, "old"), up(2, "old"), up(3, "old"), up(1, "new"), up(2, None), up(4, "new")])
    assert [(row["k"], row["v"]) for row in lab.upsert(other, KV, "k")] == [(1, "new"), (3, "old"), (4, "new")]
