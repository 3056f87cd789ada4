"""The record that says of a log partition that all of its rows are gone, in formats of one record a change.

It stands beside the records of rows and never among those of one batch: ``arrow`` needs no help, its rows have a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from log_system.formats.base import DecodedChanges, EncodedRecords, LogFormat
from snapshot.errors import CorruptedError
from snapshot.rowkind import TRUNCATE
from snapshot.schema import truncate_row

RECORDS: Mapping[str, bytes] = {
    "json": b'{"_change_type":"truncate"}',
    "debezium-json": b'{"before":null,"after":null,"op":"t"}',
}
"""The value of the record, whose key is null, by format. No column of a table is called ``_change_type``; ``t`` is what
Debezium says of a TRUNCATE."""


class TruncatingFormat:
    """A format that knows the record too."""

    def __init__(self, rows: LogFormat) -> None:
        """Add the record to a format of rows."""
        self.name = rows.name
        self._rows = rows

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Turn changes into records; a batch that says that rows are gone says nothing else."""
        if changes.num_rows == 1 and changes.column(changes.num_columns - 1)[0].as_py() == TRUNCATE:
            return EncodedRecords([None], [RECORDS[self.name]], np.ones(1, np.int64))
        return self._rows.encode(changes)

    def decode(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], *, own: bool = False
    ) -> DecodedChanges:
        """Turn records into changes; the record becomes a row without values.

        Raises:
            CorruptedError: a record that this format does not write.
        """
        record = RECORDS[self.name]
        if own or record not in values:
            # Our readers are given the rows that went from the table's files.
            return self._rows.decode(keys, values, own=own)
        is_row = np.array([value != record or key is not None for key, value in zip(keys, values, strict=True)])
        places, gone = np.flatnonzero(is_row), np.flatnonzero(~is_row)
        try:
            found = self._rows.decode([keys[i] for i in places.tolist()], [values[i] for i in places.tolist()])
        except CorruptedError as error:
            head, _, text = str(error).partition(":")
            number = head.removeprefix("record ")
            if not number.isdigit():
                raise
            msg = f"record {places[int(number)]}:{text}"
            raise CorruptedError(msg) from error
        count = len(found.record)
        batch = pa.concat_batches([found.batch, truncate_row(found.batch.schema)])
        records = np.concatenate([places[found.record], gone])
        rows = np.concatenate([np.arange(count), np.full(len(gone), count)])
        order = np.argsort(records, kind="stable")
        return DecodedChanges(batch.take(pa.array(rows[order])), records[order])
