"""Records of another producer in the topic: the error names the first and the way on, and ``skip`` is that way."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from snapshot.errors import CorruptedError
from tablestore.ddl.alter import alter
from tablestore.local.table import LocalTable
from tablestore.write.publish import PublishPendingError
from tablestore.write.writer import Writer
from tests.harness.damage import Damaged
from tests.harness.local_writes import rows_of

JSON: dict[str, Any] = {}
APPEND: dict[str, Any] = {"key": False}
ARROW: dict[str, Any] = {"log__format": "arrow"}
DEBEZIUM: dict[str, Any] = {"log__format": "debezium-json"}
HEADERS: dict[str, Any] = {"log__headers": "all"}
BAD = b"not one of the table's"


@pytest.fixture
def table(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", **request.param)


def set_option(damaged: Damaged, value: str) -> None:
    table = damaged.open()
    publisher = table.log.publisher()
    assert publisher is not None
    alter(table, set_options={"log.foreign-records": value}, publish=Writer(table, publisher).publish)
    publisher.discard()


def feed(damaged: Damaged) -> list[dict[str, Any]]:
    found = LocalTable(damaged.open()).tail(scan_mode="earliest", follow=False)
    return [row for batch in found for row in batch.to_pylist()]


def alike(damaged: Damaged) -> tuple[bytes | None, bytes | None]:
    """Copy a record of the table: to a reader of records, it is the table's own."""
    message = next(m for p in (0, 1) for m in damaged.records(p) if m.value() is not None)
    return message.value(), message.key()


@pytest.mark.parametrize(
    ("table", "readable"),
    [(JSON, False), (JSON, True), (APPEND, True), (ARROW, False), (DEBEZIUM, True), (HEADERS, True)],
    indirect=["table"],
)
def test_the_error_names_the_record_and_skip_reads_on_without_it(table: Damaged, readable: bool) -> None:
    expected = feed(table)
    value, key = alike(table) if readable else (BAD, b"{}")
    # Without a key the next snapshot is in one partition, whichever that is.
    offsets = [table.send(partition, value, key) for partition in ((0,) if table.key else (0, 1))]
    table.write(5)
    partition = table.partition_of(5)
    offset = offsets[partition]
    with pytest.raises(CorruptedError) as raised:
        feed(table)
    assert re.search(rf"topic '{table.topic}', partition {partition}, offset {offset}\b", str(raised.value))
    assert "'log.foreign-records' to 'skip'" in str(raised.value)
    set_option(table, "skip")
    found = feed(table)
    own = [row for row in found if row["_commit_version"] <= 4]
    assert sorted(own, key=str) == sorted(expected, key=str)
    assert len([row for row in found if row["_commit_version"] == 5]) == 12
    set_option(table, "fail")
    with pytest.raises(CorruptedError, match=f"offset {offset}"):
        feed(table)


@pytest.mark.parametrize(
    ("table", "readable", "at_end"),
    [(JSON, False, True), (JSON, True, False), (ARROW, True, True), (APPEND, False, False)],
    indirect=["table"],
)
def test_verify_names_it_and_repair_says_what_to_do(table: Damaged, readable: bool, at_end: bool) -> None:
    value, key = alike(table) if readable else (BAD, b"{}")
    offset = table.send(0, value, key)
    if not at_end:
        table.write(5)
    (found,) = table.verify().differences
    assert (found.kind, found.partition, found.offset) == (
        DifferenceKind.EXTRA if readable else DifferenceKind.UNREADABLE,
        0,
        offset,
    )
    done = table.repair()
    assert not done.ok
    assert any("log.foreign-records" in each for each in done.advice), done.advice
    assert "nothing needed repair" not in str(done)


@pytest.fixture
def eventual(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", log__consistency="eventual")


def test_an_eventual_log_goes_on_with_skip(eventual: Damaged) -> None:
    bad = eventual.send(0, BAD, b"{}")
    alike = b'{"id": 77, "v": "theirs"}'
    eventual.send(0, alike, b'{"id": 77}')
    with pytest.raises(CorruptedError, match=rf"partition 0, offset {bad}\b.*'log.foreign-records' to 'skip'"):
        eventual.write(5)
    (found,) = [each for each in eventual.verify().differences if each.kind is DifferenceKind.UNREADABLE]
    assert f"offset {bad}" in str(found)
    with suppress(CorruptedError, PublishPendingError):
        # The change is committed, and then published by a handle that was opened without it.
        set_option(eventual, "skip")
    eventual.write(6)
    table = eventual.open()
    assert table.newest_visible() == table.files.latest()
    assert 77 not in rows_of(table)
    last = [m.value() for m in eventual.records(0) if m.key() == b'{"id":77}']
    assert last[-1:] == [None]
