"""The handle behind ``LocalTable``: tasks and verbs run in this process."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapshot.merge.duckdb_engine import type_name
from snapshot.quoting import quoted, text_literal
from snapshot.records import Snapshot
from snapshot.staging.parquet_writer import partition_text
from tablestore.context import TableContext
from tablestore.local.dml import LocalVerbs
from tablestore.local.rows import reader
from tablestore.local.threads import cores, run_in_threads
from tablestore.maintenance.expire_partitions import PartitionValues
from tablestore.table.handle import TableHandle


class LocalHandle(TableHandle):
    """An open table that this process works on.

    Attributes:
        verbs: Deletes, updates and overwrites rows.
    """

    def __init__(self, table: TableContext) -> None:
        super().__init__(table, run_in_threads, None)

    def _open_writer(self, table: TableContext) -> None:
        super()._open_writer(table)
        self.verbs = LocalVerbs(self.writer)

    def _partitions(self) -> list[PartitionValues]:
        files, names = self.table.files, list(self.table.spec.partition_by)
        wanted = pa.schema([self.table.spec.arrow.field(name) for name in names])
        found = pa.Table.from_batches([], wanted)
        for batch in reader(files, files.latest(), wanted, None, cores())():
            rows = pa.concat_tables([found, pa.Table.from_batches([batch], wanted)])
            found = rows.group_by(names, use_threads=False).aggregate([])
        return list(found.to_pylist())

    def _delete_partitions(self, partitions: Sequence[PartitionValues]) -> Snapshot | None:
        schema = self.table.spec.arrow
        conditions = (
            " AND ".join(_is(name, value, schema.field(name).type) for name, value in partition.items())
            for partition in partitions
        )
        return self.finish(self.verbs.delete(" OR ".join(f"({each})" for each in conditions), None))


def _is(name: str, value: object, data_type: pa.DataType) -> str:
    text = partition_text(value)
    if text is None:
        return f"{quoted(name)} IS NULL"
    return f"{quoted(name)} = CAST({text_literal(text)} AS {type_name(data_type)})"
