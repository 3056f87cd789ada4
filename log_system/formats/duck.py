"""A DuckDB that reads and gives Arrow batches, for one thread, in bounded memory, without reaching outside."""

from __future__ import annotations

import duckdb
import pyarrow as pa


class Duck:
    """Opens its connection when first asked and leaves it behind when pickled."""

    def __init__(self, memory_limit: str) -> None:
        """Keep the memory limit, in DuckDB's spelling (``256MB``), until the first query."""
        self._memory_limit = memory_limit
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave the connection behind."""
        return {**self.__dict__, "_connection": None}

    def run(self, sql: str, **tables: pa.RecordBatch) -> pa.RecordBatch:
        """Run one query over batches; each is seen under its keyword.

        Raises:
            duckdb.Error: the query failed; the next one runs on a fresh connection if it has to.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = duckdb.connect(
                config={
                    "threads": 1,
                    "memory_limit": self._memory_limit,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                    "python_enable_replacements": False,
                }
            )
        try:
            for name, table in tables.items():
                connection.register(name, table)
            rows = max(len(table) for table in tables.values())
            result = connection.sql(sql).to_arrow_table(batch_size=max(rows, 1))
        except (duckdb.FatalException, duckdb.InternalException):
            # After such an error DuckDB answers nothing more.
            self._connection = None
            raise
        except UnicodeDecodeError as error:
            # DuckDB shows the text at fault in its message and cuts it, now and then in the midst of a character.
            msg = f"the query failed, with a message that cannot be shown: {error.object!r:.300}"
            raise duckdb.InvalidInputException(msg) from error
        finally:
            if self._connection is not None:
                for name in tables:
                    connection.unregister(name)
        batches = result.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
