"""Lookup joins of tables whose rows change, and interval joins."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.sql.test_changes import catalog
from tests.sql.test_run import finish, rows
from tests.sql.test_time import at, seen, stream

__all__ = ["catalog"]

START = 1_700_000_000_000
Event = tuple[str, int | None, int]
"""A key, a value (of a version None for a delete), and a time in milliseconds after ``START``."""


def records(found: Sequence[Event]) -> list[Record]:
    return [
        Record(
            None if value is None else json.dumps({"k": key, "v": value}).encode(),
            key=json.dumps({"k": key}).encode(),
            timestamp=START + time,
        )
        for key, value, time in found
    ]


def tables(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> tuple[str, str]:
    """Make a table of orders and one of versions, both with the times of their messages as event times."""
    orders, versions = wire.make(topic()), wire.make(topic())
    columns = (
        "k STRING, v INT, ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', p AS PROCTIME(), WATERMARK FOR ts AS ts - "
        "INTERVAL '5' SECOND"
    )
    shared = "'properties.bootstrap.servers' = '...', 'maxRowsPerTrigger' = '7'"
    catalog.sql(
        f"CREATE TABLE o ({columns}) WITH ('connector' = 'kafka', 'topic' = '{orders}', 'format' = 'json', "
        f"'scan.startup.mode' = 'earliest-offset', {shared}); "
        f"CREATE TABLE r ({columns.replace(' p AS PROCTIME(),', '')}, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' "
        f"= 'upsert-kafka', 'topic' = '{versions}', 'key.format' = 'json', 'value.format' = 'json', {shared})"
    )
    return orders, versions


def test_rows_are_joined_with_what_a_changing_table_is_now(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """By PROCTIME(): as of the row's micro-batch; the result may be counted. Restarted after each step."""
    orders, versions = tables(catalog, wire, topic)
    catalog.sql(
        "CREATE TABLE out (v INT, w INT, PRIMARY KEY (v) NOT ENFORCED); CREATE TABLE counts (w INT, c BIGINT, PRIMARY "
        "KEY (w) NOT ENFORCED); SET 'tablestore.trigger' = 'available-now'"
    )
    join = "FROM o LEFT JOIN r FOR SYSTEM_TIME AS OF o.p AS q ON o.k = q.k"
    insert = (
        f"EXECUTE STATEMENT SET BEGIN INSERT INTO out SELECT o.v, q.v {join}; INSERT INTO counts SELECT COALESCE(q.v, "
        f"-1), COUNT(*) {join} WHERE o.v > 0 GROUP BY COALESCE(q.v, -1); END"
    )
    wire.send(versions, records([("a", 1, 0), ("b", 2, 0), ("a", 3, 0)]))
    finish(catalog, insert)
    wire.send(orders, records([("a", 0, 0), ("b", 1, 0), ("c", 2, 0)]))
    finish(catalog, insert)
    wire.send(versions, records([("a", None, 0), ("c", 4, 0)]))
    finish(catalog, insert)
    wire.send(orders, records([("a", 3, 0), ("b", 4, 0), ("c", 5, 0)]))
    finish(catalog, insert)
    assert rows(catalog, "SELECT * FROM out") == [(0, 3), (1, 2), (2, None), (3, None), (4, 2), (5, 4)]
    assert rows(catalog, "SELECT * FROM counts") == [(-1, 2), (2, 2), (4, 1)]


def test_temporal_joins_that_would_be_wrong_are_refused(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    tables(catalog, wire, topic)
    catalog.sql("CREATE TABLE s (k STRING, v INT, PRIMARY KEY (k) NOT ENFORCED); CREATE VIEW w AS SELECT * FROM r")
    join = "SELECT o.v, r.v AS w FROM o JOIN r FOR SYSTEM_TIME AS OF o.p ON o.k = r.k"
    for text, match in [
        (join.replace("o.k = r.k", "o.v = r.v"), "without 'k'.*whole PRIMARY KEY"),
        (join.replace("JOIN", "LEFT JOIN") + " AND r.v > 1", "LEFT JOIN FOR SYSTEM_TIME AS OF with further conditions"),
        (join.replace("JOIN", "FULL JOIN"), "FULL JOIN FOR SYSTEM_TIME"),
        (
            join.replace(" r ", " s ").replace("r.", "s.").replace("o.p", "o.ts"),
            "without a WATERMARK of 's'",
        ),
        (join.replace(" r ", " o ").replace("o.k = r.k", "TRUE"), "rows have no versions"),
        (join.replace(" r ", " w "), "'r' in it is a table of a connector"),
        (join.replace(" o ", " r AS o ").replace("o.p", "o.ts"), "'o', whose rows change"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)


@pytest.mark.timeout(600)
def test_streams_join_within_an_interval(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """INNER, LEFT, RIGHT and FULL, out of order and with NULL as key."""
    chance = random.Random(6)

    def made(count: int) -> list[tuple[str | None, int, int]]:
        times = [max(0, 2 * number - chance.randrange(4)) for number in range(count)]
        return [(chance.choice(["a", "b", None]), number, time) for number, time in enumerate(times)]

    sides = {"l": made(18), "m": made(18)}
    for name, found in sides.items():
        values: list[dict[str, Any]] = [{"k": k, "n": n, "ts": at(time)} for k, n, time in [*found, ("z", 99, 900)]]
        columns = "k STRING, n INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '4' SECOND"
        stream(catalog, wire, topic(), name, columns, values, maxRowsPerTrigger="5")
    on = "l.k = m.k AND m.ts BETWEEN l.ts - INTERVAL '2' SECOND AND l.ts + INTERVAL '5' SECOND"
    kinds = ("INNER", "LEFT", "RIGHT", "FULL")
    parts = [f"SELECT '{kind}', l.n, m.n FROM l {kind} JOIN m ON {on}" for kind in kinds]
    result = seen(catalog, " UNION ALL ".join(parts))
    both = [(one, two) for one in sides["l"] for two in sides["m"] if one[0] is not None and one[0] == two[0]]
    pairs = {(one[1], two[1]) for one, two in both if -2 <= two[2] - one[2] <= 5}
    lonely = [(str(n), "None") for _, n, _ in sides["l"] if n not in {one for one, _ in pairs}]
    alone = [("None", str(n)) for _, n, _ in sides["m"] if n not in {two for _, two in pairs}]
    wanted: Counter[tuple[str, ...]] = Counter()
    for kind in kinds:
        wanted.update((kind, str(one), str(two)) for one, two in [*pairs, (99, 99)])
        wanted.update((kind, *each) for each in lonely if kind in {"LEFT", "FULL"})
        wanted.update((kind, *each) for each in alone if kind in {"RIGHT", "FULL"})
    assert result == wanted, (result - wanted, wanted - result)
