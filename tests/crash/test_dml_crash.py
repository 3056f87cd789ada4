"""Verbs on a table without a key: whoever dies at whatever step leaves, once recovered, a log that is the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from log_system.index import LogIndex
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.errors import CorruptedError
from snapshot.row_kind import KIND, TRUNCATE, RowKind
from snapshot.staging.file_rewriter import FileRewriter
from snapshot.staging.stage import StagedFile
from tablestore.context import TableContext
from tablestore.write.optimistic_retry import Replaced
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import Row, drain_raw, make_table, publisher_of, rewriting, staged, write
from tests.harness.log_audit import verify

pytestmark = pytest.mark.crash

PARTITIONS = 2
STEPS: list[tuple[type, str]] = [
    (FileRewriter, "stage"),
    (DeltaLog, "commit"),
    (KafkaPublisher, "take_over"),
    (Sender, "send"),
    (KafkaPublisher, "_send_offsets"),
    (KafkaPublisher, "_publish_here"),
    (LogIndex, "put"),
]


def in_log(servers: str, topic: str) -> Counter[Row]:
    """Fold a log of Arrow records as a plain consumer would."""
    found: Counter[Row] = Counter()
    for partition in drain_raw(servers, topic, PARTITIONS):
        rows: Counter[Row] = Counter()
        for message in partition:
            for row in pa.ipc.open_stream(message.value()).read_all().to_pylist():
                if row[KIND] == TRUNCATE:
                    rows.clear()
                else:
                    rows[row["id"], row["v"]] += -1 if row[KIND] in (RowKind.DELETE, RowKind.UPDATE_BEFORE) else 1
        found.update(rows)
    return found


def in_table(path: Path, version: int | None = None) -> Counter[Row]:
    """Read a version of the root as any Delta reader would."""
    table = DeltaTable(path, version=version)
    return Counter((row["id"], row["v"]) for row in table.to_pyarrow_table().to_pylist())


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_whoever_dies_in_a_verb_leaves_a_log_that_is_the_table(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], large: bool
) -> None:
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    options: dict[str, Any] = {"publish__driver_rows_max": 2, "publish__transaction_rows_max": 2} if large else {}
    table = make_table(path, servers, name, key=False, log__format="arrow", **options)
    buried: list[KafkaPublisher] = []

    def new_writer() -> Writer:
        buried.append(publisher_of(table))
        return Writer(table, buried[-1])

    writer, number = new_writer(), 0
    try:
        for step in STEPS:
            for after in (False, True):
                number += 1
                write(writer, [(number, "a"), (number, "b"), (-number, "c")])
                stage = rewriting(
                    table, lambda row, n=number: None if row[1] == "a" else (row[0], "B") if row == (n, "b") else row
                )
                try:
                    with failing(*step, after=after):
                        writer.replace(stage, kind="update")
                except Crash:
                    writer = new_writer()
        writer = new_writer()
        recover(table, buried[-1])
        assert in_log(servers, name) == in_table(path)
        report = verify(TableContext.open(str(path)))
        assert report.ok, report
        assert not report.pending
        writer.replace(rewriting(table, lambda _: None), kind="truncate")
        assert +in_log(servers, name) == in_table(path) == Counter()
    finally:
        for publisher in buried:
            publisher.discard()


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_whoever_dies_while_one_record_says_that_all_rows_are_gone(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], large: bool
) -> None:
    """An append that commits first is seen, and deleted: in the log it comes before the record."""
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    options: dict[str, Any] = {"publish__driver_rows_max": 0} if large else {}
    table = make_table(path, servers, name, key=False, log__format="arrow", log__truncate_record=True, **options)
    buried: list[KafkaPublisher] = []

    def new_writer() -> Writer:
        buried.append(publisher_of(table))
        return Writer(table, buried[-1])

    def meanwhile(number: int) -> Callable[[int], tuple[Sequence[StagedFile], Replaced]]:
        late: list[Row] = [(number, "late")]

        def stage(base: int) -> tuple[Sequence[StagedFile], Replaced]:
            files = table.files.base_table.files(base)
            if late:
                write(Writer(table, None), [late.pop()])
            new = staged(Writer(table, None).stager(whole_buckets=False), [(number, "new")])
            return [] if number % 3 else new, Replaced(files, (), base)

        return stage

    writer = new_writer()
    try:
        for number, (step, after) in enumerate(product(STEPS[3:5] if large else STEPS[1:], (False, True))):
            write(writer, [(number, "a"), (number, "b")])
            try:
                with failing(*step, after=after, hits=range(2, 3) if step[0] is DeltaLog else range(1, 2)):
                    writer.replace(meanwhile(number), kind="overwrite", all_rows=True)
            except Crash:
                writer = new_writer()
        writer = new_writer()
        recover(table, buried[-1])
        assert in_log(servers, name) == in_table(path)
        write(writer, [(-1, "end")])
        writer.replace(meanwhile(1), kind="truncate", all_rows=True)
        assert in_log(servers, name) == in_table(path) == Counter()
        report = verify(TableContext.open(str(path)))
        assert report.ok, report
    finally:
        for publisher in buried:
            publisher.discard()


def test_a_stranger_who_removes_rows_is_still_refused(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), key=False, log__format="arrow")
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    write(writer, [(1, "a"), (2, "b")])
    DeltaTable(tmp_path / "t").delete("id = 1")
    with pytest.raises(CorruptedError, match="another Delta writer"):
        table.files.changes(2, PARTITIONS)
    publisher.discard()
