"""Continuous queries: their final rows are those of Flink, whatever the micro-batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.peers.flink import flink, need_flink
from tests.peers.streams import FAR, FAR_ID, Query, Streams, folded, read_queries, their_table

need_flink()

A = (
    "CREATE TABLE a (id INT, k STRING, v INT, d DECIMAL(10, 2), ts TIMESTAMP(3), "
    "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH ('connector' = 'kafka', 'topic' = 'peer-a', "
    "'format' = 'json', 'scan.startup.mode' = 'earliest-offset', {})"
)
B = (
    "CREATE TABLE b (bid INT, bk STRING, w INT, bts TIMESTAMP(3), "
    "WATERMARK FOR bts AS bts - INTERVAL '5' SECOND) WITH ('connector' = 'kafka', 'topic' = 'peer-b', "
    "'format' = 'json', 'scan.startup.mode' = 'earliest-offset', {})"
)
L = A.replace("TABLE a", "TABLE l").replace("peer-a", "peer-l")
R = (
    "CREATE TABLE r (rk STRING, rate INT, rts TIMESTAMP(3), WATERMARK FOR rts AS rts - INTERVAL '5' SECOND, "
    "PRIMARY KEY (rk) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', 'topic' = 'peer-r', 'key.format' = 'json', "
    "'value.format' = 'json', {})"
)
CHANGES = (
    "CREATE TABLE {name} (id INT, k STRING, v INT, d DECIMAL(10, 2)) WITH ('connector' = 'kafka', 'topic' = "
    "'peer-{name}', 'format' = '{format}', 'scan.startup.mode' = 'earliest-offset', {{}})"
)
U = (
    "CREATE TABLE u (id INT, k STRING, v INT, d DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = "
    "'upsert-kafka', 'topic' = 'peer-u', 'key.format' = 'json', 'value.format' = 'json', {})"
)
FORMATS = {"c": "debezium-json", "n": "canal-json", "m": "maxwell-json", "o": "ogg-json"}
TABLES = (A, B, L, R, U, *(CHANGES.format(name=name, format=kind) for name, kind in FORMATS.items()))
A_ROWS = (
    (1, "p", 5, "1.50", 1), (2, "q", None, None, 2), (3, "p", 7, "2.25", 0), (4, None, 3, "10.00", 4),
    (5, "q", 9, "1.50", 8), (6, "r", -4, "0.01", 6), (7, "p", 5, "1.50", 11), (8, "p", 1, None, 12),
    (9, "q", 9, "3.00", 10), (10, "r", 2, "7.00", 19), (11, "p", 7, "2.25", 16), (12, None, 3, "9.99", 21),
    (13, "q", None, "1.00", 24), (14, "r", 8, "1.50", 23), (15, "p", 6, "4.00", 31), (16, "q", 1, None, 29),
    (17, "p", 2, "0.50", 38), (18, "r", 5, "6.00", 40),
)  # fmt: skip
B_ROWS = (
    (1, "p", 5, 2), (2, "q", 3, 1), (3, None, 7, 5), (4, "s", 1, 6), (5, "r", 2, 9), (6, "p", 7, 12), (7, "q", 9, 14),
    (8, "p", None, 19), (9, "r", 5, 17), (10, "q", 1, 25), (11, "p", 2, 33), (12, "p", 6, 37),
)  # fmt: skip
R_ROWS = (("p", 1, 0), ("q", 2, 3), ("p", 3, 8), ("r", 4, 12), ("q", 5, 13), ("p", 6, 20), ("s", 7, 24), ("p", 8, 34))
LATE = {4: ("p", 100, "1.00", 2), 14: ("q", 100, "1.00", 1), 17: ("p", 100, "1.00", 14)}
"""Further rows of table l by the number of rows before them: the last two are late, even with one row a micro-batch."""
STEP = 3
WINDOWS, OTHERS, CHANGING = read_queries(Path(__file__).with_name("continuous.sql"))
LATE_WINDOWS = [
    replace(each, name=f"late-{each.name}", sql=each.sql.replace("TABLE a", "TABLE l").replace("FROM a", "FROM l"))
    for each in WINDOWS
    # What is late in a join depends on how far Flink has read its other input.
    if not each.name.startswith("window-join")
]


@dataclass(frozen=True)
class Change:
    """A change of a row: what it was, and what it is; None if there was or is none."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def upsert(self) -> Record:
        """Return the message of an upsert topic."""
        row = self.after or self.before
        assert row is not None
        key = json.dumps({"id": row["id"]}).encode()
        return Record(None if self.after is None else json.dumps(row).encode(), key)

    def message(self, kind: str) -> bytes:
        """Return the message of a changelog format."""
        before, after = self.before, self.after
        what = "ID"[after is None] if before is None or after is None else "U"
        if kind in ("debezium-json", "ogg-json"):
            word = {"op_type": what} if kind == "ogg-json" else {"op": {"I": "c", "U": "u", "D": "d"}[what]}
            return json.dumps({"before": before, "after": after, **word}).encode()
        word = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}[what]
        data, old = after or before, None
        if before is not None and after is not None:
            old = {name: value for name, value in before.items() if after[name] != value}
        if kind == "canal-json":
            return json.dumps({"data": [data], "old": None if old is None else [old], "type": word}).encode()
        return json.dumps({"data": data, "old": old, "type": word.lower()}).encode()


