"""The sinks: what is written, where it goes, how often."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client.connect import KafkaClient, discarding, take_over
from snapshot.errors import FencedError, InvalidInputError, NotFoundError, UnavailableError
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.transactional_sink import Batch, TransactionalWriter
from tablestore.connectors.spark import sink
from tests.connectors.harness.lab import Lab, batch_of, named, shipped
from tests.connectors.harness.wire import Record
from tests.harness.faults import failing
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
KV = "k INT, v STRING"


class LastPartition:
    """A partitioner of a user's own."""

    def open(self, task: int, tasks: int | None) -> None:
        self.task = task

    def partition(self, key: bytes | None, value: bytes | None, topic: str, partitions: Sequence[int]) -> int:
        return partitions[-1 - self.task]


class Nowhere:
    """A partitioner that is wrong."""

    def partition(self, key: bytes | None, value: bytes | None, topic: str, partitions: Sequence[int]) -> int:
        return 99


def used(lab: Lab, topic: str) -> set[int]:
    return {record.partition for record in lab.wire.read(topic)}


def test_b12_the_standard_sink_appends_and_refuses_updates(lab: Lab, made: Topics) -> None:
    """N inserts are N messages; updates, deletes and output mode `complete` are rejected."""
    topic = made()
    lab.write(topic, KV, [(1, "a"), (1, "a"), (2, "b")])
    assert lab.wire.values(topic) == [b'{"k":1,"v":"a"}', b'{"k":1,"v":"a"}', b'{"k":2,"v":"b"}']
    changes = f"{KV}, _change_type STRING"
    lab.write(topic, changes, [(3, "c", "insert")])
    assert lab.wire.values(topic)[-1] == b'{"k":3,"v":"c"}'
    with pytest.raises(InvalidInputError, match="doesn't support consuming update and delete changes"):
        lab.write(topic, changes, [(3, "c", "delete")])
    with pytest.raises(InvalidInputError, match="upsert-kafka"):
        lab.source("kafka", topic, {}).streamWriter(pa_free_schema(KV), True)
    assert len(lab.wire.values(topic)) == 4


def pa_free_schema(columns: str) -> Any:
    from tests.connectors.harness.lab import schema_of  # noqa: PLC0415

    return schema_of(columns)


def test_b11_each_message_of_a_standard_table_stands_for_itself(lab: Lab, made: Topics) -> None:
    """Two messages with one key are two rows; two rows with one key are two messages."""
    topic = made()
    keyed = {"key__format": "json", "key__fields": "k", "value__format": "json"}
    lab.write(topic, KV, [(1, "a"), (1, "b")], **keyed)
    assert len(lab.wire.read(topic)) == 2
    assert lab.read(topic, KV, **keyed) == [{"k": 1, "v": "a"}, {"k": 1, "v": "b"}]


def test_c08_a_key_format_alone_makes_no_upserts(lab: Lab, made: Topics) -> None:
    """A `kafka` table with a key format is append-only: a tombstone is no row and deletes none."""
    topic = made()
    keyed = {"key__format": "json", "key__fields": "k", "value__format": "json"}
    lab.write(topic, KV, [(1, "a")], **keyed)
    lab.wire.send(topic, [Record(None, b'{"k":1}')])
    assert lab.read(topic, KV, **keyed) == [{"k": 1, "v": "a"}]


def test_g10_a_null_value_on_a_standard_table_is_no_row(lab: Lab, made: Topics) -> None:
    """A value that is null, empty or the literal `null` is no row and no error."""
    topic = made()
    lab.wire.send(topic, [Record(None), Record(b""), Record(b"null"), Record(b'{"k":1,"v":"a"}')])
    assert lab.read(topic, KV) == [{"k": 1, "v": "a"}]


