"""OVER (ORDER BY event time) in continuous queries: the rows of batch mode, whatever the micro-batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.sql.changes import in_batch_mode
from tests.sql.test_time import at, seen, stream
from tests.sql.test_top_n import newest_version

COLUMNS = "id INT, k STRING, ts TIMESTAMP(3), n INT, d DECIMAL(10, 2), WATERMARK FOR ts AS ts - INTERVAL '3' SECOND"
LAST, LATE = 500, 501
"""The ids of rows that move the watermark, and of one that is late then."""
GROUP = "PARTITION BY k ORDER BY ts"
QUERIES = {
    "range": f"SUM(n) OVER ({GROUP} RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW)",
    "rows": f"MIN(n) OVER ({GROUP} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
    "all": f"COUNT(*) OVER ({GROUP}), AVG(n) OVER ({GROUP}), MAX(d) FILTER (WHERE n > 2) OVER ({GROUP})",
    "all rows": f"SUM(d) OVER ({GROUP} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    "without groups": "SUM(n) OVER (ORDER BY ts RANGE INTERVAL '5' SECOND PRECEDING)",
    "an expression": "n - FIRST_VALUE(n) OVER (PARTITION BY UPPER(k), n > 2 ORDER BY ts ROWS 1 PRECEDING)",
    "distinct": f"COUNT(DISTINCT n) OVER ({GROUP} RANGE INTERVAL '8' SECOND PRECEDING)",
    "lag": f"LAG(id, 2) OVER ({GROUP})",
    "named": "SUM(n) OVER w, COUNT(*) OVER w",
}
NAMED = f" WINDOW w AS ({GROUP})"


@pytest.fixture
def catalog(quick_catalog: Catalog) -> Catalog:
    return quick_catalog


@pytest.fixture
def events(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> Catalog:
    """Return a catalog with a stream of events, `t`, and the table `known` of those that are not late."""
    made = random.Random(5)
    times = [(k, second) for k in ("a", "b", "B", None) for second in made.sample(range(60), 12)]
    # Each is less than the delay of the watermark behind those before it.
    times.sort(key=lambda each: each[1] + made.random() * 2.5)
    rows: list[dict[str, Any]] = [
        {"id": number, "k": k, "ts": at(second), "n": made.choice([None, 1, 2, 3, 5]), "d": made.choice([None, 1.5, 2])}
        for number, (k, second) in enumerate(times)
    ]
    last = [{"id": LAST, "k": "z", "ts": at(100 + number), "n": 1, "d": 0} for number in range(12)]
    late = [{"id": LATE, "k": "a", "ts": at(59), "n": 100, "d": 100}]
    stream(catalog, wire, topic(), "t", COLUMNS, [*rows, *last, *late, *last], maxRowsPerTrigger="5")
    stream(catalog, wire, topic(), "known", COLUMNS, rows)
    return catalog


def followed(catalog: Catalog, text: str) -> Counter[tuple[str, ...]]:
    """Return the rows of a continuous query, without those that only move the watermark."""
    return Counter({row: count for row, count in seen(catalog, text).items() if row[0] != str(LAST)})


@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_before_a_row_are_those_of_batch_mode(events: Catalog, name: str) -> None:
    text = f"SELECT id, k, {QUERIES[name]} FROM {{}} WHERE id <> 7{NAMED if name == 'named' else ''}"
    expected = in_batch_mode(events, text.format("known"))
    assert len(expected) > 40
    found = followed(events, text.format("t"))
    assert found == expected, (found - expected, expected - found)


def test_the_result_is_a_stream_with_event_time(events: Catalog) -> None:
    """It can be joined, filtered, made distinct, and be in windows."""
    totals = f"SELECT id, k, ts, SUM(n) OVER ({GROUP} ROWS 1 PRECEDING) AS s FROM {{}}"
    text = (
        "SELECT window_start, k, SUM(s) FROM (SELECT * FROM TABLE(TUMBLE(TABLE totals, DESCRIPTOR(ts), "
        "INTERVAL '10' SECOND)) WHERE s > 2) GROUP BY window_start, window_end, k"
    )
    events.sql(f"CREATE TEMPORARY VIEW totals AS {totals.format('known')}")
    expected = in_batch_mode(events, text)
    events.sql(f"DROP TEMPORARY VIEW totals; CREATE TEMPORARY VIEW totals AS {totals.format('t')}")
    found = seen(events, text)
    assert Counter({row: count for row, count in found.items() if row[1] != "z"}) == expected
    assert len(expected) > 10


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SUM(n) OVER (PARTITION BY k) FROM t", "in another order than that of event time"),
        ("SUM(n) OVER (PARTITION BY k ORDER BY n) FROM t", "in another order than that of event time"),
        ("SUM(n) OVER (PARTITION BY k ORDER BY ts DESC) FROM t", "in another order than that of event time"),
        ("RANK() OVER (PARTITION BY k ORDER BY n) FROM t", "in another order than that of event time"),
        (f"LEAD(n) OVER ({GROUP}) FROM t", "needs the rows after a row"),
        (f"SUM(n) OVER ({GROUP} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM t", "does not end with the current row"),
        (f"SUM(n) OVER ({GROUP}), SUM(n) OVER (PARTITION BY d ORDER BY ts) FROM t", "different PARTITION BY"),
        (f"SUM(SUM(n)) OVER ({GROUP}) FROM t GROUP BY k, ts", "beside an aggregation"),
        ("SUM(n) OVER (ORDER BY ts) FROM (SELECT ts, COUNT(*) AS n FROM t GROUP BY ts)", "over rows that change"),
        (f"LAG(n, n) OVER ({GROUP}) FROM t", "LAG with another offset than a number"),
        (f"SUM(n) OVER ({GROUP} RANGE INTERVAL '1' MONTH PRECEDING) FROM t", "expected an interval of one unit"),
    ],
)
def test_what_needs_later_rows_is_refused(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], text: str, match: str
) -> None:
    stream(catalog, wire, topic(), "t", COLUMNS, [])
    with pytest.raises(InvalidInputError, match=match):
        catalog.sql(f"SELECT {text}")


@pytest.mark.parametrize(
    ("frame", "least", "most"),
    [("ROWS 2 PRECEDING", 10, 40), ("RANGE INTERVAL '0.5' SECOND PRECEDING", 5, 30), ("", 50, 80)],
)
def test_the_state_has_the_rows_that_later_frames_need(
    events: Catalog, tmp_path: Path, frame: str, least: int, most: int
) -> None:
    """Of four groups of 12 events and the group that moves the watermark; a file has differences, too."""
    seen(events, f"SELECT id, SUM(n) OVER ({GROUP} {frame}) FROM t")
    states = (tmp_path / "warehouse" / "_checkpoints").glob("**/operator-0/*")
    held = [sum(each["rows"] for each in newest_version(folder)["segments"]) for folder in states]
    assert least <= sum(held) <= most
