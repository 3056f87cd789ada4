"""Which changes of a table's columns an eventual log allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from snapshot.errors import InvalidInputError
from snapshot.schema.evolution import (
    AddColumn,
    AllowNull,
    Change,
    CommentColumn,
    DropColumn,
    MoveColumn,
    WidenColumn,
)
from snapshot.schema.spark_types import path_of, with_physical_names
from snapshot.schema.spec import TableSpec

_INTEGERS: Final = ("byte", "short", "integer", "long")


def check_decoded_by_name(path: str, spec: TableSpec, changes: Sequence[Change]) -> None:
    """Check that old records of an eventual log are still read correctly: they are decoded by column names alone.

    Raises:
        InvalidInputError: they would be misread after one of the changes.
    """
    schemas = (spec.schema_json, *(past.schema_json for past in spec.past))
    names = {name.lower() for each in schemas for name in with_physical_names(each).fieldNames()}
    for change in changes:
        why = _why_misread(change, path_of(change.path, spec.schema), names)
        if why:
            msg = (
                f"table {path!r}: log.consistency='eventual': {why}, since log records do not name their schema. "
                "Columns can be added under new names, dropped, moved and made nullable, and integers widened."
            )
            raise InvalidInputError(msg)


def _why_misread(change: Change, path: tuple[str, ...], names: set[str]) -> str:
    """Return why a change of what is at a path is not allowed where these columns have existed; empty if it is."""
    match change:
        case AddColumn() if len(path) == 1 and path[0].lower() in names:
            return f"a column {path[0]!r} existed before"
        case AddColumn() | DropColumn() if len(path) > 1:
            return f"{change.path!r} is a struct field, which cannot change"
        case WidenColumn() if change.type.typeName() not in _INTEGERS:
            return f"column {change.path!r} cannot become {change.type.simpleString()}"
        case AddColumn() | DropColumn() | WidenColumn() | MoveColumn() | AllowNull() | CommentColumn():
            return ""
    return f"column {change.path!r} cannot be renamed"
