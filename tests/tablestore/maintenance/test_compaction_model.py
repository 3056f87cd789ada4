"""A compaction that pyarrow merges gives what DuckDB gives for the same files, and both what a dict of rows does."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType

from tablestore import LocalTable, create_local, open_local
from tablestore.read import splits

Row = dict[str, Any]
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "tinyint": lambda dice: dice.randint(-128, 127),
    "bigint": lambda dice: dice.choice([-(2**63), 2**63 - 1, dice.randint(-9, 9)]),
    "double": lambda dice: dice.choice([-0.0, float("inf"), dice.random()]),
    "decimal(38,4)": lambda dice: Decimal(dice.randint(-(10**37), 10**37)).scaleb(-4),
    "string": lambda dice: dice.choice(["", "é 日", "x" * dice.randint(0, 40)]),
    "binary": lambda dice: dice.randbytes(dice.randint(0, 5)),
    "boolean": lambda dice: dice.random() < 0.5,
    "date": lambda dice: dt.date(1970, 1, 1) + dt.timedelta(dice.randint(-9_999, 9_999)),
    "timestamp": lambda dice: (
        dt.datetime(1969, 12, 31, tzinfo=dt.UTC) + dt.timedelta(microseconds=dice.randint(0, 10**15))
    ),
    "array<string>": lambda dice: [dice.choice([None, "a", ""]) for _ in range(dice.randint(0, 3))],
    "struct<a: int, b: string>": lambda dice: {"a": dice.choice([None, 7]), "b": dice.choice([None, "b"])},
}
KEYS: dict[str, Callable[[int], Any]] = {
    "tinyint": lambda number: number - 20,
    "int": lambda number: number * 1_000 - 20_000,
    "bigint": lambda number: number - 20,
    "date": lambda number: dt.date(1969, 12, 20) + dt.timedelta(number),
    "string": lambda number: f"k{number}",
}
ENGINES = ["deduplicate", "deduplicate", "partial-update", "first-row", "aggregation"]


def merged(engine: str, old: Row | None, new: Row) -> Row:
    """Return the row that a key has after another row was written."""
    if old is None or engine == "deduplicate":
        return new
    if engine == "first-row":
        return old
    known = {name: value for name, value in new.items() if value is not None}
    if engine == "aggregation" and None not in (old["total"], new["total"]):
        known["total"] = old["total"] + new["total"]
    return {**old, **known}


class Scenario:
    """A random table, and a dict of the rows that it should hold."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.engine = self.dice.choice(ENGINES)
        self.key_type = self.dice.choice(list(KEYS))
        self.types = dict.fromkeys(["total"], "bigint") | {
            f"c{number}": self.dice.choice(list(VALUES)) for number in range(self.dice.randint(1, 5))
        }
        # Other engines keep a row in the partition where it was first.
        partition_by = ["part"] if self.engine == "deduplicate" and self.dice.random() < 0.5 else []
        columns = [
            f"id {self.key_type} not null",
            "part string",
            *(f"{name} {kind}" for name, kind in self.types.items()),
        ]
        options = {"bucket": self.dice.randint(1, 3), "merge-engine": self.engine, "compaction.auto": "false"}
        if self.engine == "aggregation":
            options["fields.total.aggregate-function"] = "sum"
        schema = ", ".join(columns)
        self.path = folder / "table"
        create_local(self.path, schema, primary_key=["id"], partition_by=partition_by, options=options).close()
        self.rows: dict[Any, Row] = {}

    def write(self) -> None:
        """Write a batch of rows with keys that repeat, and deletes where the merge engine takes them."""
        with open_local(self.path) as table:
            keys = [KEYS[self.key_type](number) for number in self.dice.sample(range(40), self.dice.randint(1, 25))]
            deleted = keys[::3] if self.engine == "deduplicate" else []
            kinds = {**dict.fromkeys(keys, "insert"), **dict.fromkeys(deleted, "delete")}
            rows = [self._row(key) for key in keys]
            given = pa.Table.from_pylist(rows, schema=table.schema)
            table.write(given.append_column("_change_type", pa.array(list(kinds.values()))))
        for row in rows:
            if kinds[row["id"]] == "delete":
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = merged(self.engine, self.rows.get(row["id"]), row)

    def add_column(self) -> None:
        """Add a column, which files so far lack."""
        with open_local(self.path) as table:
            table.alter.add_column("added", StringType())
        self.types["added"] = "string"
        self.rows = {key: {**row, "added": None} for key, row in self.rows.items()}

    def _row(self, key: Any) -> Row:
        values = {
            name: None if self.dice.random() < 0.3 else VALUES[kind](self.dice) for name, kind in self.types.items()
        }
        if values["total"] is not None:
            # A sum of these is within the type's range.
            values["total"] = self.dice.randint(-9, 9)
        return {"id": key, "part": self.dice.choice([None, "a", "b c"]), **values}


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Count the buckets that pyarrow merges; with ``duckdb`` set it merges none."""
    found: dict[str, Any] = {"pyarrow": 0, "duckdb": False}
    real = splits.plain_rows

    def plain_rows(*given: Any, **named: Any) -> Iterator[pa.RecordBatch] | None:
        rows = None if found["duckdb"] else real(*given, **named)
        found["pyarrow"] += rows is not None
        return rows

    monkeypatch.setattr(splits, "plain_rows", plain_rows)
    return found


def by_key(table: pa.Table) -> dict[Any, Row]:
    rows = table.to_pylist()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def base_table(path: Path) -> pa.Table:
    """Read the base table as strangers do, so by neither way to merge."""
    return pa.table(DeltaTable(path).to_pyarrow_table())


def compacted(table: LocalTable) -> pa.Table:
    assert table.compact() is not None
    return table.to_arrow()


@pytest.mark.parametrize("seed", range(12))
def test_pyarrow_and_duckdb_compact_the_same_files_to_the_same_rows(
    tmp_path: Path, merges: dict[str, Any], seed: int
) -> None:
    scenario = Scenario(tmp_path, seed)
    late = scenario.dice.randint(0, 5)
    for number in range(4):
        if number == late:
            scenario.add_column()
        for _ in range(scenario.dice.randint(1, 3)):
            scenario.write()
        copy = tmp_path / f"copy{number}"
        shutil.copytree(scenario.path, copy)
        merges["pyarrow"], merges["duckdb"] = 0, True
        with open_local(copy) as table:
            by_duckdb = compacted(table)
        assert merges["pyarrow"] == 0
        merges["duckdb"] = False
        with open_local(scenario.path) as table:
            by_pyarrow = compacted(table)
        if scenario.key_type != "string" and late > 3:
            assert merges["pyarrow"] > 0
        assert by_pyarrow.schema == by_duckdb.schema
        assert by_key(by_pyarrow) == by_key(by_duckdb) == scenario.rows
        assert base_table(scenario.path).num_rows == len(scenario.rows)
        assert by_key(base_table(scenario.path)).keys() == scenario.rows.keys()
