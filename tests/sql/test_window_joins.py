"""Joins by both ends of windows: inner and outer ones, IN and EXISTS, late rows, and state that is removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.changes import in_batch_mode
from tests.sql.test_time import at, seen, stream

COLUMNS = "k STRING, ts TIMESTAMP(3), n INT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
END = 60
"""Rows of windows that end until then, in seconds, are compared: the last rows of both streams are later."""
LEFT = [("a", 1), ("b", 3), ("a", 12), (None, 14), ("c", 11), ("a", 22), ("d", 35), ("a", 90), *3 * [("x", 91)]]
RIGHT = [("a", 2), ("a", 4), ("c", 5), (None, 13), ("c", 17), ("a", 19), ("d", 44), ("e", 36), ("b", 95)]
RIGHT += 3 * [("y", 96)]
LATE_LEFT, LATE_RIGHT = ("b", 9), ("d", 38)
"""Rows that are read last, when the watermark has passed the end of their windows; each has a partner."""
ROWS = "(SELECT * FROM TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '10' SECOND)))"
GROUPS = f"(SELECT k, window_start, window_end, COUNT(*) AS n FROM {ROWS} GROUP BY k, window_start, window_end)"
HOPS = ROWS.replace("TUMBLE", "HOP").replace("INTERVAL", "INTERVAL '5' SECOND, INTERVAL")
ENDS = "x.window_start = y.window_start AND x.window_end = y.window_end"
ON = f"{{r}} y ON x.k = y.k AND {ENDS}"
ALL = "SELECT x.window_end, y.window_end, x.k, x.n, y.n FROM {l} x"
LEFT_ROWS = "SELECT window_end, k, n FROM {l} x"
RIGHT_JOIN = f"SELECT y.window_start AS s, y.window_end AS e, y.k FROM {{l}} x RIGHT JOIN {ON}"
DISTINCT = "SELECT DISTINCT window_end, window_start, k FROM"
JOINS = {
    **{f"{side} JOIN of rows": (f"{ALL} {side} JOIN {ON}", ROWS, ROWS) for side in ("INNER", "LEFT", "RIGHT", "FULL")},
    "LEFT JOIN of groups": (f"{ALL} LEFT JOIN {ON}", GROUPS, GROUPS),
    "FULL JOIN of groups and rows": (f"{ALL} FULL JOIN {{r}} y ON (x.k = y.k) AND ({ENDS})", GROUPS, ROWS),
    "LEFT JOIN of hops": (f"{ALL} LEFT JOIN {ON} AND x.n < y.n", HOPS, HOPS),
    "WHERE": (f"{ALL}, {{r}} y WHERE x.k = y.k AND {ENDS} AND y.n > 3", ROWS, ROWS),
    "IN": (f"{LEFT_ROWS} WHERE x.k IN (SELECT k FROM {{r}} y WHERE {ENDS})", ROWS, ROWS),
    "EXISTS": (f"{LEFT_ROWS} WHERE EXISTS (SELECT * FROM {ON.replace(' ON ', ' WHERE ')})", ROWS, ROWS),
    "NOT EXISTS": (f"{LEFT_ROWS} WHERE NOT EXISTS (SELECT * FROM {ON.replace(' ON ', ' WHERE ')})", ROWS, ROWS),
    "NOT IN": (f"{LEFT_ROWS} WHERE x.k NOT IN (SELECT k FROM {{r}} y WHERE {ENDS})", ROWS, ROWS),
    "grouped": (
        f"SELECT x.window_end, x.window_start, COUNT(y.n), SUM(x.n) FROM {{l}} x LEFT JOIN {ON} "
        "GROUP BY x.window_start, x.window_end", ROWS, ROWS,
    ),
    "grouped around": (f"SELECT e, s, COUNT(*), COUNT(DISTINCT k) FROM ({RIGHT_JOIN}) GROUP BY s, e", ROWS, ROWS),
    "of three": (
        f"{ALL} JOIN {ON} LEFT JOIN {{l}} z "
        "ON z.n = x.n AND y.window_start = z.window_start AND y.window_end = z.window_end", ROWS, ROWS,
    ),
    "DISTINCT": (f"{DISTINCT} {{l}} UNION ALL {DISTINCT} {{r}}", ROWS, ROWS),
}  # fmt: skip
"""Queries by name, and what their inputs are."""


@pytest.fixture
def catalog(quick_catalog: Catalog) -> Catalog:
    return quick_catalog


@pytest.fixture
def pairs(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> Catalog:
    """Return a catalog with the streams `l` and `r`, and the same without late rows as `known_l` and `known_r`."""
    for name, rows, late in (("l", LEFT, LATE_LEFT), ("r", RIGHT, LATE_RIGHT)):
        known = [{"k": k, "ts": at(second), "n": second} for k, second in rows]
        stream(catalog, wire, topic(), f"known_{name}", COLUMNS, known)
        last = [{"k": late[0], "ts": at(late[1]), "n": late[1]}]
        stream(catalog, wire, topic(), name, COLUMNS, known + last, maxRowsPerTrigger="3")
    return catalog


def rows_of(text: str, left: str, right: str, prefix: str = "") -> str:
    return text.format(l=left.format(f"{prefix}l"), r=right.format(f"{prefix}r"))


def ended(rows: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Return the rows of windows that have ended."""
    return Counter({row: count for row, count in rows.items() if min(row[0], row[1]) <= at(END)})


