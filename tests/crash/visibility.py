"""Visibility audit: nobody sees a record before its snapshot is committed, and our readers see whole snapshots only.

A process writes small snapshots while a plain consumer and our reader run in processes of their own. Whoever is given a
record of snapshot s looks at that moment whether the commit table has version s: no clocks are compared.
``python -m tests.crash.visibility [--commits N]`` prints a table; exit code 1 when a promise broke.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from log_system.gate import slices
from log_system.kafka.reader.snapshot_reader import read_slice
from log_system.local_kafka.owned import LocalKafka
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact_if_due
from tablestore.write.writer import Writer
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import Change, make_table, publisher_of, run_here, write
from tests.harness.table_audit import assert_index_is_true, audit

PARTITIONS = 2
KEYS = 200
ROWS_MAX = 12
SILENCE_SECONDS_MAX = 60.0


@dataclass
class Sight:
    """What one reader has seen.

    Attributes:
        reader: who.
        records: changes given to it.
        early: of these, with a snapshot that was not committed at that moment.
        torn: snapshots of which it was given a part; None where a reader is not promised whole ones.
        disorder: changes that came after one of a later snapshot in the same partition, or of a later offset.
        delays: for each snapshot, seconds from its commit until all of it was there.
    """

    reader: str
    records: int = 0
    early: int = 0
    torn: int | None = 0
    disorder: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every promise held."""
        return not (self.early or self.torn or self.disorder)


class CommitTable:
    """The commit table as the files of its Delta log; none of our code reads them."""

    def __init__(self, path: Path) -> None:
        """Look at the table at ``path``."""
        self._folder = path / "_changes" / "_delta_log"
        self._known: dict[int, tuple[float, int]] = {}

    def has(self, snapshot: int) -> bool:
        """Tell whether a snapshot is committed now."""
        return snapshot in self._known or self._file(snapshot).exists()

    def rows(self, snapshot: int) -> int:
        """Give the changes of a snapshot."""
        return self._read(snapshot)[1]

    def time(self, snapshot: int) -> float:
        """Give the time at which the snapshot's entry was written, in seconds since the epoch."""
        return self._read(snapshot)[0]

    def newest(self) -> int:
        """Give the newest snapshot."""
        return max(int(p.stem) for p in self._folder.glob("*.json"))

    def _file(self, snapshot: int) -> Path:
        return self._folder / f"{snapshot:020d}.json"

    def _read(self, snapshot: int) -> tuple[float, int]:
        if snapshot not in self._known:
            file = self._file(snapshot)
            adds = [action["add"] for action in map(json.loads, file.read_text().splitlines()) if "add" in action]
            rows = sum(json.loads(add["stats"])["numRecords"] for add in adds if add["dataChange"])
            self._known[snapshot] = (file.stat().st_mtime, rows)
        return self._known[snapshot]


class Observer:
    """Judges what a reader is given, as it comes."""

    def __init__(self, path: Path, reader: str, *, whole: bool) -> None:
        """Judge ``reader``, who is promised whole snapshots or not."""
        self.commits = CommitTable(path)
        self.sight = Sight(reader, torn=0 if whole else None)
        self._seen: Counter[int] = Counter()
        self._last: dict[int, tuple[int, int]] = {}

    def see(self, snapshots: Iterable[int]) -> None:
        """Take the snapshot ids of the records that are given at once."""
        came = Counter(snapshots)
        now = time.time()
        for snapshot, count in came.items():
            self.sight.records += count
            if not self.commits.has(snapshot):
                self.sight.early += count
                continue
            self._seen[snapshot] += count
            if self._seen[snapshot] == self.commits.rows(snapshot):
                self.sight.delays.append(now - self.commits.time(snapshot))
            if self.sight.torn is not None and count != self.commits.rows(snapshot):
                self.sight.torn += 1

    def place(self, partition: int, snapshot: int, offset: int) -> None:
        """Take where a record lies: neither snapshot nor offset goes back within a partition."""
        before = self._last.get(partition, (0, -1))
        self.sight.disorder += snapshot < before[0] or offset <= before[1]
        self._last[partition] = (snapshot, offset)

    def is_done(self, path: Path) -> bool:
        """Tell whether the writer has ended and everything has been seen."""
        told = path.with_name("done")
        return told.exists() and self.sight.records >= int(told.read_text() or 0) > 0


def write_commits(path: str, commits: int) -> None:
    """Write small snapshots of random size, with compactions in between; leave word of how many rows at the end."""
    table, dice = TableContext.open(path), random.Random(commits)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    rows = 0
    for batch in range(commits):
        changes: list[Change] = [
            (key, None if dice.random() < 0.1 else f"{batch}.{key}")
            for key in dice.sample(range(KEYS), dice.randint(1, ROWS_MAX))
        ]
        made = write(writer, changes)
        assert made is not None
        rows += made.rows
        compact_if_due(table, run_here)
    publisher.discard()
    draft = Path(path).with_name("done.draft")
    draft.write_text(str(rows))
    draft.rename(Path(path).with_name("done"))


