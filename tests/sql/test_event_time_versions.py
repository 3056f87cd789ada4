"""Joins FOR SYSTEM_TIME AS OF an event time: each row with the version of its time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tablestore.sql.queries.continuous_query import allowed
from tests.connectors.harness.changelog_messages import message_of
from tests.connectors.harness.wire import Record, Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.changes import PlannedFailureError
from tests.sql.test_changes import catalog
from tests.sql.test_run import finish, rows
from tests.sql.test_temporal_joins import START, Event, records, tables
from tests.sql.test_time import at, seen

__all__ = ["catalog"]

END = 1_000_000
"""A time that makes everything before it complete."""
JOIN = "SELECT o.k, o.v, q.v AS w FROM o {} JOIN r FOR SYSTEM_TIME AS OF o.ts AS q ON o.k = q.k"


def made(chance: random.Random, count: int, deletes: bool) -> list[Event]:
    """Make events of few keys in an order that differs by less than the watermark's delay from that of their times."""
    times = [number * 1_000 + chance.randrange(4_000) for number in range(count)]
    return [(chance.choice("abc"), None if deletes and chance.random() < 0.3 else n, t) for n, t in enumerate(times)]


def expected(left: Sequence[Event], versions: Sequence[Event], kind: str) -> Counter[tuple[Any, ...]]:
    """Let DuckDB join what is complete; of versions of one time, the last one counts."""
    with duckdb.connect() as db:
        db.execute("CREATE TABLE o (k VARCHAR, v INT, t BIGINT); CREATE TABLE r (k VARCHAR, v INT, t BIGINT, n INT)")
        db.executemany("INSERT INTO o VALUES (?, ?, ?)", left)
        db.executemany("INSERT INTO r VALUES (?, ?, ?, ?)", [(*each, number) for number, each in enumerate(versions)])
        found = db.sql(
            "SELECT o.k, o.v, q.v AS w FROM o ASOF LEFT JOIN (FROM r QUALIFY row_number() OVER (PARTITION BY k, t "
            f"ORDER BY n DESC) = 1) AS q ON o.k = q.k AND o.t >= q.t WHERE '{kind}' = 'LEFT' OR q.v IS NOT NULL"
        )
        return Counter(found.fetchall())


def debezium(versions: Sequence[Event]) -> list[Record]:
    """Say versions as changes with the time of their source; a delete of nothing is an insert and its delete."""
    last: dict[str, dict[str, Any]] = {}
    found = []
    for key, value, time in versions:
        after = None if value is None else {"k": key, "v": value}
        before = last.pop(key, None)
        if after is not None:
            last[key] = after
        if before is None and after is None:
            continue
        message = message_of("debezium-json", before, after) | {"source": {"ts_ms": START + time}}
        found.append(Record(json.dumps(message).encode(), key=key.encode(), timestamp=START + time))
    return found


