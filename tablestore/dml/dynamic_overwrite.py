"""An overwrite of the partitions that occur in the new rows."""

from __future__ import annotations

from collections.abc import Iterable

from snapshot.errors import InvalidInputError
from snapshot.schema.spec import TableSpec
from snapshot.staging.stage import StagedFile
from snapshot.store.table_files import TableFiles
from tablestore.write.optimistic_retry import Replaced


def check_dynamic(spec: TableSpec, where: object) -> None:
    """Check the arguments of a dynamic overwrite.

    Raises:
        InvalidInputError: there is a condition too, or the table has no partitions.
    """
    if where is not None:
        msg = "overwrite: where and dynamic=True exclude each other; give one."
        raise InvalidInputError(msg)
    if not spec.partition_by:
        msg = (
            "overwrite: dynamic=True replaces the partitions of the rows, and this table has none. "
            "Set where, or leave dynamic out to replace all rows."
        )
        raise InvalidInputError(msg)


def replaced_partitions(files: TableFiles, staged: Iterable[StagedFile], base: int) -> Replaced:
    """Return the files of a table without a key that are in the partitions of staged files."""
    names = files.spec.partition_by
    filled = {tuple(each.file.partition[name] for name in names) for each in staged}
    old = [f for f in files.base_table.files(base) if tuple(f.partition.get(name) for name in names) in filled]
    return Replaced(old, (), base)
