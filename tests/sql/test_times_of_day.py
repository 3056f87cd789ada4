"""TIME columns: what they become in messages, and what Spark computes of them, compared with DuckDB."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.sql.test_run import finish, rows
from tests.sql.test_time import seen

FORMATS = {
    "json": [b'{"i":1,"a":"10:11:12","b":"10:11:12.345"}', b'{"i":2,"a":null,"b":"00:00:00"}'],
    "csv": [b"1,10:11:12,10:11:12.345", b"2,,00:00:00"],
    "avro": [bytes.fromhex("02020280c8fc2202b2cdfc22"), bytes.fromhex("0204000200")],
}


def declare(catalog: Catalog, wire: Wire, topic: str, columns: str, name: str = "t", **options: str) -> None:
    given = {
        "connector": "kafka", "topic": topic, "properties.bootstrap.servers": wire.servers,
        "scan.startup.mode": "earliest-offset", **{key.replace("_", "."): value for key, value in options.items()},
    }  # fmt: skip
    if given["connector"] == "upsert-kafka":
        del given["scan.startup.mode"]
    with_ = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    catalog.sql(f"CREATE TABLE {name} ({columns}) WITH ({with_})")


@pytest.mark.parametrize("name", FORMATS)
def test_times_are_flinks_in_each_format(catalog: Catalog, wire: Wire, topic: Callable[[], str], name: str) -> None:
    """INSERT cuts them to the digits of their columns; queries compare those of different digits, and with texts."""
    there = wire.make(topic())
    declare(catalog, wire, there, "i INT, a TIME, b TIME(3)", format=name)
    catalog.sql(
        "INSERT INTO t SELECT i, CAST(s AS TIME(3)), CAST(s AS TIME(6)) "
        "FROM (VALUES (1, '10:11:12.345678')) AS v (i, s); "
        "INSERT INTO t VALUES (2, CAST(NULL AS TIME), TIME '00:00:00')"
    )
    assert wire.values(there) == FORMATS[name]
    assert rows(catalog, "SELECT * FROM t") == [
        (1, time(10, 11, 12), time(10, 11, 12, 345_000)),
        (2, None, time(0)),
    ]
    assert rows(catalog, "SELECT i FROM t WHERE a < b") == [(1,)]
    assert rows(catalog, "SELECT i FROM t WHERE a = TIME '10:11:12' AND b > '10:11:12'") == [(1,)]
    assert rows(catalog, "SELECT CAST(MAX(b) AS STRING), HOUR(MIN(a)), COUNT(DISTINCT b) FROM t") == [
        ("10:11:12.345", 10, 2)
    ]


def test_digits_beyond_those_of_the_column_are_not_read(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    there = wire.make(topic())
    wire.send(there, [b'{"a":"23:59:59.999999","b":"10:11:12.345999"}'])
    declare(catalog, wire, there, "a TIME, b TIME(2)", format="json")
    assert rows(catalog, "SELECT * FROM t") == [(time(23, 59, 59), time(10, 11, 12, 340_000))]


@pytest.mark.parametrize("name", ["avro", "json"])
def test_rows_and_arrays_hold_times_of_declared_digits(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], name: str
) -> None:
    """Avro needs to know the digits: those of milliseconds are the only ones that Flink's has by default."""
    there = wire.make(topic())
    columns = "r ROW<`At` TIMESTAMP(3), t TIME(3)>, l ARRAY<TIMESTAMP(3)>, m MAP<STRING, ROW<t TIME(0)>>"
    declare(catalog, wire, there, columns, format=name)
    catalog.sql(
        "INSERT INTO t SELECT ROW(ts, CAST(ts AS TIME(3))), ARRAY[ts], MAP['k', ROW(CAST(ts AS TIME))] "
        "FROM (VALUES (TIMESTAMP '2024-01-02 03:04:05.678')) AS v (ts)"
    )
    at = datetime(2024, 1, 2, 3, 4, 5, 678_000)
    ((row, moments, entries),) = rows(catalog, "SELECT r, l, m FROM t")
    assert (tuple(row), moments, {key: tuple(value) for key, value in entries.items()}) == (
        (at, at.time()),
        [at],
        {"k": (time(3, 4, 5),)},
    )
    with pytest.raises(InvalidInputError, match=r"'r\.ts': Avro does not support TIMESTAMP .*precision: 6"):
        declare(catalog, wire, there, "r ROW<ts TIMESTAMP>", "other", format="avro")


