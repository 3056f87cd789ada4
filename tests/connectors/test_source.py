"""The standard source: which topics it reads, where it starts and ends, what it commits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from snapshot.errors import CorruptedError, DataLostError, InvalidInputError, NotFoundError
from tablestore.connectors.java_regex import compile_pattern
from tests.connectors.harness.lab import Lab, schema_of, shipped
from tests.connectors.harness.wire import Record
from tests.harness.waiting import PATIENCE_SECONDS, until

Topics = Callable[..., str]
N = "n INT"


def rows(*numbers: int, partition: int = 0) -> list[Record]:
    return [Record(json.dumps({"n": n}).encode(), partition=partition) for n in numbers]


def ns(found: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in found)


def test_b20_earliest_offset_reads_every_partition_from_its_start(lab: Lab, made: Topics) -> None:
    """`earliest-offset` starts at the earliest available offset of each partition."""
    topic = made(2)
    lab.wire.send(topic, rows(1, 2, 3) + rows(4, 5, 6, partition=1))
    assert ns(lab.read(topic, N)) == [1, 2, 3, 4, 5, 6]
    assert ns(lab.stream(topic, N).run()) == [1, 2, 3, 4, 5, 6]


def test_b21_latest_offset_reads_only_what_comes_after_the_start(lab: Lab, made: Topics) -> None:
    """`latest-offset` reads only new messages."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    stream = lab.stream(topic, N, scan__startup__mode="latest-offset")
    assert stream.run() == []
    lab.wire.send(topic, rows(4, 5))
    assert ns(stream.run()) == [4, 5]
    assert lab.read(topic, N, scan__startup__mode="latest-offset") == []


def test_b22_group_offsets_is_the_default_and_falls_back_to_latest(lab: Lab, made: Topics) -> None:
    """`group-offsets` starts at the group's committed offset, without one at the latest offset."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    lab.wire.commit(f"g-{topic}", topic, 2)
    assert ns(lab.read(topic, N, scan__startup__mode=None, properties__group__id=f"g-{topic}")) == [3]
    new = lab.stream(topic, N, scan__startup__mode=None, properties__group__id=f"new-{topic}")
    assert new.run() == []
    lab.wire.send(topic, rows(4))
    assert ns(new.run()) == [4]


def test_c05_auto_offset_reset_says_where_a_group_without_offsets_begins(lab: Lab, made: Topics) -> None:
    """A group without a committed offset starts at the latest offset, unless `properties.auto.offset.reset` is set."""
    topic = made()
    lab.wire.send(topic, rows(1, 2))
    read = {"scan__startup__mode": "group-offsets", "properties__group__id": f"g-{topic}"}
    assert ns(lab.read(topic, N, **read, properties__auto__offset__reset="earliest")) == [1, 2]
    assert lab.read(topic, N, **read, properties__auto__offset__reset="latest") == []
    with pytest.raises(InvalidInputError, match=r"auto\.offset\.reset' is 'none'"):
        lab.read(topic, N, **read, properties__auto__offset__reset="none")


def test_b28_offsets_are_committed_after_each_completed_micro_batch(lab: Lab, made: Topics) -> None:
    """After a micro-batch, the group's offset follows the last processed message; a new query reads nothing twice."""
    topic = made()
    group = f"g-{topic}"
    lab.wire.send(topic, rows(1, 2, 3))
    stream = lab.stream(topic, N, properties__group__id=group, maxRowsPerTrigger=2)
    reader = stream.reader
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert ns(stream.rows(begin, first)) == [1, 2]
    assert lab.wire.committed(group, topic) == [-1001], "committed before the micro-batch was complete"
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    # The group's offset is committed beside the start of the next micro-batch, which is planned only after that.
    assert ns(stream.rows(first, second)) == [3]
    assert lab.wire.committed(group, topic) == [2]
    assert reader.latestOffset(second, reader.getDefaultReadLimit()) == second
    assert lab.wire.committed(group, topic) == [3]
    lab.wire.send(topic, rows(4))
    again = lab.stream(topic, N, properties__group__id=group, scan__startup__mode="group-offsets")
    assert ns(again.run()) == [4]


