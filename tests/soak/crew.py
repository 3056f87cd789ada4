"""The processes of a soak: writers that finish each batch whatever the broker does, and readers that count."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from snapshot.errors import ConflictError, FencedError, OutcomeUnknownError, TableStoreError, UnavailableError
from snapshot.records import CommitId
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.local.table import open_local
from tablestore.maintenance.rollback import rollback
from tablestore.write.writer import Writer
from tests.crash.visibility import Observer
from tests.harness.local_writes import Change, fold_into, publisher_of, rows_of, run_here, write
from tests.harness.waiting import PATIENCE_SECONDS

KEYS = 200
ROWS_MAX = 40
"""How long a batch, or a reader without news, is waited for before that is an error of its own."""
RETRIED = (UnavailableError, OutcomeUnknownError, FencedError, ConflictError)
"""What a program is told to try again."""


@dataclass
class Log:
    """What one process of the crew has done.

    Attributes:
        name: which process.
        batches: batches that were written, or snapshots that were read.
        values: those that were written and hold more than deletes.
        held: for each batch, seconds until it was committed and published.
        interruptions: how often an error was answered by trying again, by its class.
        wrong: what must not happen, by its name.
    """

    name: str
    batches: int = 0
    values: list[int] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    interruptions: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def save(self, path: str) -> None:
        """Leave it where ``logs_of`` finds it."""
        Path(f"{path}.{self.name}.crew").write_text(json.dumps(vars(self)))

    @classmethod
    def all_of(cls, path: Path) -> list[Log]:
        """Read what the processes at a table have left."""
        found = [json.loads(file.read_text()) for file in sorted(path.parent.glob(f"{path.name}.*.crew"))]
        return [
            cls(**{**raw, "interruptions": Counter(raw["interruptions"]), "wrong": Counter(raw["wrong"])})
            for raw in found
        ]


def write_until(path: str, name: str, seconds: float, pause: float, results: Any) -> None:
    """Write batches, each until it is committed and published, and each once, however often that is tried."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    dice, done = random.Random(name), Log(name)
    table = TableContext.open(path)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    results.send((name, "ready", 0))
    results.recv()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        changes = batch_of(dice, name, done.batches)
        began = time.monotonic()
        try:
            _finish(writer, changes, CommitId(name, done.batches, durable=True), done)
        except TableStoreError as error:
            results.send((name, f"batch {done.batches}: {type(error).__name__}: {error}", 0))
            break
        done.held.append(time.monotonic() - began)
        if any(value is not None for _, value in changes):
            done.values.append(done.batches)
        done.batches += 1
        time.sleep(dice.uniform(0, pause))
    publisher.discard()
    done.save(path)
    results.send((name, "done", sum(done.interruptions.values())))


def batch_of(dice: random.Random, name: str, number: int) -> list[Change]:
    """Make a batch: each key at most once, so that every change of it is in the log."""
    keys = dice.sample(range(KEYS), dice.randint(1, ROWS_MAX))
    return [(key, None if dice.random() < 0.1 else f"{name}.{number}.{key}") for key in keys]


def _finish(writer: Writer, changes: list[Change], commit_id: CommitId, done: Log) -> None:
    """Write a batch as a program does that is started again after each error."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            writer.recover_once()
            if not writer.publish_landed(commit_id):
                write(writer, changes, commit_id)
            return
        except RETRIED as error:
            done.interruptions[type(error).__name__] += 1
            if time.monotonic() > until:
                raise


def tail_until_done(path: str, name: str, results: Any) -> None:
    """Follow the table by ``tail`` and count snapshots that come early, in part, twice, or out of order."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    seen = _Tail(path, name)
    results.send((name, "ready", 0))
    results.recv()
    heard = time.monotonic()
    while not seen.is_complete() and time.monotonic() - heard < PATIENCE_SECONDS:
        before = seen.through
        try:
            seen.follow()
        except RETRIED as error:
            seen.log.interruptions[type(error).__name__] += 1
        except TableStoreError as error:
            results.send((name, f"{type(error).__name__}: {error}", 0))
            break
        if seen.through > before:
            heard = time.monotonic()
    seen.log.wrong["unfinished"] += not seen.is_complete()
    table = TableContext.open(path)
    if seen.is_complete():
        seen.log.wrong["apart"] += seen.rows != rows_of(table, seen.through)
    seen.log.save(path)
    results.send((name, "done", 0))


