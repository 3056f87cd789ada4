"""Many JSON payloads to columns at once, by DuckDB and Arrow; never another row than ``row_json_read`` would give.

DuckDB's ``from_json`` alone is not safe: it makes 2 of 1.5, 1 of true, NULL of what it cannot read, and takes the first
of two fields of one name. So ``from_json_strict`` takes the payloads apart, which refuses fields given twice and arrays
for objects, and gives each single value as the text of its JSON. Arrow's casts then read these texts, where they are
plain (``row_casts``). All payloads about which there is any doubt are left to the caller.

``from_json_strict`` refuses a payload that lacks a field. After such a refusal payloads are grouped by the fields they
have, and each group is asked for these only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.changes_schema import forbids_nulls, has_forbidden_null
from log_system.formats.duckdb_json import json_literal
from log_system.formats.thread_duckdb import Duck
from snapshot.quoting import text_literal
from tablestore.connectors.formats.bulk_decode import BulkRows
from tablestore.connectors.formats.json.column_reader import ColumnReader, DoubtError

_SHAPES_MAX = 64
"""Sets of fields that payloads read at once may have; payloads of further ones are left to the caller."""

_SMALL = 64
"""So few payloads, one of which makes DuckDB fail, are not worth asking it about."""

_DEPTH_MAX = 500
"""Payloads with more brackets than this may be nested deeper than Python parses."""

_DOUBTFUL_TEXT = r"(?i)(,[ \t\r\n]*[}\]]|[:\[,][ \t\r\n]*-?(nan|inf))"
"""What DuckDB takes for JSON and nobody else does: a comma at the end, and numbers that are none."""

_BEFORE_A_VALUE = np.frombuffer(b" \t\r\n:[,-", np.uint8)
_BLOCK = 1 << 16


class JsonBulkReader:
    """Reads many payloads at once."""

    def __init__(self, schema: pa.Schema, duck: Duck, *, separator: str, fail_on_missing_field: bool) -> None:
        """Prepare for a schema of at least one column; ``duck`` runs the queries."""
        self._schema = schema
        self._duck = duck
        self._fail_on_missing_field = fail_on_missing_field
        self._readers = [ColumnReader(field, duck, separator=separator) for field in schema]
        self._strict = [i for i, field in enumerate(schema) if forbids_nulls(field.type)]

    def read(self, texts: pa.Array) -> Iterator[BulkRows]:
        """Read payloads.

        Args:
            texts: large_string, without NULL.

        Yields:
            Rows of which there is no doubt, those of one part in order.
        """
        objects = pc.starts_with(texts, "{").to_numpy(zero_copy_only=False)
        yield from self._read(texts, np.flatnonzero(objects & ~_doubtful(texts)))

    def _read(self, texts: pa.Array, positions: np.ndarray) -> Iterator[BulkRows]:
        if not len(positions):
            return
        try:
            yield self._columns(texts, positions, list(range(len(self._schema))))
            return
        except (duckdb.Error, DoubtError):
            if len(positions) <= _SMALL:
                return
        chosen = pa.record_batch([texts.take(pa.array(positions))], names=["v"])
        shapes = self._duck.run(
            "SELECT CASE WHEN json_valid(v) THEN to_json(json_keys(v))::VARCHAR END FROM records", records=chosen
        ).column(0)
        shapes = shapes.dictionary_encode()
        codes = pc.fill_null(shapes.indices, -1).to_numpy(zero_copy_only=False)
        for number, shape in enumerate(shapes.dictionary.to_pylist()[:_SHAPES_MAX]):
            names = json.loads(shape)
            present = [i for i, name in enumerate(self._schema.names) if name in names]
            if len(set(names)) == len(names) and present and not self._must_have_all(present):
                yield from self._read_shape(texts, positions[codes == number], present)

    def _must_have_all(self, present: list[int]) -> bool:
        return self._fail_on_missing_field and len(present) < len(self._schema)

    def _read_shape(self, texts: pa.Array, positions: np.ndarray, present: list[int]) -> Iterator[BulkRows]:
        """Read payloads that have the same fields; where one makes DuckDB fail, by halves."""
        try:
            yield self._columns(texts, positions, present)
        except (duckdb.Error, DoubtError):
            if len(positions) > max(_SMALL, 1):
                middle = len(positions) // 2
                yield from self._read_shape(texts, positions[:middle], present)
                yield from self._read_shape(texts, positions[middle:], present)

    def _columns(self, texts: pa.Array, positions: np.ndarray, present: list[int]) -> BulkRows:
        """Read payloads that have certain fields.

        Raises:
            duckdb.Error, DoubtError: some payload is not what it should be; which one is not known.
        """
        chosen = texts if len(positions) == len(texts) else texts.take(pa.array(positions))
        records = pa.record_batch([chosen], names=["v"])
        found = self._duck.run(self._query(present), records=records)
        read = np.ones(len(positions), bool)
        columns = []
        for i, (field, reader) in enumerate(zip(self._schema, self._readers, strict=True)):
            if i in present:
                column, known = reader.read(found.column(f"c{i}"), records)
                if known is not None:
                    read &= known
            else:
                column = pa.nulls(len(positions), field.type)
            if not field.nullable and column.null_count:
                read &= column.is_valid().to_numpy(zero_copy_only=False)
            columns.append(column)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if not read.all():
            batch, positions = batch.filter(pa.array(read)), positions[read]
        if any(has_forbidden_null(batch.column(i), self._schema.field(i)) for i in self._strict):
            msg = "NULL where it may not be"
            raise DoubtError(msg)
        return BulkRows(positions, batch)

    def _query(self, present: list[int]) -> str:
        structure = {self._schema.names[i]: self._readers[i].structure for i in present}
        columns = [f"struct_extract(r, {text_literal(self._schema.names[i])}) AS c{i}" for i in present]
        parsed = f"SELECT from_json_strict(v, {json_literal(structure)}) AS r FROM records"
        return f"SELECT {', '.join(columns)} FROM ({parsed})"


def _doubtful(texts: pa.Array) -> np.ndarray:
    """Tell which payloads DuckDB may take although they are no JSON, or Python may not take although they are."""
    doubtful = np.zeros(len(texts), bool)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if _may_be_doubtful(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]):
        doubtful |= pc.match_substring_regex(texts, _DOUBTFUL_TEXT).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(np.diff(ends) > 2 * _DEPTH_MAX)
    if len(long):
        some = texts.take(pa.array(long))
        brackets = pc.add(pc.count_substring(some, "["), pc.count_substring(some, "{"))
        doubtful[long] |= pc.greater(brackets, _DEPTH_MAX).to_numpy(zero_copy_only=False)
    return doubtful


def _may_be_doubtful(data: np.ndarray) -> bool:
    """Look for what ``_DOUBTFUL_TEXT`` wants, several times as fast, in all payloads at once; may be wrong by a yes."""
    # A block stays in the processor's cache; what begins in one and ends in the next is seen by the overlap.
    return any(_block_may_be(data[max(at - 4, 0) : at + _BLOCK]) for at in range(0, len(data), _BLOCK))


def _block_may_be(data: np.ndarray) -> bool:
    lower = data | 0x20
    # Setting this bit makes one character of the two closing brackets too.
    before = data[:-1]
    if ((lower[1:] == ord("}")) & ((before == ord(",")) | (before <= ord(" ")))).any():
        return True
    for word in (b"nan", b"inf"):
        found = (lower[1:-2] == word[0]) & (lower[2:-1] == word[1]) & (lower[3:] == word[2])
        if found.any() and np.isin(data[:-3][found], _BEFORE_A_VALUE).any():
            return True
    return False
