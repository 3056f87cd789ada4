"""The verbs of ``TableStore`` that change what a table is; ``alter.py`` does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from snapshot.errors import InvalidInputError
from snapshot.records import Snapshot
from snapshot.schema.evolution import (
    AddColumn,
    AllowNull,
    Change,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    merging_changes,
)
from tablestore.after_write import after_write
from tablestore.ddl.alter import alter
from tablestore.exclusive import exclusive

if TYPE_CHECKING:
    import threading

    from tablestore.context import TableContext
    from tablestore.write.writer import Writer


class Altering:
    """Changes of a table's columns and options.

    Each call is one snapshot without rows; several changes at once are ``alter(change, change, ...)``. A field in a
    column is named by its path: ``struct.field``, ``list.element.field``, ``map.value.field``.
    """

    if TYPE_CHECKING:
        _writer: Writer
        _lock: threading.RLock

        @property
        def _table(self) -> TableContext: ...

        def _renew(self) -> None: ...

    @exclusive
    def alter(
        self, *changes: Change, set_options: Mapping[str, Any] | None = None, reset_options: Sequence[str] = ()
    ) -> Snapshot | None:
        """Make several changes as one snapshot, all or none of them.

        Args:
            changes: ``tablestore.AddColumn(...)`` and the like; each sees what those before it did.
            set_options: options to set; see ``set_options``.
            reset_options: names of options to set to their defaults.

        Returns:
            The snapshot, committed and published; None where the table is so already.

        Raises:
            InvalidInputError: a change cannot be made; nothing was changed.
            ConflictError: others committed first too often; nothing was changed.
            PublishPendingError: changed, but the log's broker fails; the next write or ``recover()`` publishes it. A
                change of options only is in effect all the same, so there it is a warning in the program's log.
        """

        def publish(snapshot: int) -> None:
            # With the options as they are now: what keeps a snapshot from the log may be the option that was changed.
            self._renew()
            if changes:
                self._writer.publish(snapshot)
            else:
                # Options are in effect once they are committed.
                after_write(f"table {self._table.path}", "publishing", lambda: self._writer.publish(snapshot))

        return alter(self._table, changes, set_options=set_options, reset_options=reset_options, publish=publish)

    def add_column(
        self, name: str, data_type: DataType | str, *, first: bool = False, after: str | None = None,
        comment: str | None = None,
    ) -> Snapshot | None:  # fmt: skip
        """Add a column that may be NULL, and is in every row there is.

        Args:
            name: its name, or the path of a new field.
            data_type: its type, as a Spark type or DDL text such as ``"decimal(10, 2)"``.
            first: put it before all others.
            after: put it after this one; without either it comes last.
            comment: says what it is.

        Raises:
            InvalidInputError: the name is taken or reserved, or a table cannot hold the type.
        """
        return self.alter(AddColumn(name, as_type(name, data_type), first, after, comment))

    def drop_column(self, name: str) -> Snapshot | None:
        """Remove a column; a column that is added under its name later has none of its values.

        Raises:
            InvalidInputError: it does not exist, or key, partitions or an option need it.
        """
        return self.alter(DropColumn(name))

    def rename_column(self, name: str, to: str) -> Snapshot | None:
        """Give a column another name. Delta readers of the root go on seeing the name that files have.

        Args:
            name: the column, or the path of a field.
            to: the new name, without what is before it in the path.

        Raises:
            InvalidInputError: it does not exist, the new name is taken, or key, partitions or an option need it.
        """
        return self.alter(RenameColumn(name, to))

    def move_column(self, name: str, *, first: bool = False, after: str | None = None) -> Snapshot | None:
        """Put a column before all others or after another one.

        Raises:
            InvalidInputError: one of them does not exist.
        """
        return self.alter(MoveColumn(name, first, after))

    def widen_column(self, name: str, data_type: DataType | str) -> Snapshot | None:
        """Give a column a type that holds all values of the type it has.

        Args:
            name: the column, or the path of a field, of a list's ``element`` or a map's ``value``.
            data_type: the new type, as for ``add_column``.

        Raises:
            InvalidInputError: the type does not hold them, or key or partitions need the column as it is.
        """
        return self.alter(WidenColumn(name, as_type(name, data_type)))

    def allow_null(self, name: str) -> Snapshot | None:
        """Let a NOT NULL column hold NULL. There is no way back."""
        return self.alter(AllowNull(name))

    def comment_column(self, name: str, comment: str | None) -> Snapshot | None:
        """Say what a column is; None says nothing."""
        return self.alter(CommentColumn(name, comment))

    def set_options(self, options: Mapping[str, Any]) -> Snapshot | None:
        """Set options: of compaction, snapshots, writing and publishing, ``log.headers``, the Kafka client's.

        Raises:
            InvalidInputError: an option is unknown, its value is wrong, or it cannot change after ``create``.
        """
        return self.alter(set_options=options)

    def reset_options(self, *names: str) -> Snapshot | None:
        """Set options to their defaults.

        Raises:
            InvalidInputError: an option is unknown, or cannot change after ``create``.
        """
        return self.alter(reset_options=names)

    def _merged(self, frame: DataFrame) -> DataFrame:
        """Change the table so that it has a place for each column of a frame; give the frame with what it lacks."""
        self.alter(*merging_changes(frame.schema, self._table.spec.schema))
        came = {name.lower() for name in frame.columns}
        lacking = [f for f in self._table.spec.schema.fields if f.nullable and f.name.lower() not in came]
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in lacking]
        return frame.select("*", *nulls) if nulls else frame


def as_type(name: str, data_type: DataType | str) -> DataType:
    """Read a type given as DDL text.

    Raises:
        InvalidInputError: the text is no type.
    """
    if isinstance(data_type, DataType):
        return data_type
    try:
        return DataType.fromDDL(data_type)
    except PySparkException as error:
        msg = f"column {name!r}: expected a Spark type or its text such as 'bigint', got {data_type!r}: {error}"
        raise InvalidInputError(msg) from error
