"""Applies ``ALTER TABLE`` to a definition, and derives the changes of the store table behind it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from log_system.kafka.client.secrets import ClientValue
from snapshot.errors import InvalidInputError, NotFoundError
from snapshot.quoting import backquoted
from snapshot.schema.evolution import (
    AddColumn,
    AllowNull,
    Change,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RenameColumn,
    WidenColumn,
)
from tablestore.sql.catalog.binding import columns_of, connector_of, is_kept_apart
from tablestore.sql.parser.statements import (
    AlterAdd,
    AlterDrop,
    AlterModify,
    AlterRenameColumn,
    AlterReset,
    AlterSet,
    AlterWatermark,
    Column,
    ColumnPosition,
    ComputedColumn,
    CreateTable,
    PhysicalColumn,
)

_COMMENT: Final = "comment"

Altered = AlterSet | AlterReset | AlterRenameColumn | AlterAdd | AlterModify | AlterDrop | AlterWatermark


@dataclass(frozen=True)
class StoreChanges:
    """The changes of a store table that a statement asks for."""

    columns: tuple[Change, ...] = ()
    options: Mapping[str, ClientValue] = field(default_factory=dict)
    reset: tuple[str, ...] = ()


def altered(made: CreateTable, statement: Altered) -> CreateTable:
    """Return the definition that results from applying a statement.

    Raises:
        NotFoundError: there is no such column.
        InvalidInputError: the primary key, the watermark, PARTITIONED BY or a computed column uses the column.
    """
    match statement:
        case AlterSet():
            options = dict(statement.options)
            comment = str(options.pop(_COMMENT)) if _is_own_comment(made, options) else made.comment
            return replace(made, options=tuple((dict(made.options) | options).items()), comment=comment)
        case AlterReset():
            comment = None if _is_own_comment(made, statement.keys) else made.comment
            kept = tuple(pair for pair in made.options if pair[0] not in statement.keys)
            return replace(made, options=kept, comment=comment)
        case AlterAdd():
            columns = list(made.columns)
            for column, place in zip(statement.columns, _places(statement), strict=True):
                columns = _put(made, columns, column, place)
            return replace(made, columns=tuple(columns))
        case AlterModify():
            columns = list(made.columns)
            names = [column.name for column in statement.columns]
            if len(set(names)) < len(names):
                msg = f"ALTER TABLE '{made.name}' MODIFY: a column is named twice: {', '.join(names)}."
                raise InvalidInputError(msg)
            for column, place in zip(statement.columns, _places(statement), strict=True):
                number = _find(made, columns, column.name)
                columns[number] = column
                if place is not None:
                    columns = _put(made, [*columns[:number], *columns[number + 1 :]], column, place)
            return replace(made, columns=tuple(columns))
        case AlterDrop():
            return replace(made, columns=_without(made, statement.columns))
        case AlterWatermark():
            _check_watermark(made, is_new=statement.is_new)
            return replace(made, watermark=statement.watermark)
        case AlterRenameColumn():
            columns = list(made.columns)
            number = _find(made, columns, statement.column)
            _check_free(made, columns, statement.column)
            columns[number] = replace(columns[number], name=statement.to)
            return replace(made, columns=tuple(columns))


def _is_own_comment(made: CreateTable, names: Container[str]) -> bool:
    """Return whether ``comment`` among options is the comment of a store table, as in Paimon."""
    return _COMMENT in names and connector_of(made) is None


def store_changes(made: CreateTable, statement: Altered) -> StoreChanges:
    """Return the changes of the store table that a statement asks for; computed columns exist in the definition only.

    Args:
        made: the definition before the statement.
        statement: the statement, which `altered` has accepted.
    """
    before = {column.name: column for column in made.columns}
    match statement:
        case AlterWatermark():
            return StoreChanges()
        case AlterSet():
            return StoreChanges(options={key: value for key, value in statement.options if _is_stored(key)})
        case AlterReset():
            return StoreChanges(reset=tuple(filter(_is_stored, statement.keys)))
        case AlterRenameColumn():
            if isinstance(before[statement.column], PhysicalColumn):
                return StoreChanges((RenameColumn(_step(statement.column), statement.to),))
            return StoreChanges()
        case AlterDrop():
            stored = [name for name in statement.columns if isinstance(before[name], PhysicalColumn)]
            return StoreChanges(tuple(DropColumn(_step(name)) for name in stored))
        case AlterAdd():
            pairs = zip(statement.columns, _places(statement), strict=True)
            return StoreChanges(tuple(_added(made, c, place) for c, place in pairs if isinstance(c, PhysicalColumn)))
        case AlterModify():
            found: list[Change] = []
            for column, place in zip(statement.columns, _places(statement), strict=True):
                found += _modified(made, before[column.name], column, place)
            return StoreChanges(tuple(found))


def _is_stored(key: str) -> bool:
    """Return whether an option belongs to the table's files, and not to its definition alone."""
    return key != _COMMENT and not is_kept_apart(key)


