"""Writes a task's changes and tombstones by bucket."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.delta.log import DataFile
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import BUCKET, relabelled
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.storage import Storage

TOMBSTONES = "tombstones"
"""Subfolder of the changes folder. Its files belong to a commit but not to the changes of a snapshot: they contain the
key and the sequence of deletes, so that a late row with a smaller sequence does not restore a deleted row."""


def is_tombstones(path: str) -> bool:
    """Return whether a file of the commit table contains tombstones instead of changes."""
    return path.startswith(f"{TOMBSTONES}/")


class BucketedChanges:
    """Writes changes and tombstones to files of their bucket."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, keys: Sequence[str], *, task: int, target_bytes: int
    ) -> None:
        """Prepare to write into the changes folder ``storage``; ``schema`` has physical names, ``keys`` is the key."""
        self._storage = storage
        self._schema = schema
        self._keys = keys
        self._task = task
        self._target_bytes = target_bytes
        self._deletes: dict[int, int] = {}
        self.writers: dict[tuple[str, int], ParquetFiles] = {}

    def write(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Add changes of a bucket."""
        self._writer("", bucket, self._schema).write(relabelled(changes, self._schema))
        kinds = changes.column(changes.schema.get_field_index(KIND))
        deletes = pc.sum(pc.equal(kinds, int(RowKind.DELETE))).as_py() or 0
        self._deletes[bucket] = self._deletes.get(bucket, 0) + deletes

    def bury(self, bucket: int, tombstones: pa.RecordBatch) -> None:
        """Add tombstones of a bucket."""
        self._writer(TOMBSTONES, bucket, tombstones.schema).write(tombstones)

    def close(self) -> list[tuple[int, DataFile, int | None]]:
        """Finish all files.

        Returns:
            For each file its bucket, the file, and the bucket's number of deletes with the bucket's first change file,
            else None.
        """
        files: list[tuple[int, DataFile, int | None]] = []
        for (folder, bucket), writer in self.writers.items():
            for number, file in enumerate(writer.close()):
                files.append((bucket, file, self._deletes[bucket] if number == 0 and not folder else None))
        return files

    def _writer(self, folder: str, bucket: int, schema: pa.Schema) -> ParquetFiles:
        if (folder, bucket) not in self.writers:
            self.writers[folder, bucket] = ParquetFiles(
                self._storage,
                schema,
                prefix=f"{bucket:05d}-{self._task:05d}",
                folder=folder,
                partition={BUCKET: str(bucket)},
                target_bytes=self._target_bytes,
                sought=() if folder else self._keys,
            )
        return self.writers[folder, bucket]
