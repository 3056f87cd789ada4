"""The verbs of a table, as users call them. Each is one snapshot, and the log gets what it changes."""

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
    """The verbs of ``TableStore`` that change rows by what they hold."""

    @property
    @abstractmethod
    def _table(self) -> TableContext:
        """The table."""

    _verbs: Verbs
    _lock: threading.RLock

    @abstractmethod
    def write(self, frame: DataFrame, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Write rows as one snapshot."""

    @abstractmethod
    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Do what is due after a write."""

    @exclusive
    def delete(self, where: DataFrame | Condition, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete rows: those that a condition selects, or those of some keys.

        Args:
            where: a condition, as a Spark column or SQL text; or a frame with the key columns, and those of
                ``sequence.field``, in which others are ignored. With a frame the table is not read.
            batch: as for ``write``.

        Returns:
            The snapshot; None when there is nothing to delete.

        Raises:
            InvalidInputError: the condition cannot be evaluated; or a frame came and the table has no key, or the
                frame lacks a key column; or the log's format cannot say a delete. Nothing was written.
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
            set: values by column: a Spark column, SQL text of an expression over the row as it is, or a constant
                that is no text. A key may be set too: the row moves.
            batch: as for ``write``.

        Returns:
            The snapshot; None when no row is selected.

        Raises:
            InvalidInputError: condition or values cannot be evaluated, a value is of another type than its column, or
                two rows would have one primary key. Nothing was written.
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
        """Put rows in the place of others: of all, of those that a condition selects, or of whole partitions.

        Args:
            frame: the rows that come in, with the table's columns. In a table with a key, a row takes the place of
                the one with its key wherever that is; of several rows of one key the last counts.
            where: the rows that go; every row that comes in must fulfil it too.
            dynamic: the rows of those partitions go that occur in ``frame``.
            batch: as for ``write``.

        Returns:
            The snapshot; None when nothing goes and nothing comes in.

        Raises:
            InvalidInputError: the rows do not fit the table or ``where``, or the table has no partitions. Nothing was
                written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.overwrite(frame, where, batch, dynamic=dynamic))

    @exclusive
    def truncate(self, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete all rows, and publish that they are deleted.

        Args:
            batch: as for ``write``.

        Returns:
            The snapshot; None when the table is empty.

        Raises:
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.truncate(batch))

    @exclusive
    def merge(
        self, source: DataFrame, on: On, when: Sequence[Clause], *, batch: tuple[str, int] | None = None
    ) -> Snapshot | None:
        """Change rows by those of a source, clause by clause, as SQL's ``MERGE`` does.

        Args:
            source: rows of any columns, called ``source.`` in expressions; the table's are called ``target.``.
            on: when rows match: names of columns that both have, or a condition.
            when: what becomes of them, as ``when_matched(...)``, ``when_not_matched(...)`` and
                ``when_not_matched_by_source(...)`` give it; of several clauses for the same rows the first counts
                whose condition holds.
            batch: as for ``write``.

        Returns:
            The snapshot; None when nothing changes.

        Raises:
            InvalidInputError: something cannot be evaluated, a clause is never reached, several rows of the source
                change one row of the table, or two rows would have one primary key. Nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(self._verbs.merge(source, on, when, batch))