def _places(statement: AlterAdd | AlterModify) -> tuple[ColumnPosition | None, ...]:
    return statement.places or (None,) * len(statement.columns)


def _put(made: CreateTable, columns: list[Column], column: Column, place: ColumnPosition | None) -> list[Column]:
    if place is None:
        return [*columns, column]
    if place.after == column.name:
        msg = f"table '{made.name}': column '{column.name}' cannot be placed AFTER itself. Name another one."
        raise InvalidInputError(msg)
    number = 0 if place.after is None else _find(made, columns, place.after) + 1
    return [*columns[:number], column, *columns[number:]]


def _find(made: CreateTable, columns: list[Column], name: str) -> int:
    for number, column in enumerate(columns):
        if column.name == name:
            return number
    msg = f"table '{made.name}': there is no column '{name}'; there are {', '.join(each.name for each in columns)}."
    raise NotFoundError(msg)


def _without(made: CreateTable, names: tuple[str, ...]) -> tuple[Column, ...]:
    """Return the columns that are left after some are dropped."""
    columns = list(made.columns)
    for name in names:
        _check_free(made, columns, name)
        del columns[_find(made, columns, name)]
    return tuple(columns)


def _check_watermark(made: CreateTable, *, is_new: bool) -> None:
    if is_new and made.watermark is not None:
        msg = f"table '{made.name}' has a WATERMARK for '{made.watermark.column}': use MODIFY instead of ADD."
        raise InvalidInputError(msg)
    if not is_new and made.watermark is None:
        msg = f"table '{made.name}' has no WATERMARK: use ADD WATERMARK FOR ... AS ... to declare one."
        raise InvalidInputError(msg)


def _check_free(made: CreateTable, columns: list[Column], name: str) -> None:
    """Check that nothing else in the definition refers to a column."""
    why = None
    if name in made.primary_key:
        why = "it is in the PRIMARY KEY"
    elif name in made.partitioned_by:
        why = "it is in PARTITIONED BY"
    elif made.watermark and made.watermark.column == name:
        why = "it has the WATERMARK; ALTER TABLE ... DROP WATERMARK first"
    if why is not None:
        msg = f"table '{made.name}': column '{name}' cannot change: {why}."
        raise InvalidInputError(msg)
    for column in columns:
        if not isinstance(column, ComputedColumn) or column.name == name:
            continue
        if name.lower() in map(str.lower, columns_of(column)):
            msg = (
                f"table '{made.name}': column '{column.name}' is computed from '{name}'. Drop that first, or change "
                "its expression: ALTER TABLE ... MODIFY."
            )
            raise InvalidInputError(msg)


def _added(made: CreateTable, column: PhysicalColumn, place: ColumnPosition | None) -> AddColumn:
    if not column.type.nullable:
        msg = (
            f"table '{made.name}': column '{column.name}': an added column cannot be NOT NULL: existing rows "
            "have no value for it."
        )
        raise InvalidInputError(msg)
    first, after = _neighbour(made, place)
    return AddColumn(_step(column.name), column.type.spark, first, after, column.comment)