class _Tail:
    """What a reader of ``tail`` has been given, snapshot by snapshot."""

    def __init__(self, path: str, name: str) -> None:
        self.log = Log(name)
        self.through = 0
        self.rows: dict[int, str] = {}
        self._path = Path(path)
        self._commits = Observer(self._path, name, whole=True).commits
        self._end = end_of(path)

    def is_complete(self) -> bool:
        """Whether the last snapshot of the soak has been read."""
        return self._end.exists() and self.through >= int(self._end.read_text() or 0) > 0

    def follow(self) -> None:
        """Read what is visible now, and no further."""
        local = open_local(self._path)
        newest = TableContext.open(str(self._path)).newest_visible()
        if newest <= self.through:
            time.sleep(0.02)
            return
        came: dict[int, list[Change]] = {}
        last = self.through
        for batch in local.tail(scan_mode="from-snapshot", snapshot=self.through + 1, follow=False):
            for row in batch.to_pylist():
                version = row[COMMIT_VERSION]
                self.log.wrong["early"] += not self._commits.has(version)
                self.log.wrong["order"] += version < last
                last = max(last, version)
                came.setdefault(version, []).append((row["id"], None if row["_change_type"] == "delete" else row["v"]))
        newest = max(newest, last)
        for version in range(self.through + 1, newest + 1):
            changes = came.get(version, [])
            self.log.wrong["torn"] += len(changes) != self._commits.rows(version)
            fold_into(self.rows, changes)
        self.log.batches += newest - self.through
        self.through = newest


def consume_until_done(path: str, name: str, servers: str, topic: str, partitions: int, results: Any) -> None:
    """Read the log as any Kafka user does; each record names its snapshot in a header."""
    log, observer = Log(name), Observer(Path(path), name, whole=False)
    options = {"bootstrap.servers": servers, "group.id": name, "isolation.level": "read_committed", "log_level": 0}
    consumer = Consumer({**options, "enable.auto.commit": False, "fetch.wait.max.ms": 10, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    results.send((name, "ready", 0))
    results.recv()
    end, heard = Path(f"{path}.records"), time.monotonic()
    while time.monotonic() - heard < PATIENCE_SECONDS:
        messages = []
        for message in consumer.consume(500, 0.05):
            if message.error() is None:
                messages.append(message)
            else:
                log.interruptions[message.error().name()] += 1
        snapshots = [int(dict(message.headers())["snapshot"]) for message in messages]
        observer.see(snapshots)
        for message, snapshot in zip(messages, snapshots, strict=True):
            observer.place(message.partition(), snapshot, message.offset())
        heard = time.monotonic() if messages else heard
        if end.exists() and observer.sight.records >= int(end.read_text() or 0) > 0:
            break
    consumer.close()
    log.batches = observer.sight.records
    log.wrong += Counter(early=observer.sight.early, order=observer.sight.disorder)
    log.wrong["unfinished"] += not end.exists() or observer.sight.records != int(end.read_text())
    log.save(path)
    results.send((name, "done", 0))


def roll_back_again_and_again(path: str, name: str, seconds: float, results: Any) -> None:
    """Roll the table back to one of its last snapshots, again and again, while others write, publish and expire."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    dice, done = random.Random(name), Log(name)
    results.send((name, "ready", 0))
    results.recv()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        table = TableContext.open(path)
        publisher = publisher_of(table)
        newest = table.files.latest()
        try:
            rollback(
                table, Writer(table, publisher), run_here, dice.randint(max(table.files.oldest(), newest - 8), newest)
            )
            done.batches += 1
        except TableStoreError as error:
            # The snapshot may have expired meanwhile, and others commit faster than a rollback compares.
            done.interruptions[type(error).__name__] += 1
        publisher.discard()
        time.sleep(dice.uniform(0.1, 0.6))
    done.save(path)
    results.send((name, "done", done.batches))


def end_of(path: str | Path) -> Path:
    """Name the file that says which snapshot is the last of a soak."""
    return Path(f"{path}.end")
