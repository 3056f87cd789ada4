"""The truncate record, which deletes all rows of a log partition, for formats with one record per change.

A batch holds either one truncate or row changes, never both. The ``arrow`` format needs no such record, because its
rows carry a row kind.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.base import DecodedChanges, EncodedRecords, LogFormat, Payloads, as_binary
from snapshot.errors import BadRecordError
from snapshot.row_kind import TRUNCATE
from snapshot.schema.system_columns import truncate_row


class TruncatingFormat:
    """A log format that adds the truncate record to a format of row changes."""

    def __init__(self, rows: LogFormat, record: bytes) -> None:
        """Add the truncate record, with the value ``record`` and no key, to ``rows``, a format of row changes."""
        self.name = rows.name
        self._rows = rows
        self._record = record

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Encode row changes, or a batch that consists of a single truncate row, as records."""
        if changes.num_rows == 1 and is_truncate(changes):
            return EncodedRecords(as_binary([None]), as_binary([self._record]), np.ones(1, np.int64))
        return self._rows.encode(changes)

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Decode records into changes; a truncate record becomes a row without values."""
        if own:
            # The table's own readers get the deleted rows from its files, not from truncate records.
            return self._rows.decode(keys, values, own=own)
        keys, values = as_binary(keys), as_binary(values)
        is_record = pc.and_(pc.equal(values, pa.scalar(self._record, values.type)), keys.is_null())
        is_gone = pc.fill_null(is_record, False).to_numpy(zero_copy_only=False)
        places, gone = np.flatnonzero(~is_gone), np.flatnonzero(is_gone)
        if not len(gone):
            return self._rows.decode(keys, values)
        try:
            found = self._rows.decode(keys.take(pa.array(places)), values.take(pa.array(places)))
        except BadRecordError as error:
            raise BadRecordError(int(places[error.position]), error.reason) from error
        count = len(found.record)
        batch = pa.concat_batches([found.batch, truncate_row(found.batch.schema)])
        records = np.concatenate([places[found.record], gone])
        rows = np.concatenate([np.arange(count), np.full(len(gone), count)])
        order = np.argsort(records, kind="stable")
        return DecodedChanges(batch.take(pa.array(rows[order])), records[order])


def is_truncate(changes: pa.RecordBatch) -> bool:
    """Return whether a batch of changes, whose last column is ``_kind``, is a truncate of all rows."""
    kinds = changes.column(changes.num_columns - 1)
    return bool(changes.num_rows) and kinds[0].as_py() == TRUNCATE
