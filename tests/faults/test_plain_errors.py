"""What is wrong is said as it is: a dropped table, a file that somebody removed, a disk that refuses, a deaf broker."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileOpener

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import DataLostError, InvalidInputError, NotFoundError, TableStoreError, UnavailableError
from tablestore import PublishPendingError, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.faults import failing
from tests.harness.local_writes import SCHEMA, make_table, publisher_of, write

WAIT = 2.0
"""Seconds that the tables here wait for a broker."""


@pytest.fixture(params=[True, False], ids=["key", "append"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> TableContext:
    """A table without a log, with two snapshots."""
    keys = ["id"] if request.param else []
    table = create_drop.create(TableDefinition(str(tmp_path / "t"), SCHEMA, primary_key=keys))
    write(Writer(table, None), [(1, "a")])
    write(Writer(table, None), [(2, "b")])
    return table


def test_a_handle_of_a_dropped_table_says_so(bare: TableContext) -> None:
    local, writer = open_local(bare.path), Writer(bare, None)
    create_drop.drop(TableContext.open(bare.path))
    for use in (local.to_arrow, lambda: write(writer, [(3, "c")]), bare.refreshed):
        with pytest.raises(NotFoundError, match=r"it was dropped or moved"):
            use()


def test_a_file_that_somebody_removed_is_named_and_not_called_expired_alone(bare: TableContext) -> None:
    for path in Path(bare.path).rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            path.unlink()
    table, missing = open_local(bare.path), r"A file of the snapshot is missing: it was deleted"
    with pytest.raises(DataLostError, match=rf"\.parquet: the file does not exist\. {missing}"):
        table.to_arrow()
    with pytest.raises(DataLostError, match=rf'\.parquet"\. {missing}'):
        table.to_arrow(filter="id > 0")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "Make room"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "change the owner or the permissions"),
        (errno.EPERM, "change the owner or the permissions"),
    ],
)
def test_a_disk_that_refuses_names_its_reason(bare: TableContext, code: int, remedy: str) -> None:
    refused = OSError(code, os.strerror(code))
    with failing(LocalFileOpener, "write", refused), pytest.raises(UnavailableError) as caught:
        write(Writer(bare, None), [(3, "c")])
    assert os.strerror(code) in str(caught.value)
    assert remedy in str(caught.value)
    assert ("Make room" in str(caught.value)) == (code == errno.ENOSPC)
    assert bare.files.latest() == 2


SASL = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "env:USER",
    "kafka.sasl.password": "env:HOME",
}
WRONG = {
    "dead": ({}, UnavailableError, "Connect to .* failed: Connection refused"),
    "sasl": (SASL, TableStoreError, "(?i)sasl|disconnected"),
    "tls": ({"kafka.security.protocol": "SSL"}, TableStoreError, "(?i)ssl handshake failed|disconnected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_broker_that_cannot_be_used_is_given_up_in_bounded_time_and_named(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("USER", "alice")
    wrong, error, seen = WRONG[case]
    servers = f"{LOOPBACK}:{free_port()}" if case == "dead" else kafka.bootstrap_servers
    options = {
        "kafka.bootstrap.servers": servers, "kafka.topic": topic(), "bucket": 2, "log.request-timeout": "2 s", **wrong
    }  # fmt: skip
    began = time.monotonic()
    with pytest.raises(error, match=seen):
        create_drop.create(
            TableDefinition(str(tmp_path / "x"), SCHEMA, primary_key=["id"], log_system="kafka", options=options)
        )
    assert time.monotonic() - began < 2 * WAIT
    # A table that was made when its broker was well.
    made = make_table(tmp_path / "t", kafka.bootstrap_servers, topic())
    alter(made, (), set_options={"log.request-timeout": "2 s"}, publish=lambda _: None)
    write(Writer(made.refreshed(), None), [(1, "a")])
    runtime = {"kafka.bootstrap.servers": servers, **wrong}
    for use in (recover_it, write_it):
        began = time.monotonic()
        with pytest.raises(error, match=seen) as caught:
            use(TableContext.open(made.path, runtime))
        assert time.monotonic() - began < 4 * WAIT
        assert isinstance(caught.value, PublishPendingError) == (use is recover_it and case != "sasl")
    assert made.files.latest() == 2


def recover_it(table: TableContext) -> None:
    recover(table, publisher_of(table))


def write_it(table: TableContext) -> None:
    write(Writer(table, publisher_of(table)), [(2, "b")])


def test_the_default_wait_is_twenty_seconds_and_the_option_changes_it(tmp_path: Path, kafka: Any, topic: Any) -> None:
    assert KafkaClient({}).wait_seconds == 20.0
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic())
    assert table.log.settings.client.wait_seconds == 20.0
    assert isinstance(publisher_of(table), KafkaPublisher)
    with pytest.raises(InvalidInputError, match=r"log\.request-timeout"):
        make_table(tmp_path / "u", kafka.bootstrap_servers, topic(), **{"log__request-timeout": "1 ms"})
