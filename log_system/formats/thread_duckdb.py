"""DuckDB for one thread at a time: Arrow in and out, limited memory, no extensions and no Python variables."""

from __future__ import annotations

import atexit
import weakref
from collections import OrderedDict
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from snapshot.arrow_slices import unsliced
from snapshot.duckdb_connection import connect, give_back, interruptible, take

SLICE_BYTES = 8 << 20
"""Size of the batches to give to a ``Duck``: it may hold ten copies of long values, and texts stay below 2 GB."""
_STATEMENTS_MAX = 64


class _Slot:
    """A registered table whose batch can be replaced, so that a prepared query can run on many batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.batch: pa.RecordBatch | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = [] if self.batch is None else [self.batch]
        return pa.RecordBatchReader.from_batches(self.schema, batches).__arrow_c_stream__()


class Duck:
    """Runs SQL over Arrow batches. The connection opens with the first query and is not pickled.

    Each query is prepared once: planning takes 3 ms, as long as running it on 10,000 rows of JSON. Opening and closing
    DuckDB takes 20 ms. So the connection of a `Duck` that is gone, with what it has prepared, serves a later one: a
    Spark task decodes with new objects, in a Python worker that earlier tasks have used.
    """

    def __init__(self, memory_limit: str) -> None:
        """Store the memory limit in DuckDB's notation (``256MB``); nothing is opened until the first query."""
        self._memory_limit = memory_limit
        self._database: _PreparedQueries | None = None

    def __del__(self) -> None:
        """Leave the connection to later objects with the same memory limit."""
        if self._database is not None:
            give_back(self._memory_limit, self._database)

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without the connection."""
        return {"_memory_limit": self._memory_limit}

    def __setstate__(self, state: dict[str, str]) -> None:
        """Restore a pickled state, without a connection."""
        self._memory_limit = state["_memory_limit"]
        self._database = None

    def run(self, sql: str, **tables: pa.RecordBatch) -> pa.RecordBatch:
        """Run one query over batches, each named by its keyword, and return the result as one batch.

        Raises:
            duckdb.Error: the query failed; the next query opens a new connection if this one is unusable.
            KeyboardInterrupt: Ctrl-C interrupted the query.
        """
        try:
            with interruptible():
                result = self._opened(sql).run(sql, tables)
        except (duckdb.FatalException, duckdb.InternalException, KeyboardInterrupt):
            # After these errors the DuckDB connection is unusable; an interrupt may leave a table or a statement
            # half created.
            self.forget()
            raise
        except UnicodeDecodeError as error:
            # DuckDB quotes the offending text in its message and may truncate it in the middle of a character.
            msg = f"the query failed, with a message that cannot be shown: {error.object!r:.300}"
            raise duckdb.InvalidInputException(msg) from error
        batches = result.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)

    def forget(self) -> None:
        """Drop the connection; the next query opens a new one."""
        self._database = None

    def _opened(self, sql: str) -> _PreparedQueries:
        if self._database is None:
            _open.add(self)
            idle = take(self._memory_limit, lambda database: database.has_prepared(sql))
            self._database = idle or _PreparedQueries(self._memory_limit)
        return self._database


class _PreparedQueries:
    """A DuckDB connection, with tables whose batches are replaced and queries that are prepared."""

    def __init__(self, memory_limit: str) -> None:
        self._connection = connect(memory_limit=memory_limit, python_enable_replacements=False)
        self._slots: dict[str, _Slot] = {}
        self._statements: OrderedDict[str, str] = OrderedDict()
        self._numbers = 0

    def has_prepared(self, sql: str) -> bool:
        """Return whether a query is prepared."""
        return sql in self._statements

    def close(self) -> None:
        """Close DuckDB."""
        self._connection.close()

    def run(self, sql: str, tables: Mapping[str, pa.RecordBatch]) -> pa.Table:
        """Return the result of a query; batches are let go afterwards."""
        try:
            for name, table in tables.items():
                self._slot(name, table.schema).batch = unsliced(table)
            statement = self._prepared(sql)
            rows = max(len(table) for table in tables.values())
            return self._connection.sql(f"EXECUTE {statement}").to_arrow_table(batch_size=max(rows, 1))
        finally:
            for name in tables:
                if name in self._slots:
                    self._slots[name].batch = None

    def _slot(self, name: str, schema: pa.Schema) -> _Slot:
        """Return the slot of a table; a changed schema replaces the slot and drops all prepared statements."""
        slot = self._slots.get(name)
        if slot is None or slot.schema != schema:
            slot = self._slots[name] = _Slot(schema)
            self._connection.register(name, slot)
            while self._statements:
                self._connection.execute(f"DEALLOCATE {self._statements.popitem()[1]}")
        return slot

    def _prepared(self, sql: str) -> str:
        """Return the name of the prepared statement for a query."""
        if sql not in self._statements:
            while len(self._statements) >= _STATEMENTS_MAX:
                self._connection.execute(f"DEALLOCATE {self._statements.popitem(last=False)[1]}")
            self._numbers += 1
            statement = f"query_{self._numbers}"
            self._connection.execute(f"PREPARE {statement} AS {sql}")
            self._statements[sql] = statement
        self._statements.move_to_end(sql)
        return self._statements[sql]


_open: weakref.WeakSet[Duck] = weakref.WeakSet()


@atexit.register
def _forget_all() -> None:
    """Drop all connections at exit: DuckDB prints leak reports if a thread still holds one when Python ends."""
    for duck in list(_open):
        duck.forget()
