"""Adopts row changes made by other Delta writers, whose commits do not list the changes that they make.

A ``DELETE``, ``UPDATE``, ``MERGE``, ``RESTORE`` or overwrite by another tool removes files and adds others. Its changes
are the multiset difference of the rows in the two sets of files. A commit by this module, the adoption, lists the
difference as its own changes and records the last version that it covers (``tablestore-adopted``). From then on, the
covered versions count as having no changes. So the log, streams and ``verify`` see the same changes in the same order,
and as of the adoption's snapshot, log and table agree again.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from snapshot.delta.log import Commit, DataFile
from snapshot.errors import ConflictError, DataLostError, InvalidInputError, NotFoundError
from snapshot.messages import counted
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import relabelled, with_kind
from snapshot.staging.bucket_difference import FilesDifference
from snapshot.staging.parquet_writer import ParquetFiles, removed_on_error
from snapshot.staging.stage import CHANGES
from snapshot.store.changes import listed
from snapshot.store.commit import ATTEMPTS_MAX
from snapshot.store.lookup import base_file
from snapshot.store.table_files import ADOPTED, TableFiles
from tablestore.context import TableContext

logger = logging.getLogger("tablestore")

KIND_OF_SNAPSHOT = "adopt"


@dataclass(frozen=True)
class Adoption:
    """The result of an adoption.

    Attributes:
        snapshot: id of the adoption's snapshot.
        published: versions of other writers whose changes were adopted.
        skipped: versions that were left out on request, and what they did.
        rows: number of adopted changes.
    """

    snapshot: int
    published: tuple[int, ...]
    skipped: tuple[str, ...]
    rows: int


@dataclass
class _StagedDifference:
    files: list[DataFile] = field(default_factory=list)
    deletes: int = 0


def adopt(table: TableContext, skip: Collection[int] = ()) -> Adoption | None:
    """Adopt the row changes that other Delta writers made since the last published snapshot.

    1. Find their commits. If there are none, return.
    2. Compare the files that these commits removed with those that they added, and write the differences as changes.
       A crash leaves files that nothing refers to.
    3. Commit the changes. A crash after that leaves a snapshot that recovery publishes.

    Args:
        table: the table.
        skip: versions of other writers whose changes are left out of log and streams.

    Returns:
        The adoption; None if there was nothing to adopt.

    Raises:
        InvalidInputError: a version to skip is not an unpublished version of another writer; or a version deletes rows,
            which the log's format cannot express.
        DataLostError: removed files are gone, so the changes of their version can only be skipped.
        CorruptedError: another writer changed rows of a table with a key.
        ConflictError: other writers committed first too often.
    """
    files = table.files
    for _ in range(ATTEMPTS_MAX):
        # Step 1.
        through = files.latest()
        waiting = _waiting(table, through)
        _check_waits(files, skip, {found.version for found in waiting})
        if not waiting:
            return None
        # Step 2.
        wanted = [found for found in waiting if found.version not in skip]
        staged = _stage(table, wanted)
        # Step 3.
        skipped = tuple(_told(files, found) for found in waiting if found.version in skip)
        versions = tuple(found.version for found in wanted)
        facts = listed(changed=staged.files)
        info = {"kind": KIND_OF_SNAPSHOT, "commit": f"{uuid.uuid4().hex}:1", "adopts": versions, "skips": skipped}
        try:
            files.log.commit(through + 1, add=(), info={**info, **facts}, transactions=[(ADOPTED, through)])
        except ConflictError:
            files.storage.delete(*(file.path for file in staged.files))
            continue
        for each in skipped:
            logger.warning("%s: %s; log and streams are not given what it changed.", files.storage.root, each)
        return Adoption(through + 1, versions, skipped, facts["rows"])
    msg = f"{files.storage.root}: other writers committed first {ATTEMPTS_MAX} times in a row; try again."
    raise ConflictError(msg)


def _waiting(table: TableContext, through: int) -> list[Commit]:
    """Return other writers' commits whose changes are neither published nor adopted, oldest first."""
    files = table.files
    first = 0 if not table.log.publishes else table.index.newest() + 1
    if first > through:
        return []
    first = max(first, files.oldest(fresh=False), (files.log.transaction_version(ADOPTED, fresh=False) or 0) + 1)
    found = [each for each in files.log.commits(through, first) if files.needs_adoption(each)]
    return found[::-1]


def _check_waits(files: TableFiles, skip: Collection[int], waiting: Collection[int]) -> None:
    others = sorted(set(skip) - set(waiting))
    if others:
        what = f"of {sorted(waiting)}" if waiting else "of none, since no version waits to be published"
        msg = (
            f"{files.storage.root}: skip: expected versions of other Delta writers that wait to be published, some "
            f"{what}; got {others}. Nothing was changed."
        )
        raise InvalidInputError(msg)


