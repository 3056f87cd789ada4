"""A batch read as one scan of Spark's own: base and change files together, without the rows that do not count.

Nothing crosses into Python and back, and Spark reads the columns that a query uses, which it cannot tell a Python
source. What counts of a few million changes is found here, from their keys alone, before the query (`ChangeBits`); rows
are then looked up in bits: a base row by its key, and a change, where not all stand, by its place. What is a change is
seen by its kind, which base files do not have.

So it is for tables whose one key column is a whole number or a date, without partitions (whose columns are not in the
files), and with the columns that they were made with.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import ByteType, DateType, StructField, StructType

from snapshot.merge.change_bitmap import change_bitmap
from snapshot.merge.key_bitmap import KeyBitmap
from snapshot.quoting import backquoted, text_literal
from snapshot.row_kind import KIND
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SNAPSHOT
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.base_table_columns import shielded

_BASE_BYTES_MIN = 64 << 20
"""Below it a task a bucket is faster: to find what counts and to plan the scan takes about 0.1 s (measured)."""
_ROWS_MAX = 4_000_000
"""Changes whose keys, kinds and places are held at once: 17 bytes each."""
_FILES_MAX = 32
"""Files of changes that not all stand: each such change's file is looked up by its name, one after the other."""
_GLOB = frozenset("{}[]*?\\")
"""Spark takes these in a path for a pattern; names of files that the store makes have none, a table's folder may."""
_PINNED = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "datetimeRebaseMode": "CORRECTED"}


def scanned(
    spark: SparkSession, table: TableFiles, spec: TableSpec, layout: SnapshotFiles, wanted: Sequence[str], tasks: int
) -> DataFrame | None:
    """Read a snapshot of a key table that has changes; None where the table or its changes are not fit for it.

    Args:
        spark: the session.
        table: the table.
        spec: the table, with the columns to give.
        layout: what the snapshot is made of.
        wanted: the columns.
        tasks: how many tasks a read is worth.

    Raises:
        DataLostError: a change file is gone.
        UnavailableError: one cannot be read.
    """
    if not _fits(spec, layout) or _GLOB & set(table.storage.root):
        return None
    (key,) = spec.primary_key
    bits = change_bitmap(table.log.storage, layout.changes, key, threads=tasks)
    if bits is None or (bits.rows is not None and len(layout.changes) > _FILES_MAX):
        return None
    columns = StructType([*spec.schema.fields, StructField(KIND, ByteType())])
    base = [posixpath.join(table.storage.root, file.path) for file in layout.base]
    changes = [posixpath.join(table.log.storage.root, file.path) for file in layout.changes]
    rows = spark.read.options(**_PINNED).schema(columns).parquet(*base, *changes)
    metadata = rows.metadataColumn("_metadata")
    rows = shielded(rows, table)
    # Names that no column of the table has.
    changed, standing, file = ("_" * (max(map(len, columns.names)) + more) for more in (1, 2, 3))
    rows = rows.withColumn(changed, _words(spark, bits.keys))
    number = f"unix_date({backquoted(key)})" if isinstance(spec.schema[key].dataType, DateType) else backquoted(key)
    stands = "true"
    if bits.rows is not None:
        rows = rows.withColumn(standing, _words(spark, bits.rows)).withColumn(file, metadata)
        starts = accumulate((file.rows for file in layout.changes[:-1]), initial=0)
        begins = (f"{text_literal(posixpath.basename(p))}, {at}L" for p, at in zip(changes, starts, strict=True))
        place = f"element_at(map({', '.join(begins)}), {file}.file_name) + {file}.row_index"
        stands = _holds(bits.rows, standing, place)
    counts = f"CASE WHEN {KIND} IS NULL THEN NOT {_holds(bits.keys, changed, number)} ELSE {stands} END"
    return rows.where(counts).select(*map(backquoted, wanted))


def _fits(spec: TableSpec, layout: SnapshotFiles) -> bool:
    rows = [file.rows for file in layout.changes]
    is_large = sum(file.size for file in layout.base) >= _BASE_BYTES_MIN
    are_few = -1 not in rows and sum(rows) <= _ROWS_MAX
    if len(rows) > _FILES_MAX:
        # The changes of one snapshot mostly all stand, those of several seldom: no need to read their keys to know.
        are_few = are_few and len({file.partition[SNAPSHOT] for file in layout.changes}) == 1
    if not (is_large and are_few) or len(spec.primary_key) != 1 or spec.partition_by or spec.past:
        return False
    return KeyBitmap.can_hold(spec.arrow.field(spec.primary_key[0]).type)


def _words(spark: SparkSession, bits: KeyBitmap) -> Column:
    """Give bits as an array of BIGINT: a subquery, since a plan is written out with all its literals."""
    words = pa.ListArray.from_arrays([0, len(bits.words)], pa.array(bits.words))
    return spark.createDataFrame(pa.table({"words": words})).scalar()


def _holds(bits: KeyBitmap, words: str, number: str) -> str:
    """Ask in SQL whether a number is among those of bits, which a column holds as ``_words``."""
    place = f"({number} - {bits.low}L)"
    is_set = f"getbit(get({words}, CAST(shiftright({place}, 6) AS INT)), CAST({place} & 63 AS INT)) = 1"
    return f"CASE WHEN {number} BETWEEN {bits.low}L AND {bits.high}L THEN {is_set} ELSE false END"
