"""``t$audit_log`` and ``t$binlog``: the changes of a store table as rows that are only added, with the kind of each.

In the binlog an update is one row, whose columns are arrays of the value before and the value after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.sql.catalog.read_range import ReadRange, inserted, rows_then_changes
from tablestore.sql.catalog.table_frames import with_computed
from tablestore.sql.catalog.table_references import AUDIT_LOG, BINLOG
from tablestore.sql.parser.statements import CreateTable
from tablestore.table.store import TableStore

_ROWKIND: Final = "rowkind"
_BEFORE: Final = "_before"


def past_changes(
    table: TableStore,
    made: CreateTable,
    *,
    paired: bool,
    between: ReadRange | None,
    snapshot: Mapping[str, Any] | None,
) -> DataFrame:
    """Return the rows of the oldest snapshot that has not expired, as inserts, and all changes since then.

    Args:
        table: the table.
        made: its definition.
        paired: whether they are those of the binlog.
        between: only the changes of a range; None for all.
        snapshot: only the rows of one snapshot, as inserts: arguments of ``TableStore.read``; None for none.

    Raises:
        InvalidInputError: the table has a column ``rowkind``.
    """
    if between is not None:
        changes = between.changes(table)
    elif snapshot is not None:
        changes = inserted(table, **snapshot)
    else:
        changes = rows_then_changes(table, table.snapshots()[-1].id)
    return _with_kinds(changes, table, made, paired=paired)


def stream_of_changes(table: TableStore, made: CreateTable, *, paired: bool, options: Mapping[str, Any]) -> DataFrame:
    """Return the rows of the newest snapshot, as inserts, and then every change; ``paired`` as in `past_changes`.

    Args:
        table: the table.
        made: its definition.
        paired: whether they are those of the binlog.
        options: where the stream begins: arguments of ``TableStore.read_stream``.

    Raises:
        InvalidInputError: the table has a column ``rowkind``, or its log has no order of the changes to pair.
    """
    if paired and table.log.shows_uncommitted:
        msg = (
            f"table {table.path!r}: a continuous query of '${BINLOG}' is not supported with log.consistency="
            f"'eventual', whose changes have no snapshot. Use '${AUDIT_LOG}', in which an update is two rows."
        )
        raise InvalidInputError(msg)
    return _with_kinds(table.read_stream(**options), table, made, paired=paired)


def _with_kinds(changes: DataFrame, table: TableStore, made: CreateTable, *, paired: bool) -> DataFrame:
    """Return changes with their kinds first and, unless they are ``paired``, with the table's computed columns."""
    names = table.schema.names if paired else [column.name for column in made.columns]
    if _ROWKIND in map(str.lower, names):
        msg = f"table {table.path!r}: its changes have a column '{_ROWKIND}', and so has the table: rename that."
        raise InvalidInputError(msg)
    kinds = [F.when(F.col(CHANGE_TYPE) == kind.change_type, F.lit(kind.sign)) for kind in RowKind]
    changes = changes.withColumn(CHANGE_TYPE, F.coalesce(*kinds))
    columns = [F.col(backquoted(name)) for name in names]
    if paired:
        changes, columns = _paired(changes, columns, table.primary_key)
    else:
        changes = with_computed(changes, made)
    return changes.select(F.col(CHANGE_TYPE).alias(_ROWKIND), *columns)


def _paired(
    changes: DataFrame, columns: Sequence[Column], primary_key: Sequence[str]
) -> tuple[DataFrame, list[Column]]:
    """Return the changes without preimages, and each column as an array of its value and, of an update, the one before.

    A snapshot has at most one change of a key, whose preimage sorts before its postimage: ``-`` after ``+``.
    """
    names = changes.columns[: len(columns)]
    alone = [F.array(column).alias(name) for name, column in zip(names, columns, strict=True)]
    if not primary_key:
        return changes, alone
    keys = [F.col(backquoted(name)) for name in primary_key]
    version, kind = F.col(COMMIT_VERSION), F.col(CHANGE_TYPE)
    row = F.struct(version.alias("version"), kind.alias("kind"), F.struct(*columns).alias("row"))
    ordered = Window.partitionBy(*keys).orderBy(version, kind.desc())
    changes = changes.withColumn(_BEFORE, F.lag(row).over(ordered)).where(kind != RowKind.UPDATE_BEFORE.sign)
    before, update = F.col(_BEFORE), RowKind.UPDATE_BEFORE.sign
    is_pair = (F.col(f"{_BEFORE}.kind") == update) & (F.col(f"{_BEFORE}.version") == version)
    return changes, [
        F.when(is_pair, F.array(before["row"].getField(name), column)).otherwise(one).alias(name)
        for name, column, one in zip(names, columns, alone, strict=True)
    ]
