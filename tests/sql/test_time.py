"""Windows, interval joins and lookups: what continuous queries do with time."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from snapshot.errors import DataLostError, InvalidInputError
from tablestore import TableStore, open_local
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.harness.waiting import PATIENCE_SECONDS

#: Three messages a micro-batch. What is late is counted until the micro-batch after the one that made it late.
EVENTS = [("a", 1), ("b", 5), ("a", 8), ("a", 12), ("b", 14), ("a", 31), ("b", 28), ("a", 70), ("b", 34), ("a", 4), ("a", 71), ("a", 72)]  # fmt: skip  # noqa: E501
LATE, WATERMARK = ("a", 4), 70


@pytest.fixture
def catalog(quick_catalog: Catalog) -> Catalog:
    return quick_catalog


def stream(catalog: Catalog, wire: Wire, topic: str, name: str, columns: str, rows: list[dict[str, Any]], **more: str) -> None:  # fmt: skip  # noqa: E501
    """Make a table over a new topic that holds some rows."""
    wire.make(topic)
    wire.send(topic, [json.dumps(row).encode() for row in rows])
    options = {"scan.startup.mode": "earliest-offset", **{key.replace("_", "."): value for key, value in more.items()}}
    given = "".join(f", '{key}' = '{value}'" for key, value in options.items())
    catalog.sql(
        f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json', "
        f"'properties.bootstrap.servers' = '...'{given})"
    )


def at(second: int) -> str:
    return f"2024-01-01 00:{second // 60:02}:{second % 60:02}"


def seen(catalog: Catalog, text: str) -> Counter[tuple[Any, ...]]:
    """Follow a query to the end of what is there; its rows as text."""
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    found: Counter[tuple[Any, ...]] = Counter()
    query = catalog.follow(
        catalog.sql(text), lambda frame, _: found.update(tuple(map(str, r)) for r in frame.collect())
    )
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert query.exception() is None
    return found


def windows(kind: str) -> Counter[tuple[Any, ...]]:
    """Count by hand what is over when the watermark is where it ends."""
    rows = sorted(event for event in EVENTS if event != LATE)
    found: Counter[tuple[int, int, str]] = Counter()
    if kind == "session":
        for key in "ab":
            times = [second for each, second in rows if each == key]
            begin = times[0]
            for second, following in zip(times, [*times[1:], 10**6], strict=True):
                found[begin, -1, key] += 1
                if following > second + 5:
                    found[begin, second + 5, key] = found.pop((begin, -1, key))
                    begin = following
    for key, second in rows if kind != "session" else []:
        begin = second - second % 10
        if kind == "tumble":
            found[begin, begin + 10, key] += 1
        if kind == "cumulate":
            for end in range(second - second % 5 + 5, begin + 11, 5):
                found[begin, end, key] += 1
        if kind == "hop":
            for start in (second - second % 5 - 5, second - second % 5):
                found[start, start + 10, key] += 1
    rows_ = ((kind, stamp(a), stamp(b), key, str(n)) for (a, b, key), n in found.items() if b <= WATERMARK)
    return Counter(rows_)


def stamp(second: int) -> str:
    return f"2023-12-31 23:59:{60 + second}" if second < 0 else at(second)


def test_a_computed_column_has_a_watermark(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    rows = [{"k": key, "s": at(second)} for key, second in EVENTS]
    computed = "ts AS CAST(s AS TIMESTAMP(3)), w AS UPPER(k), WATERMARK FOR {} AS {} - INTERVAL '2' SECOND"
    for name in ("ts", "w"):
        columns = f"k STRING, s STRING, {computed.format(name, name)}"
        stream(catalog, wire, topic(), name, columns, rows, maxRowsPerTrigger="3")
    query = (
        "SELECT 'tumble', window_start, window_end, k, COUNT(*) FROM TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), "
        "INTERVAL '10' SECOND)) GROUP BY window_start, window_end, k"
    )
    assert seen(catalog, query.format("ts")) == windows("tumble")
    with pytest.raises(InvalidInputError, match="computed column: expected TIMESTAMP or TIMESTAMP_LTZ, got string"):
        catalog.sql(query.format("w"))


@pytest.mark.parametrize("of", ["topic", "table"])
def test_rows_that_a_filter_drops_move_the_watermark(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], of: str
) -> None:
    """As in Flink, where the source makes it: also where the filter drops all further rows of a partition."""
    columns = "k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    rows = [{"k": "a", "ts": at(1)}, {"k": "a", "ts": at(12)}, {"k": "b", "ts": at(40)}]
    if of == "topic":
        stream(catalog, wire, topic(), "t", columns, rows)
    else:
        values = ", ".join(f"('{row['k']}', TIMESTAMP '{row['ts']}')" for row in rows)
        catalog.sql(f"CREATE TABLE t ({columns}); INSERT INTO t VALUES {values}")
    windows = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)) WHERE k = 'a'"
    found = seen(catalog, f"SELECT window_start, COUNT(*) FROM {windows} GROUP BY window_start, window_end")
    assert found == {(at(0), "1"): 1, (at(10), "1"): 1}


def test_windows_come_once_when_the_watermark_passes(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    rows = [{"k": key, "ts": at(second), "n": 1} for key, second in EVENTS]
    columns = "k STRING, ts TIMESTAMP(3), n INT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    stream(catalog, wire, topic(), "t", columns, rows, maxRowsPerTrigger="3")
    group = "GROUP BY window_start, window_end, k"
    outputs = "window_start, window_end, k, COUNT(*)"
    by_time = "TABLE t, DESCRIPTOR(ts), "
    calls = {
        "tumble": f"TUMBLE({by_time} INTERVAL '10' SECOND)",
        "hop": f"HOP({by_time} INTERVAL '5' SECONDS, INTERVAL '10' SECONDS)",
        "cumulate": f"CUMULATE({by_time} INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
        "session": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)",
    }
    texts = [f"SELECT '{kind}', {outputs} FROM TABLE({call}) AS w {group}" for kind, call in calls.items()]
    size = "(ts, INTERVAL '10' SECOND)"
    older = f"SELECT 'older', TUMBLE_START{size}, TUMBLE_END{size}, k, COUNT(*) FROM t GROUP BY k, TUMBLE{size}"
    found = seen(catalog, " UNION ALL ".join([*texts, f"{older} HAVING COUNT(*) > 1"]))
    expected = windows("tumble") + windows("hop") + windows("cumulate") + windows("session")
    expected += Counter({("older", *row[1:]): 1 for row in windows("tumble") if int(row[4]) > 1})
    assert found == expected, (found - expected, expected - found)
    # In batch mode all windows are there.
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    frame = catalog.sql(
        f"SELECT {outputs} FROM TABLE(SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)) {group} "
        "ORDER BY k, window_start LIMIT 2"
    ).frame
    assert frame is not None
    assert [(str(row[0]), str(row[1]), *row[2:]) for row in frame.collect()] == [(at(1), at(17), "a", 4), (at(31), at(36), "a", 1)]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("kind", ["TUMBLE", "HOP", "SESSION"])
def test_windows_of_group_by_have_a_time(catalog: Catalog, wire: Wire, topic: Callable[[], str], kind: str) -> None:
    """The last millisecond of the window."""
    columns = "k STRING, ts TIMESTAMP(3), n INT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    stream(catalog, wire, topic(), "t", columns, [{"k": "a", "ts": at(second)} for second in (1, 12, 40)])
    call = "(ts, INTERVAL '5' SECOND)" if kind != "HOP" else "(ts, INTERVAL '5' SECOND, INTERVAL '5' SECOND)"
    text = f"SELECT {kind}_ROWTIME{call}, {kind}_END{call}, COUNT(*) FROM t GROUP BY {kind}{call}"
    (early, late) = sorted(seen(catalog, text))
    ends = [6, 17] if kind == "SESSION" else [5, 15]
    assert [early[1:], late[1:]] == [(at(end), "1") for end in ends]
    assert [early[0], late[0]] == [at(end - 1) + ".999000" for end in ends]
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    frame = catalog.sql(text).frame
    assert frame is not None
    assert {early, late} < {tuple(map(str, row)) for row in frame.collect()}


def test_windows_count_distinct_values(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """Beside other aggregates; a late row counts nowhere, and a value of one window is new in the next."""
    rows = [{"u": key, "ts": at(second), "n": second % 4} for key, second in EVENTS]
    rows[3]["u"] = None
    columns = "u STRING, ts TIMESTAMP(3), n INT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    stream(catalog, wire, topic(), "t", columns, rows, maxRowsPerTrigger="3")
    by_time = "TABLE t, DESCRIPTOR(ts), "
    calls = {
        "tumble": f"TUMBLE({by_time} INTERVAL '10' SECOND)",
        "hop": f"HOP({by_time} INTERVAL '5' SECONDS, INTERVAL '10' SECONDS)",
        "cumulate": f"CUMULATE({by_time} INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
    }
    group = "GROUP BY window_start, window_end"
    outputs = "COUNT(DISTINCT u), COUNT(*), SUM(DISTINCT n), SUM(n), COUNT(DISTINCT n) FILTER (WHERE u = 'a')"
    texts = [
        f"SELECT '{kind}', window_start, window_end, {outputs} FROM TABLE({c}) {group}" for kind, c in calls.items()
    ]
    some = f"SELECT 'some', window_end, COUNT(DISTINCT u) AS users FROM TABLE({calls['tumble']}) {group} HAVING COUNT(DISTINCT u) > 1"  # fmt: skip  # noqa: E501
    expected: Counter[tuple[Any, ...]] = Counter()
    in_time = [(row, second) for row, (key, second) in zip(rows, EVENTS, strict=True) if (key, second) != LATE]
    for kind, start, end in {window[:3] for name in calls for window in windows(name) if name == window[0]}:
        inside = [row for row, second in in_time if start <= stamp(second) < end]
        users, numbers = {row["u"] for row in inside} - {None}, [row["n"] for row in inside]
        of_a = {row["n"] for row in inside if row["u"] == "a"}
        counts = (len(users), len(inside), sum(set(numbers)), sum(numbers), len(of_a))
        expected[kind, start, end, *map(str, counts)] += 1
        if kind == "tumble" and len(users) > 1:
            expected["some", end, str(len(users))] += 1
    found = seen(catalog, " UNION ALL ".join(texts)) + seen(catalog, some)
    assert found == expected, (found - expected, expected - found)


def test_session_windows_aggregate_distinct_values(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """A session that later rows join has each value once, and AVG has the type that it has without DISTINCT."""
    dice = random.Random(7)
    rows = [
        {
            "k": dice.choice("ab"),
            "s": at(second),
            "u": dice.choice(["x", "y", None]),
            "n": dice.randrange(4),
            "d": n / 4,
        }
        for n, second in enumerate(sorted(dice.randrange(300) for _ in range(80)))
    ]
    columns = "k STRING, s TIMESTAMP(3), u STRING, n INT, d DECIMAL(6, 2), WATERMARK FOR s AS s - INTERVAL '20' SECOND"
    dice.shuffle(rows)
    rows.sort(key=lambda row: row["s"][:-1])
    stream(catalog, wire, topic(), "t", columns, [*rows, {"k": "end", "s": at(900)}], maxRowsPerTrigger="14")
    outputs = (
        "COUNT(DISTINCT u), COUNT(*), SUM(DISTINCT n), AVG(DISTINCT n), MIN(DISTINCT n), SUM(n), COUNT(DISTINCT u, n), "
        "COUNT(DISTINCT n) FILTER (WHERE u = 'x'), SUM(DISTINCT n) FILTER (WHERE u = 'none'), SUM(DISTINCT d)"
    )
    query = (
        f"SELECT k, window_start, {outputs} FROM TABLE(SESSION(TABLE t PARTITION BY k, DESCRIPTOR(s), "
        "INTERVAL '5' SECOND)) GROUP BY k, window_start, window_end {}"
    )
    found = seen(catalog, query.format(""))
    expected: Counter[tuple[Any, ...]] = Counter()
    for key in "ab":
        sessions: list[list[dict[str, Any]]] = []
        for row in sorted((each for each in rows if each["k"] == key), key=lambda each: each["s"]):
            moment = datetime.fromisoformat(row["s"])
            if not sessions or moment - datetime.fromisoformat(sessions[-1][-1]["s"]) > timedelta(seconds=5):
                sessions.append([])
            sessions[-1].append(row)
        for each in sessions:
            users, numbers = {row["u"] for row in each} - {None}, {row["n"] for row in each}
            of_x = {row["n"] for row in each if row["u"] == "x"}
            pairs = {(row["u"], row["n"]) for row in each if row["u"] is not None}
            counts = (
                len(users), len(each), sum(numbers), sum(numbers) // len(numbers), min(numbers),
                sum(row["n"] for row in each), len(pairs), len(of_x), None, f"{sum({row['d'] for row in each}):.2f}",
            )  # fmt: skip
            expected[key, each[0]["s"], *map(str, counts)] += 1
    assert found == expected, (found - expected, expected - found)
    some = seen(catalog, query.format("HAVING COUNT(DISTINCT u) > 1"))
    assert some == Counter({row: times for row, times in expected.items() if int(row[2]) > 1})


@pytest.mark.parametrize("kind", ["tumble", "hop", "session"])
def test_the_first_rows_of_each_window(catalog: Catalog, wire: Wire, topic: Callable[[], str], kind: str) -> None:
    rows = [{"k": key, "ts": at(second)} for key, second in EVENTS]
    columns = "k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    stream(catalog, wire, topic(), "t", columns, rows, maxRowsPerTrigger="3")
    calls = {
        "tumble": "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)",
        "hop": "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
        "session": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)",
    }
    counted = f"SELECT window_start, window_end AS e, k, COUNT(*) AS n FROM TABLE({calls[kind]}) GROUP BY window_start, window_end, k"  # fmt: skip  # noqa: E501
    placed = f"SELECT q.*, ROW_NUMBER() OVER (PARTITION BY window_start, e ORDER BY n DESC, k DESC) AS place FROM ({counted}) AS q"  # fmt: skip  # noqa: E501
    places: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
    for (_, start, end, key, n), copies in windows(kind).items():
        places.setdefault((start, end), []).extend([(int(n), key)] * copies)
    expected: Counter[tuple[Any, ...]] = Counter()
    for window, found in places.items():
        for place, (n, key) in enumerate(sorted(found, reverse=True)[:2], 1):
            expected[*window, key, str(n), str(place)] += 1
    assert max(int(row[-1]) for row in expected) == (1 if kind == "session" else 2)
    catalog.sql(f"CREATE VIEW placed AS {placed}")
    assert seen(catalog, "SELECT * FROM placed WHERE place <= 2") == expected
    first = {(row[2], row[1], row[3]): 1 for row in expected if row[-1] == "1"}
    assert seen(catalog, "SELECT k, e, n FROM placed WHERE place = 1") == first
    with pytest.raises(InvalidInputError, match="an updating result over windows"):
        catalog.sql(f"SELECT * FROM ({placed.replace('window_start, e ORDER', 'window_start ORDER')}) WHERE place <= 2")


@pytest.mark.parametrize("data_type", ["TIMESTAMP(3)", "TIMESTAMP_LTZ(3)"])
def test_windows_of_1970_and_before_are_windows(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], data_type: str
) -> None:
    """Spark's watermark begins at the epoch; a record whose time is missing in its producer often has that time."""
    catalog.sql("SET 'table.local-time-zone' = 'UTC'")
    times = [-19, -8, -1, 0, 1, 12, 300]
    zone = "Z" if "LTZ" in data_type else ""
    rows = [{"ts": early(second) + zone} for second in times]
    columns = f"ts {data_type}, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    stream(catalog, wire, topic(), "t", columns, rows, maxRowsPerTrigger="2")
    calls = {
        "tumble": "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)",
        "hop": "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECONDS, INTERVAL '10' SECONDS)",
        "cumulate": "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
    }
    group = "GROUP BY window_start, window_end"
    texts = [
        f"SELECT '{kind}', window_start, window_end, COUNT(*) FROM TABLE({c}) {group}" for kind, c in calls.items()
    ]
    expected: Counter[tuple[Any, ...]] = Counter()
    for second in times[:-1]:
        begin = second - second % 10
        step = second - second % 5
        expected["tumble", early(begin), early(begin + 10)] += 1
        expected.update(("hop", early(start), early(start + 10)) for start in (step - 5, step))
        expected.update(("cumulate", early(begin), early(end)) for end in range(step + 5, begin + 11, 5))
    assert seen(catalog, " UNION ALL ".join(texts)) == Counter((*row, str(n)) for row, n in expected.items())


