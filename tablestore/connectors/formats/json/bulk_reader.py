"""Bulk decoder of JSON payloads with DuckDB and Arrow; every row it returns is identical to ``row_reader``'s.

DuckDB's ``from_json`` alone is not safe: it converts 1.5 to 2, true to 1 and unreadable values to NULL, and it takes
the first of two fields with the same name. Therefore ``from_json_strict`` splits the payloads. It rejects duplicate
fields and arrays in place of objects, and returns each scalar value as its JSON text. Arrow's casts then parse these
texts where that is unambiguous (``text_casts``). All doubtful payloads are left to the caller.

``from_json_strict`` also rejects a payload that lacks a field. After such a failure, the payloads are grouped by the
fields they have, and each group is decoded with only these fields.
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
from tablestore.connectors.formats.column_texts import bounds_and_bytes
from tablestore.connectors.formats.json.column_reader import ColumnReader, DoubtError

_SHAPES_MAX = 64
"""Maximum number of distinct field sets per call; payloads with other field sets are left to the caller."""

_SMALL = 64
"""If DuckDB fails on this many payloads or fewer, they are left to the caller instead of being split further."""

_DEPTH_MAX = 500
"""Payloads with more brackets than this may be nested too deeply for Python's JSON parser."""

_DOUBTFUL_TEXT = r"(?i)(,[ \t\r\n]*[}\]]|[:\[,][ \t\r\n]*-?(nan|inf))"
"""Matches invalid JSON that DuckDB accepts: trailing commas, NaN and infinity."""

_BEFORE_A_VALUE = np.frombuffer(b" \t\r\n:[,-", np.uint8)
_BLOCK = 1 << 16


class JsonBulkReader:
    """Decodes many payloads at once."""

    def __init__(self, schema: pa.Schema, duck: Duck, *, separator: str, fail_on_missing_field: bool) -> None:
        """Prepare the decoder for a schema of at least one column; ``duck`` runs the queries."""
        self._schema = schema
        self._duck = duck
        self._fail_on_missing_field = fail_on_missing_field
        self._readers = [ColumnReader(field, duck, separator=separator) for field in schema]
        self._strict = [i for i, field in enumerate(schema) if forbids_nulls(field.type)]

    def read(self, texts: pa.Array) -> Iterator[BulkRows]:
        """Yield the rows of payloads (large_string, without NULL), in order within each part, without doubtful ones."""
        objects = pc.starts_with(texts, "{").to_numpy(zero_copy_only=False)
        yield from self._read(texts, np.flatnonzero(objects & ~doubtful(texts)))

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
        """Decode payloads that have the same fields; if DuckDB fails, split them in halves."""
        try:
            yield self._columns(texts, positions, present)
        except (duckdb.Error, DoubtError):
            if len(positions) > max(_SMALL, 1):
                middle = len(positions) // 2
                yield from self._read_shape(texts, positions[:middle], present)
                yield from self._read_shape(texts, positions[middle:], present)

    def _columns(self, texts: pa.Array, positions: np.ndarray, present: list[int]) -> BulkRows:
        """Decode payloads that have exactly the present fields of the schema.

        Raises:
            duckdb.Error, DoubtError: at least one payload is invalid or doubtful; it is not known which one.
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
        names = self._schema.names
        structure = {names[i]: self._readers[i].structure for i in present}
        columns = [f"struct_extract(r, {text_literal(names[i])}) AS c{i}" for i in present]
        parsed = f"SELECT from_json_strict(v, {json_literal(structure)}) AS r FROM records"
        return f"SELECT {', '.join(columns)} FROM ({parsed})"


def doubtful(texts: pa.Array) -> np.ndarray:
    """Return a mask of payloads that may be invalid JSON that DuckDB accepts, or nested too deeply for Python."""
    found = np.zeros(len(texts), bool)
    bounds, data = bounds_and_bytes(texts)
    if _may_be_doubtful(data[bounds[0] : bounds[-1]]):
        found |= pc.match_substring_regex(texts, _DOUBTFUL_TEXT).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(np.diff(bounds) > 2 * _DEPTH_MAX)
    if len(long):
        some = texts.take(pa.array(long))
        brackets = pc.add(pc.count_substring(some, "["), pc.count_substring(some, "{"))
        found[long] |= pc.greater(brackets, _DEPTH_MAX).to_numpy(zero_copy_only=False)
    return found


def _may_be_doubtful(data: np.ndarray) -> bool:
    """Return whether any payload may match ``_DOUBTFUL_TEXT``; faster than the regex, but with false positives."""
    # A block fits in the CPU cache. Blocks overlap, so that a match across a block boundary is found.
    return any(_block_may_be(data[max(at - 4, 0) : at + _BLOCK]) for at in range(0, len(data), _BLOCK))


def _block_may_be(data: np.ndarray) -> bool:
    lower = data | 0x20
    # Setting bit 0x20 also maps "]" to "}".
    before = data[:-1]
    if ((lower[1:] == ord("}")) & ((before == ord(",")) | (before <= ord(" ")))).any():
        return True
    for word in (b"nan", b"inf"):
        found = (lower[1:-2] == word[0]) & (lower[2:-1] == word[1]) & (lower[3:] == word[2])
        if found.any() and np.isin(data[:-3][found], _BEFORE_A_VALUE).any():
            return True
    return False
