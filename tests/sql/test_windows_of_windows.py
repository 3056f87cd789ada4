"""Queries over the result of windows: by longer windows of its time, and by the same windows again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.changes import in_batch_mode
from tests.sql.test_time import EVENTS, LATE, WATERMARK, at, seen, stream

COLUMNS = "k STRING, ts TIMESTAMP(3), n INT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
COUNTED = (
    "SELECT window_start AS s, window_end AS e, window_time AS rowtime, k, COUNT(*) AS n, SUM(n) AS sum_n FROM {} "
    "GROUP BY window_start, window_end, window_time, k"
)
WINDOWED = {
    "tumble": "TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '10' SECOND)",
    "hop": "HOP(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
    "cumulate": "CUMULATE(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
    "session": "SESSION(TABLE {} PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)",
}
PLACED = "SELECT *, ROW_NUMBER() OVER (PARTITION BY s, e ORDER BY n DESC, k DESC) AS place FROM counted"
QUERIES = {
    "longer": (
        "SELECT window_start, window_end, k, SUM(n), COUNT(*) FROM TUMBLE(TABLE counted, DESCRIPTOR(rowtime), "
        "INTERVAL '20' SECOND) GROUP BY window_start, window_end, k"
    ),
    "in a view": (
        "WITH w AS (SELECT rowtime AS t, n * 2 AS m FROM counted WHERE n > 0) SELECT window_start, window_end, SUM(m) "
        "FROM TABLE(HOP(TABLE w, DESCRIPTOR(t), INTERVAL '10' SECOND, INTERVAL '30' SECOND)) "
        "GROUP BY window_start, window_end"
    ),
    "three times": (
        "WITH w AS (SELECT window_end AS e2, window_time AS t, SUM(n) AS n FROM TUMBLE(TABLE counted, "
        "DESCRIPTOR(rowtime), INTERVAL '20' SECOND) GROUP BY window_start, window_end, window_time) "
        "SELECT window_start, window_end, SUM(n) FROM TUMBLE(TABLE w, DESCRIPTOR(t), INTERVAL '30' SECOND) "
        "GROUP BY window_start, window_end"
    ),
    "sessions": (
        "SELECT window_start, window_end, k, SUM(n) FROM SESSION(TABLE counted PARTITION BY k, DESCRIPTOR(rowtime), "
        "INTERVAL '11' SECOND) GROUP BY window_start, window_end, k"
    ),
    "the same": "SELECT s, e, SUM(n), MAX(n), COUNT(*) FROM counted GROUP BY s, e HAVING COUNT(*) > 0",
    "distinct": "SELECT s, e, COUNT(DISTINCT n), SUM(n), COUNT(DISTINCT k) FROM counted GROUP BY e, s",
    "the same, twice": (
        "SELECT s, e, MAX(c) FROM (SELECT s, e, n, COUNT(*) AS c FROM counted GROUP BY s, e, n) GROUP BY s, e"
    ),
    "grouping sets": "SELECT s, e, k, SUM(n), COUNT(*) FROM counted GROUP BY s, e, GROUPING SETS ((k), ())",
    "of the first rows": f"SELECT s, e, SUM(n) FROM (SELECT * FROM ({PLACED}) WHERE place <= 2) GROUP BY s, e",
}  # fmt: skip


@pytest.fixture
def catalog(quick_catalog: Catalog) -> Catalog:
    return quick_catalog


@pytest.fixture
def events(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> Catalog:
    """Return a catalog with a stream of events, `t`, and the table `known` of those that are not late."""
    rows = [{"k": key, "ts": at(second), "n": second} for key, second in EVENTS]
    stream(catalog, wire, topic(), "t", COLUMNS, rows, maxRowsPerTrigger="3")
    stream(catalog, wire, topic(), "known", COLUMNS, [row for row in rows if (row["k"], row["n"]) != LATE])
    return catalog


def ended(catalog: Catalog, text: str, end: int) -> Counter[tuple[Any, ...]]:
    """Run a query in batch mode; return the rows of windows that end before the watermark."""
    found = in_batch_mode(catalog, text)
    return Counter({row: count for row, count in found.items() if row[end] <= at(WATERMARK)})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("tumble", name) for name in QUERIES),
        *((kind, name) for kind in ("cumulate", "session") for name in ("longer", "sessions", "distinct")),
    ],
)
def test_windows_of_windows_are_those_of_batch_mode(events: Catalog, kind: str, name: str) -> None:
    create = f"CREATE TEMPORARY VIEW counted AS {COUNTED}"
    events.sql(create.format(WINDOWED[kind].format("known")))
    expected = ended(events, QUERIES[name], 1)
    assert len(expected) > 1
    events.sql(f"DROP TEMPORARY VIEW counted; {create.format(WINDOWED[kind].format('t'))}")
    found = seen(events, QUERIES[name])
    assert found == expected, (found - expected, expected - found)
    # A session is of one key.
    assert kind == "session" or any(int(row[-1]) > 1 for row in found), "no group has several rows"


@pytest.mark.parametrize("kind", ["tumble", "hop", "cumulate"])
def test_rows_with_their_windows_are_grouped_in_the_query_around(events: Catalog, kind: str) -> None:
    text = (
        "SELECT window_start, window_end, k, COUNT(*), SUM(m), COUNT(DISTINCT m) FROM "
        f"(SELECT *, n + 1 AS m FROM {WINDOWED[kind]} WHERE n <> 5) GROUP BY window_start, window_end, k"
    )
    expected = ended(events, text.format("known"), 1)
    assert seen(events, text.format("t")) == expected
    assert len(expected) > 3


@pytest.mark.parametrize(
    "text",
    [
        "SELECT s, e, k, n FROM counted UNION ALL SELECT s, e, 'z', n FROM counted WHERE n > 0",
        "SELECT a.s, a.e, a.k, b.n FROM counted AS a JOIN counted AS b ON a.s = b.s AND a.k = b.k",
    ],
)
def test_windows_are_read_twice(events: Catalog, text: str) -> None:
    create = f"CREATE TEMPORARY VIEW counted AS {COUNTED}"
    events.sql(create.format(WINDOWED["tumble"].format("known")))
    expected = ended(events, text, 1)
    events.sql(f"DROP TEMPORARY VIEW counted; {create.format(WINDOWED['tumble'].format('t'))}")
    assert seen(events, text) == expected
    assert len(expected) > 6


def test_a_watermark_just_before_the_end_of_a_window_drops_nothing(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    rows = [{"k": "a", "ts": time, "n": 1} for time in (at(5), f"{at(11)}.999", at(25), at(50))]
    stream(catalog, wire, topic(), "t", COLUMNS, rows, maxRowsPerTrigger="1")
    catalog.sql(f"CREATE TEMPORARY VIEW counted AS {COUNTED.format(WINDOWED['tumble'].format('t'))}")
    times = [(f"{at(second)}.999000",) for second in (9, 19, 29)]
    assert seen(catalog, "SELECT DISTINCT rowtime FROM counted") == Counter(times)
    joined = "SELECT a.rowtime FROM counted AS a JOIN counted AS b ON a.rowtime = b.rowtime"
    assert seen(catalog, joined) == Counter(times)
    found = seen(catalog, f"{QUERIES['longer'].replace('20', '10')}")
    assert found == Counter({(at(start), at(start + 10), "a", "1", "1"): 1 for start in (0, 10, 20)})
    found = seen(
        catalog,
        "SELECT window_end, k, k FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND) "
        "GROUP BY window_start, window_end, window_time, k",
    )
    assert found == Counter((at(end), "a", "a") for end in (10, 20, 30))


def test_a_row_before_the_watermark_is_in_its_window(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """Also where the rows of windows are joined, or made distinct, with their times."""
    rows = [{"k": "a", "ts": at(second), "n": second} for second in (7, 8, 9, 3, 50, 51)]
    for name in ("t", "u"):
        stream(catalog, wire, topic(), name, COLUMNS, rows, maxRowsPerTrigger="1")
    inputs = [f"(SELECT * FROM {WINDOWED['tumble'].format(name)}) AS {name}" for name in ("t", "u")]
    ends = "t.window_start = u.window_start AND t.window_end = u.window_end AND t.n = u.n"
    joined = seen(catalog, f"SELECT t.ts, u.ts FROM {inputs[0]} JOIN {inputs[1]} ON {ends}")
    assert joined == Counter((at(second), at(second)) for second in (7, 8, 9, 3, 50, 51))
    distinct = seen(catalog, f"SELECT DISTINCT window_start, ts FROM {inputs[0]}")
    assert distinct == Counter((at(second - second % 10), at(second)) for second in (7, 8, 9, 3, 50, 51))


def test_the_state_of_windows_that_have_ended_is_removed(events: Catalog) -> None:
    outputs = "window_start, window_end, COUNT(DISTINCT n), SUM(n)"
    text = f"SELECT {outputs} FROM {WINDOWED['tumble']} GROUP BY window_start, window_end"
    events.sql("SET 'tablestore.trigger' = 'available-now'")
    query = events.follow(events.sql(text.format("t")), lambda frame, _: frame.collect())
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert query.lastProgress is not None
    # Three events are in a window that has not ended.
    assert {each.operatorName: each.numRowsTotal for each in query.lastProgress.stateOperators} == {
        "dedupe": 3,
        "stateStoreSave": 1,
    }


def test_what_is_no_window_of_windows_is_refused(events: Catalog) -> None:
    events.sql(f"CREATE TEMPORARY VIEW counted AS {COUNTED.format(WINDOWED['tumble'].format('t'))}")
    by = "SELECT window_start, window_end, SUM(n) FROM TUMBLE(TABLE {}, DESCRIPTOR({}), INTERVAL '20' SECOND) GROUP BY window_start, window_end"  # noqa: E501
    with pytest.raises(InvalidInputError, match="a window over 'e', which has no watermark,"):
        events.sql(by.format("counted", "e"))
    with pytest.raises(InvalidInputError, match="has 'window_start' already; rename it"):
        events.sql(f"WITH w AS (SELECT s AS window_start, rowtime, n FROM counted) {by.format('w', 'rowtime')}")
    with pytest.raises(InvalidInputError, match="an updating result over windows"):
        events.sql("SELECT s, SUM(n) FROM counted GROUP BY s")


def test_only_queries_with_a_watermark_do_without_reused_exchanges(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    stream(catalog, wire, topic(), "timed", COLUMNS, [])
    stream(catalog, wire, topic(), "plain", "k STRING, n INT", [])
    join = "SELECT a.k FROM {0} AS a JOIN {0} AS b ON a.k = b.k"
    assert [catalog.sql(join.format(name)).timed for name in ("timed", "plain")] == [True, False]
    assert not catalog.sql("SELECT k, COUNT(DISTINCT n) FROM timed GROUP BY k").timed
