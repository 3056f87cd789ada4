"""Paimon's Python library in a process of its own: ``benchmarks/peers.py`` starts it and says what to time."""

from __future__ import annotations

import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema

warehouse, rows_file, changes_file = sys.argv[1:4]
ROWS, CHANGES = pq.read_table(rows_file), pq.read_table(changes_file)
catalog = CatalogFactory.create({"warehouse": warehouse})
catalog.create_database("bench", True)
required = pa.schema([ROWS.schema.field("id").with_nullable(False), *list(ROWS.schema)[1:]])
made = 0


def create() -> Any:
    """Return a new table with a key and two buckets, as ours."""
    global made  # noqa: PLW0603 - a script
    made += 1
    schema = Schema.from_pyarrow_schema(required, primary_keys=["id"], options={"bucket": "2"})
    catalog.create_table(f"bench.t{made}", schema, False)
    return catalog.get_table(f"bench.t{made}")


def write(table: Any, data: pa.Table) -> None:
    """Upsert rows."""
    builder = table.new_batch_write_builder()
    writer, commit = builder.new_write(), builder.new_commit()
    writer.write_arrow(data.cast(required))
    commit.commit(writer.prepare_commit())
    writer.close()
    commit.close()


def read(table: Any) -> pa.Table:
    """Return the merged rows."""
    builder = table.new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def check(table: Any) -> None:
    """Read all rows."""
    assert read(table).num_rows == ROWS.num_rows


table = None
for line in sys.stdin:
    step, begun = line.strip(), time.perf_counter()
    if step == "write":
        table = create()
        write(table, ROWS)
    elif step == "change":
        write(table, CHANGES)
        check(table)
    else:
        check(table)
    print(time.perf_counter() - begun, flush=True)
