"""Numbers are stored as differences, or uncompressed, where that is smaller or quicker; every reader reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from snapshot.staging.parquet_writer import ROW_GROUP_ROWS, ParquetFiles
from snapshot.storage import Storage
from tablestore import create_local

ROWS = 20_000
RANDOM = np.random.default_rng(7)


def column(
    path: Path, values: pa.Array, others: dict[str, pa.Array] | None = None, *, differences: bool = True
) -> dict[str, Any]:
    """Write a column ``x`` and return how its first row group is stored."""
    batch = pa.record_batch({"x": values, **(others or {})})
    writer = ParquetFiles(Storage.at(path), batch.schema, prefix="f", target_bytes=1 << 30, differences=differences)
    writer.write(batch)
    (file,) = writer.close()
    found = pq.ParquetFile(path / file.path)
    assert found.read() == pa.Table.from_batches([batch])
    return dict(found.metadata.row_group(0).column(0).to_dict())


@pytest.mark.parametrize(
    ("values", "encoding", "compression"),
    [
        (pa.array(np.arange(ROWS)), "DELTA_BINARY_PACKED", "UNCOMPRESSED"),
        (pa.array(RANDOM.permutation(ROWS).astype(np.int32)), "DELTA_BINARY_PACKED", "UNCOMPRESSED"),
        (pa.array(np.arange(ROWS), pa.timestamp("us", "UTC")), "DELTA_BINARY_PACKED", "UNCOMPRESSED"),
        (pa.array(np.arange(ROWS, dtype=np.int32), pa.date32()), "DELTA_BINARY_PACKED", "UNCOMPRESSED"),
        # Differences of hashes are as wide as hashes.
        (pa.array(RANDOM.integers(-(2**63), 2**63 - 1, ROWS)), "PLAIN", "UNCOMPRESSED"),
        (pa.array(RANDOM.random(ROWS)), "PLAIN", "UNCOMPRESSED"),
        (pa.array(np.arange(ROWS) % 7 * 1.5), "RLE_DICTIONARY", "SNAPPY"),
        (pa.array([f"name {number}" for number in range(ROWS)]), "PLAIN", "SNAPPY"),
        (pa.array([None] * ROWS, pa.int64()), "RLE_DICTIONARY", "SNAPPY"),
        (pa.array([1, 5, 2]), "PLAIN", "SNAPPY"),
    ],
)
def test_the_encoding_fits_the_values(tmp_path: Path, values: pa.Array, encoding: str, compression: str) -> None:
    found = column(tmp_path, values)
    assert encoding in found["encodings"]
    assert found["compression"] == compression


def test_files_that_any_delta_reader_opens_have_no_differences(tmp_path: Path) -> None:
    found = column(tmp_path, pa.array(np.arange(ROWS)), differences=False)
    assert set(found["encodings"]) == {"PLAIN", "RLE"}
    made = create_local(str(tmp_path / "t"), "id INT, at TIMESTAMP", primary_key="id", options={"bucket": 1})
    made.write(
        pa.table({"id": pa.array(range(ROWS), pa.int32()), "at": pa.array(range(ROWS), pa.timestamp("us", "UTC"))})
    )
    made.compact()
    kinds = {}
    for path in (tmp_path / "t").rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            group = pq.ParquetFile(path).metadata.row_group(0)
            kinds["_changes" in path.parts] = {name for n in (0, 1) for name in group.column(n).encodings}
    assert "DELTA_BINARY_PACKED" in kinds[True]
    assert kinds[False] == {"PLAIN", "RLE"}


def test_a_field_of_a_struct_is_not_taken_for_a_column_with_a_dot(tmp_path: Path) -> None:
    """Text has no differences: pyarrow refuses to store it so."""
    numbers = pa.array(np.arange(ROWS))
    texts = pa.StructArray.from_arrays([numbers.cast(pa.string())], ["b"])
    column(tmp_path, numbers, {"a.b": numbers, "a": texts})


def test_every_reader_reads_numbers_that_the_first_rows_did_not_foretell(spark: SparkSession, tmp_path: Path) -> None:
    """Differences that are chosen for consecutive numbers overflow at the ends of the type, and there are NULLs."""
    path = tmp_path / "table"
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC")]
    columns = {}
    for number, kind in enumerate(kinds):
        whole = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64()}.get(kind, kind)
        low, high = (-(2 ** (whole.bit_width - 1)), 2 ** (whole.bit_width - 1) - 1)
        if kind != whole:
            low, high = (-700_000, 2_900_000) if whole == pa.int32() else (-(2**55), 2**57)
        first = np.arange(ROWS) % (100 if whole == pa.int8() else 30_000)
        late = [low, high, None, high, low, None, 0, *RANDOM.integers(low, high, 5_000, dtype=np.int64).tolist()]
        columns[f"c{number}"] = pa.array([*first.tolist(), *late], whole).cast(kind)
    batch = pa.record_batch({"id": pa.array(np.arange(len(columns["c0"]))), **columns})
    writer = ParquetFiles(Storage.at(path), batch.schema, prefix="f", target_bytes=1 << 30, differences=True)
    writer.write(batch)
    (file,) = writer.close()
    assert batch.num_rows < ROW_GROUP_ROWS
    stored = str(path / file.path)
    wanted = pa.Table.from_batches([batch])
    assert pq.read_table(stored) == wanted
    found = duckdb.sql(f"SELECT * FROM read_parquet('{stored}')").to_arrow_table()
    assert found.cast(wanted.schema) == wanted
    own = pq.ParquetFile(stored).metadata.row_group(0)
    assert sum("DELTA_BINARY_PACKED" in own.column(number).encodings for number in range(own.num_columns)) >= 5
    for vectorised in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
        try:
            read = spark.read.parquet(stored).toArrow()
        finally:
            spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
        assert read.sort_by("id").cast(wanted.schema) == wanted