@pytest.mark.parametrize("name", JOINS)
def test_a_join_by_windows_is_that_of_batch_mode_without_late_rows(pairs: Catalog, name: str) -> None:
    expected = ended(in_batch_mode(pairs, rows_of(*JOINS[name], "known_")))
    assert len(expected) > 2
    found = ended(seen(pairs, rows_of(*JOINS[name])))
    assert found == expected, (found - expected, expected - found)


@pytest.mark.parametrize("name", ["INNER JOIN of rows", "FULL JOIN of rows", "EXISTS", "grouped"])
def test_the_state_of_windows_that_have_ended_is_removed(pairs: Catalog, name: str) -> None:
    pairs.sql("SET 'tablestore.trigger' = 'available-now'")
    query = pairs.follow(pairs.sql(rows_of(*JOINS[name])), lambda frame, _: frame.collect())
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert query.lastProgress is not None
    left = {each.operatorName: each.numRowsTotal for each in query.lastProgress.stateOperators}
    # The last four rows of each stream are in a window that has not ended; those of `r` have two keys.
    others = {"EXISTS": {"dedupe": 2}, "grouped": {"stateStoreSave": 0}}.get(name, {})
    assert left == {"symmetricHashJoin": 6 if name == "EXISTS" else 8, **others}


def test_joined_rows_of_windows_are_only_added(pairs: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    out = topic()
    stream(pairs, wire, out, "out", "e TIMESTAMP(3), k STRING", [])
    pairs.sql("SET 'tablestore.trigger' = 'available-now'")
    (query,) = pairs.sql(f"INSERT INTO out {rows_of(*JOINS['NOT EXISTS'])}".replace(", k, n", ", k")).queries
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert query.exception() is None
    assert len(wire.read(out)) > 3
    # Rows of windows that are joined by other columns go on to change what a group has.
    counted = (
        "SELECT window_start, window_end, COUNT(*) FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL '10' SECOND) JOIN r "
        "ON l.k = r.k GROUP BY window_start, window_end"
    )
    stream(pairs, wire, topic(), "out2", "s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT", [])
    with pytest.raises(InvalidInputError, match="Table sink 'out2' doesn't support consuming update changes"):
        pairs.sql(f"INSERT INTO out2 {counted}")


def test_an_equality_of_times_bounds_an_outer_join(pairs: Catalog) -> None:
    """So its rows are only added."""
    text = "SELECT r.ts, x.ts, r.k FROM r LEFT JOIN {} AS x ON r.k = x.k AND r.ts = x.ts"
    found = ended(seen(pairs, text.format("known_r")))
    assert found == Counter((at(n), "None" if k is None else at(n), str(k)) for k, n in RIGHT if n < END)
    assert ended(seen(pairs, text.format("l"))) == Counter((at(n), "None", str(k)) for k, n in RIGHT if n < END)


@pytest.mark.parametrize("kind", ["TIMESTAMP(3)", "TIMESTAMP_LTZ(3)"])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT s, t FROM j",
        "SELECT window_start, window_end, COUNT(*) FROM TABLE(TUMBLE(TABLE j, DESCRIPTOR(t), INTERVAL '10' SECOND)) "
        "GROUP BY window_start, window_end",
        "SELECT s, t, COUNT(*) OVER (PARTITION BY k ORDER BY s) FROM j",
    ],
)
def test_both_times_of_a_join_are_event_times(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], kind: str, text: str
) -> None:
    catalog.sql("SET 'table.local-time-zone' = 'UTC'")
    zone = "Z" if "LTZ" in kind else ""
    rows = [{"k": k, "ts": f"{at(n)}{zone}"} for k, n in sorted(LEFT, key=lambda each: each[1])]
    columns = f"k STRING, ts {kind}, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND"
    for name in "ab":
        stream(catalog, wire, topic(), name, columns, rows, maxRowsPerTrigger="3")
    between = "a.ts BETWEEN b.ts - INTERVAL '9' SECOND AND b.ts + INTERVAL '11' SECOND"
    catalog.sql(f"CREATE VIEW j AS SELECT a.k, a.ts AS s, b.ts AS t FROM a JOIN b ON a.k = b.k AND {between}")
    found = ended(seen(catalog, text))
    assert len(found) > 3
    assert found == ended(in_batch_mode(catalog, text))