@pytest.mark.parametrize("mode", ["latest-offset", "group-offsets"])
def test_a_query_that_reads_nothing_commits_where_it_starts(lab: Lab, made: Topics, mode: str) -> None:
    """As in Flink, so that messages between two queries of a group are not lost."""
    topic = made()
    group = f"g-{topic}"
    lab.wire.send(topic, rows(1, 2))
    reader = lab.stream(topic, N, properties__group__id=group, scan__startup__mode=mode).reader
    begin = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin
    assert lab.wire.committed(group, topic) == [2]
    lab.wire.send(topic, rows(3))
    again = lab.stream(topic, N, properties__group__id=group, scan__startup__mode="group-offsets")
    assert ns(again.run()) == [3]


def test_a_stopped_query_has_committed_its_complete_micro_batches(lab: Lab, made: Topics) -> None:
    topic = made()
    group = f"g-{topic}"
    lab.wire.send(topic, rows(1, 2, 3))
    stream = lab.stream(topic, N, properties__group__id=group, maxRowsPerTrigger=2)
    reader = stream.reader
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert ns(stream.rows(begin, first)) == [1, 2]
    reader.latestOffset(first, reader.getDefaultReadLimit())
    reader.stop()
    assert lab.wire.committed(group, topic) == [2]


def test_a_progress_report_shows_an_end_that_is_at_most_a_second_old(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    reader = lab.stream(topic, N, maxRowsPerTrigger=2).reader
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    lab.wire.send(topic, rows(4))
    # The end that the micro-batch was planned with costs no request.
    assert reader.reportLatestOffset()["at"] == {topic: {"0": 3}}
    time.sleep(1.1)
    assert reader.reportLatestOffset()["at"] == {topic: {"0": 4}}


def test_b23_timestamp_starts_at_the_first_record_that_is_not_older(lab: Lab, made: Topics) -> None:
    """`timestamp` starts at the first offset whose timestamp is at least `scan.startup.timestamp-millis`."""
    topic = made(2)
    lab.wire.send(topic, [Record(json.dumps({"n": t}).encode(), timestamp=t) for t in (1000, 2000, 3000)])
    mode = {"scan__startup__mode": "timestamp"}
    assert ns(lab.read(topic, N, **mode, scan__startup__timestamp_millis=2000)) == [2000, 3000]
    assert ns(lab.read(topic, N, **mode, scan__startup__timestamp_millis=2001)) == [3000]
    assert lab.read(topic, N, **mode, scan__startup__timestamp_millis=9000) == []


def test_o31_timestamp_mode_needs_its_option(lab: Lab) -> None:
    """`scan.startup.timestamp-millis`: required in mode `timestamp`, rejected in others."""
    with pytest.raises(InvalidInputError, match=r"'scan\.startup\.timestamp-millis' is required in 'timestamp'"):
        lab.read("t", N, scan__startup__mode="timestamp")
    with pytest.raises(InvalidInputError, match=r"scan\.startup\.timestamp-millis' needs"):
        lab.read("t", N, scan__startup__timestamp_millis=1)


def test_b24_specific_offsets_start_each_partition_where_it_says(lab: Lab, made: Topics) -> None:
    """`specific-offsets`: `partition:0,offset:42;partition:1,offset:300`, also for a single partition."""
    topic = made(2)
    lab.wire.send(topic, rows(0, 1, 2) + rows(10, 11, 12, partition=1))
    mode = {"scan__startup__mode": "specific-offsets"}
    both = "partition:0,offset:2;partition:1,offset:1"
    assert ns(lab.read(topic, N, **mode, scan__startup__specific_offsets=both)) == [2, 11, 12]
    one = "partition:0,offset:2"
    assert ns(lab.read(topic, N, **mode, scan__startup__specific_offsets=one)) == [2, 10, 11, 12]


@pytest.mark.parametrize("text", ["0:42;1:300", "partition:0", "partition:0,offset:1;", "partition:0, offset:1",
                                  "offset:1,partition:0", "partition:0,offset:1;partition:0,offset:2", ""])  # fmt: skip
def test_o32_other_offset_syntax_is_an_error_that_shows_the_right_one(lab: Lab, text: str) -> None:
    """`scan.startup.specific-offsets`: another syntax is rejected; the error quotes the expected one."""
    with pytest.raises(
        InvalidInputError, match="should follow the format 'partition:0,offset:42;partition:1,offset:300'"
    ):
        lab.read("t", N, scan__startup__mode="specific-offsets", scan__startup__specific_offsets=text)


def test_g05_offsets_out_of_range_or_not_listed_begin_at_the_earliest(lab: Lab, made: Topics) -> None:
    """Partitions that are not listed, or whose offset is out of range, start at the earliest offset; several topics, or
    an unknown partition, are errors."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    mode = {"scan__startup__mode": "specific-offsets"}
    assert ns(lab.read(topic, N, **mode, scan__startup__specific_offsets="partition:0,offset:99")) == [1, 2, 3]
    with pytest.raises(InvalidInputError, match=r"has partitions \[0\], not \[7\]"):
        lab.read(topic, N, **mode, scan__startup__specific_offsets="partition:7,offset:0")
    with pytest.raises(InvalidInputError, match="only supports specific offset for single topic"):
        lab.read(f"{topic};other", N, **mode, scan__startup__specific_offsets="partition:0,offset:0")


def test_b25_a_topic_list_is_separated_by_semicolons(lab: Lab, made: Topics) -> None:
    """`topic` = `a;b` reads both topics."""
    one, two = made(), made()
    lab.wire.send(one, rows(1))
    lab.wire.send(two, rows(2))
    found = lab.read(f"{one};{two}", "n INT, t STRING", metadata__t="topic")
    assert {(row["n"], row["t"]) for row in found} == {(1, one), (2, two)}


def test_o26_a_source_reads_one_or_more_topics_and_needs_one(lab: Lab, made: Topics) -> None:
    """`topic`: one name or a list, required for a source; the error for a missing topic names it."""
    topic = made()
    lab.wire.send(topic, rows(1))
    assert ns(lab.read(topic, N)) == [1]
    with pytest.raises(InvalidInputError, match="Either 'topic' or 'topic-pattern' must be set"):
        lab.read(None, N)
    with pytest.raises(NotFoundError, match="there is no topic 'no-such-topic'"):
        lab.read("no-such-topic", N)


def test_b26_a_pattern_finds_topics_that_are_made_while_it_reads(lab: Lab, made: Topics) -> None:
    """`topic-pattern`: a Java regular expression, matched repeatedly; new topics and partitions are read from their
    start."""

    first = made()
    lab.wire.send(first, rows(1))
    stream = lab.stream(
        None, N, topic_pattern=f"{first}(-more-[0-9]+)?", scan__topic_partition_discovery__interval="1 ms"
    )
    assert ns(stream.run()) == [1]
    lab.wire.make(f"{first}-more-2")
    lab.wire.make(f"{first}-more-x")
    lab.wire.send(f"{first}-more-2", rows(2))
    lab.wire.send(f"{first}-more-x", rows(99))
    assert ns(stream.run()) == [2]
    lab.wire.grow(first, 2)
    lab.wire.send(first, rows(3, partition=1))
    assert ns(stream.run()) == [3]
    assert sorted(lab.wire.committed(f"KafkaSource-{first}(-more-[0-9]+)?", first, [0, 1])) == [1, 1]


def test_o27_patterns_are_javas_and_match_whole_names(lab: Lab, made: Topics) -> None:
    """`topic-pattern`: Java's constructs work, and the pattern has to match the whole name."""
    topic = made()
    lab.wire.send(topic, rows(1))
    assert ns(lab.read(None, N, topic_pattern=rf"\Q{topic}\E")) == [1]
    assert lab.read(None, N, topic_pattern=topic[:-1]) == []
    assert compile_pattern(r"\Qa.b\E", "topic-pattern").fullmatch("a.b")
    assert not compile_pattern(r"\Qa.b\E", "topic-pattern").fullmatch("axb")
    assert compile_pattern(r"[a-z&&[^x]]++-\p{Digit}{2}", "topic-pattern").fullmatch("abc-12")
    assert not compile_pattern(r"[a-z&&[^x]]++-\p{Digit}{2}", "topic-pattern").fullmatch("axc-12")
    assert compile_pattern(r"(?<w>ab)-\k<w>", "topic-pattern").fullmatch("ab-ab")
    with pytest.raises(InvalidInputError, match="'topic-pattern'"):
        lab.read(None, N, topic_pattern="(")


def test_g04_new_partitions_are_found_within_the_interval(lab: Lab, made: Topics) -> None:
    """`scan.topic-partition-discovery.interval`: 5 minutes by default, 0 is off."""

    topic = made()
    assert lab.source("kafka", topic, {}).reader(schema_of(N))._table.options.discovery_ms == 300_000
    often = lab.stream(topic, N, scan__topic_partition_discovery__interval="1 ms")
    never = lab.stream(topic, N, scan__topic_partition_discovery__interval="0")
    assert often.run() == never.run() == []
    lab.wire.grow(topic, 2)
    lab.wire.send(topic, rows(5, partition=1))
    assert ns(often.run()) == [5]
    assert never.run() == []
    assert ns(often.run()) == []


def test_g03_b27_bounded_reads_end_where_they_say(lab: Lab, made: Topics) -> None:
    """`scan.bounded.mode`: where a read ends."""
    topic = made()
    lab.wire.send(topic, [Record(json.dumps({"n": t}).encode(), timestamp=t) for t in (1000, 2000, 3000)])
    specific = {"scan__bounded__mode": "specific-offsets", "scan__bounded__specific_offsets": "partition:0,offset:2"}
    assert ns(lab.read(topic, N, **specific)) == [1000, 2000]
    timed = {"scan__bounded__mode": "timestamp", "scan__bounded__timestamp_millis": 2000}
    assert ns(lab.read(topic, N, **timed)) == [1000]
    lab.wire.commit(f"g-{topic}", topic, 1)
    grouped = {"scan__bounded__mode": "group-offsets", "properties__group__id": f"g-{topic}"}
    assert ns(lab.read(topic, N, **grouped)) == [1000]
    bounds = [(specific, [1000, 2000]), (timed, [1000]), (grouped, [1000]), (None, [1000, 2000, 3000])]
    streams = [lab.stream(topic, N, **(bound or {"scan__bounded__mode": "latest-offset"})) for bound, _ in bounds]
    assert [ns(stream.run()) for stream in streams] == [expected for _, expected in bounds]
    lab.wire.send(topic, rows(4))
    assert [stream.run() for stream in streams] == [[], [], [], []]
    again = lab.stream(topic, N, **specific)
    again.at = json.loads(json.dumps(streams[0].at))
    assert again.run() == [], "a restart keeps the end in its checkpoint"
    with pytest.raises(InvalidInputError, match="is required in 'timestamp' bounded mode"):
        lab.read(topic, N, scan__bounded__mode="timestamp")


def test_a_read_cannot_end_at_offsets_that_the_group_does_not_have(lab: Lab, made: Topics) -> None:
    """As in Flink; but a partition without messages needs none."""
    topic = made(3)
    lab.wire.send(topic, rows(1, 2) + rows(11, partition=1))
    grouped = {"scan__bounded__mode": "group-offsets", "properties__group__id": f"g-{topic}"}
    lab.wire.commit(f"g-{topic}", topic, 1)
    message = rf"group 'g-{topic}' \('properties.group.id'\), which has none for \[\('{topic}', 1\)\]"
    with pytest.raises(InvalidInputError, match=message):
        lab.read(topic, N, **grouped)
    with pytest.raises(InvalidInputError, match=message):
        lab.stream(topic, N, **grouped).run()
    lab.wire.commit(f"g-{topic}", topic, 0, partition=1)
    assert ns(lab.read(topic, N, **grouped)) == [1]


def test_partitions_that_bounded_offsets_do_not_list_are_not_read(lab: Lab, made: Topics) -> None:
    """Flink's page: "If an offset for a partition is not provided it will not consume from that partition"."""
    topic = made(3)
    lab.wire.send(topic, rows(1, 2, 3) + rows(11, 12, partition=1) + rows(21, partition=2))
    bound = {
        "scan__bounded__mode": "specific-offsets",
        "scan__bounded__specific_offsets": "partition:0,offset:2;partition:2,offset:1",
    }
    assert ns(lab.read(topic, N, **bound)) == [1, 2, 21]
    stream = lab.stream(topic, N, **bound)
    assert ns(stream.run()) == [1, 2, 21]
    lab.wire.send(topic, rows(13, partition=1))
    assert stream.run() == []
    lab.wire.commit(f"g-{topic}", topic, 1)
    group = {"scan__startup__mode": "group-offsets", "properties__group__id": f"g-{topic}"}
    group["properties__auto__offset__reset"] = "earliest"
    assert ns(lab.read(topic, N, **bound, **group)) == [2, 21]
    lab.wire.commit(f"g-{topic}", topic, 1, partition=1)
    assert ns(lab.stream(topic, N, **bound, **group).run()) == [2, 21]


@pytest.mark.parametrize("end", [2, 3])
def test_messages_up_to_a_bound_that_are_deleted_give_nothing(lab: Lab, made: Topics, end: int) -> None:
    """As Flink's KafkaTableITCase has it: the deleted messages are all there were, or the bound is before the first."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    lab.wire.delete_records(topic, 3)
    bound = {"scan__bounded__mode": "specific-offsets", "scan__bounded__specific_offsets": f"partition:0,offset:{end}"}
    begin = {"scan__startup__mode": "specific-offsets", "scan__startup__specific_offsets": "partition:0,offset:1"}
    for start in (begin, {"scan__startup__mode": "earliest-offset"}):
        assert lab.read(topic, N, **bound, **start) == []
        assert lab.stream(topic, N, **bound, **start).run() == []


def test_g22_a_batch_read_ends_at_the_current_end(lab: Lab, made: Topics) -> None:
    """A batch read ends at the end of the topic as of its planning."""
    topic = made(2)
    lab.wire.send(topic, rows(1, 2))
    reader = lab.source("kafka", topic, {}).reader(schema_of(N))
    parts = list(reader.partitions())
    lab.wire.send(topic, rows(3) + rows(4, partition=1))
    assert ns(row for part in parts for batch in shipped(reader).read(part) for row in batch.to_pylist()) == [1, 2]
    assert ns(lab.read(topic, N)) == [1, 2, 3, 4]


def test_b18_an_upsert_stream_does_not_end(lab: Lab, made: Topics) -> None:
    """A stream of an upsert table is unbounded: it returns messages that are written later."""
    topic = made()
    stream = lab.stream(topic, "k INT, v STRING, _change_type STRING", "upsert-kafka", primary_key="k")
    assert stream.run() == []
    lab.wire.send(topic, [Record(b'{"k":1,"v":"a"}', b'{"k":1}')])
    assert stream.run() == [{"k": 1, "v": "a", "_change_type": "update_postimage"}]


def test_b19_a_stream_goes_on_with_one_or_more_topics(lab: Lab, made: Topics) -> None:
    """A stream is unbounded, also over several topics."""
    one, two = made(), made()
    stream = lab.stream(f"{one};{two}", N)
    assert stream.run() == []
    lab.wire.send(one, rows(1))
    assert ns(stream.run()) == [1]
    lab.wire.send(two, rows(2))
    assert ns(stream.run()) == [2]


def test_o30_another_startup_mode_is_refused_with_the_five(lab: Lab) -> None:
    """`scan.startup.mode`: case-insensitive; the error for another value lists the five modes."""
    with pytest.raises(InvalidInputError) as caught:
        lab.read("t", N, scan__startup__mode="beginning")
    for word in ("earliest-offset", "latest-offset", "group-offsets", "timestamp", "specific-offsets"):
        assert f"'{word}'" in str(caught.value)


def test_o29_the_group_of_the_option_is_on_the_broker_after_a_read(lab: Lab, made: Topics) -> None:
    """`properties.group.id`: the group whose offsets are committed."""
    topic = made()
    lab.wire.send(topic, rows(1))
    lab.stream(topic, N, properties__group__id=f"mine-{topic}").run()
    assert lab.wire.committed(f"mine-{topic}", topic) == [1]


def test_c04_without_a_group_one_is_generated(lab: Lab, made: Topics) -> None:
    """No group is required: without one, `KafkaSource-<table>` is generated."""
    topic = made()
    lab.wire.send(topic, rows(1))
    lab.stream(topic, N).run()
    assert lab.wire.committed(f"KafkaSource-{topic}", topic) == [1]
    lab.stream(topic, N, table__name="cat.db.pageviews").run()
    assert lab.wire.committed("KafkaSource-cat.db.pageviews", topic) == [1]


def test_p03_reading_a_missing_topic_does_not_make_it(lab: Lab, topic: Callable[[], str]) -> None:
    """`properties.allow.auto.create.topics` = `false`: reading a missing topic does not create it."""
    missing = topic()
    with pytest.raises(NotFoundError, match=missing):
        lab.read(missing, N, properties__allow__auto__create__topics="false")
    with pytest.raises(NotFoundError, match=missing):
        lab.write(missing, N, [(1,)], properties__allow__auto__create__topics="false")
    assert missing not in lab.wire.topics()


def test_p08_isolation_level_decides_about_open_transactions(lab: Lab, made: Topics) -> None:
    """An open transaction with three records: `read_committed` reads none, `read_uncommitted` all three."""
    from confluent_kafka import Producer  # noqa: PLC0415

    topic = made()
    producer = Producer({"bootstrap.servers": lab.wire.servers, "transactional.id": f"open-{topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for record in rows(1, 2, 3):
        producer.produce(topic, record.value)
    producer.flush(PATIENCE_SECONDS)
    assert lab.read(topic, N, properties__isolation__level="read_committed") == []
    assert ns(lab.read(topic, N, properties__isolation__level="read_uncommitted")) == [1, 2, 3]
    producer.abort_transaction(20)
    assert lab.read(topic, N) == []
    lab.wire.send(topic, rows(4))
    # The broker ends the transaction in the topic a moment after it has answered.
    assert ns(until(lambda: lab.read(topic, N))) == [4]


def test_a_read_limit_parts_the_backlog_and_available_now_ends(lab: Lab, made: Topics) -> None:
    topic = made(2)
    lab.wire.send(topic, rows(*range(8)) + rows(8, 9, partition=1))
    stream = lab.stream(topic, N, maxRowsPerTrigger=5)
    assert ns(stream.run()) == list(range(10))
    assert max(map(len, stream.batches)) <= 5
    assert len(stream.batches) >= 2
    lab.wire.send(topic, rows(10))
    stream.reader.prepareForTriggerAvailableNow()
    lab.wire.send(topic, rows(11))
    assert ns(stream.run()) == [10]


def test_a_restart_goes_on_from_the_checkpoint_and_not_from_the_startup_mode(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, rows(1, 2))
    stream = lab.stream(topic, N)
    stream.run()
    lab.wire.send(topic, rows(3))
    again = lab.stream(topic, N, scan__startup__mode="latest-offset")
    again.at = json.loads(json.dumps(stream.at))
    assert ns(again.run()) == [3]


def test_retention_that_overtakes_the_reader_is_an_error_or_goes_on(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, rows(1))
    streams = {
        reset: lab.stream(topic, N, properties__auto__offset__reset=reset) for reset in (None, "earliest", "latest")
    }
    assert all(ns(stream.run()) == [1] for stream in streams.values())
    lab.wire.send(topic, rows(2, 3, 4))
    lab.wire.delete_records(topic, 3)
    with pytest.raises(DataLostError, match=r"retention has overtaken this reader.*auto\.offset\.reset"):
        streams[None].run()
    assert ns(streams["earliest"].run()) == [4]
    assert streams["latest"].run() == []


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
def test_retention_that_overtakes_a_task_is_an_error_or_goes_on(lab: Lab, made: Topics, connector: str) -> None:
    """What a micro-batch was to read is gone when its task reads it: the options decide, as they do for a plan."""
    expected = {None: "retention has overtaken this reader", "earliest": [4, 5], "latest": []}
    for reset, found in expected.items():
        topic = made()
        more = {"primary_key": "n", "properties__auto__offset__reset": reset} if connector == "upsert-kafka" else {}
        columns = f"{N}, _change_type STRING" if connector == "upsert-kafka" else N
        stream = lab.stream(topic, columns, connector, **{"properties__auto__offset__reset": reset, **more})
        begin = stream.reader.initialOffset()
        lab.wire.send(topic, [Record(record.value, record.value) for record in rows(1, 2, 3, 4, 5)])
        end = stream.reader.latestOffset(begin, stream.reader.getDefaultReadLimit())
        parts = stream.reader.partitions(begin, end)
        lab.wire.delete_records(topic, 3)
        task = shipped(stream.reader)
        if isinstance(found, str):
            with pytest.raises(DataLostError, match=found):
                list(task.read(parts[0]))
        else:
            assert ns(row for batch in task.read(parts[0]) for row in batch.to_pylist()) == found


def test_a_bad_record_is_named_and_its_neighbours_are_read(lab: Lab, made: Topics) -> None:
    topic = made(2)
    lab.wire.send(topic, [*rows(1, 2, partition=1), Record(b'{"n":', partition=1), *rows(4, partition=1)])
    with pytest.raises(CorruptedError, match=f"topic '{topic}', partition 1, offset 2, value \\(json\\)"):
        lab.read(topic, N)
    assert ns(lab.read(topic, N, json__ignore_parse_errors="true")) == [1, 2, 4]
