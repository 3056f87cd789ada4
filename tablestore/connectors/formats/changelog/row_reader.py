"""Decodes one changelog message at a time: the reference for bulk decoding, and its fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.row_kind import KIND, RowKind
from tablestore.connectors.formats.changelog.layouts import ChangelogLayout, Operation
from tablestore.connectors.formats.changelog.metadata import MessageMetadata, check_times
from tablestore.connectors.formats.json.row_reader import JsonRowReader, of_type, parse_object
from tablestore.connectors.formats.values import UnfitError, shown

PAYLOAD = "payload"
"""The field of a message with a schema that holds the change."""

SCHEMA = "schema"
"""The field of a message with a schema that holds the schema."""

Change = tuple[RowKind, dict[str, Any]]


@dataclass(frozen=True)
class MessageSpec:
    """The parts of a changelog message to read.

    Attributes:
        layout: the layout of the message.
        columns: the columns of a row, with their names in messages.
        metadata: the metadata of each metadata column, in order.
        separator: the separator of date and time.
        ignore_parse_errors: whether an invalid field becomes NULL, and an invalid message is skipped.
        schema_include: whether the change is in the message's field ``payload``.
        include: the messages that are read, by field: whether the field's text is one that is read.
    """

    layout: ChangelogLayout
    columns: pa.Schema
    metadata: tuple[MessageMetadata, ...]
    separator: str
    ignore_parse_errors: bool
    schema_include: bool
    include: Mapping[str, Callable[[str], object]]

    @property
    def row_columns(self) -> pa.Schema:
        """The columns, all of which may be NULL while a row is decoded."""
        return pa.schema([each.with_nullable(True) for each in self.columns])

    @property
    def required(self) -> list[str]:
        """Names of the columns that must not be NULL."""
        return [each.name for each in self.columns if not each.nullable]

    @property
    def fields(self) -> pa.Schema:
        """The fields of a message that its metadata is taken from, each once."""
        return pa.schema(dict.fromkeys(each.field for each in self.metadata))

    @property
    def decoded(self) -> pa.Schema:
        """The schema in which rows are decoded: columns and fields by number, since names may repeat, and the kind."""
        columns = [pa.field(f"c{number}", each.type) for number, each in enumerate(self.columns)]
        fields = [pa.field(f"m{number}", each.type) for number, each in enumerate(self.fields)]
        return pa.schema([*columns, *fields, pa.field(KIND, pa.int8())])


class ChangelogRowReader:
    """Decodes changelog messages one at a time."""

    def __init__(self, spec: MessageSpec) -> None:
        """Prepare the reader."""
        self._spec = spec
        self._layout = spec.layout
        self._rows = self._reader(spec.row_columns)
        self._fields = self._reader(spec.fields)

    def read(self, payload: bytes) -> list[dict[str, Any]]:
        """Decode one message to rows of ``MessageSpec.decoded``.

        Raises:
            UnfitError: the message is invalid, and parse errors are not ignored.
        """
        try:
            root = parse_object(payload)
            return [] if root is None else self._read(root)
        except UnfitError:
            if self._spec.ignore_parse_errors:
                return []
            raise

    def _read(self, root: dict[str, Any]) -> list[dict[str, Any]]:
        message = root
        if self._spec.schema_include:
            message = {**_object(root, PAYLOAD), SCHEMA: root.get(SCHEMA)}
        if not self._is_included(message):
            return []
        changes = self._changes(message)
        fields = self._fields.convert(message)
        check_times(self._spec.metadata, fields)
        shared = {f"m{number}": value for number, value in enumerate(fields.values())}
        return [
            {f"c{number}": value for number, value in enumerate(row.values())} | shared | {KIND: int(kind)}
            for kind, row in changes
        ]

    def _is_included(self, message: dict[str, Any]) -> bool:
        for name, matches in self._spec.include.items():
            value = message.get(name)
            if not isinstance(value, str):
                msg = f"expected the name of a {name}, got {shown(value)}"
                raise UnfitError(msg, name)
            if not matches(value):
                return False
        return True

    def _changes(self, message: dict[str, Any]) -> list[Change]:
        layout = self._layout
        value = message.get(layout.op)
        action = layout.actions.get(value) if isinstance(value, str) else None
        if action is None:
            msg = f'unknown "{layout.op}" value {shown(value)}; expected one of {", ".join(layout.actions)}'
            raise UnfitError(msg, layout.op)
        if action is Operation.SKIP:
            return []
        return self._partial_changes(message, action) if layout.is_partial else self._whole_changes(message, action)

    def _whole_changes(self, message: dict[str, Any], action: Operation) -> list[Change]:
        before, after = self._layout.before, self._layout.after
        if action is Operation.INSERT:
            return [(RowKind.INSERT, self._row(_object(message, after), after))]
        if message.get(before) is None:
            msg = (
                f'the "{before}" field of an {action.name} message is null; if {self._layout.tool} reads Postgres, '
                "set the table's REPLICA IDENTITY to FULL, so that messages hold the row before"
            )
            raise UnfitError(msg, before)
        row = self._row(_object(message, before), before)
        if action is Operation.DELETE:
            return [(RowKind.DELETE, row)]
        return [
            (RowKind.UPDATE_BEFORE, row),
            (RowKind.UPDATE_AFTER, self._row(_object(message, after), after)),
        ]

    def _partial_changes(self, message: dict[str, Any], action: Operation) -> list[Change]:
        before, after = self._layout.before, self._layout.after
        rows = self._objects(message, after)
        if action is not Operation.UPDATE:
            kind = RowKind.INSERT if action is Operation.INSERT else RowKind.DELETE
            return [(kind, self._row(row, after)) for row in rows]
        olds = self._objects(message, before)
        if len(olds) != len(rows):
            msg = f'"{before}" has {len(olds)} rows, and "{after}" has {len(rows)}'
            raise UnfitError(msg, before)
        changes: list[Change] = []
        for old, row in zip(olds, rows, strict=True):
            # Fields that are not in "old" were not changed.
            changes.append((RowKind.UPDATE_BEFORE, self._row({**row, **old}, before)))
            changes.append((RowKind.UPDATE_AFTER, self._row(row, after)))
        return changes

    def _objects(self, message: dict[str, Any], name: str) -> list[dict[str, Any]]:
        if not self._layout.is_list:
            return [_object(message, name)]
        try:
            rows = of_type(list, _given(message, name), "array")
            return [of_type(dict, row, "object") for row in rows]
        except UnfitError as error:
            raise UnfitError(error.reason, name) from error

    def _row(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        try:
            row = self._rows.convert(value)
        except UnfitError as error:
            raise UnfitError(error.reason, f"{name}.{error.field}") from error
        for column in self._spec.required:
            if row[column] is None:
                msg = "must not be NULL; declare the column without NOT NULL"
                raise UnfitError(msg, f"{name}.{column}")
        return row

    def _reader(self, schema: pa.Schema) -> JsonRowReader:
        ignore, separator = self._spec.ignore_parse_errors, self._spec.separator
        return JsonRowReader(schema, separator=separator, fail_on_missing_field=False, ignore_parse_errors=ignore)


def _given(message: dict[str, Any], name: str) -> Any:
    value = message.get(name)
    if value is None:
        msg = f'the "{name}" field of the message is null or missing'
        raise UnfitError(msg)
    return value


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = of_type(dict, _given(message, name), "object")
    except UnfitError as error:
        raise UnfitError(error.reason, name) from error
    return found