@pytest.mark.parametrize("name", ["json", "csv", "avro"])
@pytest.mark.parametrize("include", ["ALL", "EXCEPT_KEY"])
def test_a_message_without_a_key_is_no_row_of_a_table_with_a_key_format(
    lab: Lab, made: Topics, name: str, include: str
) -> None:
    """As in Flink, whose key formats find no row in a null key."""
    topic = made()
    keyed = {"key__format": name, "key__fields": "k", "value__format": "json", "value__fields_include": include}
    lab.write(topic, KV, [(1, "a")], **keyed)
    lab.wire.send(topic, [Record(b'{"k":2,"v":"b"}')])
    assert lab.read(topic, KV, **keyed) == [{"k": 1, "v": "a"}]
    assert lab.read(topic, KV) == [{"k": 1 if include == "ALL" else None, "v": "a"}, {"k": 2, "v": "b"}]


def test_o38_partitioners_decide_where_messages_go(lab: Lab, made: Topics) -> None:
    """`sink.partitioner`: `fixed` uses one partition per task, `round-robin` all, a class those that it returns; the
    default without keys uses another one for each batch."""
    rows = [(n, "x") for n in range(40)]
    for partitioner, expected in [
        ("fixed", {0}),
        ("round-robin", {0, 1, 2, 3}),
        ("tests.connectors.test_sink.LastPartition", {3}),
    ]:
        topic = made(4)
        lab.write(topic, KV, rows, sink__partitioner=partitioner)
        assert used(lab, topic) == expected, partitioner
    topic = made(4)
    for _ in range(12):
        lab.write(topic, KV, rows)
    counts = Counter(record.partition for record in lab.wire.read(topic))
    assert len(counts) > 1, "all batches begin at the same partition"
    assert all(count % len(rows) == 0 for count in counts.values()), "a batch is spread"
    topic = made(4)
    for number in range(8):
        lab.write(topic, KV, [(number, "x")], sink__partitioner="round-robin")
    assert len(used(lab, topic)) > 1, "all writes of a message begin at the same partition"
    topic = made(4)
    keyed = {"key__format": "json", "key__fields": "k", "value__format": "json"}
    lab.write(topic, KV, [*rows, *rows], **keyed)
    places = {record.key: record.partition for record in lab.wire.read(topic)}
    assert all(places[record.key] == record.partition for record in lab.wire.read(topic))
    assert set(places.values()) == {0, 1, 2, 3}


def murmur2(data: bytes) -> int:
    """Do what ``org.apache.kafka.common.utils.Utils.murmur2`` does."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def test_g06_default_is_javas_murmur2_and_a_class_is_a_python_path(lab: Lab, made: Topics) -> None:
    """Keys go to the partitions that Java's producer chooses; `round-robin` works only without keys."""
    assert [murmur2(text) for text in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        -973932308, -790332482, -985981536
    ], "as in UtilsTest of Kafka's own Java client"  # fmt: skip
    topic = made(4)
    keyed = {"key__format": "json", "key__fields": "k", "value__format": "json"}
    lab.write(topic, KV, [(n, "x") for n in range(50)], **keyed)
    for record in lab.wire.read(topic):
        assert record.key is not None
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4
    with pytest.raises(InvalidInputError, match="'round-robin' partitioner"):
        lab.write(topic, KV, [(1, "a")], **keyed, sink__partitioner="round-robin")
    with pytest.raises(InvalidInputError, match=r"Could not find and instantiate partitioner class 'no\.such\.Cls'"):
        lab.write(topic, KV, [(1, "a")], sink__partitioner="no.such.Cls")
    with pytest.raises(InvalidInputError, match="chose partition 99"):
        lab.write(topic, KV, [(1, "a")], sink__partitioner="tests.connectors.test_sink.Nowhere")


def test_b40_each_sink_task_has_a_partitioner_of_its_own(lab: Lab, made: Topics) -> None:
    """Sink partitioners are set by name; with `fixed` each task writes to one partition."""
    topic = made(3)
    write_as_tasks(lab, topic, [[(n, "x") for n in range(5)] for _ in range(3)], sink__partitioner="fixed")
    assert Counter(record.partition for record in lab.wire.read(topic)) == {0: 5, 1: 5, 2: 5}


def write_as_tasks(lab: Lab, topic: str, tasks: list[list[Any]], **options: Any) -> None:
    """Write as tasks that know their number."""
    from tests.connectors.harness.tasks import as_task  # noqa: PLC0415

    writer = lab.source("kafka", topic, options).writer(pa_free_schema(KV), False)
    messages = []
    for number, rows in enumerate(tasks):
        with as_task(number):
            messages.append(shipped(writer).write(iter([batch_of(KV, rows)])))
    writer.commit(messages)