def test_windows_and_states_keep_times(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """The greatest of each window, and of rows that change, of which the greatest is deleted."""
    there = wire.make(topic())
    declare(catalog, wire, there, "k INT, at TIME(3), ts TIMESTAMP(3), WATERMARK FOR ts AS ts", format="json")
    values = [(1, 1, 1), (1, 4, 2), (2, 3, 4), (2, 5, 8), (1, 9, 30)]
    catalog.sql(
        "INSERT INTO t VALUES "
        + ", ".join(f"({k}, TIME '00:00:0{at}.5', TIMESTAMP '2024-01-01 00:00:{ts:02}')" for k, at, ts in values)
    )
    found = seen(catalog, "SELECT CAST(MAX(at) AS STRING), COUNT(*) FROM t GROUP BY TUMBLE(ts, INTERVAL '5' SECOND)")
    assert found == {("00:00:04.5", "3"): 1, ("00:00:05.5", "1"): 1}

    changing = wire.make(topic())
    declare(catalog, wire, changing, "k INT, g STRING, at TIME(3), PRIMARY KEY (k) NOT ENFORCED", "u", connector="upsert-kafka", key_format="json", value_format="json")  # fmt: skip  # noqa: E501
    out = wire.make(topic())
    declare(catalog, wire, out, "g STRING, first TIME(3), last TIME(3), n BIGINT, PRIMARY KEY (g) NOT ENFORCED", "o", connector="upsert-kafka", key_format="json", value_format="json")  # fmt: skip  # noqa: E501
    query = "INSERT INTO o SELECT g, MIN(at), MAX(at), COUNT(DISTINCT at) FROM u GROUP BY g"
    catalog.sql("INSERT INTO u VALUES (1, 'a', TIME '01:00:00'), (2, 'a', TIME '02:00:00.25'), (3, 'b', NULL)")
    finish(catalog, query)
    assert rows(catalog, "SELECT * FROM o") == [("a", time(1), time(2, 0, 0, 250_000), 2), ("b", None, None, 0)]
    catalog.sql("INSERT INTO u VALUES (2, 'b', TIME '03:00:00')")
    finish(catalog, query)
    assert rows(catalog, "SELECT * FROM o") == [("a", time(1), time(1), 1), ("b", time(3), time(3), 1)]
    ordered = "INSERT INTO o SELECT g, at, at, k FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY at DESC) AS r FROM u) WHERE r = 1"  # fmt: skip  # noqa: E501
    finish(catalog, ordered)
    assert rows(catalog, "SELECT * FROM o") == [("a", time(1), time(1), 1), ("b", time(3), time(3), 2)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_time_may_be_a_primary_key(catalog: Catalog, wire: Wire, topic: Callable[[], str], name: str) -> None:
    """Of a table that is read as it is, of one whose changes a query follows, and of its result."""
    formats = {"connector": "upsert-kafka", "key_format": name, "value_format": name}
    there = wire.make(topic(), 2)
    declare(catalog, wire, there, "a TIME(3), v INT, PRIMARY KEY (a) NOT ENFORCED", **formats)
    declare(catalog, wire, wire.make(topic(), 2), "a TIME, n BIGINT, PRIMARY KEY (a) NOT ENFORCED", "o", **formats)
    query = "INSERT INTO o SELECT CAST(a AS TIME), SUM(v) FROM t GROUP BY CAST(a AS TIME)"
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    catalog.sql("INSERT INTO t VALUES (TIME '10:11:12', 1), (TIME '10:11:12.345', 2), (TIME '00:00:00', 4)")
    finish(catalog, query)
    assert rows(catalog, "SELECT * FROM o") == [(time(0), 4), (time(10, 11, 12), 3)]
    catalog.sql("INSERT INTO t VALUES (TIME '10:11:12', 8), (TIME '00:00:00', 16)")
    assert rows(catalog, "SELECT * FROM t") == [
        (time(0), 16),
        (time(10, 11, 12), 8),
        (time(10, 11, 12, 345_000), 2),
    ]
    finish(catalog, query)
    assert rows(catalog, "SELECT * FROM o") == [(time(0), 16), (time(10, 11, 12), 10)]


def test_random_times_are_as_duckdb_has_them(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    dice = random.Random(7)
    given = [(n, _time(dice), _time(dice)) for n in range(200)]
    there = wire.make(topic())
    declare(catalog, wire, there, "i INT, a TIME(3), b TIME(3)", format="csv")
    wire.send(there, [f"{n},{a or ''},{b or ''}".encode() for n, a, b in given])
    queries = [
        "SELECT i, a, b FROM t",
        "SELECT i FROM t WHERE a < b OR a = b",
        "SELECT i, HOUR(a), MINUTE(a), CAST(SECOND(a) AS INT), COALESCE(a, b) FROM t",
        "SELECT HOUR(a), MIN(b), MAX(b), COUNT(DISTINCT b), COUNT(b) FROM t GROUP BY HOUR(a)",
        "SELECT a, COUNT(*) FROM t GROUP BY a HAVING COUNT(*) > 1",
        "SELECT x.i, y.i FROM t AS x JOIN t AS y ON x.a = y.b",
        "SELECT i, CASE WHEN a BETWEEN TIME '06:00:00' AND TIME '12:00:00.5' THEN a ELSE b END FROM t",
    ]
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t (i INT, a TIME, b TIME)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", given)
        for query in queries:
            assert rows(catalog, query) == sorted(db.execute(query).fetchall(), key=repr), query


def _time(dice: random.Random) -> time | None:
    """Return a time; few are different, and some are NULL."""
    if dice.random() < 0.1:
        return None
    return time(dice.randrange(24), dice.choice([0, 30, 59]), dice.choice([0, 59]), dice.choice([0, 1000, 999_000]))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("a INT, t TIME(3)", "", r"column 't': a store table has no type TIME\(3\), because Delta Lake has none"),
        ("a INT, t ARRAY<ROW<x TIME>>", "", "column 't': a store table has no type"),
        ("t TIME", "raw", "format 'raw' takes one column of type"),
    ],
)
def test_where_there_are_no_times_says_so(tmp_path: Path, columns: str, options: str, message: str) -> None:
    def none() -> Any:
        raise AssertionError

    with_ = (
        f" WITH ('connector' = 'kafka', 'topic' = 'x', 'properties.bootstrap.servers' = 'x:1', 'format' = '{options}')"
    )
    with pytest.raises(InvalidInputError, match=message):
        Catalog(none, tmp_path).sql(f"CREATE TABLE t ({columns}){with_ if options else ''}")