def early(second: int) -> str:
    return str(datetime(1970, 1, 1) + timedelta(seconds=second))


@pytest.mark.parametrize(
    ("columns", "of"),
    [
        ("ts TIMESTAMP(3)", lambda second: {"ts": at(second)}),
        ("`a b` ROW<s STRING>, ts AS CAST(`a b`.s AS TIMESTAMP(3))", lambda second: {"a b": {"s": at(second)}}),
    ],
    ids=["physical", "computed"],
)
def test_a_silent_partition_holds_no_window_up_once_it_is_idle(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], columns: str, of: Callable[[int], dict[str, Any]]
) -> None:
    """`table.exec.source.idle-timeout`, by SET: of two partitions one has nothing after its first row."""
    name = wire.make(topic(), 2)

    def send(partition: int, second: int) -> None:
        wire.send(name, [Record(json.dumps(of(second)).encode(), partition=partition)])

    catalog.sql(
        f"CREATE TABLE t ({columns}, WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka', 'format' = 'json', "
        f"'topic' = '{name}', 'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset'); "
        "SET 'tablestore.trigger' = '100 ms'; SET 'table.exec.source.idle-timeout' = '500 ms'"
    )
    counted = "SELECT window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end"  # fmt: skip  # noqa: E501
    found: list[tuple[str, int]] = []

    def show(frame: DataFrame, _: int) -> None:
        found.extend((str(row[0]), row[1]) for row in frame.collect())

    send(0, 1)
    send(1, 2)
    query = catalog.follow(catalog.sql(counted), show)
    try:
        until, second = time.monotonic() + PATIENCE_SECONDS, 30
        while not found and time.monotonic() < until:
            # The other goes on, as it would.
            send(0, second)
            second += 1
            query.processAllAvailable()
        assert found == [(at(0), 2)]
    finally:
        query.stop()
        catalog.sql("RESET")