NAMED = f"{KV}, t STRING"


def test_c09_rows_for_several_topics_name_theirs(lab: Lab, made: Topics) -> None:
    """With a list or a pattern, each row names its topic by metadata `topic`, which must be one of them."""
    for topics in ({"topic": "a;b"}, {"topic": None, "topic_pattern": "a.*"}):
        given = {"topic": None, **topics}
        with pytest.raises(InvalidInputError, match="rows that name their topic: expected a column with metadata"):
            lab.write(given.pop("topic"), KV, [(1, "a")], **given)
    one, two = made(2), made()
    rows = [(1, "a", one), (2, "b", two), (3, "c", one)]
    lab.write(f"{one};{two}", NAMED, rows, metadata__t="topic", sink__partitioner="fixed")
    assert lab.wire.values(one) == [b'{"k":1,"v":"a"}', b'{"k":3,"v":"c"}']
    assert lab.wire.values(two) == [b'{"k":2,"v":"b"}']
    with pytest.raises(InvalidInputError, match=f"expected one of topics '{one}', '{two}', got 'other'"):
        lab.write(f"{one};{two}", NAMED, [(1, "a", "other")], metadata__t="topic")
    with pytest.raises(InvalidInputError, match=r"column 't' \(metadata 'topic'\) must not be NULL: 1 of 2 rows"):
        lab.write(f"{one};{two}", NAMED, [(1, "a", None), (2, "b", one)], metadata__t="topic")
    with pytest.raises(InvalidInputError, match="keys for writing: headers, header-list, timestamp"):
        lab.write(one, NAMED, [(1, "a", one)], metadata__t="topic")


def test_rows_for_topics_of_a_pattern_go_to_new_ones_too(lab: Lab, made: Topics) -> None:
    one = made()
    given = {"topic_pattern": f"{one}(-x)?", "metadata__t": "topic"}
    lab.write(None, NAMED, [(1, "a", one), (2, "b", f"{one}-x")], **given)
    assert lab.wire.values(one) == [b'{"k":1,"v":"a"}']
    assert lab.wire.values(f"{one}-x") == [b'{"k":2,"v":"b"}']
    with pytest.raises(InvalidInputError, match=f"metadata 'topic': expected one of topics that match .*got '{one}-y'"):
        lab.write(None, NAMED, [(1, "a", f"{one}-y")], **given)
    with pytest.raises(InvalidInputError, match="'exactly-once' needs the names of the topics"):
        lab.write(None, NAMED, [(1, "a", one)], **given, **EXACTLY)


def test_rows_for_several_topics_are_one_transaction(lab: Lab, made: Topics, checkpoint: Path) -> None:
    one, two = made(2), made()
    given = {**EXACTLY, "checkpointLocation": str(checkpoint), "metadata__t": "topic"}
    for _ in range(2):
        lab.write_batch(f"{one};{two}", NAMED, [(1, "a", one), (2, "b", two), (3, "c", one)], 0, **given)
    assert sorted(lab.wire.values(one)) == [b'{"k":1,"v":"a"}', b'{"k":3,"v":"c"}']
    assert lab.wire.values(two) == [b'{"k":2,"v":"b"}']


@pytest.mark.parametrize("buffered", [False, True])
def test_upserts_for_several_topics_replace_the_rows_of_their_topic(lab: Lab, made: Topics, *, buffered: bool) -> None:
    one, two = made(cleanup_policy="compact"), made(cleanup_policy="compact")
    columns = f"{NAMED}, _change_type STRING"
    given = {"primary_key": "k", "metadata__t": "topic"}
    buffer = {"sink__buffer_flush__max_rows": "100", "sink__buffer_flush__interval": "1 h"} if buffered else {}
    changes = [(1, "a", one, "insert"), (1, "b", two, "insert"), (2, "c", one, "insert"), (1, "a", one, "delete")]
    lab.write(f"{one};{two}", columns, changes, "upsert-kafka", **given, **buffer)
    assert lab.wire.pairs(one)[-1] == (b'{"k":1}', None)
    assert len(lab.wire.pairs(one)) == (2 if buffered else 3)
    assert lab.wire.pairs(two) == [(b'{"k":1}', b'{"k":1,"v":"b"}')]
    read = lab.upsert(f"{one};{two}", NAMED, "k", metadata__t="topic")
    assert read == [{"k": 1, "v": "b", "t": two}, {"k": 2, "v": "c", "t": one}]


