"""Speed of the log formats on one core, compared with encoding and decoding JSON one row at a time.

Run ``python benchmarks/formats.py [rows] [rounds]``. Times are CPU seconds of this process. Each figure is the median
of the rounds of one run; the contestants take turns, so that a busy machine slows all of them equally.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from log_system.formats import open_format
from snapshot.row_kind import KIND

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
Side = tuple[Callable[[], object], Callable[[], object]]


def sample(rows: int) -> pa.RecordBatch:
    """Return changes with four columns and mixed kinds; one in ten is a delete."""
    rng = np.random.default_rng(1)
    columns = [
        pa.array(rng.integers(0, 10**9, rows)),
        pa.array([f"name-{i % 1000}" for i in range(rows)]),
        pa.array(rng.random(rows) * 1000),
        pa.array(rng.integers(1_600_000_000_000_000, 1_700_000_000_000_000, rows)).cast(SCHEMA.field("at").type),
        pa.array(rng.choice([0, 2, 3], rows, p=[0.5, 0.4, 0.1]).astype(np.int8)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.append(pa.field(KIND, pa.int8())))


def in_bulk(name: str, batch: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> Side:
    """Return functions that encode and decode a batch with one of our formats; ``schema`` is the reader's."""
    writer, reader = open_format(name, SCHEMA, ["id"]), open_format(name, schema, ["id"])
    records = writer.encode(batch)
    return (lambda: writer.encode(batch)), (lambda: reader.decode(records.keys, records.values))


def by_row(
    dumps: Callable[[object], bytes], loads: Callable[[bytes], dict[str, object]], batch: pa.RecordBatch
) -> Side:
    """Return functions that encode and decode a batch as JSON one row at a time in Python, without any checks."""

    def encode() -> list[tuple[bytes, bytes | None]]:
        result: list[tuple[bytes, bytes | None]] = []
        for row in batch.to_pylist():
            kind = row.pop(KIND)
            row["at"] = row["at"].isoformat()
            result.append((dumps({"id": row["id"]}), None if kind == 3 else dumps(row)))
        return result

    records = encode()

    def decode() -> pa.RecordBatch:
        rows = []
        for key, value in records:
            row = loads(key if value is None else value)
            if value is not None:
                row["at"] = datetime.fromisoformat(str(row["at"]))
            rows.append(row)
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    return encode, decode


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call, in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(rows: int = 500_000, rounds: int = 5) -> None:
    """Measure and print the table."""
    batch, small = sample(rows), sample(rows // 10)
    sides: dict[str, tuple[int, Side]] = {
        "json": (rows, in_bulk("json", batch)),
        "json, reader has a new column": (rows, in_bulk("json", batch, SCHEMA.append(pa.field("new", pa.string())))),
        "arrow": (rows, in_bulk("arrow", batch)),
        "by row, json": (rows // 10, by_row(lambda row: json.dumps(row).encode(), json.loads, small)),
    }
    if importlib.util.find_spec("orjson"):
        orjson = importlib.import_module("orjson")
        sides["by row, orjson"] = (rows // 10, by_row(orjson.dumps, orjson.loads, small))
    seconds: dict[tuple[str, int], list[float]] = {(name, way): [] for name in sides for way in (0, 1)}
    for _ in range(rounds + 1):
        for name, (_, side) in sides.items():
            for way in (0, 1):
                seconds[name, way].append(cpu_seconds(side[way]))
    table = Table(title=f"log formats, 4 columns, one core, {rows:,} rows, median of {rounds} rounds")
    for heading in ("format", "encode rows/s", "x by row", "decode rows/s", "x by row"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    speed = {
        (name, way): sides[name][0] / max(statistics.median(times[1:]), 1e-9) for (name, way), times in seconds.items()
    }
    for name in sides:
        cells = [(speed[name, way], speed[name, way] / speed["by row, json", way]) for way in (0, 1)]
        table.add_row(name, *(text for rate, ratio in cells for text in (f"{rate:,.0f}", f"{ratio:.1f}")))
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