@pytest.mark.timeout(600)
def test_each_row_is_joined_with_the_version_of_its_time(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """Out of order, with deletes, in small micro-batches, over restarts, from both connectors."""
    orders, versions = tables(catalog, wire, topic)
    changes = wire.make(topic())
    catalog.sql(
        "CREATE TABLE d (k STRING, v INT, ts TIMESTAMP_LTZ(3) METADATA FROM 'value.source.timestamp' VIRTUAL, "
        "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'kafka', "
        f"'topic' = '{changes}', 'format' = 'debezium-json', 'scan.startup.mode' = 'earliest-offset', "
        "'properties.bootstrap.servers' = '...', 'maxRowsPerTrigger' = '7')"
    )
    for name in ("inner_upserts", "left_upserts", "left_changes"):
        catalog.sql(f"CREATE TABLE {name} (k STRING, v INT, w INT)")
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    insert = (
        f"EXECUTE STATEMENT SET BEGIN INSERT INTO inner_upserts {JOIN.format('')}; INSERT INTO left_upserts "
        f"{JOIN.format('LEFT')}; INSERT INTO left_changes {JOIN.format('LEFT').replace('JOIN r', 'JOIN d')}; END"
    )
    chance = random.Random(11)
    left, right = made(chance, 40, deletes=False), made(chance, 40, deletes=True)
    for part in (slice(0, 20), slice(20, 40)):
        wire.send(orders, records(left[part]))
        wire.send(versions, records(right[part]))
        wire.send(changes, debezium(right)[part.start : part.stop])
        finish(catalog, insert)
    wire.send(changes, debezium(right)[40:])
    for each in (orders, versions):
        wire.send(each, records([("z", 0, END)]))
    wire.send(changes, debezium([("z", 0, END)]))
    finish(catalog, insert)
    for name, kind in (("inner_upserts", "INNER"), ("left_upserts", "LEFT"), ("left_changes", "LEFT")):
        found, wanted = Counter(rows(catalog, f"SELECT * FROM {name}")), expected(left, right, kind)
        assert found == wanted, (name, found - wanted, wanted - found)
        assert any(row[2] is None for row in found) == (kind == "LEFT")


def test_windows_and_distinct_rows_of_the_join(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """In one query with the join; counted in windows of the rows' time."""
    orders, versions = tables(catalog, wire, topic)
    catalog.sql(
        f"CREATE VIEW joined AS {JOIN.format('').replace('o.v,', 'o.v, o.ts,')}; CREATE TABLE counts (start "
        "TIMESTAMP_LTZ(3), k STRING, n BIGINT, w BIGINT, d BIGINT); CREATE TABLE seen (k STRING); "
        "SET 'tablestore.trigger' = 'available-now'; SET 'table.local-time-zone' = 'UTC'"
    )
    insert = (
        "EXECUTE STATEMENT SET BEGIN INSERT INTO counts SELECT window_start, k, COUNT(*), SUM(w), COUNT(DISTINCT w) "
        "FROM TABLE(TUMBLE(TABLE joined, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, k; "
        "INSERT INTO seen SELECT DISTINCT k FROM joined; END"
    )
    chance = random.Random(11)
    left, right = made(chance, 40, deletes=False), made(chance, 40, deletes=True)
    for part in (slice(0, 20), slice(20, 40)):
        wire.send(orders, records(left[part]))
        wire.send(versions, records(right[part]))
        finish(catalog, insert)
    for each in (orders, versions):
        wire.send(each, records([("z", 0, END)]))
    finish(catalog, insert)
    wanted: dict[tuple[int, str], list[int]] = {}
    for k, v, w in expected(left, right, "INNER").elements():
        time = START + left[v][2]
        wanted.setdefault((time - time % 10_000, k), []).append(w)
    found = rows(catalog, "SELECT UNIX_MILLIS(start), k, n, w, d FROM counts")
    assert sorted(found) == sorted((*place, len(ws), sum(ws), len(set(ws))) for place, ws in wanted.items())
    assert sorted(rows(catalog, "SELECT k FROM seen")) == [(k,) for k in sorted({k for _, k in wanted})]


def test_a_batch_query_has_no_versions(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """It reads the current row of each key; PROCTIME() may be a column of a query in FROM."""
    orders, versions = tables(catalog, wire, topic)
    wire.send(orders, records([("a", 1, 15)]))
    wire.send(versions, records([("a", 10, 0), ("a", 20, 20)]))
    text = JOIN.format("").replace("FROM o", "FROM (SELECT *, PROCTIME() AS now FROM o) AS o").replace("o.ts", "o.now")
    assert catalog.sql(text).frame is not None
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    with pytest.raises(InvalidInputError, match="AS OF an event time is not supported in a batch query"):
        catalog.sql(JOIN.format(""))
    assert rows(catalog, text) == [("a", 1, 20)]


def test_versions_of_1970_are_versions(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """Rows of a first snapshot of Debezium may have the time 0, where the watermark of Spark begins."""
    orders, changes = wire.make(topic()), wire.make(topic())
    catalog.sql(
        "CREATE TABLE early (k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka', 'topic' = "
        f"'{orders}', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset', "
        "'properties.bootstrap.servers' = '...'); "
        "CREATE TABLE d (k STRING, v INT, ts TIMESTAMP(3) METADATA FROM 'value.source.timestamp' VIRTUAL, "
        "WATERMARK FOR ts AS ts, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'kafka', 'topic' = "
        f"'{changes}', 'format' = 'debezium-json', 'scan.startup.mode' = 'earliest-offset', "
        "'properties.bootstrap.servers' = '...'); CREATE TABLE joined (k STRING, ts TIMESTAMP(3), v INT)"
    )
    times = ["1969-12-31 23:59:59", "1970-01-01 00:00:00", "2024-01-01 00:00:00", "2024-01-02 00:00:00"]
    wire.send(orders, [Record(json.dumps({"k": "a", "ts": time}).encode()) for time in times])
    first, second = {"k": "a", "v": 1}, {"k": "a", "v": 2}
    moments = [(None, first, 0), (first, second, 1_704_067_200_000), (None, {"k": "b", "v": 3}, 1_704_200_000_000)]
    wire.send(
        changes,
        [
            Record(json.dumps(message_of("debezium-json", *sides) | {"source": {"ts_ms": time}}).encode())
            for *sides, time in moments
        ],
    )
    catalog.sql("SET 'tablestore.trigger' = 'available-now'; SET 'table.local-time-zone' = 'UTC'")
    finish(
        catalog,
        "INSERT INTO joined SELECT e.k, e.ts, d.v FROM early AS e LEFT JOIN d FOR SYSTEM_TIME AS OF e.ts ON e.k = d.k",
    )
    found = [(row[1].year, row[2]) for row in sorted(rows(catalog, "SELECT * FROM joined"), key=lambda row: row[1])]
    assert found == [(1969, None), (1970, 1), (2024, 2), (2024, 2)]


def test_a_row_waits_for_the_watermarks_of_both_tables_and_late_ones_are_dropped(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    orders, versions = tables(catalog, wire, topic)
    catalog.sql("CREATE TABLE out (k STRING, v INT, w INT); SET 'tablestore.trigger' = 'available-now'")

    def after(left: list[Event], right: list[Event]) -> list[tuple[Any, ...]]:
        wire.send(orders, records(left))
        wire.send(versions, records(right))
        finish(catalog, f"INSERT INTO out {JOIN.format('LEFT')}")
        return rows(catalog, "SELECT v, w FROM out WHERE k = 'a'")

    assert after([("a", 1, 10_000), ("a", 2, 30_000)], [("a", 10, 0)]) == []
    # The watermark of the orders is 25 s, but that of the versions still -5 s; then it is 15 s.
    assert after([("c", 0, 30_000)], [("a", 20, 20_000)]) == [(1, 10)]
    # What is before 15 s is late, whether an order or a version.
    assert after([("a", 3, 14_000)], [("a", 15, 12_000), ("a", 40, 40_000)]) == [(1, 10)]
    assert after([("a", 4, 40_000)], [("a", None, 45_000)]) == [(1, 10), (2, 20)]
    # A delete ends a version.
    assert after([("a", 5, 45_000), ("a", 6, 70_000)], [("b", 0, 70_000)]) == [(1, 10), (2, 20), (4, 40), (5, None)]


def test_versions_whose_time_is_not_known_are_refused(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    orders, _ = tables(catalog, wire, topic)
    timed = wire.make(topic())
    shared = (
        f"PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', 'topic' = '{timed}', "
        "'key.format' = 'json', 'value.format' = 'json', 'properties.bootstrap.servers' = '...')"
    )
    catalog.sql(
        f"CREATE TABLE u (k STRING, v INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, {shared}; "
        f"CREATE TABLE n (k STRING, v INT, {shared}; CREATE TABLE s (k STRING, v INT, PRIMARY KEY (k) NOT ENFORCED); "
        "CREATE TABLE out (k STRING, v INT, w INT); CREATE TABLE plain (k STRING, v INT, ts TIMESTAMP(3), "
        "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND); SET 'tablestore.trigger' = 'available-now'"
    )
    for text, match in [
        (JOIN.format("").replace("JOIN r", "JOIN n"), "without a WATERMARK of 'n'"),
        (JOIN.format("").replace("JOIN r", "JOIN s"), "without a WATERMARK of 's'"),
        (JOIN.format("").replace("JOIN r", "JOIN plain"), "its rows have no versions"),
        (JOIN.format("FULL"), "FULL JOIN FOR SYSTEM_TIME"),
        (JOIN.format("").replace("o.ts", "o.v"), "'v', a time that is not PROCTIME.*has no watermark"),
        (JOIN.format("").replace("o.ts", "o.ts - INTERVAL '1' SECOND"), "FOR SYSTEM_TIME AS OF an expression"),
        (JOIN.format("") + " JOIN r FOR SYSTEM_TIME AS OF o.p AS p ON o.k = p.k", "by event time and by PROCTIME"),
        (
            f"SELECT w, COUNT(*) FROM ({JOIN.format('')}) AS j GROUP BY w",
            "joins FOR SYSTEM_TIME AS OF of event time.*INTO a table",
        ),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)
    wire.send(orders, records([("a", 1, 0)]))
    wire.send(timed, [Record(b'{"k": "a", "v": 1, "ts": "2024-01-01 00:00:00"}', key=b'{"k": "a"}')])
    wire.send(timed, [Record(None, key=b'{"k": "a"}')])
    (query,) = catalog.sql(f"INSERT INTO out {JOIN.format('').replace('JOIN r', 'JOIN u')}").queries
    with pytest.raises(
        StreamingQueryException, match=r"'ts' is a column of the row\. Declare the time of versions as METADATA"
    ):
        query.awaitTermination(PATIENCE_SECONDS)


def test_store_tables_have_the_versions_of_their_log(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """With and without the rows that updates replace in the log; a delete, whose time is not known, ends the query."""
    orders, _ = tables(catalog, wire, topic)
    columns = (
        "k STRING, v INT, ts TIMESTAMP_LTZ(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, PRIMARY KEY (k) NOT "
        "ENFORCED"
    )
    catalog.sql(
        f"CREATE TABLE a ({columns}); CREATE TABLE b ({columns}) WITH ('changelog-producer' = 'lookup'); CREATE TABLE "
        "of_a (k STRING, v INT, w INT); CREATE TABLE of_b (k STRING, v INT, w INT); SET 'tablestore.trigger' = "
        "'available-now'; SET 'table.local-time-zone' = 'UTC'"
    )
    insert = "EXECUTE STATEMENT SET BEGIN {} END".format(
        " ".join(f"INSERT INTO of_{n} {JOIN.format('LEFT').replace('JOIN r', f'JOIN {n}')};" for n in "ab")
    )
    chance = random.Random(3)
    left, right = made(chance, 12, deletes=False), made(chance, 12, deletes=False)

    def store(events: Sequence[Event]) -> None:
        """A snapshot has one version of each key at most."""
        snapshots: list[dict[str, Event]] = [{}]
        for event in events:
            if event[0] in snapshots[-1]:
                snapshots.append({})
            snapshots[-1][event[0]] = event
        for each in snapshots:
            given = [f"('{key}', {value}, TO_TIMESTAMP_LTZ({START + time}, 3))" for key, value, time in each.values()]
            for name in "ab":
                catalog.sql(f"INSERT INTO {name} VALUES {', '.join(given)}")

    store(right[:1])
    for part in (slice(0, 6), slice(6, 12)):
        wire.send(orders, records(left[part]))
        store(right[max(part.start, 1) : part.stop])
        finish(catalog, insert)
    wire.send(orders, records([("z", 0, END)]))
    store([("z", 0, END)])
    finish(catalog, insert)
    # The rows at the start are those of the newest snapshot, the last of each key; later ones come one by one.
    first = {key: (key, value, time) for key, value, time in right[:6]}
    wanted = expected(left, [*first.values(), *right[6:]], "LEFT")
    for name in ("of_a", "of_b"):
        found = Counter(rows(catalog, f"SELECT * FROM {name}"))
        assert found == wanted, (name, found - wanted, wanted - found)
    text = f"INSERT INTO of_a {JOIN.format('').replace('JOIN r', 'JOIN a')}"
    finish(catalog, text)
    catalog.sql("DELETE FROM a WHERE k = 'a'")
    (query,) = catalog.sql(text).queries
    with pytest.raises(StreamingQueryException, match="and when is not known"):
        query.awaitTermination(PATIENCE_SECONDS)


def test_a_micro_batch_that_fails_is_repeated_with_the_same_result(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """The operator has saved its state, and what is held has left Spark's, when each micro-batch fails once."""
    orders, versions = tables(catalog, wire, topic)
    chance = random.Random(5)
    left, right = made(chance, 20, deletes=False), made(chance, 20, deletes=True)
    for name, events in ((orders, left), (versions, right)):
        wire.send(name, records([*events, ("z", 0, END)]))
    result = catalog.sql(JOIN.format("LEFT"))
    assert result.frame is not None
    found: dict[int, list[tuple[Any, ...]]] = {}

    def take(frame: DataFrame, number: int) -> None:
        rows, is_first = [tuple(row) for row in frame.collect()], number not in found
        found[number] = rows
        if is_first and rows:
            raise PlannedFailureError

    writer = result.frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    failures = 0
    while True:
        with allowed(result.frame.sparkSession, chained=result.chained, timed=result.timed):
            query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(PATIENCE_SECONDS)
            break
        except StreamingQueryException as error:
            if "PlannedFailureError" not in str(error):
                raise
            failures += 1
    assert failures > 1
    assert Counter(row for rows in found.values() for row in rows) == expected(left, right, "LEFT")


def test_store_tables_without_a_key_have_windows(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE e (v INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND); INSERT INTO e VALUES "
        "(1, TIMESTAMP '2024-01-01 00:00:01'), (2, TIMESTAMP '2024-01-01 00:00:12'), (3, TIMESTAMP '2024-01-01 "
        "00:00:08'), (4, TIMESTAMP '2024-01-01 00:00:17')"
    )
    windows = "TABLE(TUMBLE(TABLE e, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
    found = seen(catalog, f"SELECT window_start, COUNT(*) FROM {windows} GROUP BY window_start, window_end")
    assert found == {(at(0), "2"): 1}
