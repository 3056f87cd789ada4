"""The same deaths for others: Spark's Delta sink and a Kafka producer in ``foreachBatch``, beside a table with a log.

A streaming query with three micro-batches dies in the second, at a named point: an exception ends it, and what its
producer has not sent is dropped. Then it is started again from its checkpoint and finishes. Counted is, by a plain
``read_committed`` consumer and deltalake: what the log showed when the query died and no snapshot held (early); whether
it showed a part of a batch (torn); by how many rows log and table stay apart if nobody starts the query again; and what
the log lacks or has too often where it is started again.
``python -m tests.crash.peers`` prints a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from log_system.index import LogIndex
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from tablestore import TableStore
from tablestore.session import session
from tests.harness.faults import failing
from tests.harness.local_writes import drain_raw, settle
from tests.harness.plain_topics import make_topic
from tests.harness.waiting import PATIENCE_SECONDS

BATCHES, ROWS, PARTITIONS = 3, 40, 2
SETTLE_SECONDS = 5.0
DDL = "id bigint, v string"
POINTS = (
    "before the commit",
    "after the commit",
    "half of the records sent",
    "all records sent",
    "records committed",
    "at the very end",
)
OURS: dict[str, tuple[type, str, bool, int]] = {
    POINTS[0]: (DeltaLog, "commit", False, 2),
    POINTS[1]: (DeltaLog, "commit", True, 2),
    POINTS[2]: (Sender, "send", True, 3),
    POINTS[3]: (KafkaPublisher, "_send_offsets", False, 2),
    POINTS[4]: (KafkaPublisher, "_publish_here", True, 2),
    POINTS[5]: (LogIndex, "put", True, 2),
}
"""Where each point is in our code: before or after which call, and at which call the second batch is."""


class DiedError(Exception):
    """The query dies here."""


@dataclass
class Outcome:
    """What came of one death; all but ``torn`` count rows."""

    lost: int = 0
    doubled: int = 0
    early: int = 0
    torn: int = 0
    apart: int = 0
    died: bool = False


class Peer:
    """What a careful user writes in ``foreachBatch``; ``order`` says what comes first."""

    def __init__(self, folder: Path, servers: str, *, order: str, transactions: bool) -> None:
        """Write into a Delta table in ``folder`` and a topic of its own."""
        self.path, self.servers, self.topic = folder / "table", servers, f"peer-{uuid.uuid4().hex}"
        self._order, self._transactions = order, transactions
        make_topic(servers, self.topic, PARTITIONS)

    def recover(self) -> None:
        """There is nothing that anybody could call."""

    @contextmanager
    def dying(self, point: str) -> Iterator[Callable[[DataFrame, int], None]]:
        """Give the function for ``foreachBatch`` that dies in batch 1 at the point."""

        def die_at(here: str, number: int) -> None:
            if number == 1 and here == point:
                raise DiedError(here)

        yield lambda batch, number: self.land(batch, number, die_at)

    def land(self, batch: DataFrame, number: int, die_at: Callable[[str, int], None]) -> None:
        """Write a batch into the table, once (``txnVersion``), and send its rows."""
        steps = [self._commit, self._send] if self._order == "table first" else [self._send, self._commit]
        for step in steps:
            step(batch, number, die_at)
        die_at(POINTS[5], number)

    def _commit(self, batch: DataFrame, number: int, die_at: Callable[[str, int], None]) -> None:
        die_at(POINTS[0], number)
        once = {"txnAppId": self.topic, "txnVersion": str(number)}
        batch.write.format("delta").mode("append").options(**once).save(str(self.path))
        die_at(POINTS[1], number)

    def _send(self, batch: DataFrame, number: int, die_at: Callable[[str, int], None]) -> None:
        config: dict[str, Any] = {"bootstrap.servers": self.servers, "enable.idempotence": True}
        producer = Producer(config | ({"transactional.id": self.topic} if self._transactions else {}))
        try:
            if self._transactions:
                producer.init_transactions(30)
                producer.begin_transaction()
            rows = batch.collect()
            for sent, row in enumerate(rows):
                key = json.dumps({"id": row["id"]}).encode()
                producer.produce(self.topic, json.dumps(row.asDict()).encode(), key)
                if sent + 1 == len(rows) // 2:
                    producer.flush(PATIENCE_SECONDS)
                    die_at(POINTS[2], number)
            producer.flush(PATIENCE_SECONDS)
            die_at(POINTS[3], number)
            if self._transactions:
                producer.commit_transaction(30)
            die_at(POINTS[4], number)
        except BaseException:
            producer.purge()
            raise


class Ours:
    """A table with a log, written from ``foreachBatch``."""

    def __init__(self, spark: SparkSession, folder: Path, servers: str) -> None:
        """Make the table in ``folder``."""
        self._spark, self.path, self.topic = spark, folder / "table", f"ours-{uuid.uuid4().hex}"
        options = {"kafka.bootstrap.servers": servers, "kafka.topic": self.topic, "bucket": PARTITIONS}
        TableStore.create(spark, self.path, DDL, log_system="kafka", options=options)

    def recover(self) -> None:
        """Do what any other writer of the table does first."""
        TableStore.open(self._spark, self.path).recover()

    @contextmanager
    def dying(self, point: str) -> Iterator[Callable[[DataFrame, int], None]]:
        """Give the function for ``foreachBatch`` while the call at the point dies in batch 1."""
        table = TableStore.open(self._spark, self.path)

        def land(batch: DataFrame, number: int) -> None:
            table.write(batch, batch=("peer", number))

        if not point:
            yield land
            return
        owner, name, after, hit = OURS[point]
        with failing(owner, name, DiedError(point), after=after, hits=range(hit, hit + 1)):
            yield land


def die(spark: SparkSession, folder: Path, servers: str, target: Peer | Ours, point: str) -> Outcome:
    """Let the query die at the point, look, let it finish, and count."""
    found = Outcome()
    for attempt in (point, ""):
        with target.dying(attempt) as land:
            stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
            writer = stream.writeStream.foreachBatch(land).option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except PySparkException:
                found.died = True
        settle(servers, target.topic, SETTLE_SECONDS)
        log, table = shown(servers, target.topic), stored(target.path)
        if attempt:
            found.early = sum((log - table).values())
            batches = Counter(int(value.partition(".")[0]) for _, value in log.elements())
            found.torn = sum(count % ROWS != 0 for count in batches.values())
            target.recover()
            settle(servers, target.topic, SETTLE_SECONDS)
            log, table = shown(servers, target.topic), stored(target.path)
            found.apart = sum((log - table).values()) + sum((table - log).values())
    found.lost = sum((table - log).values())
    found.doubled = sum((log - table).values())
    return found


def shown(servers: str, topic: str) -> Counter[tuple[int, str]]:
    """Give what a plain consumer sees."""
    rows = [json.loads(m.value()) for part in drain_raw(servers, topic, PARTITIONS, settled=False) for m in part]
    return Counter((row["id"], row["v"]) for row in rows)


def stored(path: Path) -> Counter[tuple[int, str]]:
    """Give what the Delta table holds."""
    if not DeltaTable.is_deltatable(str(path)):
        return Counter()
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=["id", "v"]).to_pylist()
    return Counter((row["id"], row["v"]) for row in rows)


def attack(spark: SparkSession, folder: Path, servers: str, only: str = "") -> dict[str, dict[str, Outcome]]:
    """Let each contestant die at each point; give the outcomes by contestant and point."""
    contestants: dict[str, Callable[[Path], Peer | Ours]] = {
        "Delta sink, then producer": lambda f: Peer(f, servers, order="table first", transactions=False),
        "Delta sink, then transaction": lambda f: Peer(f, servers, order="table first", transactions=True),
        "producer, then Delta sink": lambda f: Peer(f, servers, order="log first", transactions=False),
        "transaction, then Delta sink": lambda f: Peer(f, servers, order="log first", transactions=True),
        "table with a log": lambda f: Ours(spark, f, servers),
    }
    found: dict[str, dict[str, Outcome]] = {}
    for name, make in contestants.items():
        if only not in name:
            continue
        found[name] = {}
        for point in POINTS:
            place = folder / uuid.uuid4().hex
            (place / "input").mkdir(parents=True)
            for batch in range(BATCHES):
                rows = [{"id": batch * ROWS + n, "v": f"{batch}.{n}"} for n in range(ROWS)]
                (place / "input" / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))
            found[name][point] = die(spark, place, servers, make(place), point)
            assert found[name][point].died, f"{name}: the point {point!r} was never reached"
    return found


def main() -> int:
    """Run it on a session and a broker of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.peers", description=__doc__)
    parser.add_argument("--only", default="", help="contestants whose name holds this")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="peer-") as name, LocalKafka() as kafka:
        spark = session("peer-crash", master="local[2]", warehouse=Path(name) / "warehouse")
        spark.sparkContext.setLogLevel("OFF")
        found = attack(spark, Path(name), kafka.bootstrap_servers, only)
        spark.stop()
    shown_ = Table(title=f"Query of {BATCHES} batches of {ROWS} rows that dies in the second and is started again")
    for heading in ("in foreachBatch", "dies", "early", "torn", "apart", "lost", "doubled"):
        shown_.add_column(heading, justify="left" if heading in {"in foreachBatch", "dies"} else "right")
    for contestant, outcomes in found.items():
        for point, one in outcomes.items():
            shown_.add_row(contestant, point, *map(str, (one.early, one.torn, one.apart, one.lost, one.doubled)))
    Console().print(shown_)
    return int(any(one != Outcome(died=True) for one in found.get("table with a log", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
