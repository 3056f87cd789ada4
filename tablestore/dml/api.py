"""The DML methods of ``TableStore``. Each call makes one snapshot, and its changes are published to the log."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.dml.conditions import Condition, Value
from tablestore.dml.merge_clauses import Clause
from tablestore.dml.merge_join import On
from tablestore.dml.run import Verbs
from tablestore.exclusive import exclusive
from tablestore.write.prepare_input import deletes_of


class RowVerbs(ABC):
    """The DML methods of ``TableStore``, which change existing rows."""

    @property
    @abstractmethod
    def _table(self) -> TableContext:
        """The table as currently defined."""

    _verbs: Verbs
    _lock: threading.RLock

    @abstractmethod
    def write(self, frame: DataFrame, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Write rows as one snapshot."""

    @abstractmethod
    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Run the maintenance that is due after a write, and return the write's snapshot."""

    @exclusive
    def delete(self, where: DataFrame | Condition, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete the rows that a condition selects, or the rows with the keys in a frame.

        Args:
            where: a condition, as a Spark column or SQL text; or a frame with the key columns and those of
                ``sequence.field``. Other columns of the frame are ignored. With a frame, the table is not read.
            batch: as for ``write``.

        Returns:
            The snapshot; None if there is nothing to delete.

        Raises:
            InvalidInputError: the condition cannot be evaluated; a frame is given, but the table has no key or the
                frame lacks a key column; or the log's format cannot express a delete. Nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        if isinstance(where, DataFrame):
            return self.write(deletes_of(where, self._table.spec, self._table.rule), batch=batch)
        return self._done(self._verbs.delete(where, batch))

    @exclusive
    def update(
        self,
        where: Condition,
        set: Mapping[str, Value],  # noqa: A002 - SQL's own word
        *,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Set columns of the rows that a condition selects.

        Args:
            where: the condition, as a Spark column or SQL text; ``"true"`` selects all rows.
            set: values by column: a Spark column, SQL text of an expression over the existing row, or a constant that
                is not a string. Key columns may be set too; the row then moves to the new key.
            batch: as for ``write``.

        Returns:
            The snapshot; None if no row is selected.

        Raises:
            InvalidInputError: the condition or a value cannot be evaluated, a value's type differs from its column's,
                or two rows would have the same primary key. Nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.update(where, set, batch))

    @exclusive
    def overwrite(
        self,
        frame: DataFrame,
        where: Condition | None = None,
        *,
        dynamic: bool = False,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Replace rows: all of them, those that a condition selects, or whole partitions.

        Args:
            frame: the new rows, with the table's columns. In a table with a key, a new row also replaces a row with the
                same key elsewhere in the table; if a key has several new rows, the last one counts.
            where: selects the rows to replace; every new row must fulfil it too.
            dynamic: replace the partitions that occur in ``frame``.
            batch: as for ``write``.

        Returns:
            The snapshot; None if no row is removed and none is added.

        Raises:
            InvalidInputError: the rows do not fit the table or ``where``, or ``dynamic`` is given for a table without
                partitions. Nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.overwrite(frame, where, batch, dynamic=dynamic))

    @exclusive
    def truncate(self, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete all rows, and publish the deletes.

        Args:
            batch: as for ``write``.

        Returns:
            The snapshot; None if the table is empty.

        Raises:
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.truncate(batch))

    @exclusive
    def merge(
        self, source: DataFrame, on: On, when: Sequence[Clause], *, batch: tuple[str, int] | None = None
    ) -> Snapshot | None:
        """Merge rows of a source into the table, as SQL's ``MERGE`` does.

        Args:
            source: rows with any columns. Expressions refer to them as ``source.`` and to the table's as ``target.``.
            on: the match condition, or names of columns that table and source have in common.
            when: the clauses, made by ``when_matched(...)``, ``when_not_matched(...)`` and
                ``when_not_matched_by_source(...)``. A row is handled by the first clause of its kind whose condition
                holds.
            batch: as for ``write``.

        Returns:
            The snapshot; None if nothing changes.

        Raises:
            InvalidInputError: an expression cannot be evaluated, a clause is never reached, several rows of the source
                change the same row of the table, or two rows would have the same primary key. Nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.merge(source, on, when, batch))