def test_b05_upsert_sink_writes_values_and_tombstones(lab: Lab, made: Topics) -> None:
    """`+I -U +U -D` are three messages: value, value, null."""
    topic = made(cleanup_policy="compact")
    changes = [(1, "a", "insert"), (1, "a", "update_preimage"), (1, "b", "update_postimage"), (1, "b", "delete")]
    lab.write(topic, f"{KV}, _change_type STRING", changes, "upsert-kafka", primary_key="k")
    assert lab.wire.pairs(topic) == [
        (b'{"k":1}', b'{"k":1,"v":"a"}'),
        (b'{"k":1}', b'{"k":1,"v":"b"}'),
        (b'{"k":1}', None),
    ]


def test_b13_a_topic_that_the_upsert_sink_makes_is_compacted(lab: Lab, topic: Callable[[], str], made: Topics) -> None:
    """The upsert sink creates compacted topics, the standard sink topics with the broker's defaults."""
    upserts, plain = topic(), topic()
    lab.write(upserts, KV, [(1, "a")], "upsert-kafka", primary_key="k")
    assert lab.wire.config(upserts, "cleanup.policy") == "compact"
    lab.write(plain, KV, [(1, "a")])
    assert lab.wire.config(plain, "cleanup.policy") == "delete"


def test_c24_an_existing_topic_is_left_as_it_is_with_a_warning(
    lab: Lab, made: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """An existing topic that is not compacted is not altered; a warning says so once, not in each micro-batch."""
    topic = made()
    for value in "ab":
        lab.write(topic, KV, [(1, value)], "upsert-kafka", primary_key="k")
    assert lab.wire.config(topic, "cleanup.policy") == "delete"
    assert caplog.text.count("is not compacted") == 1


def test_b06_g21_changes_of_a_key_keep_their_order_in_one_partition(lab: Lab, made: Topics) -> None:
    """With eight partitions and three tasks, the updates and deletes of each of 100 keys are in one partition, in
    order."""
    topic = made(8, cleanup_policy="compact")
    columns = f"{KV}, _change_type STRING"
    tasks = [
        [(k, str(n), "delete" if n == 3 else "update_postimage") for n in range(6) for k in range(t, 100, 3)]
        for t in range(3)
    ]
    lab.write_tasks(topic, columns, tasks, "upsert-kafka", primary_key="k")
    by_key: dict[bytes | None, list[Record]] = {}
    for record in lab.wire.read(topic):
        by_key.setdefault(record.key, []).append(record)
    assert len(by_key) == 100
    for records in by_key.values():
        assert len({record.partition for record in records}) == 1
        assert [None if r.value is None else r.value[-3:-2] for r in records] == [b"0", b"1", b"2", None, b"4", b"5"]


def test_b17_writing_twice_changes_nothing_that_is_read(lab: Lab, made: Topics) -> None:
    """Duplicates of a key can be written; the last message of the key counts."""
    topic = made(2, cleanup_policy="compact")
    for _ in range(2):
        lab.write(topic, KV, [(1, "a"), (2, "b")], "upsert-kafka", primary_key="k")
    assert len(lab.wire.read(topic)) == 4
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]


def test_b41_upsert_sink_is_at_least_once_by_default(lab: Lab, made: Topics) -> None:
    """A repeated micro-batch loses nothing."""
    topic = made(cleanup_policy="compact")
    for _ in range(2):
        lab.write_batch(topic, KV, [(1, "a"), (1, "b")], 0, "upsert-kafka", primary_key="k")
    assert lab.wire.pairs(topic)[-1] == (b'{"k":1}', b'{"k":1,"v":"b"}')
    assert lab.upsert(topic, KV, "k") == [{"k": 1, "v": "b"}]


