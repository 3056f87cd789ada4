"""Schema evolution: computes a table's columns after a change, without touching a file (see ``physical_names.py``).

Also derives the changes that let a table hold rows with other columns (``merge_schema=True``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.schema.adapter import widens
from snapshot.schema.physical_names import PHYSICAL_NAME
from snapshot.schema.spark_types import (
    arrow_type,
    can_widen,
    path_of,
    physical_name,
    physical_paths,
    visible,
    without_physical_names,
)
from snapshot.schema.system_columns import RESERVED

_COMMENT = "comment"


@dataclass(frozen=True)
class AddColumn:
    """Adds a column or a struct field; existing rows have NULL there.

    Attributes:
        path: the column's name, or the dotted path of a field: ``s.x``, ``list.element.x``, ``map.value.x``.
        type: its type.
        first: put it before all others.
        after: put it after this column; by default it comes last.
        comment: its comment.
    """

    path: str
    type: DataType
    first: bool = False
    after: str | None = None
    comment: str | None = None


@dataclass(frozen=True)
class DropColumn:
    """Removes a column or a field; old snapshots keep it in their own schema."""

    path: str


@dataclass(frozen=True)
class RenameColumn:
    """Renames a column or a field; ``to`` is the new name without the path."""

    path: str
    to: str


@dataclass(frozen=True)
class MoveColumn:
    """Moves a column, or a field within its struct."""

    path: str
    first: bool = False
    after: str | None = None


@dataclass(frozen=True)
class WidenColumn:
    """Widens the type of a column, a field, a list's ``element`` or a map's ``value``.

    Until the table has had rows, any other type is possible too.
    """

    path: str
    type: DataType


@dataclass(frozen=True)
class AllowNull:
    """Drops the NOT NULL constraint of a column, a field, a list's ``element`` or a map's ``value``."""

    path: str


@dataclass(frozen=True)
class CommentColumn:
    """Sets the comment of a column or a field; None removes it."""

    path: str
    comment: str | None


Change: TypeAlias = AddColumn | DropColumn | RenameColumn | MoveColumn | WidenColumn | AllowNull | CommentColumn
_VERBS: Mapping[type, str] = {
    DropColumn: "dropped",
    RenameColumn: "renamed",
    WidenColumn: "widened",
    AllowNull: "made nullable",
}


def evolved(
    schema: StructType,
    changes: Sequence[Change],
    *,
    past: Iterable[StructType],
    bound: Mapping[str, str],
    widens: Collection[str] = (),
    has_values: Callable[[], bool] = lambda: True,
) -> StructType:
    """Return the columns, with their physical names, after a list of changes, applied in order.

    Args:
        schema: the columns, with their physical names.
        changes: the changes.
        past: all earlier schemas of the table, with physical names.
        bound: columns that cannot be dropped, renamed or retyped, with the reason.
        widens: those of them that can get a wider type.
        has_values: tells whether there ever were rows; if not, a column can get any type.

    Raises:
        InvalidInputError: a change is not possible.
    """
    used = {path for each in (*past, schema) for path in physical_paths(each)}
    for change in changes:
        schema = _Editor(used, bound, widens, has_values).apply(schema, change)
        used |= physical_paths(schema)
    return schema


@dataclass(frozen=True)
class _Editor:
    """Applies one change.

    Attributes:
        used: paths of all physical names that the table has ever had, in lower case.
        bound: see ``evolved``.
        widens: see ``evolved``.
        has_values: see ``evolved``.
    """

    used: set[tuple[str, ...]]
    bound: Mapping[str, str]
    widens: Collection[str]
    has_values: Callable[[], bool]

    def apply(self, schema: StructType, change: Change) -> StructType:
        path = path_of(change.path, schema)
        may_widen = isinstance(change, WidenColumn) and path[0].lower() in {name.lower() for name in self.widens}
        if len(path) == 1 and type(change) in _VERBS and not may_widen:
            self._check_bound(path[0], change)
        if isinstance(change, WidenColumn):
            result = _retyped(schema, path, change, self.has_values)
        elif isinstance(change, AllowNull):
            result = _nullable(schema, path, change)
        else:
            result = self._in_struct(schema, path, (), change)
        assert isinstance(result, StructType)
        return result

    def _check_bound(self, name: str, change: Change) -> None:
        why = {column.lower(): reason for column, reason in self.bound.items()}.get(name.lower())
        if why is not None:
            msg = f"column {name!r} cannot be {_VERBS[type(change)]}: {why}."
            raise InvalidInputError(msg)

    def _in_struct(
        self, data_type: DataType, path: tuple[str, ...], parent: tuple[str, ...], change: Change
    ) -> DataType:
        """Change the struct that contains the last name of a path; ``place`` is the struct's path by physical names."""
        if len(path) > 1:
            return _with_child(
                data_type,
                path[0],
                change.path,
                lambda child, step: self._in_struct(child, path[1:], (*parent, step), change),
            )
        if not isinstance(data_type, StructType):
            raise _no_field(data_type, path[0], change.path)
        return self._changed(data_type, path[0], parent, change)

    def _changed(self, struct: StructType, name: str, parent: tuple[str, ...], change: Change) -> StructType:
        if isinstance(change, AddColumn):
            return self._added(struct, name, parent, change)
        number = _find(struct, name, change.path)
        field, others = struct.fields[number], [*struct.fields[:number], *struct.fields[number + 1 :]]
        match change:
            case DropColumn():
                if not others:
                    msg = f"column {change.path!r} cannot be dropped: it is the only one. Drop its struct or table."
                    raise InvalidInputError(msg)
                return StructType(others)
            case MoveColumn():
                if change.after == name:
                    msg = f"column {change.path!r} cannot be placed after itself. Name another column."
                    raise InvalidInputError(msg)
                if change.first is (change.after is not None):
                    msg = f"column {change.path!r}: expected a position: either first=True or after=<another column>."
                    raise InvalidInputError(msg)
                return _placed(others, field, change)
            case RenameColumn():
                _check_free(StructType(others), change.to, change.to, top=not parent)
                field = _renamed(field, change.to)
            case CommentColumn():
                field = _commented(field, change.comment)
        return StructType([*struct.fields[:number], field, *struct.fields[number + 1 :]])

    def _added(self, struct: StructType, name: str, parent: tuple[str, ...], change: AddColumn) -> StructType:
        _check_free(struct, name, change.path, top=not parent)
        data_type = visible(StructType([StructField(name, change.type)])).fields[0].dataType
        stored_as, number = name, 1
        while (*parent, stored_as.lower()) in self.used or (not parent and stored_as.lower() in RESERVED):
            number += 1
            stored_as = f"{name}_{number}"
        metadata = {} if stored_as == name else {PHYSICAL_NAME: stored_as}
        field = _commented(StructField(name, data_type, True, metadata), change.comment)
        return _placed(list(struct.fields), field, change)


