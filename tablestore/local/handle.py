"""The handle behind ``LocalTable``: tasks and verbs run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.local.partitions import condition_of, distinct_rows
from tablestore.local.rows import reader
from tablestore.local.threads import cores, run_in_threads
from tablestore.maintenance.expire_partitions import PartitionValues
from tablestore.table.handle import TableHandle

if TYPE_CHECKING:
    from tablestore.local.dml import LocalVerbs


class LocalHandle(TableHandle):
    """An open table that this process works on."""

    def __init__(self, table: TableContext) -> None:
        super().__init__(table, run_in_threads, None)

    def _open_writer(self, table: TableContext) -> None:
        super()._open_writer(table)
        self._verbs: LocalVerbs | None = None

    @property
    def verbs(self) -> LocalVerbs:
        """What deletes, updates and overwrites rows."""
        if self._verbs is None:
            from tablestore.local.dml import LocalVerbs  # noqa: PLC0415 - sqlglot takes a while to load

            self._verbs = LocalVerbs(self.writer)
        return self._verbs

    def _partitions(self) -> list[PartitionValues]:
        files, names = self.table.files, list(self.table.spec.partition_by)
        wanted = pa.schema([self.table.spec.arrow.field(name) for name in names])
        return list(distinct_rows(reader(files, files.latest(), wanted, None, cores())(), wanted, names))

    def _delete_partitions(self, partitions: Sequence[PartitionValues]) -> Snapshot | None:
        return self.finish(self.verbs.delete(condition_of(self.table.spec.arrow, partitions), None))
