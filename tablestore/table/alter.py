"""``table.alter``: changes of columns and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from snapshot.records import Snapshot
from snapshot.schema.ddl_text import as_data_type
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
from tablestore.options.value_types import names_of
from tablestore.table.handle import HasHandle, exclusive
from tablestore.write.publish import pending_on_error


class Alter(HasHandle):
    """Changes the columns and options of one table.

    Each call commits one snapshot without rows; ``table.alter(change, change, ...)`` makes several changes at once. A
    nested field is named by its path: ``struct.field``, ``list.element.field``, ``map.value.field``.
    """

    @exclusive
    def __call__(
        self, *changes: Change, set_options: Mapping[str, Any] | None = None, reset_options: str | Sequence[str] = ()
    ) -> Snapshot | None:
        """Make several changes as one snapshot, all or none of them.

        Args:
            changes: ``tablestore.AddColumn(...)`` and the like, applied in order.
            set_options: Options to set; see ``set_options``.
            reset_options: Name or names of options to set to their defaults.

        Returns:
            The snapshot, committed and published; None if nothing changes.

        Raises:
            InvalidInputError: A change cannot be made; nothing was changed.
            ConflictError: Other writers committed first too often; nothing was changed.
            PublishPendingError: Changed, but the log's broker fails; the next write or ``recover()`` publishes it. A
                change of options only is in effect all the same, so there it is a warning in the program's log.
        """
        handle = self._handle
        table = handle.refresh()

        def publish(snapshot: int) -> None:
            # With the new options: the one that was changed may be what kept a snapshot from being published.
            def renewed() -> None:
                handle.renew()
                handle.writer.publish(snapshot)

            if not (changes and table.log.publishes):
                # Columns without a log, and options, are in effect once they are committed.
                after_write(f"table {table.path}", "publishing", renewed)
                return
            with pending_on_error(table.files, snapshot):
                renewed()

        # A type checker lets nobody give text here, and Spark would fail at it with an assertion.
        changes = tuple(
            replace(each, type=as_data_type(each.type, each.path))
            if isinstance(each, AddColumn | WidenColumn)
            else each
            for each in changes
        )
        return alter(table, changes, set_options=set_options, reset_options=names_of(reset_options), publish=publish)

    def add_column(
        self, name: str, data_type: DataType | str, *, first: bool = False, after: str | None = None,
        comment: str | None = None,
    ) -> Snapshot | None:  # fmt: skip
        """Add a nullable column; existing rows have NULL in it.

        Args:
            name: The column's name, or the path of a new field.
            data_type: A Spark type or DDL text such as ``"decimal(10, 2)"``.
            first: Put it before all other columns.
            after: Put it after this column; by default it comes last.
            comment: The column's comment.

        Raises:
            InvalidInputError: The name is taken or reserved, or a table cannot hold the type.
        """
        return self(AddColumn(name, as_data_type(data_type, name), first, after, comment))

    def drop_column(self, name: str) -> Snapshot | None:
        """Drop a column. A column added later under its name does not bring its values back.

        Raises:
            InvalidInputError: It does not exist, or the key, the partitions or an option need it.
        """
        return self(DropColumn(name))

    def rename_column(self, name: str, to: str) -> Snapshot | None:
        """Rename a column. Delta readers of the base table still see the physical name.

        Args:
            name: The column, or the path of a field.
            to: The new name, without the path before it.

        Raises:
            InvalidInputError: It does not exist, the new name is taken, or key, partitions or an option need it.
        """
        return self(RenameColumn(name, to))

    def move_column(self, name: str, *, first: bool = False, after: str | None = None) -> Snapshot | None:
        """Move a column before all others or after another one.

        Raises:
            InvalidInputError: One of them does not exist.
        """
        return self(MoveColumn(name, first, after))

    def widen_column(self, name: str, data_type: DataType | str) -> Snapshot | None:
        """Change a column's type to a wider one, which holds all values of the current type.

        Until the table has had rows, any other type is possible too.

        Args:
            name: The column, or the path of a field, of a list's ``element`` or a map's ``value``.
            data_type: The new type, as for ``add_column``.

        Raises:
            InvalidInputError: The type is not wider, or the key or the partitions need the column as it is.
        """
        return self(WidenColumn(name, as_data_type(data_type, name)))

    def allow_null(self, name: str) -> Snapshot | None:
        """Drop a column's NOT NULL constraint, for good."""
        return self(AllowNull(name))

    def comment_column(self, name: str, comment: str | None) -> Snapshot | None:
        """Set a column's comment; None removes it."""
        return self(CommentColumn(name, comment))

    def set_options(self, options: Mapping[str, Any]) -> Snapshot | None:
        """Set options: of compaction, snapshots, writing and publishing, ``log.headers``, the Kafka client's.

        Raises:
            InvalidInputError: An option is unknown, its value is wrong, or it cannot change after ``create``.
        """
        return self(set_options=options)

    def reset_options(self, *names: str) -> Snapshot | None:
        """Set options to their defaults.

        Raises:
            InvalidInputError: An option is unknown, or cannot change after ``create``.
        """
        return self(reset_options=names)

    def merge_schema(self, frame: DataFrame) -> DataFrame:
        """Add the columns and fields of a frame that the table lacks, and widen types that are too narrow.

        Returns:
            The frame, with NULL for the table's nullable columns that it lacks.
        """
        spec = self._handle.refresh().spec
        self(*merging_changes(frame.schema, spec.schema))
        given = {name.lower() for name in frame.columns}
        lacking = [f for f in self._handle.table.spec.schema.fields if f.nullable and f.name.lower() not in given]
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in lacking]
        return frame.select("*", *nulls) if nulls else frame
