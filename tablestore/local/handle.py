"""The handle behind ``LocalTable``: tasks and verbs run in this process."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.local.dml import LocalVerbs
from tablestore.local.partitions import condition_of, distinct_rows
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
        return list(distinct_rows(reader(files, files.latest(), wanted, None, cores())(), wanted, names))

    def _delete_partitions(self, partitions: Sequence[PartitionValues]) -> Snapshot | None:
        return self.finish(self.verbs.delete(condition_of(self.table.spec.arrow, partitions), None))