def _retyped(
    data_type: DataType, path: tuple[str, ...], change: WidenColumn, has_values: Callable[[], bool]
) -> DataType:
    if path:
        return _with_child(
            data_type, path[0], change.path, lambda child, _: _retyped(child, path[1:], change, has_values)
        )
    nested = StructType, ArrayType, MapType
    if isinstance(data_type, nested) or isinstance(change.type, nested):
        msg = (
            f"column {change.path!r} is {data_type.simpleString()}: widen a nested type by its path ('struct.field', "
            "'list.element', 'map.value'), or add fields to it."
        )
        raise InvalidInputError(msg)
    if not can_become(data_type, change.type) and has_values():
        msg = (
            f"column {change.path!r} cannot change from {data_type.simpleString()} to "
            f"{change.type.simpleString()}: once there were rows, a type can only be widened (tinyint to smallint to "
            "int to bigint, these to decimal, all but bigint to double, float to double, decimal to one with no fewer "
            "digits before and after the point). For another type, rename the column, add a new one, fill it by an "
            "update and drop the old one, as docs/guide/schema.md shows under 'Another type'."
        )
        raise InvalidInputError(msg)
    return change.type


def _nullable(data_type: DataType, path: tuple[str, ...], change: AllowNull) -> DataType:
    name = path[0]
    if len(path) > 1:
        return _with_child(data_type, name, change.path, lambda child, _: _nullable(child, path[1:], change))
    if isinstance(data_type, StructType):
        number = _find(data_type, name, change.path)
        fields = list(data_type.fields)
        fields[number] = StructField(fields[number].name, fields[number].dataType, True, fields[number].metadata)
        return StructType(fields)
    if isinstance(data_type, ArrayType) and name.lower() == "element":
        return ArrayType(data_type.elementType, True)
    if isinstance(data_type, MapType) and name.lower() == "value":
        return MapType(data_type.keyType, data_type.valueType, True)
    raise _no_field(data_type, name, change.path)


