"""Skips files in partitions that have no row which a predicate keeps."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.duckdb_engine import MEMORY_LIMIT, spilling
from snapshot.merge.predicate import Predicate
from snapshot.quoting import quoted
from snapshot.schema.spec import TableSpec

_NUMBER = "number of a partition"


def in_kept_partitions(spec: TableSpec, files: Sequence[DataFile], predicate: Predicate | None) -> Sequence[DataFile]:
    """Return the files of partitions that may have rows which satisfy a predicate; no file is opened."""
    asked = None if predicate is None else predicate.on(spec.partition_by)
    if asked is None or not asked.columns or len(files) < 2:
        return files
    places = [tuple(file.partition.get(name) for name in spec.partition_by) for file in files]
    partitions = list(dict.fromkeys(places))
    columns = [
        pa.array(texts, pa.string()).cast(spec.arrow.field(name).type)
        for name, texts in zip(spec.partition_by, zip(*partitions, strict=True), strict=True)
    ]
    rows = pa.table([*columns, pa.array(range(len(partitions)))], names=[*spec.partition_by, _NUMBER])
    try:
        with spilling(memory_limit=MEMORY_LIMIT) as session:
            session.register("partitions", rows)
            sql = f"SELECT {quoted(_NUMBER)} FROM partitions WHERE {asked.sql}"
            kept = {partitions[number] for (number,) in session.execute(sql, list(asked.parameters)).fetchall()}
            session.unregister("partitions")
    except duckdb.Error:
        # The read itself reports what is wrong with the condition.
        return files
    return [file for file, place in zip(files, places, strict=True) if place in kept]
