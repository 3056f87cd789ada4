"""The standard source: where it starts, what it reads, what it commits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.connectors.conftest import Lab
from tests.connectors.wire import Record

Topics = Callable[..., str]


def rows(*numbers: int, partition: int = 0) -> list[Record]:
    return [Record(json.dumps({"n": n}).encode(), partition=partition) for n in numbers]


def ns(found: Any) -> list[int]:
    return sorted(row.n for row in (found.collect() if hasattr(found, "collect") else found))


def test_b20_earliest_offset_reads_every_partition_from_its_start(lab: Lab, made: Topics) -> None:
    """`earliest-offset`: from the earliest available offset in each partition."""
    topic = made(2)
    lab.wire.send(topic, rows(1, 2, 3) + rows(4, 5, 6, partition=1))
    assert ns(lab.kafka(topic, "n INT")) == [1, 2, 3, 4, 5, 6]
    assert ns(lab.stream(topic, "n INT").run()) == [1, 2, 3, 4, 5, 6]


def test_b21_latest_offset_reads_what_comes_after_the_start(lab: Lab, made: Topics) -> None:
    """`latest-offset`: only new records."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    stream = lab.stream(topic, "n INT", scan__startup__mode="latest-offset")
    assert ns(stream.run()) == []
    lab.wire.send(topic, rows(4, 5))
    assert ns(stream.run()) == [4, 5]
    assert ns(lab.kafka(topic, "n INT", scan__startup__mode="latest-offset")) == []


def test_b22_group_offsets_is_the_default_and_falls_back_to_latest(lab: Lab, made: Topics) -> None:
    """`group-offsets`: from the committed offset of the group; without one from the latest."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    lab.wire.commit(f"g-{topic}", topic, 2)
    read = {"scan__startup__mode": None, "properties__group__id": f"g-{topic}"}
    assert ns(lab.kafka(topic, "n INT", **read)) == [3]
    new = lab.stream(topic, "n INT", **(read | {"properties__group__id": f"new-{topic}"}))
    assert ns(new.run()) == []
    lab.wire.send(topic, rows(4))
    assert ns(new.run()) == [4]


def test_b28_offsets_are_committed_after_each_completed_micro_batch(lab: Lab, made: Topics) -> None:
    """After a micro-batch the group's offset is the last processed one + 1; a second query reads nothing twice."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    group = f"g-{topic}"
    stream = lab.stream(topic, "n INT", properties__group__id=group, maxRowsPerTrigger=2)
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        until = time.monotonic() + 20
        while lab.wire.committed(group, topic) != [3] and time.monotonic() < until:
            time.sleep(0.1)
        assert lab.wire.committed(group, topic) == [3]
        assert [len(batch) for batch in stream.batches] == [2, 1]
    finally:
        query.stop()
    lab.wire.send(topic, rows(4))
    again = lab.stream(topic, "n INT", properties__group__id=group, scan__startup__mode="group-offsets")
    assert ns(again.run()) == [4]
    assert lab.wire.committed(group, topic) == [4]


def test_o31_timestamp_starts_at_the_first_record_that_is_not_older(lab: Lab, made: Topics) -> None:
    """`scan.startup.timestamp-millis`: the first offset whose timestamp is greater or equal."""
    topic = made(2)
    sent = [Record(json.dumps({"n": t}).encode(), timestamp=t) for t in (1000, 2000, 3000)]
    lab.wire.send(topic, sent)
    mode = {"scan__startup__mode": "timestamp"}
    assert ns(lab.kafka(topic, "n INT", **mode, scan__startup__timestamp_millis=2000)) == [2000, 3000]
    assert ns(lab.kafka(topic, "n INT", **mode, scan__startup__timestamp_millis=9000)) == []
    with pytest.raises(PySparkException, match="'scan.startup.timestamp-millis' is required in 'timestamp' startup"):
        lab.kafka(topic, "n INT", **mode).collect()
