"""The methods of ``TableStore`` that change columns and options; ``alter.py`` implements them."""

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
    """Mixin of ``TableStore`` with the methods that change columns and options.

    Each call commits one snapshot without rows; to combine several changes, use ``alter(change, change, ...)``. A
    nested field is named by its path: ``struct.field``, ``list.element.field``, ``map.value.field``.
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
        """Apply several changes atomically, as one snapshot.

        Args:
            changes: ``tablestore.AddColumn(...)`` and the like, applied in this order.
            set_options: options to set; see ``set_options``.
            reset_options: names of options to set to their defaults.

        Returns:
            The snapshot, committed and published; None if the table already has this definition.

        Raises:
            InvalidInputError: a change cannot be made; nothing was changed.
            ConflictError: other writers committed first too often; nothing was changed.
            PublishPendingError: the change is committed, but publishing it failed; the next write or ``recover()``
                publishes it. If only options changed, a logged warning takes the place of this error, since options
                take effect without publishing.
        """

        def publish(snapshot: int) -> None:
            # Reload the options first: the option that was changed may be the one that made publishing fail.
            self._renew()
            if changes:
                self._writer.publish(snapshot)
            else:
                # Options take effect when they are committed, so a failure to publish is only a warning.
                after_write(f"table {self._table.path}", "publishing", lambda: self._writer.publish(snapshot))

        return alter(self._table, changes, set_options=set_options, reset_options=reset_options, publish=publish)

    def add_column(
        self, name: str, data_type: DataType | str, *, first: bool = False, after: str | None = None,
        comment: str | None = None,
    ) -> Snapshot | None:  # fmt: skip
        """Add a nullable column; it is NULL in existing rows.

        Args:
            name: the column's name, or the path of a new field.
            data_type: a Spark type or DDL text such as ``"decimal(10, 2)"``.
            first: put the column before all others.
            after: put the column after this one. By default it becomes the last column.
            comment: a description of the column.

        Raises:
            InvalidInputError: the name is taken or reserved, or the type is not supported.
        """
        return self.alter(AddColumn(name, as_type(name, data_type), first, after, comment))

    def drop_column(self, name: str) -> Snapshot | None:
        """Drop a column; a column added later under the same name does not get its values back.

        Raises:
            InvalidInputError: the column does not exist, or the primary key, the partitioning or an option uses it.
        """
        return self.alter(DropColumn(name))

    def rename_column(self, name: str, to: str) -> Snapshot | None:
        """Rename a column. Delta readers of the base table still see its physical name.

        Args:
            name: the column, or the path of a field.
            to: the new name; for a field, the last part of its path only.

        Raises:
            InvalidInputError: the column does not exist, the new name is taken, or the primary key, the partitioning or
                an option uses the column.
        """
        return self.alter(RenameColumn(name, to))

    def move_column(self, name: str, *, first: bool = False, after: str | None = None) -> Snapshot | None:
        """Move a column before all others or after another one.

        Raises:
            InvalidInputError: one of the columns does not exist.
        """
        return self.alter(MoveColumn(name, first, after))

    def widen_column(self, name: str, data_type: DataType | str) -> Snapshot | None:
        """Widen a column to a type that can represent all values of its current type.

        Args:
            name: the column, or the path of a field, of a list's ``element`` or a map's ``value``.
            data_type: the new type, as for ``add_column``.

        Raises:
            InvalidInputError: the type is not wider, or the column is in the primary key or the partitioning.
        """
        return self.alter(WidenColumn(name, as_type(name, data_type)))

    def allow_null(self, name: str) -> Snapshot | None:
        """Make a NOT NULL column nullable. This cannot be undone."""
        return self.alter(AllowNull(name))

    def comment_column(self, name: str, comment: str | None) -> Snapshot | None:
        """Set the comment of a column; None removes it."""
        return self.alter(CommentColumn(name, comment))

    def set_options(self, options: Mapping[str, Any]) -> Snapshot | None:
        """Set options, such as those of compaction, snapshots, writing, publishing and the Kafka client.

        Raises:
            InvalidInputError: an option is unknown, its value is invalid, or it cannot change after ``create``.
        """
        return self.alter(set_options=options)

    def reset_options(self, *names: str) -> Snapshot | None:
        """Reset options to their defaults.

        Raises:
            InvalidInputError: an option is unknown, or cannot change after ``create``.
        """
        return self.alter(reset_options=names)

    def _merged(self, frame: DataFrame) -> DataFrame:
        """Evolve the table's schema to include a frame's columns; return the frame with missing columns as NULL."""
        self.alter(*merging_changes(frame.schema, self._table.spec.schema))
        came = {name.lower() for name in frame.columns}
        lacking = [f for f in self._table.spec.schema.fields if f.nullable and f.name.lower() not in came]
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in lacking]
        return frame.select("*", *nulls) if nulls else frame


def as_type(name: str, data_type: DataType | str) -> DataType:
    """Return a Spark type, parsing it if it is DDL text.

    Raises:
        InvalidInputError: the text is not a type.
    """
    if isinstance(data_type, DataType):
        return data_type
    try:
        return DataType.fromDDL(data_type)
    except PySparkException as error:
        msg = f"column {name!r}: expected a Spark type or its text such as 'bigint', came {data_type!r}: {error}"
        raise InvalidInputError(msg) from error
