"""Published changes of a snapshot that replaces all rows: one truncate record per partition, then the new rows.

The table's files still contain a delete for each row; readers of this program return those deletes instead of the
truncate record. The published changes depend only on the files and the commit, so every attempt to publish sends the
same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.records import Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.physical_names import Columns
from snapshot.schema.system_columns import BUCKET, truncate_row
from snapshot.staging.stage import StagedFile
from snapshot.store.changes import SnapshotChanges

TRUNCATES = "truncate-record"
"""Key of a commit whose deletes are published as truncate records: the number of deletes in its files, by bucket."""


def truncating(staged: Sequence[StagedFile], *, has_key: bool) -> dict[str, dict[str, int]]:
    """Return the commit's record that its deletes are published as one record in each log partition.

    Args:
        staged: the files of the commit.
        has_key: whether the table has a key; without one, deletes are removed files, not rows.
    """
    deletes: dict[str, int] = {}
    for each in staged if has_key else ():
        if each.deletes:
            bucket = str(each.file.partition[BUCKET])
            deletes[bucket] = deletes.get(bucket, 0) + each.deletes
    return {TRUNCATES: deletes}


@dataclass(frozen=True)
class TruncatedChanges:
    """The published changes of a snapshot that replaces all rows.

    In each bucket, they are a row for the truncate record, then the new rows.

    Attributes:
        held: the changes in the files.
        deletes: the number of deletes among them, by bucket.
    """

    held: SnapshotChanges
    deletes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, held: SnapshotChanges, counts: Mapping[str, int]) -> TruncatedChanges:
        """Return the published form of a truncating snapshot's changes.

        Args:
            held: the changes in the files, which include the deletes.
            counts: the value of ``TRUNCATES`` in the commit: the number of deletes by bucket.
        """
        coming = {
            bucket: tuple(file for file in files if file.path not in held.deleted)
            for bucket, files in held.files.items()
        }
        return cls(replace(held, files=coming), {int(bucket): count for bucket, count in counts.items()})

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        return self.held.snapshot

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table had in this snapshot, then ``_kind``."""
        return self.held.schema

    @property
    def columns(self) -> Columns:
        """The same columns with their names and with their physical names."""
        return self.held.columns

    @property
    def buckets(self) -> Iterable[int]:
        """The buckets with rows besides the truncate record, which every partition gets."""
        return self.held.buckets

    def rows(self, bucket: int) -> int:
        """Return the number of changes in a bucket; the first one is the truncate record."""
        return 1 + self.held.rows(bucket) - self.deletes.get(bucket, 0)

    def missing(self) -> list[str]:
        """Return the paths of files that do not exist."""
        return self.held.missing()

    def batches(self, bucket: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield a bucket's changes without the first ``skip``."""
        if skip == 0:
            yield truncate_row(self.schema)
        skip = max(skip - 1, 0)
        for batch in self.held.batches(bucket):
            kinds = batch.column(KIND)
            coming = batch.filter(pc.not_equal(kinds, int(RowKind.DELETE)))
            if skip < coming.num_rows:
                yield coming.slice(skip)
            skip = max(skip - coming.num_rows, 0)
