"""Reads skip the files of partitions that have no row to return, and return the same rows as without skipping."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tablestore import LocalTable, create_local
from tablestore.context import TableContext
from tablestore.local.text_filter import parse_filter
from tablestore.read import split_planner
from tablestore.read.split_planner import snapshot_splits

DAYS = [dt.date(2026, 1, 1) + dt.timedelta(days=number) for number in range(5)]
REGIONS = ["north", "Süd", " ", None]
COLUMNS = "id bigint, region string, day date, size decimal(4, 2), v string"


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": range(count),
            "region": [REGIONS[n % 4] for n in range(count)],
            "day": [DAYS[n % 5] for n in range(count)],
            "size": pa.array([[Decimal("0.50"), Decimal("7"), None][n % 3] for n in range(count)], pa.decimal128(4, 2)),
            "v": [str(n) for n in range(count)],
        }
    )


@pytest.fixture(scope="module", params=["key", "append"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTable]:
    path = tmp_path_factory.mktemp("pruning") / "t"
    key = "id" if request.param == "key" else ()
    options = {"bucket": 2, "compaction.auto": "false"} if key else {}
    with create_local(path, COLUMNS, primary_key=key, partition_by=["region", "day", "size"], options=options) as made:
        made.write(rows(240))
        if key:
            made.compact()
            # These rows move to another partition, and the next ones go.
            moved = rows(40)
            made.write(moved.set_column(1, "region", pa.array(["moved"] * 40)))
            made.delete("id >= 230")
        yield made


FILTERS = (
    ("region = 'Süd'", 3),
    ("region IS NULL", 3),
    ("region = ' '", 3),
    ("region = 'moved' AND v = '3'", 99),
    ("day BETWEEN '2026-01-02' AND '2026-01-03'", 2),
    ("day = '2026-01-02' AND region IN ('north', 'Süd')", 9),
    ("day = '2026-01-02' AND id < 100 AND region = v", 4),
    ("size IS NULL", 2),
    ("size > 1", 2),
    ("region = 'none'", 99),
    ("region = 'north' OR id = 5", 1),
    ("lower(region) = 'north'", 1),
)


@pytest.mark.parametrize(("condition", "fewer"), FILTERS)
def test_only_files_of_kept_partitions_are_read(
    table: LocalTable, condition: str, fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect() as connection:
        connection.register("every", table.to_arrow())
        expected = connection.execute(f"SELECT * FROM every WHERE {condition} ORDER BY id").fetchall()
    found = sorted(table.to_arrow(filter=condition).to_pylist(), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in found] == expected
    context = TableContext.open(table.path)
    predicate, newest = parse_filter(condition, table.schema), context.files.latest()

    def files() -> int:
        return sum(len(part.base) for part in snapshot_splits(context.files, newest, tasks=2, predicate=predicate))

    read = files()
    monkeypatch.setattr(split_planner, "in_kept_partitions", lambda spec, files, predicate: files)
    assert read * fewer <= files()


def test_a_lookup_reads_the_files_of_the_keys_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_local(tmp_path / "t", COLUMNS, primary_key=["id", "day"], partition_by="day") as made:
        made.write(rows(50))
        made.compact()
        seen = []
        splits = snapshot_splits

        def spied(*given: object, **named: object) -> object:
            seen.extend(splits(*given, **named))
            return seen

        monkeypatch.setattr("tablestore.local.point_lookup.snapshot_splits", spied)
        assert made.get((7, DAYS[2]))["v"] == "7"
        assert [len(part.base) for part in seen] == [1]
        assert made.get((7, DAYS[3])) is None
