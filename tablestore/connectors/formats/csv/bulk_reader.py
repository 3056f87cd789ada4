"""Bulk decoder of CSV payloads with Arrow's CSV reader; every row it returns is identical to ``row_reader``'s.

The payloads are joined to a file with one line each. Each line is exactly one payload, because no payload contains a
line break and the number of rows is checked. Payloads that Arrow and Jackson may parse differently are excluded first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as pt

from tablestore.connectors.formats.bulk_decode import BulkRows
from tablestore.connectors.formats.csv.row_reader import CsvOptions
from tablestore.connectors.formats.text_casts import cast_texts

_SMALL = 64
"""If Arrow rejects this many payloads or fewer, they are left to the caller instead of being split further."""

_SPECIAL = r".+*?()[]{}|^$\/-"


class CsvBulkReader:
    """Decodes many payloads at once."""

    def __init__(self, schema: pa.Schema, options: CsvOptions) -> None:
        """Prepare the decoder for a schema."""
        self._schema, self._options = schema, options
        ascii_only = options.delimiter.isascii() and (options.quote or "").isascii()
        flat = not any(kind.num_fields or pt.is_binary(kind) for kind in schema.types)
        self.able = len(schema) > 0 and flat and ascii_only and options.escape is None and not options.comments
        delimiter, quote = _escaped(options.delimiter), _escaped(options.quote or "")
        plain = rf"[^{delimiter}{quote}]*"
        field = rf"({plain}|{quote}([^{quote}]|{quote}{quote})*{quote})" if quote else plain
        count = len(schema) - 1
        self._line = rf"(?s)^{field}({delimiter}{field}){{{count}}}$" if count <= 1000 else None

    def read(self, texts: pa.Array) -> Iterator[BulkRows]:
        """Decode payloads (large_string, none NULL or empty) and leave out the doubtful ones."""
        if not self.able or self._line is None:
            return
        # Exclude payloads with a byte order mark: Arrow skips it, Jackson and the row reader do not.
        odd = pc.or_(pc.match_substring_regex(texts, r"[\r\n\x{feff}]"), pc.equal(texts, ""))
        plain = pc.and_not(pc.match_substring_regex(texts, self._line), odd)
        yield from self._read(texts, np.flatnonzero(plain.to_numpy(zero_copy_only=False)))

    def _read(self, texts: pa.Array, positions: np.ndarray) -> Iterator[BulkRows]:
        if not len(positions):
            return
        chosen = texts if len(positions) == len(texts) else texts.take(pa.array(positions))
        try:
            columns = self._split(chosen)
        except pa.ArrowInvalid:
            if len(positions) > _SMALL:
                middle = len(positions) // 2
                yield from self._read(texts, positions[:middle])
                yield from self._read(texts, positions[middle:])
            return
        read = np.ones(len(positions), bool)
        made = []
        for column, field in zip(columns, self._schema, strict=True):
            typed, known = self._column(column, field)
            if known is not None:
                read &= known
            if not field.nullable and typed.null_count:
                read &= typed.is_valid().to_numpy(zero_copy_only=False)
            made.append(typed)
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        if read.all():
            yield BulkRows(positions, batch)
        else:
            yield BulkRows(positions[read], batch.filter(pa.array(read)))

    def _split(self, texts: pa.Array) -> list[pa.Array]:
        """Split lines into text columns.

        Raises:
            pa.ArrowInvalid: some line is invalid.
        """
        one = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
        joined = pc.binary_join(one, b"\n")[0].as_buffer()
        names = [str(i) for i in range(len(self._schema))]
        table = pyarrow.csv.read_csv(
            pa.BufferReader(joined),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=joined.size + 1, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._options.delimiter,
                quote_char=self._options.quote or False,
                double_quote=True,
                newlines_in_values=False,
                ignore_empty_lines=False,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        if len(table) != len(texts):
            msg = "another number of lines"
            raise pa.ArrowInvalid(msg)
        return [column.combine_chunks() for column in table.columns]

    def _column(self, texts: pa.Array, field: pa.Field) -> tuple[pa.Array, np.ndarray | None]:
        null = pa.scalar(None, pa.string())
        if self._options.null is not None:
            texts = pc.if_else(pc.equal(texts, self._options.null), null, texts)
        if not pt.is_string(field.type):
            texts = pc.if_else(pc.equal(texts, ""), null, texts)
        return cast_texts(texts, field.type, separator=" ")


def _escaped(character: str) -> str:
    return "\\" + character if character and character in _SPECIAL else character
