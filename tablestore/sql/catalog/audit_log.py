"""``t$audit_log``: the changes of a store table as rows that are only added, with the kind of each in a column."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from tablestore.table.store import TableStore

_ROWKIND: Final = "rowkind"
_SIGNS: Final = {RowKind.INSERT: "+I", RowKind.UPDATE_BEFORE: "-U", RowKind.UPDATE_AFTER: "+U", RowKind.DELETE: "-D"}


def past_changes(table: TableStore) -> DataFrame:
    """Return the rows of the oldest snapshot that has not expired, as inserts, and all changes since then.

    Raises:
        InvalidInputError: the table has a column ``rowkind``.
    """
    oldest = table.snapshots()[-1].id
    names = [CHANGE_TYPE, *table.schema.names]
    rows = table.read(snapshot=oldest).withColumn(CHANGE_TYPE, F.lit(RowKind.INSERT.change_type))
    changes = table.changes(oldest)
    return _with_kinds(rows.select(*map(backquoted, names)).union(changes.select(*map(backquoted, names))), table)


def stream_of_changes(table: TableStore) -> DataFrame:
    """Return the rows of the newest snapshot, as inserts, and then every change.

    Raises:
        InvalidInputError: the table has a column ``rowkind``.
    """
    return _with_kinds(table.read_stream(), table)


def _with_kinds(changes: DataFrame, table: TableStore) -> DataFrame:
    if _ROWKIND in map(str.lower, table.schema.names):
        msg = f"table {table.path!r}: its audit log has a column '{_ROWKIND}', and so has the table: rename that."
        raise InvalidInputError(msg)
    kinds = [F.when(F.col(CHANGE_TYPE) == kind.change_type, F.lit(sign)) for kind, sign in _SIGNS.items()]
    columns = [F.col(backquoted(name)) for name in table.schema.names]
    return changes.select(F.coalesce(*kinds).alias(_ROWKIND), *columns)