def consume_plainly(path: str, servers: str, topic: str, pipe: Any) -> None:
    """Read as any Kafka user does; each record names its snapshot in a header."""
    observer = Observer(Path(path), "plain read_committed consumer", whole=False)
    options = {"bootstrap.servers": servers, "group.id": "stranger", "isolation.level": "read_committed"}
    consumer = Consumer({**options, "enable.auto.commit": False, "fetch.wait.max.ms": 10, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    heard = time.monotonic()
    while not observer.is_done(Path(path)):
        messages = consumer.consume(500, 0.01)
        snapshots = [int(dict(message.headers())["snapshot"]) for message in messages]
        observer.see(snapshots)
        for message, snapshot in zip(messages, snapshots, strict=True):
            observer.place(message.partition(), snapshot, message.offset())
        heard = time.monotonic() if messages else heard
        if time.monotonic() - heard > SILENCE_SECONDS_MAX:
            break
    consumer.close()
    pipe.send(observer.sight)


def read_through_gate(path: str, pipe: Any) -> None:
    """Read as our stream does: what the gate lets through, slice by slice."""
    observer = Observer(Path(path), "our reader", whole=True)
    table = TableContext.open(path)
    after, heard = 0, time.monotonic()
    while not observer.is_done(Path(path)) and time.monotonic() - heard < SILENCE_SECONDS_MAX:
        through = table.index.newest()
        if through == after:
            time.sleep(0.001)
            continue
        ids: list[int] = []
        for part in slices(table.index.entries(after, through)):
            for batch in read_slice(table.log.settings, part):
                ids += batch.column(COMMIT_VERSION).to_pylist()
            for end in part.boundaries:
                observer.place(part.partition, end.snapshot, end.end)
        observer.see(ids)
        after, heard = through, time.monotonic()
    pipe.send(observer.sight)


def make(folder: Path, servers: str) -> tuple[Path, str]:
    """Make the table, each of whose records names its snapshot."""
    path, topic = folder / uuid.uuid4().hex / "t", f"visibility-{uuid.uuid4().hex}"
    make_table(path, servers, topic, log__headers="all")
    return path, topic


def run(folder: Path, servers: str, commits: int) -> tuple[list[Sight], int, float]:
    """Write and look; give what was seen, the number of snapshots and the seconds it took."""
    path, topic = make(folder, servers)
    pipes = [CONTEXT.Pipe() for _ in range(2)]
    readers = [
        CONTEXT.Process(target=consume_plainly, args=(str(path), servers, topic, pipes[0][1])),
        CONTEXT.Process(target=read_through_gate, args=(str(path), pipes[1][1])),
    ]
    writer = CONTEXT.Process(target=write_commits, args=(str(path), commits))
    for process in (*readers, writer):
        process.start()
    began = time.monotonic()
    writer.join()
    seconds = time.monotonic() - began
    assert writer.exitcode == 0, "the writer failed"
    sights = [ours.recv() for ours, _ in pipes]
    for process in readers:
        process.join()
    check_complete(path, sights)
    audit(path, servers, topic, PARTITIONS)
    assert_index_is_true(path, PARTITIONS)
    return sights, CommitTable(path).newest(), seconds


def check_complete(path: Path, sights: Iterable[Sight]) -> None:
    """Everybody has seen everything, so nothing was overlooked."""
    rows = int(path.with_name("done").read_text())
    assert {sight.records for sight in sights} == {rows}


def table_of(sights: Iterable[Sight]) -> Table:
    """Show what was seen."""
    shown = Table(title="Visibility")
    for name in ("reader", "snapshots", "records", "early", "torn", "out of order", "p50", "p99", "most"):
        shown.add_column(name, justify="left" if name == "reader" else "right")
    for sight in sights:
        delays = sorted(sight.delays)
        times = [f"{1000 * delays[int(share * (len(delays) - 1))]:.0f} ms" for share in (0.5, 0.99, 1)]
        torn = "not promised" if sight.torn is None else str(sight.torn)
        counts = (len(delays), sight.records, sight.early, torn, sight.disorder)
        shown.add_row(sight.reader, *map(str, counts), *times)
    return shown


def main() -> int:
    """Run the audit on a broker of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.visibility", description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    given = parser.parse_args()
    with LocalKafka() as kafka, tempfile.TemporaryDirectory(prefix="visibility-") as name:
        sights, newest, seconds = run(Path(name), kafka.bootstrap_servers, given.commits)
    console = Console()
    console.print(table_of(sights))
    console.print(f"{given.commits} writes, {newest} snapshots with those of compaction, in {seconds:.0f} s")
    return int(not all(sight.clean for sight in sights))


if __name__ == "__main__":
    sys.exit(main())
