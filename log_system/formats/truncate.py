"""The record that says of a log partition that all of its rows are gone, in formats of one record a change.

It stands beside the records of rows and never among those of one batch: ``arrow`` needs no help, its rows have a kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.base import DecodedChanges, EncodedRecords, LogFormat, Payloads, as_binary
from snapshot.errors import CorruptedError
from snapshot.row_kind import TRUNCATE
from snapshot.schema.system_columns import truncate_row

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
            return EncodedRecords(as_binary([None]), as_binary([RECORDS[self.name]]), np.ones(1, np.int64))
        return self._rows.encode(changes)

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Turn records into changes; the record becomes a row without values.

        Raises:
            CorruptedError: a record that this format does not write.
        """
        if own:
            # Our readers are given the rows that went from the table's files.
            return self._rows.decode(keys, values, own=own)
        keys, values = as_binary(keys), as_binary(values)
        is_record = pc.and_(pc.equal(values, pa.scalar(RECORDS[self.name], values.type)), keys.is_null())
        is_gone = pc.fill_null(is_record, False).to_numpy(zero_copy_only=False)
        places, gone = np.flatnonzero(~is_gone), np.flatnonzero(is_gone)
        if not len(gone):
            return self._rows.decode(keys, values)
        try:
            found = self._rows.decode(keys.take(pa.array(places)), values.take(pa.array(places)))
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