def test_an_insert_that_goes_on_after_partitions_were_added_says_so(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    name = topic()
    stream(catalog, wire, name, "t", "ts TIMESTAMP(3), WATERMARK FOR ts AS ts", [{"ts": at(n)} for n in (1, 2, 30)])
    catalog.sql("CREATE TABLE counts (begin TIMESTAMP(3), n BIGINT); SET 'tablestore.trigger' = 'available-now'")
    counted = (
        "INSERT INTO counts SELECT window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), "
        "INTERVAL '10' SECOND)) GROUP BY window_start, window_end"
    )

    def run() -> None:
        for query in catalog.sql(counted).queries:
            assert query.awaitTermination(PATIENCE_SECONDS)

    run()
    wire.send(name, [Record(json.dumps({"ts": at(50)}).encode())])
    run()
    assert catalog.table("counts").read().count() == 2
    wire.grow(name, 3)
    with pytest.raises(DataLostError, match="partitions were added since this query began, 3 instead of 1"):
        run()
    catalog.sql("SET 'pipeline.name' = 'again'")
    run()
    catalog.sql("RESET")


def test_streams_join_by_time_and_look_tables_up(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    orders = [{"id": n, "ts": at(second)} for n, second in enumerate([1, 2, 3, 100])]
    ships = [{"oid": 0, "st": at(5)}, {"oid": 1, "st": at(30)}, {"oid": 3, "st": at(101)}]
    watermark = "WATERMARK FOR {0} AS {0} - INTERVAL '1' SECOND"
    orders_topic = topic()
    stream(
        catalog, wire, orders_topic, "o", f"id INT, ts TIMESTAMP(3), p AS PROCTIME(), {watermark.format('ts')}", orders
    )
    stream(catalog, wire, topic(), "s", f"oid INT, st TIMESTAMP(3), {watermark.format('st')}", ships)
    between = "o.id = s.oid AND s.st BETWEEN o.ts AND o.ts + INTERVAL '10' SECOND"
    found = seen(catalog, f"SELECT o.id, s.st FROM o JOIN s ON {between}")
    assert found == {("0", at(5)): 1, ("3", at(101)): 1}
    assert seen(catalog, f"SELECT o.id, s.st FROM o, s WHERE {between}") == found
    found = seen(catalog, f"SELECT o.id, s.st FROM o LEFT JOIN s ON {between}")
    assert found == {("0", at(5)): 1, ("3", at(101)): 1, ("1", "None"): 1, ("2", "None"): 1}
    # Without bounds of time, a row may still get its first partner, so the result updates.
    found = seen(catalog, "SELECT o.id, s.st FROM o LEFT JOIN s ON o.id = s.oid")
    there = {("0", at(5)), ("1", at(30)), ("2", "None"), ("3", at(101))}
    assert found == {(*row, "insert"): 1 for row in there}
    with pytest.raises(InvalidInputError, match="Table sink 's' doesn't support consuming update changes"):
        catalog.sql("INSERT INTO s SELECT o.id, o.ts FROM o LEFT JOIN s ON o.id = s.oid")

    catalog.sql("CREATE TABLE price (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO price VALUES (0, 'old'), (3, 'old')")
    windows = "TABLE(TUMBLE(TABLE o, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
    for text in (f"{windows} AS o JOIN price ON o.id = price.id", f"{windows} AS o WHERE id IN (SELECT id FROM price)"):
        with pytest.raises(InvalidInputError, match="a window over 'o' beside tables whose rows change is not"):
            catalog.sql(f"SELECT window_start, o.id FROM {text}")
    out = topic()
    stream(catalog, wire, out, "out", "id INT, v STRING", [])
    catalog.sql("SET 'tablestore.trigger' = '0'")
    lookup = "SELECT o.id, q.v FROM o LEFT JOIN price FOR SYSTEM_TIME AS OF o.p AS q ON o.id = q.id WHERE o.id <> 1"
    (query,) = catalog.sql(f"INSERT INTO out {lookup}").queries
    try:
        values(wire, out, [(0, "old"), (2, None), (3, "old")])
        catalog.sql("INSERT INTO price VALUES (3, 'new')")
        wire.send(orders_topic, [json.dumps({"id": 3, "ts": at(200)}).encode()])
        values(wire, out, [(0, "old"), (2, None), (3, "new"), (3, "old")])
    finally:
        query.stop()
    catalog.sql("CREATE VIEW s_view AS SELECT * FROM s; CREATE VIEW s_views AS SELECT * FROM s_view")
    for text, match in [
        (f"SELECT v, COUNT(*) FROM ({lookup}) AS l GROUP BY v", "a lookup join, as part of a query"),
        (lookup.replace("o.p", "o.ts"), "a time that is not PROCTIME"),
        (lookup.replace("price", "s"), "rows have no versions"),
        (
            lookup.replace("price", "s_views"),
            "the view 's_view' FOR .*'s' in it is a table of a connector",
        ),
        (lookup.replace("price", "s_view").replace("o.p", "o.ts"), "a view has no versions of an event time"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)


def test_rows_without_a_match_are_looked_up_again(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """`LOOKUP` hints: a dimension row that comes a little later than the row that needs it; one never comes."""
    orders = topic()
    stream(catalog, wire, orders, "o", "id INT, p AS PROCTIME()", [{"id": 1}])
    catalog.sql(
        "CREATE TABLE price (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED); INSERT INTO price VALUES (1, 10);"
        "CREATE TABLE other (id INT, w INT, PRIMARY KEY (id) NOT ENFORCED); INSERT INTO other VALUES (1, 1), (2, 2);"
        "SET 'tablestore.trigger' = 'available-now'"
    )
    retry = "'retry-predicate' = 'lookup_miss', 'retry-strategy' = 'fixed_delay', 'fixed-delay' = '20 ms', 'max-attempts' = '4'"  # fmt: skip  # noqa: E501
    query = (
        f"SELECT /*+ LOOKUP('table' = 'd', {retry}), LOOKUP('table' = 'other', 'async' = 'true') */ o.id, d.v, n.w "
        "FROM o LEFT JOIN other FOR SYSTEM_TIME AS OF o.p AS n ON o.id = n.id "
        "LEFT JOIN price FOR SYSTEM_TIME AS OF o.p AS d "
        "ON o.id = d.id"
    )
    reads: list[int] = []

    def read(self: TableStore, **options: Any) -> DataFrame:
        if self.path.endswith("price"):
            reads.append(1)
            if len(reads) == 5:
                open_local(self.path).write([{"id": 2, "v": 20}])
        return real(self, **options)

    real = TableStore.read
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TableStore, "read", read)
        # All rows have a match; the frame's shape needs a read of its own.
        assert seen(catalog, query) == {("1", "10", "1"): 1}
        assert len(reads) == 2
        wire.send(orders, [b'{"id":2}'])
        assert seen(catalog, query) == {("1", "10", "1"): 1, ("2", "20", "2"): 1}
        assert len(reads) == 2 + 1 + 2, "the first try of the second query has no match, the second has"
        wire.send(orders, [b'{"id":3}'])
        reads.clear()
        assert seen(catalog, query)["3", "None", "None"] == 1
        assert len(reads) == 1 + 1 + 4


def test_the_newest_partition_is_looked_up(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """By a view, or by Paimon's option; both are read again for each micro-batch."""
    orders, out = topic(), topic()
    stream(catalog, wire, orders, "o", "id INT, p AS PROCTIME()", [{"id": 1}])
    stream(catalog, wire, out, "out", "id INT, v INT, w INT", [])
    catalog.sql(
        "CREATE TABLE price (day STRING, id INT, v INT, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day);"
        "CREATE VIEW newest AS SELECT * FROM price WHERE day = (SELECT MAX(day) FROM price);"
        "CREATE VIEW named (i, w) AS SELECT id, v * 10 FROM newest;"
        "INSERT INTO price VALUES ('a', 1, 1), ('a', 2, 2), ('b', 1, 11); SET 'tablestore.trigger' = '0'"
    )
    lookup = (
        "SELECT o.id, d.w / 10, n.v * 10 FROM o LEFT JOIN named FOR SYSTEM_TIME AS OF o.p AS d ON o.id = d.i "
        "LEFT JOIN price /*+ OPTIONS('scan.partitions' = 'max_pt()') */ FOR SYSTEM_TIME AS OF o.p AS n ON n.id = o.id"
    )
    (query,) = catalog.sql(f"INSERT INTO out {lookup}").queries
    try:
        values(wire, out, [(1, 11, 110)])
        catalog.sql("INSERT INTO price VALUES ('c', 2, 22)")
        wire.send(orders, [b'{"id":1}', b'{"id":2}'])
        values(wire, out, [(1, 11, 110), (1, None, None), (2, 22, 220)])
    finally:
        query.stop()


def values(wire: Wire, topic: str, wanted: list[tuple[Any, ...]]) -> None:
    """Wait until a topic has these rows."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found = sorted((tuple(json.loads(value or b"").values()) for value in wire.values(topic)), key=str)
        if found == wanted:
            return
        time.sleep(0.3)
    assert found == wanted
