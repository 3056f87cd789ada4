"""Reads the rows of a snapshot within this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from snapshot.errors import CorruptedError, InvalidInputError
from snapshot.schema.spec import TableSpec
from snapshot.store.creation import dropped_on_error
from snapshot.store.snapshot_files import SnapshotFiles
from snapshot.store.table_files import TableFiles
from tablestore.local.threads import read_splits
from tablestore.read.split_planner import snapshot_splits

if TYPE_CHECKING:
    from tablestore.local.text_filter import TextPredicate


def reader(
    files: TableFiles,
    snapshot: int | SnapshotFiles,
    wanted: pa.Schema,
    condition: str | TextPredicate | None,
    threads: int,
) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Check a read's arguments and return a function that runs the read; it can be called several times.

    Args:
        files: the table.
        snapshot: the snapshot's id, or its files.
        wanted: the table's columns to read.
        condition: a condition on rows, as text or parsed; None reads all.
        threads: how many buckets to read concurrently.

    Raises:
        InvalidInputError: the condition is invalid.
    """
    spec = files.spec
    predicate = _parsed(condition, spec.arrow)
    names, late = list(wanted.names), predicate is not None and _reads_renamed(spec, predicate)
    if predicate is not None and late:
        names += sorted(predicate.columns - set(names))

    def rows() -> Iterator[pa.RecordBatch]:
        parts = snapshot_splits(
            files, snapshot, tasks=threads, columns=names, predicate=None if late else predicate, spec=spec
        )
        with closing(read_splits(parts, threads)) as batches:
            for batch in predicate.kept(batches) if predicate is not None and late else batches:
                yield batch if batch.schema.names == wanted.names else batch.select(wanted.names)

    def explained() -> Iterator[pa.RecordBatch]:
        try:
            with dropped_on_error(files):
                yield from rows()
        except CorruptedError as error:
            cause = error.__cause__
            if predicate is None or not predicate.converts or not isinstance(cause, duckdb.ConversionException):
                raise
            reason = str(cause).splitlines()[0].rstrip(".")
            msg = (
                f"{predicate.what} cannot be evaluated for every row: {reason}. Use TRY_CAST, which returns NULL there."
            )
            raise InvalidInputError(msg) from error

    return explained


def _reads_renamed(spec: TableSpec, predicate: TextPredicate) -> bool:
    """Return whether a condition reads a struct whose fields have other physical names; then it is applied to rows."""
    columns: Sequence[tuple[pa.Field, pa.Field]] = list(zip(spec.arrow, spec.physical, strict=True))
    return any(named.type != held.type for named, held in columns if named.name in predicate.columns)


def _parsed(condition: str | TextPredicate | None, schema: pa.Schema) -> TextPredicate | None:
    if condition is None:
        return None
    from tablestore.local.text_filter import TextPredicate, parse_filter  # noqa: PLC0415 - sqlglot takes a while to load

    return condition if isinstance(condition, TextPredicate) else parse_filter(condition, schema)
