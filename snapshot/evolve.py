"""Schema change: what becomes of a table's columns, decided without touching a file (see ``columns.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from snapshot.adapt import widens
from snapshot.columns import STORED_NAME
from snapshot.errors import InvalidInputError
from snapshot.schema import RESERVED
from snapshot.spark_columns import path_of, stored_name, stored_paths, visible, without_stored
from snapshot.spark_schema import arrow_schema

_COMMENT = "comment"


@dataclass(frozen=True)
class AddColumn:
    """Add a column, or a field of a struct; rows written before have NULL there.

    Attributes:
        path: its name; a field's after that of its struct, with dots: ``s.x``, ``list.element.x``, ``map.value.x``.
        type: its type.
        first: put it before all others.
        after: put it after this one; without either it comes last.
        comment: says what it is.
    """

    path: str
    type: DataType
    first: bool = False
    after: str | None = None
    comment: str | None = None


@dataclass(frozen=True)
class DropColumn:
    """Remove a column or a field; old snapshots keep it under their own schema."""

    path: str


@dataclass(frozen=True)
class RenameColumn:
    """Give a column or a field another name; ``to`` is the last part of it only."""

    path: str
    to: str


@dataclass(frozen=True)
class MoveColumn:
    """Put a column or a field elsewhere among its neighbours."""

    path: str
    first: bool = False
    after: str | None = None


@dataclass(frozen=True)
class WidenColumn:
    """Give a column, a field, a list's ``element`` or a map's ``value`` a type that holds all values it can have."""

    path: str
    type: DataType


@dataclass(frozen=True)
class AllowNull:
    """Let a NOT NULL column or field hold NULL from now on."""

    path: str


@dataclass(frozen=True)
class CommentColumn:
    """Say what a column or a field is; None says nothing."""

    path: str
    comment: str | None


Change: TypeAlias = AddColumn | DropColumn | RenameColumn | MoveColumn | WidenColumn | AllowNull | CommentColumn
_VERBS: Mapping[type, str] = {
    DropColumn: "dropped",
    RenameColumn: "renamed",
    WidenColumn: "widened",
    AllowNull: "made to hold NULL",
}


def evolved(
    schema: StructType, changes: Sequence[Change], *, past: Iterable[StructType], bound: Mapping[str, str]
) -> StructType:
    """Apply changes one after the other.

    Args:
        schema: the columns, with their stored names.
        changes: what to do.
        past: every schema that the table has had, with stored names.
        bound: columns that cannot be dropped, renamed or retyped, and why.

    Returns:
        The columns afterwards, with their stored names.

    Raises:
        InvalidInputError: a change cannot be made.
    """
    used = {path for each in (*past, schema) for path in stored_paths(each)}
    for change in changes:
        schema = _Editor(used, bound).apply(schema, change)
        used |= stored_paths(schema)
    return schema


@dataclass(frozen=True)
class _Editor:
    """Applies one change.

    Attributes:
        used: paths of all stored names that the table has ever had, in lower case.
        bound: see ``evolved``.
    """

    used: set[tuple[str, ...]]
    bound: Mapping[str, str]

    def apply(self, schema: StructType, change: Change) -> StructType:
        path = path_of(change.path, schema)
        if len(path) == 1 and type(change) in _VERBS:
            self._check_bound(path[0], change)
        if isinstance(change, WidenColumn):
            found = _retyped(schema, path, change)
        else:
            found = self._in_struct(schema, path, (), change)
        assert isinstance(found, StructType)
        return found

    def _check_bound(self, name: str, change: Change) -> None:
        why = {column.lower(): reason for column, reason in self.bound.items()}.get(name.lower())
        if why is not None:
            msg = f"column {name!r} cannot be {_VERBS[type(change)]}: {why}."
            raise InvalidInputError(msg)

    def _in_struct(self, kind: DataType, path: tuple[str, ...], place: tuple[str, ...], change: Change) -> DataType:
        """Change the struct that holds the last name of a path; ``place`` is its own path, by stored names."""
        if len(path) > 1:
            return _with_child(
                kind, path[0], change.path, lambda child, step: self._in_struct(child, path[1:], (*place, step), change)
            )
        if not isinstance(kind, StructType):
            raise _no_field(kind, path[0], change.path)
        return self._changed(kind, path[0], place, change)

    def _changed(self, struct: StructType, name: str, place: tuple[str, ...], change: Change) -> StructType:
        if isinstance(change, AddColumn):
            return self._added(struct, name, place, change)
        number = _find(struct, name, change.path)
        field, others = struct.fields[number], [*struct.fields[:number], *struct.fields[number + 1 :]]
        match change:
            case DropColumn():
                if not others:
                    msg = f"column {change.path!r} cannot be dropped: it is the only one there. Drop what holds it."
                    raise InvalidInputError(msg)
                return StructType(others)
            case MoveColumn():
                if change.first is (change.after is not None):
                    msg = f"column {change.path!r}: say where it goes: first=True, or after= another column."
                    raise InvalidInputError(msg)
                return _placed(others, field, change)
            case RenameColumn():
                _check_free(StructType(others), change.to, change.to, top=not place)
                field = _renamed(field, change.to)
            case AllowNull():
                field = StructField(field.name, field.dataType, True, field.metadata)
            case CommentColumn():
                field = _commented(field, change.comment)
        return StructType([*struct.fields[:number], field, *struct.fields[number + 1 :]])

    def _added(self, struct: StructType, name: str, place: tuple[str, ...], change: AddColumn) -> StructType:
        _check_free(struct, name, change.path, top=not place)
        kind = visible(StructType([StructField(name, change.type)])).fields[0].dataType
        stored_as, number = name, 1
        while (*place, stored_as.lower()) in self.used or (not place and stored_as.lower() in RESERVED):
            number += 1
            stored_as = f"{name}_{number}"
        metadata = {} if stored_as == name else {STORED_NAME: stored_as}
        field = _commented(StructField(name, kind, True, metadata), change.comment)
        return _placed(list(struct.fields), field, change)


def _retyped(kind: DataType, path: tuple[str, ...], change: WidenColumn) -> DataType:
    if path:
        return _with_child(kind, path[0], change.path, lambda child, _: _retyped(child, path[1:], change))
    nested = StructType, ArrayType, MapType
    if isinstance(kind, nested) or isinstance(change.type, nested):
        msg = (
            f"column {change.path!r} is {kind.simpleString()}: widen what is in it by its path ('struct.field', "
            "'list.element', 'map.value'), or add fields to it."
        )
        raise InvalidInputError(msg)
    if not can_become(kind, change.type):
        msg = (
            f"column {change.path!r} cannot change from {kind.simpleString()} to {change.type.simpleString()}: a type "
            "can become one that holds all its values (byte to short to int to bigint, these to decimal, all but "
            "bigint to double, float to double, decimal to one with no fewer digits before and after the point). Add "
            "a column instead."
        )
        raise InvalidInputError(msg)
    return change.type


def _with_child(kind: DataType, name: str, text: str, change: Callable[[DataType, str], DataType]) -> DataType:
    """Replace the type of a field, an element or a value; ``change`` is also told the stored name of the step."""
    if isinstance(kind, StructType):
        number = _find(kind, name, text)
        fields = list(kind.fields)
        f = fields[number]
        fields[number] = StructField(f.name, change(f.dataType, stored_name(f).lower()), f.nullable, f.metadata)
        return StructType(fields)
    if isinstance(kind, ArrayType) and name.lower() == "element":
        return ArrayType(change(kind.elementType, "element"), kind.containsNull)
    if isinstance(kind, MapType) and name.lower() == "value":
        return MapType(kind.keyType, change(kind.valueType, "value"), kind.valueContainsNull)
    if isinstance(kind, MapType) and name.lower() == "key":
        msg = f"column {text!r}: the keys of a map stay as they are; only its 'value' can change."
        raise InvalidInputError(msg)
    raise _no_field(kind, name, text)


def _no_field(kind: DataType, name: str, text: str) -> InvalidInputError:
    inner = {ArrayType: "'element'", MapType: "'value'"}.get(type(kind))
    hint = f"what is in it is called {inner}" if inner else "it has nothing in it"
    return InvalidInputError(
        f"column {text!r}: {name!r} is no field of a struct, but of {kind.simpleString()}; {hint}."
    )


def _find(struct: StructType, name: str, text: str) -> int:
    for number, field in enumerate(struct.fields):
        if field.name.lower() == name.lower():
            return number
    msg = f"column {text!r}: there is no {name!r}; there are {struct.fieldNames()}."
    raise InvalidInputError(msg)


def _check_free(struct: StructType, name: str, text: str, *, top: bool) -> None:
    if not name or (top and name.lower() in RESERVED):
        msg = f"column {text!r}: the name is reserved by the store ({', '.join(RESERVED)}); choose another."
        raise InvalidInputError(msg)
    if name.lower() in (each.lower() for each in struct.fieldNames()):
        msg = f"column {text!r}: there is a column of that name; there are {struct.fieldNames()}."
        raise InvalidInputError(msg)


def _placed(fields: list[StructField], field: StructField, change: AddColumn | MoveColumn) -> StructType:
    """Put a field among others."""
    if change.first and change.after is not None:
        msg = f"column {change.path!r}: first and after exclude each other; give one."
        raise InvalidInputError(msg)
    number = 0 if change.first else len(fields)
    if change.after is not None:
        number = _find(StructType(fields), change.after, change.after) + 1
    return StructType([*fields[:number], field, *fields[number:]])


def _renamed(field: StructField, to: str) -> StructField:
    metadata = without_stored(field)
    if stored_name(field) != to:
        metadata[STORED_NAME] = stored_name(field)
    return StructField(to, field.dataType, field.nullable, metadata)


def _commented(field: StructField, comment: str | None) -> StructField:
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _COMMENT}
    if comment is not None:
        metadata[_COMMENT] = comment
    return StructField(field.name, field.dataType, field.nullable, metadata)


def can_become(came: DataType, wanted: DataType) -> bool:
    """Tell whether a column's type may change; see ``adapt.widens``."""
    one, other = (arrow_schema(StructType([StructField("c", kind)])).field(0).type for kind in (came, wanted))
    return came == wanted or (one != other and widens(one, other))
