"""The ``debezium-json`` format: one record per change, with the row before or the row after, as Flink writes it.

Flink's ``debezium-json`` writes two operations: ``c`` adds a row (INSERT, UPDATE_AFTER) and ``d`` removes one
(UPDATE_BEFORE, DELETE), so an update takes two records. Rows and record keys are encoded as in the ``json`` format.
No value is null (there are no tombstones), so a compacted topic never drops a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.base import DecodedChanges, EncodedRecords, Format, FormatSettings, Payloads, as_binary
from log_system.formats.changes_schema import check_changes, relabel
from log_system.formats.duckdb_json import check_values
from log_system.formats.json import JsonFormat
from log_system.formats.truncate import TruncatingFormat, is_truncate
from snapshot.errors import BadRecordError, InvalidInputError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import with_kind

_BRINGS = b'{"before":null,"after":', b',"op":"c"}'
_TAKES = b'{"before":', b',"after":null,"op":"d"}'
_TRUNCATE = b'{"before":null,"after":null,"op":"t"}'
"""``t`` is Debezium's operation code for TRUNCATE."""
_TAKEN = (int(RowKind.UPDATE_BEFORE), int(RowKind.DELETE))


class DebeziumFormat:
    """The ``debezium-json`` format of Flink. Can be pickled like ``JsonFormat``."""

    name = "debezium-json"

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str], *, changelog: bool) -> None:
        """Create the format for a table.

        Args:
            schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
            primary_key: the primary key columns in written order; empty for a table without a primary key.
            changelog: whether the log is a full changelog, so that ``c`` is read as INSERT; else as UPDATE_AFTER.

        Raises:
            InvalidInputError: a column has a type that a table cannot hold, or a key column does not exist.
        """
        # A delete may have only its key, so NOT NULL columns of the table may be NULL here.
        loose = [field if field.name in primary_key else field.with_nullable(True) for field in schema]
        self._changes = with_kind(schema)
        self._rows = JsonFormat(pa.schema(loose), primary_key)
        self._changelog = changelog
        self._brought = RowKind.INSERT if changelog or not primary_key else RowKind.UPDATE_AFTER

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Encode each change as one record.

        Raises:
            InvalidInputError: an UPDATE_BEFORE in a log that is not a full changelog, NULL in a key, or a value that
                cannot be read back. Nothing was encoded.
        """
        kinds = check_changes(changes, self._changes)
        taken = np.isin(kinds, _TAKEN)
        if not self._changelog and np.any(kinds == RowKind.UPDATE_BEFORE):
            msg = "log.format='debezium-json' carries UPDATE_BEFORE changes with changelog-producer='lookup' only"
            raise InvalidInputError(msg)
        rows = self._rows.encode(self._with_kinds(changes, np.full(len(kinds), RowKind.UPDATE_AFTER, np.int8)))
        values = pc.if_else(pa.array(taken), _framing(rows.value_column, _TAKES), _framing(rows.value_column, _BRINGS))
        return EncodedRecords(rows.key_column, values, rows.rows)

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Decode each record into one change: DELETE for ``d``; INSERT for ``c``, UPDATE_AFTER in a log of upserts."""
        texts = as_binary(values)
        brought, taken = _framed(texts, _BRINGS), _framed(texts, _TAKES)
        strange = np.flatnonzero(~(brought | taken))
        # Decode the records before the malformed one first, so that the error names the first bad record.
        count = int(strange[0]) if len(strange) else len(values)
        rows = pc.if_else(pa.array(taken), _inside(texts, _TAKES), _inside(texts, _BRINGS)).slice(0, count)
        batch = self._rows.decode(keys[:count], rows, own=own).batch
        if len(strange):
            msg = 'expected {"before":..,"after":..,"op":"c" or "d"} as this format writes it'
            raise BadRecordError(count, msg)
        kinds = np.where(taken, np.int8(RowKind.DELETE), np.int8(self._brought))
        return DecodedChanges(self._with_kinds(batch, kinds), np.arange(count, dtype=np.int64))

    def _with_kinds(self, batch: pa.RecordBatch, kinds: np.ndarray) -> pa.RecordBatch:
        return relabel(batch.set_column(batch.num_columns - 1, KIND, pa.array(kinds, pa.int8())), self._changes)


def _framing(rows: pa.Array, frame: tuple[bytes, bytes]) -> pa.Array:
    """Return each text with the frame added before and after it."""
    before, after = (pa.scalar(part, rows.type) for part in frame)
    return pc.binary_join_element_wise(before, rows, after, pa.scalar(b"", rows.type))


def _framed(texts: pa.Array, frame: tuple[bytes, bytes]) -> np.ndarray:
    """Return, for each text, whether it begins and ends with a frame."""
    fits = pc.and_(pc.starts_with(texts, frame[0]), pc.ends_with(texts, frame[1]))
    found: np.ndarray = pc.fill_null(fits, False).to_numpy(zero_copy_only=False)
    return found


def _inside(texts: pa.Array, frame: tuple[bytes, bytes]) -> pa.Array:
    return pc.binary_slice(texts, len(frame[0]), -len(frame[1]))


def _open(schema: pa.Schema, primary_key: Sequence[str], settings: FormatSettings) -> TruncatingFormat:
    return TruncatingFormat(DebeziumFormat(schema, primary_key, changelog=settings.changelog), _TRUNCATE)


def _as_read(changes: pa.RecordBatch, primary_key: Sequence[str], changelog: bool) -> pa.RecordBatch:
    """Return changes as added and removed rows."""
    if is_truncate(changes):
        return changes
    position = changes.schema.get_field_index(KIND)
    removed = pc.is_in(changes.column(position), pa.array(_TAKEN, pa.int8()))
    added = RowKind.INSERT if changelog else RowKind.UPDATE_AFTER
    kinds = pc.if_else(removed, pa.scalar(int(RowKind.DELETE), pa.int8()), pa.scalar(int(added), pa.int8()))
    return changes.set_column(position, changes.schema.field(position), kinds)


FORMAT = Format(
    name="debezium-json",
    open=_open,
    as_read=_as_read,
    check=check_values,
    why_not_compacted="'debezium-json' has no null value, so the broker drops no key",
)