def _stage(table: TableContext, found: Sequence[Commit]) -> _StagedDifference:
    """Write the changes of some versions to change files."""
    files, staged = table.files, _StagedDifference()
    writer = ParquetFiles(
        files.storage,
        with_kind(files.spec.physical),
        prefix="adopted",
        folder=CHANGES,
        target_bytes=table.options.write.target_file_size_bytes,
    )
    with removed_on_error({0: writer}, files.storage):
        for batch in _difference(files, found).changes():
            kinds = batch.column(KIND).to_numpy()
            staged.deletes += int((kinds == RowKind.DELETE).sum())
            writer.write(relabelled(batch, with_kind(files.spec.physical)))
        _check_says_deletes(table, found, staged.deletes)
        staged.files = writer.close()
    return staged


def _difference(files: TableFiles, found: Sequence[Commit]) -> FilesDifference:
    """Return the comparison between the files that the given versions removed and those that they added.

    A file that one version added and another removed is ignored, and so is one that was removed and added again.
    Commits in between, such as an ``OPTIMIZE``, may remove and add files too, so that several of the versions add the
    same one: its rows count once for each.

    Raises:
        CorruptedError: the table has a key, so other writers must not change its rows.
        InvalidInputError: a version has deletion vectors.
        DataLostError: a removed file is gone, or the Delta log no longer knows it.
    """
    listed_files: dict[str, DataFile] = {}
    taken: dict[str, Commit] = {}
    times: Counter[str] = Counter()
    for each in found:
        if files.spec.has_key:
            files.changes(each.version, 1)
        if each.deletion_vectors:
            msg = (
                f"{files.storage.root}: version {each.version} has deletion vectors, which are not read. {_skip(each)}"
            )
            raise InvalidInputError(msg)
        known = _before(files, each)
        for path in each.removed:
            listed_files[path], taken[path] = known[path], each
            times[path] -= 1
        for file in each.added:
            listed_files[file.path] = file
            times[file.path] += 1
    gone = [listed_files[path] for path, count in times.items() for _ in range(-count)]
    come = [listed_files[path] for path, count in times.items() for _ in range(count)]
    for file in gone:
        if not files.storage.exists(file.path):
            path, last = files.storage.path(file.path), taken[file.path]
            msg = f"{path}: version {last.version} took this file out, and it is gone (VACUUM?). {_skip(last)}"
            raise DataLostError(msg)
    return FilesDifference(
        files.storage,
        files.spec,
        tuple(base_file(files, file) for file in gone),
        tuple(base_file(files, file) for file in come),
    )


def _before(files: TableFiles, found: Commit) -> dict[str, DataFile]:
    """Return the table's files before a version, by path.

    Raises:
        DataLostError: the Delta log no longer knows the files that the version removed.
    """
    try:
        before = {file.path: file for file in files.log.files(found.version - 1)}
    except NotFoundError:
        before = {}
    if not before.keys() >= set(found.removed):
        msg = f"{files.storage.root}: the rows that version {found.version} removed are no longer known. {_skip(found)}"
        raise DataLostError(msg)
    return before


def _check_says_deletes(table: TableContext, found: Sequence[Commit], deletes: int) -> None:
    log = table.options.log
    if deletes and log is not None and log.traits.deletes_need_key:
        msg = (
            f"{table.path}: versions {[each.version for each in found]} delete rows, and log.format={log.format!r} "
            f"identifies a deleted row by its primary key, and this table has none. {_skip(*found)}"
        )
        raise InvalidInputError(msg)


def _skip(*found: Commit) -> str:
    versions = [each.version for each in found]
    options = " ".join(f"--skip-version {version}" for version in versions)
    return (
        f"Leave it out of the log by recover(skip_foreign={versions}) or 'tablestore recover {options}'. Nothing was "
        "changed."
    )


def _told(files: TableFiles, found: Commit) -> str:
    """Return a description of what a skipped version did."""
    added = sum(max(file.rows, 0) for file in found.added)
    try:
        before = _before(files, found)
        rows = " of " + counted(sum(max(before[path].rows, 0) for path in found.removed), "row")
    except (DataLostError, InvalidInputError):
        rows = ""
    return (
        f"version {found.version} ({found.operation or 'no operation given'}) took "
        f"{counted(len(found.removed), 'file')}{rows} out and brought {counted(len(found.added), 'file')} of "
        f"{counted(added, 'row')} in"
    )