def _modified(made: CreateTable, before: Column, column: Column, place: ColumnPosition | None) -> list[Change]:
    name = _step(column.name)
    if isinstance(before, PhysicalColumn) is not isinstance(column, PhysicalColumn):
        msg = f"table '{made.name}': column '{column.name}': cannot change between stored and computed."
        raise InvalidInputError(msg)
    if not isinstance(column, PhysicalColumn) or not isinstance(before, PhysicalColumn):
        return []
    found: list[Change] = []
    found += _retyped(made, (column.name,), before.type.spark, column.type.spark)
    if column.name not in made.primary_key:
        found += _nulls(made, (column.name,), before.type.nullable, column.type.nullable)
    if before.comment != column.comment:
        found.append(CommentColumn(name, column.comment))
    if place is not None:
        first, after = _neighbour(made, place)
        found.append(MoveColumn(name, first, after))
    return found


def _retyped(made: CreateTable, path: tuple[str, ...], before: DataType, after: DataType) -> Iterator[Change]:
    """Yield the changes that make one type of another; fields of rows are known by their names.

    Raises:
        InvalidInputError: a field becomes NOT NULL, or a new one is.
    """
    if before == after:
        return
    if isinstance(before, StructType) and isinstance(after, StructType):
        yield from _refielded(made, path, before, after)
    elif isinstance(before, ArrayType) and isinstance(after, ArrayType):
        inside = (*path, "element")
        yield from _nulls(made, inside, before.containsNull, after.containsNull)
        yield from _retyped(made, inside, before.elementType, after.elementType)
    elif isinstance(before, MapType) and isinstance(after, MapType) and before.keyType == after.keyType:
        inside = (*path, "value")
        yield from _nulls(made, inside, before.valueContainsNull, after.valueContainsNull)
        yield from _retyped(made, inside, before.valueType, after.valueType)
    else:
        yield WidenColumn(_dotted(path), after)


def _refielded(made: CreateTable, path: tuple[str, ...], before: StructType, after: StructType) -> Iterator[Change]:
    there, wanted = ({each.name: each for each in kind.fields} for kind in (before, after))
    dropped = [DropColumn(_dotted((*path, name))) for name in there if name not in wanted]
    kept = [name for name in there if name in wanted]
    # The last field of a row cannot be dropped.
    yield from dropped if kept else ()
    in_order = kept == [name for name in wanted if name in there]
    previous: str | None = None
    for name, new in wanted.items():
        inside = (*path, name)
        if name not in there:
            yield from _nulls(made, inside, True, new.nullable)
            yield AddColumn(_dotted(inside), new.dataType, previous is None, previous)
        else:
            yield from _nulls(made, inside, there[name].nullable, new.nullable)
            yield from _retyped(made, inside, there[name].dataType, new.dataType)
            if not in_order:
                yield MoveColumn(_dotted(inside), previous is None, previous)
        previous = name
    yield from () if kept else dropped


def _nulls(made: CreateTable, path: tuple[str, ...], before: bool, after: bool) -> Iterator[Change]:
    """Yield the change that lets a column, a field, an element or a value be NULL, if there is one.

    Raises:
        InvalidInputError: it is to become NOT NULL.
    """
    if after and not before:
        yield AllowNull(_dotted(path))
    elif before and not after:
        msg = (
            f"table '{made.name}': '{'.'.join(path)}' cannot become NOT NULL: old snapshots, and records in the log, "
            "may have NULL in it. CREATE a table with it, and INSERT the rows INTO that one."
        )
        raise InvalidInputError(msg)


def _step(name: str) -> str:
    """Return a name as part of a path, in backquotes if it needs them."""
    return backquoted(name) if {".", "`"} & set(name) else name


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(map(_step, path))


def _neighbour(made: CreateTable, place: ColumnPosition | None) -> tuple[bool, str | None]:
    """Return a column's position among the stored columns: whether it is first, and else the column it follows.

    For ``AFTER`` a computed column, that is the stored column before it.
    """
    if place is None:
        return False, None
    before: str | None = None
    for column in made.columns if place.after is not None else ():
        before = column.name if isinstance(column, PhysicalColumn) else before
        if column.name == place.after:
            return before is None, before
    return place.after is None, place.after
