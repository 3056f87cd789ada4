"""Speed of the connectors' row formats on one core, compared with DuckDB's JSON functions alone.

Run ``python -m benchmarks.row_formats [--small]``. Times are CPU seconds of this process; the contestants take turns,
so that a busy machine slows all of them equally. Both sides encode to or decode from Python ``bytes``, as a Kafka
client provides them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Bench, Result, Timed, at_least, main
from tablestore.connectors.formats.registry import open_row_format
from tablestore.connectors.formats.types import with_precision

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("amount", pa.decimal128(10, 2)),
        with_precision(pa.field("made", pa.timestamp("us")), 3),
    ]
)
FORMATS = ("json", "csv", "avro")
_STRUCTURE = '{"id":"BIGINT","name":"VARCHAR","price":"DOUBLE","amount":"DECIMAL(10,2)","made":"TIMESTAMP"}'


def sample(rows: int) -> pa.RecordBatch:
    """Return rows with five columns."""
    rng = np.random.default_rng(1)
    cents = pa.array(rng.integers(0, 10**7, rows)).cast(pa.decimal128(19, 0))
    columns = [
        pa.array(rng.integers(0, 10**9, rows)),
        pa.array([f"name-{i % 1000}" for i in range(rows)]),
        pa.array(rng.random(rows) * 1000),
        pc.multiply(cents, pa.scalar(Decimal("0.01"))).cast(pa.decimal128(10, 2)),
        pa.array(rng.integers(1_600_000_000_000, 1_700_000_000_000, rows) * 1000).cast(pa.timestamp("us")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _bare(batch: pa.RecordBatch) -> tuple[Callable[[], list[bytes]], Callable[[], pa.Table]]:
    """Return functions that encode and decode by DuckDB's JSON functions, without Flink's syntax, options or checks."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("batch", batch)

    def encode() -> list[bytes]:
        query = "SELECT to_json(struct_pack(id, name, price, amount, made))::VARCHAR FROM batch"
        texts = connection.sql(query).to_arrow_table(batch_size=len(batch)).column(0).combine_chunks()
        result: list[bytes] = texts.cast(pa.binary()).to_pylist()
        return result

    payloads = encode()

    def decode() -> pa.Table:
        texts = pa.array(payloads, pa.binary()).cast(pa.string())
        connection.register("texts", pa.record_batch([texts], names=["v"]))
        return connection.sql(f"SELECT unnest(from_json(v, '{_STRUCTURE}')) FROM texts").to_arrow_table()

    return encode, decode


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def run(bench: Bench) -> list[Result]:
    """Measure encoding and decoding with each format."""
    rows = bench.size(1_000_000, 100_000)
    batch = sample(rows)
    bare_encode, bare_decode = _bare(batch)
    encoders: dict[str, Callable[[], object]] = {"DuckDB to_json": bare_encode}
    decoders: dict[str, Callable[[], object]] = {"DuckDB from_json": bare_decode}
    for name in FORMATS:
        row_format = open_row_format(name, SCHEMA, {}, side="")
        payloads = list(row_format.encode(batch))
        encoders[name] = lambda f=row_format: f.encode(batch)
        decoders[name] = lambda f=row_format, p=payloads: f.decode(p)
    results = []
    for way, contestants, bare in (("encode", encoders, "DuckDB to_json"), ("decode", decoders, "DuckDB from_json")):
        timed = bench.take_turns(
            f"row formats, {way}",
            {name: lambda work=work: _cpu(work) for name, work in contestants.items()},
            rounds=5,
            rows=rows,
        )
        results += _compared(way, timed, bare)
    return results


def _compared(way: str, timed: dict[str, Timed], bare: str) -> list[Result]:
    json = timed["json"]
    results = [at_least(f"{way} json, one core", json, timed[bare], 0.5, bare)]
    results += [at_least(f"{way} {name}, one core", timed[name], json, 1.0, "json") for name in ("csv", "avro")]
    return results


if __name__ == "__main__":
    main(run)
