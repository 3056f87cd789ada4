"""Bulk decoder of changelog messages; every row it returns is identical to that of ``row_reader``.

Messages are split into the texts of their fields (``text_splitter``), and the texts of all rows, before and after their
changes, are decoded together as the payloads of the ``json`` format. A message with an invalid or doubtful part is
left to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.thread_duckdb import Duck
from snapshot.row_kind import RowKind
from tablestore.connectors.formats.bulk_decode import BulkRows, as_mask
from tablestore.connectors.formats.changelog.layouts import Operation
from tablestore.connectors.formats.changelog.row_reader import PAYLOAD, SCHEMA, MessageSpec
from tablestore.connectors.formats.json.bulk_reader import JsonBulkReader, doubtful
from tablestore.connectors.formats.json.text_splitter import join_objects, split_arrays, split_objects

Fields = dict[str, pa.Array]
"""The texts of the fields of messages, by name; NULL for a message that lacks the field."""


@dataclass(frozen=True)
class _Images:
    """Rows before and after changes, as JSON.

    Attributes:
        record: the position of each row's message.
        place: the order of the rows of one message.
        kind: row kinds.
        texts: JSON objects.
    """

    record: np.ndarray
    place: np.ndarray
    kind: np.ndarray
    texts: pa.Array


class ChangelogBulkReader:
    """Decodes many changelog messages at once."""

    def __init__(self, spec: MessageSpec, duck: Duck) -> None:
        """Prepare the decoder for at least one column; ``duck`` runs the queries."""
        self._spec = spec
        self._layout = spec.layout
        self._duck = duck
        self._rows = self._reader(spec.row_columns)
        self._fields = self._reader(spec.fields) if len(spec.fields) else None

    def read(self, texts: pa.Array) -> Iterator[BulkRows]:
        """Yield the rows of messages (large_string, without NULL), in order, and leave out the doubtful ones."""
        good = pc.starts_with(texts, "{").to_numpy(zero_copy_only=False) & ~doubtful(texts)
        good[good] = self._valid(texts.filter(pa.array(good)))
        here = np.flatnonzero(good)
        if len(here):
            found = self._messages(texts.take(pa.array(here)))
            yield BulkRows(here[found.position], found.batch, here[found.read])

    def _valid(self, texts: pa.Array) -> np.ndarray:
        records = pa.record_batch([texts], names=["v"])
        found = self._duck.run("SELECT json_valid(v) FROM records", records=records).column(0)
        return np.array(found.to_numpy(zero_copy_only=False), bool)

    def _messages(self, texts: pa.Array) -> BulkRows:
        """Decode valid JSON objects; ``BulkRows.read`` has the positions of the messages that were decoded."""
        layout, spec = self._layout, self._spec
        fields, good = self._split(texts)
        included = self._included(fields, good)
        action = self._actions(fields[layout.op])
        good &= ~included | (action >= 0)
        chosen = good & included & (action != Operation.SKIP)
        images = (self._partial if layout.is_partial else self._whole)(fields, action, chosen, good)
        row, batch = _decoded(self._rows, images.texts, spec.row_columns)
        for name in spec.required:
            row[as_mask(pc.take(batch.column(name).is_null(), pa.array(row, mask=row < 0)))] = -1
        good[images.record[row < 0]] = False
        shared = self._shared(fields, np.flatnonzero(chosen & good), good)
        kept = np.flatnonzero(good[images.record])
        kept = kept[np.lexsort((images.place[kept], images.record[kept]))]
        record = images.record[kept]
        columns = batch.take(pa.array(row[kept])).columns + [made.take(pa.array(record)) for made in shared]
        rows = pa.RecordBatch.from_arrays([*columns, pa.array(images.kind[kept])], schema=spec.decoded)
        return BulkRows(record, rows, np.flatnonzero(good))

    def _split(self, texts: pa.Array) -> tuple[dict[str, pa.Array], np.ndarray]:
        """Return the texts of the messages' fields, and a mask of the messages whose texts are certain."""
        layout, spec = self._layout, self._spec
        good = np.ones(len(texts), bool)
        names = [layout.op, layout.before, layout.after, *spec.include, *spec.fields.names]
        if not spec.schema_include:
            found = split_objects(texts, names)
            return found.texts, good & ~found.doubtful
        root = split_objects(texts, [PAYLOAD, SCHEMA])
        good &= ~root.doubtful & _begin_with(root.texts[PAYLOAD], "{")
        found = split_objects(pc.if_else(pa.array(good), root.texts[PAYLOAD], "{}"), names)
        return found.texts | {SCHEMA: root.texts[SCHEMA]}, good & ~found.doubtful

    def _included(self, fields: Fields, good: np.ndarray) -> np.ndarray:
        """Return a mask of the messages to read; those that lack a name that decides it are no longer ``good``."""
        included = np.ones(len(good), bool)
        for name, matches in self._spec.include.items():
            good &= ~included | _begin_with(fields[name], '"')
            found = fields[name].dictionary_encode()
            wanted = [text[:1] == '"' and bool(matches(json.loads(text))) for text in found.dictionary.to_pylist()]
            included &= as_mask(pa.array(wanted, pa.bool_()).take(found.indices))
        return included

    def _actions(self, ops: pa.Array) -> np.ndarray:
        """Return the action of each message, -1 for one that is not known."""
        values = pa.array([json.dumps(value) for value in self._layout.actions], pa.large_string())
        codes = np.array([*self._layout.actions.values(), -1], np.int8)
        found: np.ndarray = codes[pc.fill_null(pc.index_in(ops, value_set=values), -1).to_numpy(zero_copy_only=False)]
        return found

    def _whole(self, fields: Fields, action: np.ndarray, chosen: np.ndarray, good: np.ndarray) -> _Images:
        """Return the rows of messages that hold whole rows; messages that lack one are no longer ``good``."""
        before, after = fields[self._layout.before], fields[self._layout.after]
        has_after, has_before = chosen & (action != Operation.DELETE), chosen & (action != Operation.INSERT)
        good &= (~has_after | _begin_with(after, "{")) & (~has_before | _begin_with(before, "{"))
        first, last = np.flatnonzero(has_before & good), np.flatnonzero(has_after & good)
        is_update = action == Operation.UPDATE
        kinds = (
            np.where(is_update[first], RowKind.UPDATE_BEFORE, RowKind.DELETE),
            np.where(is_update[last], RowKind.UPDATE_AFTER, RowKind.INSERT),
        )
        return _Images(
            np.concatenate([first, last]),
            np.repeat([0, 1], [len(first), len(last)]),
            np.concatenate(kinds).astype(np.int8),
            pa.concat_arrays([before.take(pa.array(first)), after.take(pa.array(last))]),
        )

    def _partial(self, fields: Fields, action: np.ndarray, chosen: np.ndarray, good: np.ndarray) -> _Images:
        """Return the rows of messages that hold, of the row before an update, the changed fields only."""
        record, rows = self._objects(fields[self._layout.after], chosen, good)
        is_update = action == Operation.UPDATE
        old_record, olds = self._objects(fields[self._layout.before], chosen & is_update, good)
        count = len(good)
        updated = is_update[record]
        good &= np.bincount(record[updated], minlength=count) == np.bincount(old_record, minlength=count)
        kept, old_kept = good[record], good[old_record]
        record, rows, updated = record[kept], rows.filter(pa.array(kept)), updated[kept]
        merged = self._merged(rows.filter(pa.array(updated)), olds.filter(pa.array(old_kept)), record[updated], good)
        place = np.arange(len(record))
        kinds = np.array([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE], np.int8)[action[record]]
        return _Images(
            np.concatenate([record[updated], record]),
            np.concatenate([2 * place[updated], 2 * place + 1]),
            np.concatenate([np.full(len(merged), RowKind.UPDATE_BEFORE, np.int8), kinds]),
            pa.concat_arrays([merged, rows]),
        )

    def _objects(self, texts: pa.Array, chosen: np.ndarray, good: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """Return the objects in a field of the chosen messages, with their messages' positions."""
        is_list = self._layout.is_list
        good &= ~chosen | _begin_with(texts, "[" if is_list else "{")
        record = np.flatnonzero(chosen & good)
        found = texts.take(pa.array(record))
        if is_list:
            elements = split_arrays(found)
            record, found = record[elements.record], elements.texts
            good[record[~_begin_with(found, "{")]] = False
        return record, found

    def _merged(self, rows: pa.Array, olds: pa.Array, record: np.ndarray, good: np.ndarray) -> pa.Array:
        """Return the rows before updates: the changed fields as they were, all others as they are after."""
        names = self._spec.columns.names
        after, before = split_objects(rows, names), split_objects(olds, names)
        good[record[after.doubtful | before.doubtful]] = False
        return join_objects(names, [pc.coalesce(before.texts[name], after.texts[name]) for name in names])

    def _shared(self, fields: Fields, chosen: np.ndarray, good: np.ndarray) -> list[pa.Array]:
        """Return the fields that metadata is taken from; those of messages that are not chosen are NULL."""
        spec = self._spec
        if self._fields is None:
            return []
        texts = join_objects(spec.fields.names, [fields[name].take(pa.array(chosen)) for name in spec.fields.names])
        row, batch = _decoded(self._fields, texts, spec.fields)
        for each in spec.metadata:
            invalid = ~each.valid(batch.column(each.field.name))
            row[np.isin(row, np.flatnonzero(invalid))] = -1
        good[chosen[row < 0]] = False
        place = np.full(len(good), -1, np.int64)
        place[chosen] = row
        return [column.take(pa.array(place, mask=place < 0)) for column in batch.columns]

    def _reader(self, schema: pa.Schema) -> JsonBulkReader:
        return JsonBulkReader(schema, self._duck, separator=self._spec.separator, fail_on_missing_field=False)


def _decoded(reader: JsonBulkReader, texts: pa.Array, schema: pa.Schema) -> tuple[np.ndarray, pa.RecordBatch]:
    """Decode JSON objects; return for each its row in the batch, -1 if it is left out."""
    row, batches, count = np.full(len(texts), -1, np.int64), [], 0
    for part in reader.read(texts) if len(texts) else ():
        row[part.position] = count + np.arange(len(part.position))
        count += len(part.position)
        batches.append(part.batch)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    return row, pa.concat_batches(batches) if batches else empty


def _begin_with(texts: pa.Array, start: str) -> np.ndarray:
    """Return a mask of texts that begin with a character; of JSON it tells the type."""
    return as_mask(pc.starts_with(texts, start))
