"""``Catalog``: access to a warehouse's tables by name, and SQL over them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import wrap
from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore.spark.connect import is_remote
from tablestore.sql.catalog import execute_ddl, show
from tablestore.sql.catalog.binding import without_effects
from tablestore.sql.catalog.results import Result, shown
from tablestore.sql.catalog.session_scope import GiveSpark, Scope
from tablestore.sql.catalog.settings import Mode
from tablestore.sql.catalog.table_frames import ConnectorTable
from tablestore.sql.dml import run_verb, show_partitions
from tablestore.sql.inserts import create_table_as, explained_insert, insert, insert_all
from tablestore.sql.parser.parse import parse
from tablestore.sql.parser.procedures import Call
from tablestore.sql.parser.statements import (
    AlterAdd,
    AlterDrop,
    AlterModify,
    AlterRename,
    AlterRenameColumn,
    AlterReset,
    AlterSet,
    AlterWatermark,
    CreateTable,
    CreateTableAs,
    CreateView,
    Delete,
    Describe,
    Drop,
    DropPartitions,
    Explain,
    Insert,
    Merge,
    Overwrite,
    Query,
    ResetOption,
    Select,
    SetOption,
    ShowCreate,
    ShowPartitions,
    ShowTables,
    Statement,
    StatementSet,
    Truncate,
    Update,
)
from tablestore.sql.procedures import call
from tablestore.sql.queries.batch_query import batch_frame, open_table, shape_of
from tablestore.sql.queries.continuous_query import Plan, allowed, plan
from tablestore.table.store import TableStore


class Catalog:
    """The tables and views of a warehouse, and SQL over them.

    Definitions are files in the warehouse, so any number of processes may use it at the same time. Temporary tables
    and settings belong to this object alone. DDL statements need no Spark, but `DESCRIBE` of computed columns does.
    """

    def __init__(
        self,
        spark: GiveSpark,
        warehouse: str | os.PathLike[str],
        *,
        settings: Mapping[str, str] | None = None,
        options: Mapping[str, object] | None = None,
        allow_references: Iterable[str] | None = None,
    ) -> None:
        """Open a warehouse.

        Args:
            spark: a Spark session (see ``tablestore.session``), or a function that creates one when first needed.
            warehouse: folder of definitions and store tables; a local path or the URL of an object store.
            settings: settings as for ``SET``.
            options: Kafka client options for all tables, which are not stored: ``properties.*`` for connector tables,
                ``kafka.*`` for store tables. Some can only be set here, such as ``ssl.engine.location``.
            allow_references: what options of definitions and tables may refer to, such as
                ``["env:ORDERS_*", "file:/etc/kafka/*", "class:my.Partitioner"]``; by default the value of
                ``TABLESTORE_ALLOWED_REFERENCES``. See ``docs/reference/options.md``.
        """
        options = wrap(options or {})
        self._scope = Scope(spark, Storage.at(warehouse), options, Allowed.of(allow_references))
        for key, value in (settings or {}).items():
            self._set(SetOption(key, value))

    def sql(self, text: str) -> Result:
        """Run the statements of a text and return the result of the last one.

        Raises:
            SqlError: the text cannot be parsed; none of it was run.
        """
        result: Result | None = None
        for result in self.run(text):  # noqa: B007 - the last one is wanted
            pass
        if result is None:
            msg = "expected a statement, got an empty text."
            raise InvalidInputError(msg)
        return result

    def run(self, text: str) -> Iterator[Result]:
        """Parse a whole text, then run its statements one at a time as the iterator is advanced.

        Raises:
            SqlError: the text cannot be parsed; none of it was run.
        """
        statements = parse(text)
        return map(self.execute, statements)

    def execute(self, statement: Statement) -> Result:
        """Run a parsed statement."""
        scope = self._scope
        match statement:
            case ShowTables() | ShowPartitions() | ShowCreate() | Describe():
                return self._show(statement)
            case SetOption():
                return self._set(statement)
            case ResetOption():
                return self._reset(statement)
            case Insert() | StatementSet() | CreateTableAs():
                return self._insert(statement)
            case Select():
                with scope.without_checkpoint():
                    planned = self._planned(statement.query)
                each = planned.transform
                return Result(
                    statement,
                    frame=shown(planned.frame) if each is None else planned.frame,
                    output_mode=planned.mode,
                    chained=planned.chained,
                    timed=planned.timed,
                    each=None if each is None else lambda batch: shown(each(batch)),
                )
            case Explain():
                return Result(statement, columns=("plan",), rows=tuple((text,) for text in self._explained(statement)))
            case Delete() | Update() | Truncate() | DropPartitions() | Overwrite() | Merge():
                return run_verb(scope, statement)
            case Call():
                return call(scope, statement)
            case _:
                return self._define(statement)

    def _show(self, statement: ShowTables | ShowPartitions | ShowCreate | Describe) -> Result:
        match statement:
            case ShowTables():
                return show.show_tables(self._scope, statement)
            case ShowPartitions():
                return show_partitions(self._scope, statement)
            case ShowCreate():
                return show.show_create(shape_of(self._scope, statement.name), statement)
            case Describe():
                return show.describe(self._scope, shape_of(self._scope, statement.name), statement)

    def _define(self, statement: execute_ddl.Definer) -> Result:
        scope = self._scope
        match statement:
            case CreateTable():
                done = execute_ddl.create_table(scope, statement)
                what = f"table '{statement.name}' was created{without_effects(statement, statement.options)}"
                return Result(statement, _done(done, what, "it exists already"))
            case CreateView():
                done = execute_ddl.create_view(scope, statement)
                return Result(statement, _done(done, f"view '{statement.name}' was created", "it exists already"))
            case Drop():
                return Result(statement, _done(execute_ddl.drop(scope, statement), f"'{statement.name}' was dropped"))
            case AlterRename():
                done = execute_ddl.rename(scope, statement)
                return Result(statement, _done(done, f"'{statement.name}' was renamed to '{statement.to}'"))
            case (
                AlterSet()
                | AlterReset()
                | AlterAdd()
                | AlterModify()
                | AlterDrop()
                | AlterRenameColumn()
                | AlterWatermark()
            ):
                done = execute_ddl.alter(scope, statement)
                what = f"table '{statement.name}' was changed"
                if done and isinstance(statement, AlterSet):
                    made = scope.definition(statement.name).made
                    what += without_effects(made, statement.options) if isinstance(made, CreateTable) else ""
                return Result(statement, _done(done, what))

    def _insert(self, statement: Insert | StatementSet | CreateTableAs) -> Result:
        if isinstance(statement, StatementSet):
            queries = insert_all(self._scope, statement)
            return Result(statement, f"{len(queries)} queries were started", queries=queries)
        if isinstance(statement, CreateTableAs):
            query, table = create_table_as(self._scope, statement), statement.table.name
        else:
            query, table = insert(self._scope, statement), statement.target
        message = f"rows were written into '{table}'" if query is None else "a query was started"
        return Result(statement, message, queries=() if query is None else (query,))

    def _planned(self, query: Query) -> Plan:
        if self._scope.settings.mode is Mode.BATCH:
            return Plan(batch_frame(self._scope, query))
        return plan(self._scope, query)

    def _explained(self, statement: Explain) -> list[str]:
        explained = statement.statement
        inserts = explained.inserts if isinstance(explained, StatementSet) else (explained,)
        texts = []
        for each in inserts:
            text = io.StringIO()
            with redirect_stdout(text):
                with self._scope.without_checkpoint():
                    planned = (
                        self._planned(each.query) if isinstance(each, Select) else explained_insert(self._scope, each)
                    )
                # Spark takes a frame that is the text of a query for a batch one, and `select` plans it again.
                (planned.frame if planned.shape is None else planned.shape).select("*").explain()
            texts.append(text.getvalue().strip())
        return texts

    def follow(self, result: Result, show_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start a streaming query that passes each micro-batch of a continuous SELECT to a function.

        Args:
            result: the result of the SELECT; its ``frame`` must be a streaming one.
            show_batch: called with the rows of each micro-batch and its number. In output mode ``update`` the last
                column, ``_change_type``, is how each row changes the result: ``insert``, ``update_preimage`` (the
                row as it was), ``update_postimage``, ``delete``.

        Raises:
            InvalidInputError: the result has no streaming frame, or Spark is reached through Spark Connect.
        """
        if result.frame is None or not result.frame.isStreaming:
            msg = "follow: expected the result of a continuous SELECT; collect the frame of other queries."
            raise InvalidInputError(msg)
        if is_remote(self._scope.spark):
            msg = (
                "follow: expected a Spark session in this process; over Spark Connect the function would run on the "
                "server. INSERT the query's result INTO a table, and read that or follow it with read_stream."
            )
            raise InvalidInputError(msg)
        each = result.each

        def show(frame: DataFrame, number: int) -> None:
            show_batch(frame if each is None else each(frame), number)

        writer = result.frame.writeStream.outputMode(result.output_mode).foreachBatch(show)
        with allowed(self._scope.spark, chained=result.chained, timed=result.timed):
            return writer.trigger(**self._scope.settings.trigger).start()

    def table(self, name: str, *, options: Mapping[str, object] | None = None) -> ConnectorTable | TableStore:
        """Return a table, to be read and written in Python.

        Args:
            name: name of the table.
            options: options that are not stored with it, such as ``properties.sasl.password`` (``kafka.*`` for a store
                table).

        Returns:
            A `TableStore`, or a `ConnectorTable`, which has ``read``, ``read_stream``, ``write`` and ``write_stream``
            too.

        Raises:
            NotFoundError: there is no such table.
            InvalidInputError: the name is that of a view.
        """
        return open_table(self._scope, name, wrap(options or {}))

    def tables(self) -> list[str]:
        """Return the names of all tables and views."""
        return [each.name for each in self._scope.all()]

    def columns(self, name: str) -> tuple[str, ...]:
        """Return the names of a table's columns, without Spark; none of a view.

        Raises:
            NotFoundError: there is no such table or view.
        """
        made = self._scope.definition(name).made
        return tuple(column.name for column in made.columns) if isinstance(made, CreateTable) else ()

    def _set(self, statement: SetOption) -> Result:
        if statement.key is None:
            return show.show_settings(self._scope, statement)
        self._scope.set(statement.key, statement.value or "")
        return Result(statement, f"'{statement.key}' is set")

    def _reset(self, statement: ResetOption) -> Result:
        names = self._scope.reset(statement.key)
        return Result(statement, f"reset: {', '.join(names) or 'nothing'}")


def _done(done: bool, what: str, otherwise: str = "it does not exist") -> str:
    return what if done else otherwise
