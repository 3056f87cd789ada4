"""Metadata columns: the seven keys on both connectors, the two that can be written, the types they may have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from snapshot.errors import CorruptedError, InvalidInputError
from tests.connectors.harness.lab import Lab
from tests.connectors.harness.tasks import as_task
from tests.connectors.harness.wire import Record

Topics = Callable[..., str]
CONNECTORS = ["kafka", "upsert-kafka"]
AT = 1_700_000_000_123
INSTANT = dt.datetime.fromtimestamp(AT / 1000, tz=dt.UTC).replace(microsecond=123000)


def read(lab: Lab, topic: str, connector: str, column: str, key: str, **options: str) -> list[object]:
    """Read one metadata column, in the order of the row's number."""
    more = {"primary_key": "k"} if connector == "upsert-kafka" else {}
    name = column.split(maxsplit=1)[0]
    rows = lab.read(topic, f"k INT, {column}", connector, **more, **{f"metadata__{name}": key}, **options)
    return [row[name] for row in sorted(rows, key=lambda row: row["k"])]


def record(k: int, **more: object) -> Record:
    return Record(f'{{"k":{k}}}'.encode(), f'{{"k":{k}}}'.encode(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m01_topic_is_the_records_topic(lab: Lab, made: Topics, connector: str) -> None:
    """`topic` STRING NOT NULL: the topic of each message, also for a list of topics."""
    one, two = made(), made()
    lab.wire.send(one, [record(1)])
    lab.wire.send(two, [record(2)])
    assert read(lab, one, connector, "t STRING", "topic") == [one]
    if connector == "kafka":
        assert read(lab, f"{one};{two}", connector, "t STRING", "topic") == [one, two]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m02_partition_is_the_records_partition(lab: Lab, made: Topics, connector: str) -> None:
    """`partition` INT NOT NULL; a wider type or STRING works too."""
    topic = made(4)
    lab.wire.send(topic, [record(1, partition=3), record(2, partition=0)])
    assert read(lab, topic, connector, "p INT", "partition") == [3, 0]
    assert read(lab, topic, connector, "p BIGINT", "partition") == [3, 0]
    assert read(lab, topic, connector, "p STRING", "partition") == ["3", "0"]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m03_headers_are_a_map(lab: Lab, made: Topics, connector: str) -> None:
    """`headers` MAP<STRING, BYTES>: empty without headers; of a repeated header, the last value."""
    topic = made()
    several = (("a", b"\x01"), ("b", None), ("a", b"\x02"))
    lab.wire.send(topic, [record(1, headers=(("a", b"\x01"),)), record(2), record(3, headers=several)])
    assert read(lab, topic, connector, "h MAP<STRING, BYTES>", "headers") == [
        {"a": b"\x01"}, {}, {"a": b"\x02", "b": None}
    ]  # fmt: skip


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("key", ["headers", "header-list"])
def test_headers_as_a_list_keep_repeated_ones_in_order(lab: Lab, made: Topics, connector: str, key: str) -> None:
    """An element that is NULL, or has no key, is not a header."""
    topic = made(**({"cleanup_policy": "compact"} if connector == "upsert-kafka" else {}))
    several = (("a", b"\x01"), ("b", None), ("a", b"\x02"))
    column, more = "h ARRAY<ROW<key STRING, value BYTES>>", {"metadata__h": key}
    lab.wire.send(topic, [record(1, headers=several), record(2)])
    rows = [{"key": name, "value": data} for name, data in several]
    assert read(lab, topic, connector, column, key) == [rows, []]
    more |= {"primary_key": "k"} if connector == "upsert-kafka" else {}
    with_nothing = [rows[0], None, {"key": None, "value": b"x"}, *rows[1:]]
    lab.write(topic, f"k INT, {column}", [(3, rows), (4, None), (5, with_nothing)], connector, **more)
    assert [found.headers for found in lab.wire.read(topic)[2:]] == [several, (), several]


def test_one_column_writes_the_headers(lab: Lab, made: Topics) -> None:
    """Reading shows them in any number of columns."""
    topic = made()
    columns = "k INT, h MAP<STRING, BYTES>, l ARRAY<ROW<key STRING, value BYTES>>"
    row = (1, [("a", b"x")], [{"key": "a", "value": b"x"}])
    for key in ("headers", "header-list"):
        with pytest.raises(InvalidInputError, match="'h', 'l': expected one column that writes metadata 'headers'"):
            lab.write(topic, columns, [row], metadata__h="headers", metadata__l=key)
    with pytest.raises(InvalidInputError, match="'s', 't': expected one column that writes metadata 'timestamp', got"):
        lab.write(topic, "s TIMESTAMP, t TIMESTAMP", [], metadata__s="timestamp", metadata__t="timestamp")
    with pytest.raises(InvalidInputError, match=r"'h' has type map.*'header-list' \(ARRAY<ROW"):
        read(lab, topic, "kafka", "h MAP<STRING, BYTES>", "header-list")
    lab.wire.send(topic, [record(1, headers=(("a", b"x"),))])
    (found,) = lab.read(topic, columns, metadata__h="headers", metadata__l="header-list")
    assert (found["h"], found["l"]) == ({"a": b"x"}, row[2])


def test_c15_headers_are_never_null(lab: Lab, made: Topics) -> None:
    """`headers` is declared nullable, as on the page, and is an empty map if there are none."""
    topic = made()
    lab.wire.send(topic, [record(1)])
    assert read(lab, topic, "kafka", "h MAP<STRING, BYTES>", "headers") == [{}]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m04_leader_epoch_is_the_brokers(lab: Lab, made: Topics, connector: str) -> None:
    """`leader-epoch` INT: 0 for a partition's first leader."""
    topic = made()
    lab.wire.send(topic, [record(1)])
    assert read(lab, topic, connector, "e INT", "leader-epoch") == [0]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m05_offset_counts_in_each_partition(lab: Lab, made: Topics, connector: str) -> None:
    """`offset` BIGINT NOT NULL."""
    topic = made(2)
    lab.wire.send(topic, [record(1), record(2), record(3, partition=1), record(4)])
    assert read(lab, topic, connector, "o BIGINT", "offset") == [0, 1, 0, 2]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m06_timestamp_is_exact_to_the_millisecond_and_can_be_written(lab: Lab, made: Topics, connector: str) -> None:
    """`timestamp` TIMESTAMP_LTZ(3) NOT NULL."""
    topic = made(**({"cleanup_policy": "compact"} if connector == "upsert-kafka" else {}))
    lab.wire.send(topic, [record(1, timestamp=AT)])
    assert read(lab, topic, connector, "ts TIMESTAMP_LTZ", "timestamp") == [INSTANT]
    more = {"primary_key": "k"} if connector == "upsert-kafka" else {}
    columns = "k INT, ts TIMESTAMP_LTZ"
    lab.write(
        topic, columns, [(2, INSTANT + dt.timedelta(days=1)), (3, None)], connector, metadata__ts="timestamp", **more
    )
    written = lab.wire.read(topic)[1:]
    assert [found.value for found in written] == [b'{"k":2}', b'{"k":3}']
    assert written[0].timestamp == AT + 86_400_000
    assert abs((written[1].timestamp or 0) / 1000 - dt.datetime.now().timestamp()) < 60, "NULL is the time of writing"


@pytest.mark.parametrize("connector", CONNECTORS)
def test_m07_timestamp_type_says_who_set_it(lab: Lab, made: Topics, connector: str) -> None:
    """`timestamp-type` STRING NOT NULL: `CreateTime`, or `LogAppendTime` where the topic says so."""
    for config, expected in [({}, "CreateTime"), ({"message_timestamp_type": "LogAppendTime"}, "LogAppendTime")]:
        topic = made(**config)
        lab.wire.send(topic, [record(1)])
        assert read(lab, topic, connector, "tt STRING", "timestamp-type") == [expected]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_g02_headers_and_timestamp_can_be_written_and_nothing_else(lab: Lab, made: Topics, connector: str) -> None:
    """`headers` or `header-list`, and `timestamp` can be written; the rows need no other metadata column."""
    topic = made(**({"cleanup_policy": "compact"} if connector == "upsert-kafka" else {}))
    more = {"primary_key": "k"} if connector == "upsert-kafka" else {}
    headers = [("a", b"\x01"), ("n", None)]
    lab.write(topic, "k INT, h MAP<STRING, BYTES>", [(1, headers), (2, None)], connector, metadata__h="headers", **more)
    assert [found.headers for found in lab.wire.read(topic)] == [(("a", b"\x01"), ("n", None)), ()]
    lab.write(topic, "k INT", [(3,)], connector, metadata__o="offset", **more)
    with pytest.raises(InvalidInputError, match="keys for writing: headers, header-list, timestamp"):
        lab.write(topic, "k INT, o BIGINT", [(4, 4)], connector, metadata__o="offset", **more)


def test_c14_timestamp_fits_every_type_it_can_be_cast_to(lab: Lab, made: Topics) -> None:
    """`timestamp` is TIMESTAMP_LTZ on the page and TIMESTAMP(3) in its examples: it is cast in the session's time
    zone."""
    topic = made()
    lab.wire.send(topic, [record(1, timestamp=AT)])
    with as_task(0, spark__sql__session__timeZone="Asia/Tokyo"):
        local = dt.datetime(2023, 11, 15, 7, 13, 20, 123000)
        assert read(lab, topic, "kafka", "ts TIMESTAMP", "timestamp") == [local]
        assert read(lab, topic, "kafka", "ts DATE", "timestamp") == [local.date()]
        assert read(lab, topic, "kafka", "ts STRING", "timestamp") == ["2023-11-15 07:13:20.123"]
        lab.write(topic, "k INT, ts TIMESTAMP", [(2, local)], metadata__ts="timestamp")
    assert lab.wire.read(topic)[-1].timestamp == AT
    with pytest.raises(InvalidInputError, match=r"metadata 'timestamp' \(TIMESTAMP_LTZ\(3\) NOT NULL\)"):
        read(lab, topic, "kafka", "ts INT", "timestamp")


def test_c23_an_unknown_key_is_refused_with_all_seven(lab: Lab) -> None:
    """Both connectors have the metadata keys of the standard connector's page."""
    for connector in CONNECTORS:
        with pytest.raises(InvalidInputError) as caught:
            read(lab, "t", connector, "ts TIMESTAMP", "timestampx")
        for key in ("topic", "partition", "headers", "leader-epoch", "offset", "timestamp", "timestamp-type"):
            assert key in str(caught.value)


def test_a_metadata_column_is_in_no_value(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.write(topic, "ts TIMESTAMP_LTZ, k INT", [(INSTANT, 1)], metadata__TS="timestamp")
    assert lab.wire.values(topic) == [b'{"k":1}']
    assert lab.read(topic, "ts TIMESTAMP_LTZ, k INT", metadata__ts="timestamp") == [{"ts": INSTANT, "k": 1}]


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_LTZ", "STRING"])
def test_a_record_timestamp_beyond_sparks_is_named(lab: Lab, made: Topics, kind: str) -> None:
    """Such as nanoseconds in the place of milliseconds."""
    topic = made(message_timestamp_after_max_ms=str(2**63 - 1))
    nanos = 1_700_000_000_000_000_000
    lab.wire.send(topic, [Record(b'{"n":1}', timestamp=1), Record(b'{"n":2}', timestamp=nanos)])
    with pytest.raises(CorruptedError, match=f"offset 1, column 'ts': expected a timestamp in millis.*got {nanos}"):
        lab.read(topic, f"n INT, ts {kind}", metadata__ts="timestamp")
    assert len(lab.read(topic, "n INT")) == 2