def _with_child(data_type: DataType, name: str, text: str, change: Callable[[DataType, str], DataType]) -> DataType:
    """Replace the type of a field, an element or a value; ``change`` also gets the physical name of that step."""
    if isinstance(data_type, StructType):
        number = _find(data_type, name, text)
        fields = list(data_type.fields)
        f = fields[number]
        fields[number] = StructField(f.name, change(f.dataType, physical_name(f).lower()), f.nullable, f.metadata)
        return StructType(fields)
    if isinstance(data_type, ArrayType) and name.lower() == "element":
        return ArrayType(change(data_type.elementType, "element"), data_type.containsNull)
    if isinstance(data_type, MapType) and name.lower() == "value":
        return MapType(data_type.keyType, change(data_type.valueType, "value"), data_type.valueContainsNull)
    if isinstance(data_type, MapType) and name.lower() == "key":
        msg = f"column {text!r}: the key type of a map cannot change, only its 'value'."
        raise InvalidInputError(msg)
    raise _no_field(data_type, name, text)


def _no_field(data_type: DataType, name: str, text: str) -> InvalidInputError:
    inner = {ArrayType: "'element'", MapType: "'value'"}.get(type(data_type))
    hint = f"use {inner} for its content" if inner else "it has no fields"
    return InvalidInputError(
        f"column {text!r}: {name!r} is not a struct field: its parent is {data_type.simpleString()}; {hint}."
    )


def _find(struct: StructType, name: str, text: str) -> int:
    for number, field in enumerate(struct.fields):
        if field.name.lower() == name.lower():
            return number
    msg = f"column {text!r}: {name!r} does not exist; existing fields are {struct.fieldNames()}."
    raise InvalidInputError(msg)


def _check_free(struct: StructType, name: str, text: str, *, top: bool) -> None:
    if not name or (top and name.lower() in RESERVED):
        msg = f"column {text!r}: the name is reserved by the store ({', '.join(RESERVED)}); choose another."
        raise InvalidInputError(msg)
    if name.lower() in (each.lower() for each in struct.fieldNames()):
        msg = f"column {text!r}: the name is already used; existing fields are {struct.fieldNames()}."
        raise InvalidInputError(msg)


def _placed(fields: list[StructField], field: StructField, change: AddColumn | MoveColumn) -> StructType:
    """Insert a field at the position that the change asks for."""
    if change.first and change.after is not None:
        msg = f"column {change.path!r}: first and after exclude each other; set one of them."
        raise InvalidInputError(msg)
    number = 0 if change.first else len(fields)
    if change.after is not None:
        number = _find(StructType(fields), change.after, change.after) + 1
    return StructType([*fields[:number], field, *fields[number:]])


def _renamed(field: StructField, to: str) -> StructField:
    metadata = without_physical_names(field)
    if physical_name(field) != to:
        metadata[PHYSICAL_NAME] = physical_name(field)
    return StructField(to, field.dataType, field.nullable, metadata)


def _commented(field: StructField, comment: str | None) -> StructField:
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _COMMENT}
    if comment is not None:
        metadata[_COMMENT] = comment
    return StructField(field.name, field.dataType, field.nullable, metadata)


def can_become(given: DataType, wanted: DataType) -> bool:
    """Return whether a column's type may change; ``adapter.widens`` has the rules."""
    one, other = arrow_type(given), arrow_type(wanted)
    return given == wanted or (one != other and widens(one, other))


def merging_changes(given: StructType, there: StructType) -> list[Change]:
    """Return the changes that a table needs to hold rows with other columns: new columns and fields, and wider types.

    Returns:
        The changes. A type that cannot be widened to that of the rows is left unchanged; the write then rejects it.
    """
    changes: list[Change] = []
    _merge(given, there, (), changes)
    return changes


def _merge(given: DataType, there: DataType, parent: tuple[str, ...], changes: list[Change]) -> None:
    if isinstance(given, StructType) and isinstance(there, StructType):
        known = {field.name.lower(): field for field in there.fields}
        for field in given.fields:
            path = (*parent, field.name)
            existing = known.get(field.name.lower())
            if existing is not None:
                _merge(field.dataType, existing.dataType, (*parent, existing.name), changes)
            elif parent or field.name.lower() not in RESERVED:
                changes.append(AddColumn(_text(path), field.dataType, comment=(field.metadata or {}).get("comment")))
    elif isinstance(given, ArrayType) and isinstance(there, ArrayType):
        _merge(given.elementType, there.elementType, (*parent, "element"), changes)
    elif isinstance(given, MapType) and isinstance(there, MapType):
        _merge(given.valueType, there.valueType, (*parent, "value"), changes)
    elif not can_widen(given, there) and can_widen(there, given):
        changes.append(WidenColumn(_text(parent), given))


def _text(path: tuple[str, ...]) -> str:
    return ".".join(map(backquoted, path))
