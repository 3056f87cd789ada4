"""Coders that are kept: each thread has its own, and each kind of log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.log import KafkaLog
from snapshot.schema.system_columns import with_kind

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def log() -> KafkaLog:
    return KafkaLog(
        table_id="t",
        client=KafkaClient({"bootstrap.servers": "127.0.0.1:1"}),
        topic="t",
        partitions=1,
        format="json",
        changelog=False,
        schema=with_kind(COLUMNS),
        primary_key=("id",),
        headers="last",
        transaction_timeout_ms=60_000,
        driver_rows_max=1,
        transaction_rows_max=1,
    )


def test_a_coder_is_kept_for_its_thread_and_for_logs_of_the_same_records(log: KafkaLog) -> None:
    kept = log.kept_codec()
    assert replace(log, topic="another", table_id="another").kept_codec() is kept
    others = [
        replace(log, primary_key=("v",)),
        replace(log, format="debezium-json"),
        replace(log, format="debezium-json", changelog=True),
        log.under(with_kind(pa.schema([COLUMNS.field("id"), pa.field("v", pa.int32())]))),
    ]
    assert len({id(each.kept_codec()) for each in (log, *others)}) == 1 + len(others)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(log.kept_codec).result() is not kept
    assert log.codec() is not log.codec()


def test_few_are_kept(log: KafkaLog) -> None:
    first = log.kept_codec()
    for number in range(8):
        replace(log, primary_key=("v", "id")[: 1 + number % 2], mixed=number > 3, format="arrow").kept_codec()
    assert log.kept_codec() is not first