def history(seed: int) -> list[Change]:
    """Return random changes of a few rows, the last of which is that of `FAR_ID`."""
    made = random.Random(seed)
    rows: dict[int, dict[str, Any]] = {}
    changes = []
    for _ in range(36):
        number = made.randrange(1, 8)
        before = rows.pop(number, None)
        after = None
        if before is None or made.random() < 0.75:
            v, d = made.choice([None, 1, 2, 3, 5, 8]), made.choice([None, 0.5, 1.25, 3.0])
            after = {"id": number, "k": made.choice(["p", "q", "r", None]), "v": v, "d": d}
            rows[number] = after
        changes.append(Change(before, after))
    return changes


def at(seconds: int) -> str:
    return f"2024-01-01 00:00:{seconds:02}"


def a_row(number: int, k: str | None, v: int | None, d: str | None, seconds: int) -> dict[str, Any]:
    return {"id": number, "k": k, "v": v, "d": d and float(d), "ts": at(seconds)}


def send(wire: Wire, topic: str, rows: Sequence[dict[str, Any]], key: str = "") -> None:
    """Fill a topic; the key of a message is one of its columns."""
    keys = [json.dumps({key: row[key]}).encode() if key else None for row in rows]
    wire.make(topic)
    wire.send(topic, [Record(json.dumps(row).encode(), which) for row, which in zip(rows, keys, strict=True)])


@pytest.fixture(scope="module")
def streams(catalog: Catalog, wire: Wire, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    in_time = [a_row(*row) for row in A_ROWS]
    late: list[dict[str, Any]] = []
    for number, row in enumerate(in_time):
        late += [row] if number not in LATE else [a_row(100 + number, *LATE[number]), row]
    last = {"id": FAR_ID, "k": "far", "v": 0, "d": 0, "ts": FAR}
    send(wire, "peer-a", [*in_time, last])
    send(wire, "peer-l", [*late, last])
    rows = [{"bid": number, "bk": k, "w": w, "bts": at(seconds)} for number, k, w, seconds in B_ROWS]
    send(wire, "peer-b", [*rows, {"bid": FAR_ID, "bk": "far2", "w": 0, "bts": FAR}])
    versions = [{"rk": k, "rate": rate, "rts": at(seconds)} for k, rate, seconds in R_ROWS]
    send(wire, "peer-r", [*versions, {"rk": "far3", "rate": 0, "rts": FAR}], key="rk")
    for number, (name, kind) in enumerate({"u": "json", **FORMATS}.items()):
        changes = [each for each in history(number) if each.before != each.after]
        if kind == "json":
            messages = [each.upsert() for each in changes]
        else:
            messages = [Record(each.message(kind)) for each in changes]
        wire.make(f"peer-{name}")
        wire.send(f"peer-{name}", messages)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")
    with flink("streaming", [their_table(table, wire.servers) for table in TABLES]) as peer:
        yield Streams(peer, catalog, wire, TABLES, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("query", [*WINDOWS, *OTHERS, *CHANGING], ids=str)
def test_a_continuous_query_comes_to_the_rows_of_flink(query: Query, streams: Streams):
    theirs = folded(query, streams.theirs(query))
    assert theirs
    assert folded(query, streams.ours(query, 1_000)) == theirs
    assert folded(query, streams.ours(query, STEP)) == theirs


@pytest.mark.parametrize("query", LATE_WINDOWS, ids=str)
def test_late_rows_are_not_in_windows(query: Query, streams: Streams):
    theirs = folded(query, streams.theirs(query))
    assert theirs
    assert folded(query, streams.ours(query, 1)) == theirs
