"""Local tables of each kind, their rows, and a model of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tablestore import LocalTable

COLUMNS = "id bigint, v string, n int, part string"
Row = tuple[int, str | None, int | None, str]
LOGS = {
    "a key and a log": {"primary_key": ["id"], "log": True},
    "a key, partitions and lookup": {
        "primary_key": ["id", "part"],
        "partition_by": ["part"],
        "changelog-producer": "lookup",
        "log.format": "debezium-json",
        "log": True,
    },
    "a key without a log": {"primary_key": ["id"]},
    "no key and a log": {"log": True, "log.format": "arrow"},
    "no key, partitions": {"partition_by": ["part"]},
}


def rows_of(table: LocalTable, **point: Any) -> Counter[Row]:
    found = table.to_arrow(["id", "v", "n", "part"], **point).to_pylist()
    return Counter((row["id"], row["v"], row["n"], row["part"]) for row in found)


def table_of(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    types = [pa.int64(), pa.string(), pa.int32(), pa.string()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=["id", "v", "n", "part"])


class Model:
    """What the table should hold."""

    def __init__(self, key: tuple[int, ...]) -> None:
        self.key = key
        self.rows: list[Row] = []

    def write(self, rows: list[Row]) -> None:
        for row in rows:
            if self.key:
                self.rows = [each for each in self.rows if any(each[i] != row[i] for i in self.key)]
            self.rows.append(row)

    def replace(self, matches: Callable[[Row], bool], new: Callable[[Row], Row | None]) -> None:
        changed = [new(row) if matches(row) else row for row in self.rows]
        self.rows = [row for row in changed if row is not None]
