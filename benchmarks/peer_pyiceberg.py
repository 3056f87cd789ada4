"""Iceberg's Python library in a process of its own: ``benchmarks/peers.py`` starts it and says what to time.

It has no merge on read of keys: ``upsert`` rewrites files, so a read has nothing to merge.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

warehouse, rows_file, changes_file = sys.argv[1:4]
ROWS, CHANGES = pq.read_table(rows_file), pq.read_table(changes_file)
Path(warehouse).mkdir(parents=True, exist_ok=True)
catalog = SqlCatalog("bench", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
catalog.create_namespace("bench")
made = 0


def create() -> Any:
    """Return a new table."""
    global made  # noqa: PLW0603 - a script
    made += 1
    return catalog.create_table(f"bench.t{made}", ROWS.schema)


def check(table: Any) -> None:
    """Read all rows."""
    assert table.scan().to_arrow().num_rows == ROWS.num_rows


table = None
for line in sys.stdin:
    step, begun = line.strip(), time.perf_counter()
    if step == "append":
        table = create()
        table.append(ROWS)
    elif step == "change":
        table.upsert(CHANGES, join_cols=["id"])
        check(table)
    else:
        check(table)
    print(time.perf_counter() - begun, flush=True)
