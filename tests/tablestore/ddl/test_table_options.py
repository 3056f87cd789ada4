"""Options: what is right becomes typed values, what is wrong says what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_system.kafka.option_checks import Consistency, Headers
from snapshot.errors import InvalidInputError
from tablestore.options.specification import (
    OPTIONS,
    CompactionOptions,
    KafkaOptions,
    LogOptions,
    TableOptions,
    render_options,
)
from tablestore.options.table_options import parse_options, parse_stored

KAFKA: dict[str, Any] = {"log.system": "kafka", "kafka.bootstrap.servers": "localhost:9092", "kafka.topic": "orders"}
DAY_MS = 86_400_000


def log_of(**more: Any) -> LogOptions:
    log = parse_options({**KAFKA, **more}, primary_key=["id"]).log
    assert log is not None
    return log


def refusal(options: dict[str, Any], *, log_system: str | None = None, key: tuple[str, ...] = ("id",)) -> str:
    with pytest.raises(InvalidInputError) as caught:
        parse_options(options, log_system=log_system, primary_key=key)
    return str(caught.value)


def test_no_options_mean_the_documented_defaults() -> None:
    options = parse_options({}, primary_key=[])

    assert options == TableOptions()
    assert options.buckets == 1
    assert options.log is None
    assert options.compaction == CompactionOptions(auto=True, commits=100, ratio=0.25, min_commits=10)
    assert (options.snapshot.retention_ms, options.snapshot.retain_min) == (7 * DAY_MS, 10)
    assert options.write.target_file_size_bytes == 128 << 20
    assert (options.publish.driver_rows_max, options.publish.transaction_rows_max) == (100_000, 500_000)


def test_a_log_needs_only_its_servers_and_its_topic() -> None:
    assert log_of() == LogOptions(
        kafka=KafkaOptions(topic="orders", client={"bootstrap.servers": "localhost:9092"}),
        consistency=Consistency.TRANSACTIONAL,
        format="json",
        headers=Headers.LAST,
        retention_ms=None,
        compacted=False,
        transaction_timeout_ms=60_000,
        replication_factor=-1,
    )


def test_the_argument_names_the_log_system_as_well() -> None:
    without = {name: value for name, value in KAFKA.items() if name != "log.system"}

    expected = parse_options(KAFKA, primary_key=[])

    assert parse_options(without, log_system="kafka", primary_key=[]) == expected
    assert parse_options(KAFKA, log_system="kafka", primary_key=[]) == expected


def test_values_of_python_work_as_text_does() -> None:
    typed = parse_options({"bucket": 4, "compaction.auto": False, "compaction.ratio": 0.5}, primary_key=["id"])
    text = parse_options({"bucket": "4", "compaction.auto": "FALSE", "compaction.ratio": " 0.5 "}, primary_key=["id"])

    assert typed == text
    assert (typed.buckets, typed.compaction.auto, typed.compaction.ratio) == (4, False, 0.5)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("7 d", 7 * DAY_MS),
        ("1 day", DAY_MS),
        ("12h", DAY_MS // 2),
        ("30 MIN", 1_800_000),
        ("90 s", 90_000),
        ("5 ms", 5),
        ("-1", -1),
    ],
)
def test_durations_take_units(text: str, milliseconds: int) -> None:
    assert log_of(**{"log.retention": text}).retention_ms == milliseconds


@pytest.mark.parametrize(
    ("text", "size"), [("1 gb", 1 << 30), ("64mb", 64 << 20), ("2 kib", 2048), ("4096", 4096), ("4096 b", 4096)]
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert parse_options({"write.target-file-size": text}, primary_key=[]).write.target_file_size_bytes == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bucket", "0"),
        ("bucket", "four"),
        ("bucket", "1.5"),
        ("bucket", ""),
        ("bucket", "٤x"),
        ("compaction.auto", "yes"),
        ("compaction.ratio", "nan"),
        ("compaction.ratio", "-0.1"),
        ("compaction.ratio", "inf"),
        ("compaction.commits", "0"),
        ("snapshot.retention", "7"),
        ("snapshot.retention", "7 fortnights"),
        ("snapshot.retain-min", "0"),
        ("write.target-file-size", "10 b"),
        ("log.consistency", "exactly-once"),
        ("log.format", "avro"),
        ("log.retention", "0 s"),
        ("log.retention", "-2"),
        ("log.compacted", "1"),
        ("log.headers", "none"),
        ("log.transaction-timeout", "10 ms"),
        ("log.replication-factor", "0"),
        ("kafka.topic", "no spaces"),
        ("kafka.topic", ".."),
        ("publish.transaction-rows-max", "0"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(name: str, value: str) -> None:
    message = refusal({**KAFKA, name: value})

    assert name in message
    assert "expected" in message or "required" in message
    assert value in message


def test_o22_g14_a_wrong_word_is_answered_with_the_right_ones() -> None:
    """`log.consistency`: `transactional` (the default) or `eventual`."""
    assert "'transactional' or 'eventual'" in refusal({**KAFKA, "log.consistency": "strict"})


def test_o21_an_unknown_log_system_is_answered_with_kafka() -> None:
    """`log.system`: a value other than `files` or `kafka` is rejected."""
    assert "'kafka'" in refusal({**KAFKA, "log.system": "pulsar"})
    assert "'files' or 'kafka'" in refusal({}, log_system="pulsar")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("file.format", "files are Parquet"),
        ("write-only", "use compaction.auto=false and snapshot.expire-auto=false"),
        ("local-merge-buffer-size", "merged before they are stored"),
        ("continuous.discovery-interval", "'tablestore.trigger' in SQL"),
        ("lookup.dynamic-partition.refresh-interval", "a lookup join reads the table's current rows"),
        ("lookup.dynamic-partition", "in WITH, ALTER TABLE ... SET or a hint"),
        ("blob-descriptor-field", "store the bytes in a BYTES column"),
        ("blob.target-file-size", "leave it out"),
        ("sink.committer-memory", "leave it out: Spark divides the work"),
        ("compaction.size-ratio", "leave it out: compaction.commits, compaction.ratio and compaction.auto"),
        ("format-table.implementation", "let Spark read them"),
        ("table-read.sequence-number.enabled", "sequence.field orders the rows of a key"),
        ("properties.linger.ms", "use kafka.linger.ms"),
    ],
)
def test_options_of_other_systems_are_answered_with_what_to_use(name: str, instead: str) -> None:
    assert instead in refusal({**KAFKA, name: "1"})


def test_files_is_the_log_system_of_a_table_without_a_broker() -> None:
    assert parse_options({}, log_system="files", primary_key=["id"]) == parse_options({}, primary_key=["id"])
    assert parse_options({"log.system": "files"}, primary_key=[]).log is None
    assert "must be the same" in refusal(KAFKA, log_system="files")


def test_option_and_argument_must_not_contradict_each_other() -> None:
    message = refusal({**KAFKA, "log.system": "pulsar"}, log_system="kafka")

    assert "pulsar" in message
    assert "kafka" in message


@pytest.mark.parametrize("missing", ["kafka.bootstrap.servers", "kafka.topic"])
def test_o23_o24_a_missing_required_option_is_named(missing: str) -> None:
    """`kafka.bootstrap.servers` is required for a Kafka log; a stored `kafka.topic` is not empty."""
    given_options = {name: value for name, value in KAFKA.items() if name != missing}

    assert f"'{missing}' is required" in refusal(given_options)
    assert missing in refusal({**KAFKA, missing: "  "})


def test_paimons_word_for_buckets_of_any_number_is_the_default() -> None:
    for options in ({"bucket": -1}, {**KAFKA, "bucket": "-1"}):
        for key in ((), ("a",)):
            assert parse_options(options, primary_key=key) == parse_options(
                {name: text for name, text in options.items() if name != "bucket"}, primary_key=key
            )
    for key in ((), ("a", "b")):
        message = refusal({"bucket": -1, "bucket-key": "a"}, key=key)
        assert "'bucket'='-1' is not supported: the columns of 'bucket-key' need a number of buckets" in message
    assert "'bucket'='-2' is not supported: the bucket of a key is its partition in the log" in refusal({"bucket": -2})


def test_other_ways_to_changes_with_the_rows_before_are_lookup() -> None:
    """Except of rows that are merged: their log would have what the table never has."""
    for producer in ("input", "Full-Compaction", "lookup"):
        for engine in ("deduplicate", "first-row"):
            made = parse_options({"changelog-producer": producer, "merge-engine": engine}, primary_key=["a"])
            assert made.looks_up
            assert made.to_properties()["changelog-producer"] == "lookup"
        with pytest.raises(InvalidInputError, match="needs a primary key"):
            parse_options({"changelog-producer": producer}, primary_key=[])
    for engine in ("partial-update", "Aggregation"):
        assert parse_options({"changelog-producer": "full-compaction", "merge-engine": engine}, primary_key=["a"])
        message = refusal({"changelog-producer": "input", "merge-engine": engine}, key=("a",))
        assert f"does not go with 'merge-engine'='{engine.lower()}'" in message
        assert "Use 'lookup'" in message
    assert refusal({"changelog-producer": "input"}, key=()).startswith("changelog-producer='input' needs a primary key")


def test_a_bucket_key_has_columns_of_the_primary_key_where_there_is_one() -> None:
    message = refusal({"bucket-key": "a,c"}, key=("a", "b"))
    assert "all rows of a key must be in one bucket" in message
    assert parse_options({"bucket-key": "b,a"}, primary_key=["a", "b"]).bucket_key is None
    assert parse_options({"bucket-key": "b"}, primary_key=["a", "b"]).bucket_key == ("b",)
    assert parse_options({"bucket-key": "b, a"}, primary_key=[]).to_properties()["bucket-key"] == "b,a"
    assert parse_options({"bucket-key": "b, a", "bucket": 3}, primary_key=["a", "b"]).buckets == 3


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("buckt", "'bucket'"),
        ("log.consistencie", "'log.consistency'"),
        ("compaction.commit", "'compaction.commits'"),
        ("sasl.password", "'kafka.sasl.password'"),
        ("topic", "kafka.topic"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("properties.bootstrap.servers", "kafka.bootstrap.servers"),
        ("properties.sasl.password", "kafka.sasl.password"),
        ("connector", "log.system=kafka"),
        ("scan.startup.mode", "scan_mode"),
        ("sink.parallelism", "Spark divides the work among its tasks"),
        ("sink.delivery-guarantee", "connector"),
        ("changelog-producer.row-deduplicate", "leave it out: writing a row that is the same"),
        ("tag.automatic-creation", "create tags explicitly"),
        ("manifest.target-file-size", "leave it out: there are no manifests"),
        ("scan.fallback-branch", "there are no branches"),
        ("record-level.expire-time", "partition.expiration-time"),
        ("parquet.enable.dictionary", "leave it out: files are Parquet"),
        ("streaming-read-overwrite", "leave it out: streams read what an overwrite replaces"),
        ("metadata.iceberg.storage", "the base table is a Delta table, which any Delta reader opens"),
        ("btree-index.cache-size", "leave it out: files have statistics and no further indexes"),
        ("csv.field-delimiter", "leave it out: files are Parquet"),
        ("data-file.external-paths", "not supported: a table's files are in its folder"),
        ("path", "not supported: the table is the folder of its name in the warehouse"),
        ("zzz", "docs/reference/options.md"),
    ],
)
def test_an_unknown_name_is_answered_with_the_right_one(wrong: str, right: str) -> None:
    message = refusal({**KAFKA, wrong: "hunter2"})

    assert f"'{wrong}'" in message
    assert right in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "name",
    [
        "transactional.id",
        "group.id",
        "enable.idempotence",
        "isolation.level",
        "auto.offset.reset",
        "enable.auto.commit",
        "acks",
        "key.serializer",
        "partitioner",
        "enable.partition.eof",
        "transaction.timeout.ms",
        "error_cb",
    ],
)
def test_client_options_the_guarantees_hang_on_are_refused(name: str) -> None:
    assert f"'kafka.{name}'" in refusal({**KAFKA, f"kafka.{name}": "x"})


def test_other_client_options_reach_the_client_with_the_prefix_cut() -> None:
    assert log_of(**{"kafka.client.id": "billing"}).kafka.client["client.id"] == "billing"


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ({"log.compacted": "true"}, (), ("log.compacted", "primary key")),
        ({"log.compacted": "true", "log.format": "arrow"}, ("id",), ("log.compacted", "json")),
        ({"log.truncate-record": "true", "log.compacted": "true"}, ("id",), ("log.truncate-record", "log.compacted")),
        (
            {"log.truncate-record": "true", "log.consistency": "eventual"},
            ("id",),
            ("log.truncate-record", "'eventual'"),
        ),
        (
            {"log.truncate-record": "true", "changelog-producer": "lookup", "log.format": "arrow"},
            ("id",),
            ("log.truncate-record", "lookup"),
        ),
    ],
)
def test_options_that_contradict_each_other_or_the_table(
    more: dict[str, str], key: tuple[str, ...], words: tuple[str, ...]
) -> None:
    message = refusal({**KAFKA, **more}, key=key)

    assert all(word in message for word in words)


@pytest.mark.parametrize(
    "name", ["log.consistency", "log.retention", "kafka.topic", "kafka.client.id", "publish.driver-rows-max"]
)
def test_g19_options_of_a_log_need_a_log_system(name: str) -> None:
    """`log.consistency` and the other options of a log need `log.system`."""
    message = refusal({name: "eventual"})

    assert name in message
    assert "log.system=kafka" in message


def test_a_value_that_is_no_text_is_refused() -> None:
    assert "list" in refusal({"bucket": [4]})


@pytest.mark.parametrize(
    "options", [{}, KAFKA, {**KAFKA, "log.retention": "-1", "kafka.sasl.password": "env:PASSWORD"}]
)
def test_parsed_options_survive_pickling(options: dict[str, Any]) -> None:
    parsed = parse_options(options, primary_key=["id"])

    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert hash(parsed) == hash(parse_options(options, primary_key=["id"]))


def test_what_describes_stored_data_is_stored_even_at_its_default() -> None:
    assert parse_options({}, primary_key=[]).to_properties() == {"bucket": "1"}
    assert parse_options({**KAFKA, "log.headers": "last"}, primary_key=[]).to_properties() == {
        **KAFKA,
        "bucket": "1",
        "log.consistency": "transactional",
        "log.format": "json",
        "log.compacted": "false",
    }


DURATIONS = st.integers(1_000, 10**12).map(lambda ms: f"{ms} ms") | st.sampled_from(["7 d", "12 h", "90 min", "61 s"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bucket": st.integers(1, 1000),
    "log.consistency": st.sampled_from(["transactional", "eventual"]),
    "log.format": st.just("json"),
    "log.retention": DURATIONS | st.just("-1"),
    "log.compacted": st.booleans(),
    "log.headers": st.sampled_from(["last", "all"]),
    "log.transaction-timeout": DURATIONS,
    "log.replication-factor": st.integers(1, 9) | st.just(-1),
    "kafka.client.id": st.text("abc:= ", min_size=1).map(str.strip),
    "kafka.sasl.password": st.sampled_from(["env:KAFKA_PASSWORD", "file:/run/secrets/kafka"]),
    "compaction.auto": st.booleans(),
    "compaction.commits": st.integers(1, 10**6),
    "compaction.ratio": st.floats(0, 100),
    "compaction.min-commits": st.integers(1, 10**6),
    "snapshot.retention": DURATIONS,
    "snapshot.retain-min": st.integers(1, 10**6),
    "snapshot.retain-max": st.integers(10**6, 10**7),
    "snapshot.expire-auto": st.booleans(),
    "consumer.expiration-time": DURATIONS,
    "partition.expire-auto": st.booleans(),
    "partition.expiration-check-interval": DURATIONS,
    "write.target-file-size": st.integers(1 << 10, 1 << 40),
    "publish.driver-rows-max": st.integers(0, 10**9),
    "publish.transaction-rows-max": st.integers(1, 10**9),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_stored_properties_parse_to_equal_options(options: dict[str, Any]) -> None:
    parsed = parse_options({**KAFKA, **options}, primary_key=["id"])

    stored = parsed.to_properties()

    assert parse_options(stored, primary_key=["id"]) == parsed
    assert all(isinstance(text, str) for text in stored.values())


def test_every_option_is_declared_once_and_its_default_is_valid() -> None:
    names = [spec.name for spec in OPTIONS]

    assert len(names) == len(set(names))
    for spec in OPTIONS:
        if spec.default is not None:
            assert spec.type.parse(spec.type.show(spec.parse(spec.default))) == spec.parse(spec.default)


def test_the_page_of_all_options_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "options.md"

    assert page.read_text(encoding="utf-8") == render_options(), (
        "run: python -m tablestore.options.specification > docs/reference/options.md"
    )


def test_options_that_older_versions_stored_are_read_and_no_longer_stored() -> None:
    stored = {**KAFKA, "bucket": "1", "log.key.format": "json", "log.changelog-mode": "auto"}
    options = parse_stored(stored, primary_key=[])
    assert options == parse_options(KAFKA, primary_key=[])
    assert not {"log.key.format", "log.changelog-mode"} & options.to_properties().keys()