def buffered(lab: Lab, topic: str, rows: Iterator[pa.RecordBatch], **options: Any) -> None:
    source = lab.source("upsert-kafka", topic, {"primary_key": "k", **options})
    writer = source.writer(pa_free_schema(KV), False)
    writer.commit([writer.write(rows)])


def test_o10_a_buffer_keeps_the_last_row_of_each_key(lab: Lab, made: Topics) -> None:
    """`sink.buffer-flush.max-rows`: 50 updates of one key within the buffer are one message, without a buffer 50."""
    updates = [(1, str(n)) for n in range(50)]
    for options, expected in [
        ({"sink__buffer_flush__max_rows": 100, "sink__buffer_flush__interval": "10 s"}, 1),
        ({"sink__buffer_flush__max_rows": 20, "sink__buffer_flush__interval": "10 s"}, 3),
        ({}, 50),
        ({"sink__buffer_flush__max_rows": 0, "sink__buffer_flush__interval": "0"}, 50),
    ]:
        topic = made(cleanup_policy="compact")
        buffered(lab, topic, iter([batch_of(KV, updates)]), **options)
        assert len(lab.wire.read(topic)) == expected, options
        assert lab.wire.values(topic)[-1] == b'{"k":1,"v":"49"}'


def test_o10_a_buffer_serves_the_exactly_once_sink_too(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """With `exactly-once`, rows are buffered before they are staged."""
    given = {**EXACTLY, "checkpointLocation": str(checkpoint), "primary_key": "k"}
    buffer = {"sink__buffer_flush__max_rows": 100, "sink__buffer_flush__interval": "10 s"}
    changes = f"{KV}, _change_type STRING"
    rows = [(n % 3, str(n), "delete" if n == 49 else "insert") for n in range(50)]
    for options, expected in [(buffer, 3), ({}, 50)]:
        topic = made(2, cleanup_policy="compact")
        lab.write_batch(topic, changes, rows, 0, "upsert-kafka", **given, **options)
        assert len(lab.wire.read(topic)) == expected, options
        found = [{"k": 0, "v": "48"}, {"k": 2, "v": "47"}]
        assert lab.upsert(topic, KV, "k") == found


def test_o11_a_buffer_is_flushed_after_its_interval_without_further_rows(lab: Lab, made: Topics) -> None:
    """`sink.buffer-flush.interval`: buffered rows are written once it has passed, even if no other row follows."""
    topic = made(cleanup_policy="compact")
    more = threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch_of(KV, [(1, "a"), (2, "b"), (1, "c")])
        more.wait(PATIENCE_SECONDS)

    options = {"sink__buffer_flush__max_rows": 1000, "sink__buffer_flush__interval": "2s"}
    started = time.monotonic()
    task = threading.Thread(target=buffered, args=(lab, topic, rows()), kwargs=options)
    task.start()
    try:
        seen_after = None
        while time.monotonic() - started < PATIENCE_SECONDS and seen_after is None:
            if lab.wire.read(topic):
                seen_after = time.monotonic() - started
            time.sleep(0.1)
        assert seen_after is not None
        assert seen_after >= 2
        assert lab.wire.pairs(topic) == [(b'{"k":2}', b'{"k":2,"v":"b"}'), (b'{"k":1}', b'{"k":1,"v":"c"}')]
    finally:
        more.set()
        task.join()
    assert len(lab.wire.read(topic)) == 2


def test_c21_one_buffer_option_alone_is_an_error_on_write_only(lab: Lab, made: Topics) -> None:
    """The two buffer options are set together or not at all; a table that is only read is not checked."""
    topic = made(cleanup_policy="compact")
    for one in ({"sink__buffer_flush__max_rows": 5}, {"sink__buffer_flush__interval": "1 s"}):
        with pytest.raises(
            InvalidInputError, match=r"'sink\.buffer-flush\.max-rows' and 'sink\.buffer-flush\.interval'"
        ):
            lab.write(topic, KV, [(1, "a")], "upsert-kafka", primary_key="k", **one)
        assert lab.upsert(topic, KV, "k", **one) == []


def test_o39_another_guarantee_is_refused(lab: Lab) -> None:
    """`sink.delivery-guarantee`: `none`, `at-least-once` or `exactly-once`."""
    with pytest.raises(InvalidInputError, match="'none' or 'at-least-once' or 'exactly-once'"):
        lab.write("t", KV, [(1, "a")], sink__delivery_guarantee="twice")


def test_c11_none_is_at_least_once_here(lab: Lab, made: Topics) -> None:
    """The page's two guarantees, and `none`, which writes as `at-least-once` does; both ways to name transactions."""
    topic = made()
    for strategy in ("pooling", "incrementing"):
        given = {"sink__delivery_guarantee": "none", "sink__transaction_naming_strategy": strategy}
        lab.write(topic, KV, [(1, "a")], **given)
    assert lab.wire.values(topic) == [b'{"k":1,"v":"a"}'] * 2
    with pytest.raises(InvalidInputError, match="'incrementing' or 'pooling'"):
        lab.write(topic, KV, [(1, "a")], sink__transaction_naming_strategy="other")


EXACTLY = {"sink__delivery_guarantee": "exactly-once", "sink__transactional_id_prefix": "flink-txn"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Make a checkpoint as Spark does when a query starts."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    return folder


def test_o40_the_prefix_is_required_and_begins_the_transactional_ids(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """`sink.transactional-id-prefix`: the broker's list of transactions shows ids that start with it."""
    topic = made()
    with pytest.raises(InvalidInputError, match=r"sink\.transactional-id-prefix must be specified"):
        lab.write(topic, KV, [(1, "a")], sink__delivery_guarantee="exactly-once")
    prefix = f"flink-{topic}"
    given = {**EXACTLY, "sink__transactional_id_prefix": prefix, "checkpointLocation": str(checkpoint)}
    lab.write_batch(topic, KV, [(1, "a")], 0, **given)
    groups = lab.wire.admin.list_consumer_groups(request_timeout=10).result().valid
    assert [group.group_id for group in groups if group.group_id.startswith(prefix)]
    keys = {record.key for record in lab.wire.read("__transaction_state", "read_uncommitted")}
    assert any(prefix.encode() in (key or b"") for key in keys)


def test_b43_exactly_once_needs_the_prefix(lab: Lab) -> None:
    """`sink.transactional-id-prefix` is required for exactly-once."""
    with pytest.raises(InvalidInputError, match=r"sink\.transactional-id-prefix must be specified"):
        lab.write("t", KV, [(1, "a")], sink__delivery_guarantee="exactly-once")


def test_p09_exactly_once_needs_checkpointing(lab: Lab, made: Topics) -> None:
    """`exactly-once` without a checkpoint location is an error that says so."""
    with pytest.raises(InvalidInputError, match="needs checkpointing: set option 'checkpointLocation'"):
        lab.write(made(), KV, [(1, "a")], **EXACTLY)


def test_b42_a_repeated_micro_batch_is_written_once(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """`exactly-once`: the register in the transaction shows what is written; no staged files are left."""
    topic = made(2)
    given = {**EXACTLY, "checkpointLocation": str(checkpoint)}
    lab.write_batch(topic, KV, [(1, "a"), (2, "b")], 0, **given)
    lab.write_batch(topic, KV, [(1, "a"), (2, "b")], 0, **given)
    assert len(lab.wire.values(topic)) == 2
    lab.write_batch(topic, KV, [(3, "c")], 1, **given)
    lab.write_batch(topic, KV, [(3, "c")], 1, **given)
    lab.write_batch(topic, KV, [], 2, **given)
    assert sorted(lab.wire.values(topic)) == [b'{"k":1,"v":"a"}', b'{"k":2,"v":"b"}', b'{"k":3,"v":"c"}']
    assert not list(checkpoint.glob("kafka-staged/*/*"))
    lab.write(topic, KV, [(4, "d")], **given)
    lab.write(topic, KV, [(4, "d")], **given)
    assert len(lab.wire.values(topic)) == 5


@pytest.mark.parametrize("behind", [0, 1])
def test_a_checkpoint_that_was_set_back_is_refused(lab: Lab, made: Topics, checkpoint: Path, behind: int) -> None:
    """Its query plans other micro-batches under the numbers of those that are in the topic."""
    topic = made()
    given = {**EXACTLY, "checkpointLocation": str(checkpoint)}
    (checkpoint / "offsets").mkdir()
    for number in range(2):
        (checkpoint / "offsets" / str(number)).write_text(f"{number}")
        lab.write_batch(topic, KV, [(number, "a")], number, **given)
    number = 1 - behind
    lab.write_batch(topic, KV, [(1, "a")], 1, **given)
    (checkpoint / "offsets" / str(number)).write_text("other")
    match = rf"written another micro-batch {number} before \(its newest there is 1\)"
    with pytest.raises(InvalidInputError, match=match):
        lab.write_batch(topic, KV, [(2, "b")], number, **given)
    assert sorted(lab.wire.values(topic)) == [b'{"k":0,"v":"a"}', b'{"k":1,"v":"a"}']


def test_a_write_that_has_landed_does_not_fail_when_the_sink_cannot_clear_up(
    lab: Lab, made: Topics, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made()

    def fail(*_: object) -> None:
        msg = "no broker answers"
        raise UnavailableError(msg)

    monkeypatch.setattr(sink, "delete_groups", fail)
    lab.write(topic, KV, [(1, "a")], **EXACTLY, checkpointLocation=str(checkpoint))
    assert lab.wire.values(topic) == [b'{"k":1,"v":"a"}']
    assert "the write is done; clearing up after it failed: UnavailableError: no broker answers" in caplog.text


def test_a_micro_batch_waits_for_brokers_that_are_away(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """A query has been answered when it opened its sink; a batch write gives up."""
    topic, away, given = made(), UnavailableError("no answer"), {**EXACTLY, "checkpointLocation": str(checkpoint)}
    with failing(TransactionalWriter, "write", away, hits=range(1, 3)) as calls:
        lab.write_batch(topic, KV, [(1, "a")], 0, **given)
    assert calls() == 3
    with failing(TransactionalWriter, "write", away), pytest.raises(UnavailableError, match="no answer"):
        lab.write(topic, KV, [(2, "b")], **given)
    assert lab.wire.values(topic) == [b'{"k":1,"v":"a"}']


@pytest.mark.parametrize("landed", [True, False])
def test_b42_an_answer_that_is_lost_is_found_out(
    lab: Lab, made: Topics, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """If the end of a transaction gets no answer, the register shows whether it was committed; the rows are written
    once."""
    topic, ends = made(), []
    real = KafkaClient.producer

    class LosesAnswers:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return self._end if name == "commit_transaction" else getattr(self._producer, name)

        def __len__(self) -> int:
            return len(self._producer)

        def _end(self, seconds: float) -> None:
            ends.append(seconds)
            if len(ends) > 1 or landed:
                self._producer.commit_transaction(seconds)
            if len(ends) == 1:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    monkeypatch.setattr(KafkaClient, "producer", lambda *args, **kwargs: LosesAnswers(real(*args, **kwargs)))
    given = {**EXACTLY, "checkpointLocation": str(checkpoint)}
    lab.write_batch(topic, KV, [(1, "a"), (2, "b")], 0, **given)
    assert len(lab.wire.values(topic)) == 2
    assert len(ends) == (1 if landed else 2)


def test_a_transaction_timeout_beyond_the_brokers_names_the_option(lab: Lab, made: Topics, checkpoint: Path) -> None:
    given = {**EXACTLY, "checkpointLocation": str(checkpoint), "properties__transaction__timeout__ms": 3_600_000}
    with pytest.raises(InvalidInputError, match=r"shorter 'properties\.transaction\.timeout\.ms'"):
        lab.write_batch(made(), KV, [(1, "a")], 0, **given)


def test_a_run_of_the_query_that_was_fenced_goes_on(lab: Lab, made: Topics) -> None:
    """Such as by one that was suspended, woke up, and wrote the micro-batch or died before the end."""
    topic = made()
    client = KafkaClient({"bootstrap.servers": lab.wire.servers}, "properties.")
    writer = TransactionalWriter(client, topic, "p")
    messages = EncodedMessages(None, pa.array([b"1"], pa.large_binary()), None, None)

    def fenced(other: Callable[[], object], times: int = 1) -> Callable[[], Iterator[EncodedMessages]]:
        """Return messages in the midst of which another run takes over, so many times."""
        others = [other] * times

        def staged() -> Iterator[EncodedMessages]:
            yield messages
            if others:
                others.pop()()
            yield messages

        return staged

    def die() -> None:
        with discarding(client.producer(writer.name(Batch(topic, 0)))) as other:
            take_over(other, PATIENCE_SECONDS)

    assert not writer.write(Batch(topic, 0), fenced(lambda: writer.write(Batch(topic, 0), lambda: [messages])))
    assert lab.wire.values(topic) == [b"1"]
    assert writer.write(Batch(topic, 1), fenced(die))
    assert lab.wire.values(topic) == [b"1"] * 3
    with pytest.raises(FencedError, match="another run of this query, with the same checkpoint, has taken over"):
        writer.write(Batch(topic, 2), fenced(die, 2))
    assert lab.wire.values(topic) == [b"1"] * 3


@pytest.mark.slow
def test_a_topic_that_is_deleted_before_the_commit_is_named(lab: Lab, made: Topics) -> None:
    topic = made()
    client = KafkaClient({"bootstrap.servers": lab.wire.servers}, "properties.", wait_seconds=3)
    messages = EncodedMessages(None, pa.array([b"1"], pa.large_binary()), None, None, np.zeros(1, np.int32))

    def deleted() -> Iterator[EncodedMessages]:
        lab.wire.admin.delete_topics([topic])[topic].result()
        yield messages

    with pytest.raises(NotFoundError, match=f"topic '{topic}'.*deleted"):
        TransactionalWriter(client, topic, "p").write(Batch(topic, 0), deleted)


def test_b44_downstream_reads_committed(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """Messages of an open transaction are visible only with `read_uncommitted`."""
    topic = made()
    given = {**EXACTLY, "checkpointLocation": str(checkpoint)}
    source = lab.source("kafka", topic, given)
    writer = source.streamWriter(pa_free_schema(KV), False)
    messages = [writer.write(iter([batch_of(KV, [(1, "a")])]))]
    assert lab.wire.values(topic, "read_uncommitted") == [], "staged, not written"
    writer.commit(messages, 0)
    assert lab.wire.values(topic, "read_committed") == [b'{"k":1,"v":"a"}']


def test_c10_both_guarantee_options_are_on_both_connectors(lab: Lab, made: Topics, checkpoint: Path) -> None:
    """`upsert-kafka` takes `exactly-once` too."""
    topic = made(cleanup_policy="compact")
    given = {**EXACTLY, "checkpointLocation": str(checkpoint), "primary_key": "k"}
    changes = f"{KV}, _change_type STRING"
    for _ in range(2):
        lab.write_batch(topic, changes, [(1, "a", "insert"), (2, "b", "delete")], 7, "upsert-kafka", **given)
    assert lab.wire.pairs(topic) == [(b'{"k":1}', b'{"k":1,"v":"a"}'), (b'{"k":2}', None)]


def test_o09_more_tasks_than_the_parallelism_is_an_error(lab: Lab, made: Topics) -> None:
    """`sink.parallelism` = 0 is rejected, and so are more tasks than it allows."""
    topic = made()
    lab.write(topic, KV, [(1, "a")], sink__parallelism=1)
    with pytest.raises(InvalidInputError, match=r"sink\.parallelism"):
        write_as_tasks(lab, topic, [[(1, "a")], [(2, "b")]], sink__parallelism=1)
    with pytest.raises(InvalidInputError, match=r"'sink\.parallelism': expected a whole number of 1 or more, got '0'"):
        lab.write(topic, KV, [(1, "a")], sink__parallelism=0)


def test_named_options_are_the_pages(lab: Lab) -> None:
    assert named({"sink__buffer_flush__max_rows": 1}) == {"sink.buffer-flush.max-rows": "1"}
