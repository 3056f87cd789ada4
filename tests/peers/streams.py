"""Continuous queries of Flink and of this program over the same topics, each into a topic of its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.peers.flink import Flink

FAR = "2024-01-01 20:00:00"
"""The time of the last rows, which move the watermark past all others. Results of theirs are not compared."""
FAR_ID = 4242


@dataclass(frozen=True)
class Query:
    """A query of an INSERT.

    Attributes:
        name: of the query.
        sql: its text.
        columns: those of the table it writes to.
        key: the primary key of that table, which is ``upsert-kafka`` then; without one its format is debezium-json.
    """

    name: str
    sql: str
    columns: str
    key: str = ""

    def __str__(self) -> str:
        return self.name

    def sink(self, topic: str, servers: str) -> str:
        """Return the statement that creates the table to write to."""
        client = f"'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}'"
        if not self.key:
            how = f"'connector' = 'kafka', 'format' = 'debezium-json', {client}"
            return f"CREATE TABLE `{topic}` ({self.columns}) WITH ({how})"
        how = f"'connector' = 'upsert-kafka', 'key.format' = 'json', 'value.format' = 'json', {client}"
        return f"CREATE TABLE `{topic}` ({self.columns}, PRIMARY KEY ({self.key}) NOT ENFORCED) WITH ({how})"


def read_queries(path: Path) -> list[list[Query]]:
    """Return the queries of a file by heading; before each is a line ``-- name [primary key]: columns``."""
    sections: list[list[Query]] = []
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        head = re.fullmatch(r"-- (\S+)(?: \[(.*)\])?: (.*)", line)
        if line.startswith("----"):
            sections.append([])
        elif head and sections:
            sections[-1].append(Query(head[1], next(lines), head[3], head[2] or ""))
    return sections


@dataclass
class Streams:
    """Both sides, with tables over the same topics.

    Attributes:
        peer: Flink, in streaming mode.
        catalog: the catalog of this program.
        wire: the broker.
        tables: the statements that create the tables; ``{...}`` stands for what each side adds to the options.
        checkpoints: a folder.
    """

    peer: Flink
    catalog: Catalog
    wire: Wire
    tables: Sequence[str]
    checkpoints: Path

    def theirs(self, query: Query) -> list[Record]:
        """Return the messages that Flink writes."""
        topic = self.wire.make(f"{query.name}-flink")
        self.peer.sql(query.sink(topic, self.wire.servers))
        self.peer.sql(f"INSERT INTO `{topic}` {query.sql}")
        return self.wire.read(topic)

    def ours(self, query: Query, rows: int) -> list[Record]:
        """Return the messages that this program writes in micro-batches of so many rows of each table."""
        topic = self.wire.make(f"{query.name}-{rows}")
        for table in self.tables:
            name = table.split()[2]
            self.catalog.sql(f"DROP TABLE IF EXISTS {name}; {ours_table(table, self.wire.servers, rows)}")
        self.catalog.sql(
            f"SET 'execution.checkpointing.dir' = '{self.checkpoints / topic}'; {query.sink(topic, self.wire.servers)}"
        )
        for started in self.catalog.sql(f"INSERT INTO `{topic}` {query.sql}").queries:
            assert started.awaitTermination(PATIENCE_SECONDS)
        return self.wire.read(topic)


def their_table(table: str, servers: str) -> str:
    """Return the statement that creates a table in Flink, which reads what is there, with a watermark for each row."""
    bounded = "'scan.bounded.mode' = 'latest-offset'"
    emit = ", 'scan.watermark.emit.strategy' = 'on-event'" if "WATERMARK" in table else ""
    return table.format(f"'properties.bootstrap.servers' = '{servers}', {bounded}{emit}")


def ours_table(table: str, servers: str, rows: int) -> str:
    """Return the statement that creates a table in this program."""
    return table.format(f"'properties.bootstrap.servers' = '{servers}', 'maxRowsPerTrigger' = '{rows}'")


def folded(query: Query, records: Iterable[Record]) -> Counter[str]:
    """Return the rows that messages come to, but for those of the last rows; each change must fit those before."""
    if query.key:
        latest = {record.key: record.value for record in records}
        return Counter(_spelled(json.loads(value)) for value in latest.values() if value and not _is_far(value))
    rows = Counter[str]()
    for number, record in enumerate(records):
        change = json.loads(record.value or b"")
        assert change["op"] in ("c", "d"), change
        row = _spelled(change["after"] or change["before"])
        assert change["op"] == "c" or rows[row], f"change {number} takes back a row that is not there: {row}"
        rows[row] += 1 if change["op"] == "c" else -1
    return Counter({row: count for row, count in rows.items() if count and not _is_far(row.encode())})


def _spelled(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def _is_far(text: bytes) -> bool:
    return any(sign in text for sign in (b" 20:0", b" 19:5", str(FAR_ID).encode(), b'"far'))
