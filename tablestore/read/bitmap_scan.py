"""A batch read as one Parquet scan by Spark: base and change files together, filtered by bitmaps to the current rows.

No rows pass through Python, and Spark prunes columns, which it cannot do with a Python data source. Before the query,
bitmaps are built from the keys of up to a few million changes (`ChangeBitmap`). The scan then drops a base row if its
key is in the bitmap of changed keys. It keeps an insert or an update if its position is in the bitmap of current
changes; that bitmap is only needed if changes replace others. Changes are recognized by their row kind, a column that
base files lack.

The scan works for tables whose primary key is a single integer or date column, which have no partition columns (those
are not in the files), and whose columns have never changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import ByteType, DateType, StructField, StructType

from snapshot.merge.change_bitmap import ChangeBitmap, change_bitmap
from snapshot.merge.key_bitmap import KeyBitmap
from snapshot.quoting import backquoted, text_literal
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SNAPSHOT
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.base_table_columns import shielded

_BASE_BYTES_MIN = 64 << 20
"""For a smaller base, one task per bucket is faster: building the bitmaps and planning takes about 0.1 s (measured)."""
_ROWS_MAX = 4_000_000
"""Maximum number of changes; their keys, kinds and positions are held in memory, 17 bytes each."""
_FILES_MAX = 32
"""Maximum number of change files if changes replace others: the scan then finds each change's file by a sequential
search for its name."""
_GLOB = frozenset("{}[]*?\\")
"""Characters that Spark takes for a pattern in a path. File names never have them; the table's folder may."""
_PINNED = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "datetimeRebaseMode": "CORRECTED"}


def scanned(
    spark: SparkSession, table: TableFiles, spec: TableSpec, layout: SnapshotFiles, wanted: Sequence[str], tasks: int
) -> DataFrame | None:
    """Return the rows of a key table's snapshot that has changes; None if this kind of scan does not fit the table.

    Args:
        spark: the session.
        table: the table.
        spec: the table definition with the columns to return.
        layout: the files of the snapshot.
        wanted: the columns to read.
        tasks: how many change files are read in parallel.

    Raises:
        DataLostError: a change file is gone.
        UnavailableError: a change file cannot be read.
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
    # Names longer than any column's name, so that they clash with none.
    words, file = ("_" * (max(map(len, columns.names)) + more) for more in (1, 2))
    more = [] if bits.rows is None else [rows.metadataColumn("_metadata").alias(file)]
    rows = shielded(rows, _words(spark, bits).alias(words), *more)
    number = f"unix_date({backquoted(key)})" if isinstance(spec.schema[key].dataType, DateType) else backquoted(key)
    stands = f"{KIND} IN ({RowKind.INSERT:d}, {RowKind.UPDATE_AFTER:d})"
    if bits.rows is not None:
        starts = accumulate((file.rows for file in layout.changes[:-1]), initial=0)
        begins = (f"{text_literal(posixpath.basename(p))}, {at}L" for p, at in zip(changes, starts, strict=True))
        place = f"element_at(map({', '.join(begins)}), {file}.file_name) + {file}.row_index"
        stands = _holds(bits.rows, words, len(bits.keys.words), place)
    counts = f"CASE WHEN {KIND} IS NULL THEN NOT {_holds(bits.keys, words, 0, number)} ELSE {stands} END"
    return rows.where(counts).select(*map(backquoted, wanted))


def _fits(spec: TableSpec, layout: SnapshotFiles) -> bool:
    rows = [file.rows for file in layout.changes]
    is_large = sum(file.size for file in layout.base) >= _BASE_BYTES_MIN
    are_few = -1 not in rows and sum(rows) <= _ROWS_MAX
    if len(rows) > _FILES_MAX:
        # Changes of one snapshot are mostly all current, those of several snapshots seldom. So the number of snapshots
        # decides, without reading the keys.
        are_few = are_few and len({file.partition[SNAPSHOT] for file in layout.changes}) == 1
    if not (is_large and are_few) or len(spec.primary_key) != 1 or spec.partition_by or spec.past:
        return False
    return KeyBitmap.can_hold(spec.arrow.field(spec.primary_key[0]).type)


def _words(spark: SparkSession, bits: ChangeBitmap) -> Column:
    """Return bitmaps, one after the other, as an ARRAY<BIGINT> subquery; a literal would be printed with the plan."""
    words = pa.array(bits.keys.words if bits.rows is None else np.concatenate([bits.keys.words, bits.rows.words]))
    return spark.createDataFrame(pa.table({"words": pa.ListArray.from_arrays([0, len(words)], words)})).scalar()


def _holds(bits: KeyBitmap, words: str, start: int, number: str) -> str:
    """Return SQL that tests whether ``number`` is in the bitmap that starts at index ``start`` of column ``words``."""
    place = f"({number} - {bits.low}L)"
    word = f"get({words}, CAST(shiftright({place}, 6) AS INT) + {start})"
    is_set = f"getbit({word}, CAST({place} & 63 AS INT)) = 1"
    return f"CASE WHEN {number} BETWEEN {bits.low}L AND {bits.high}L THEN {is_set} ELSE false END"
