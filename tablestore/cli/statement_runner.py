"""Runs SQL statements for the command line, prints their results, and follows running queries until Ctrl-C.

A SELECT of literals only, such as ``SELECT 1``, is answered without Spark. Every expression that has to be computed
goes to Spark, because another engine's result may differ from Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.text import Text
from sqlglot import exp

from log_system.jars import waiting
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.row_kind import CHANGE_TYPE, RowKind
from tablestore.cli.console import result_console
from tablestore.cli.live_result import LiveTable
from tablestore.cli.output import RowPrinter, print_json, show_rows
from tablestore.cli.query_progress import Screen, progress_text
from tablestore.session import session
from tablestore.spark.error_messages import own_message
from tablestore.spark.interrupts import ended_by_sigterm, interrupts_noted
from tablestore.spark.object_stores import storage_of
from tablestore.sql.catalog.results import Result
from tablestore.sql.catalog.settings import SPARK
from tablestore.sql.parser.errors import SqlError
from tablestore.sql.parser.parse import parse
from tablestore.sql.parser.statements import Select, Statement
from tablestore.sql.session import Catalog

_LONG_MAX = (1 << 63) - 1
Constant = tuple[Sequence[str], Sequence[tuple[object, ...]]]


def constant_row(select: Select) -> Constant | None:
    """Return the column names and the single row of a SELECT of literals; None if the query needs Spark.

    Literals are whole numbers, strings, TRUE, FALSE and NULL. Unnamed columns get the names that Spark gives them.
    """
    tree = select.query.tree
    if not isinstance(tree, exp.Select) or not tree.expressions:
        return None
    if any(value for name, value in tree.args.items() if name != "expressions"):
        return None
    found = [_literal(each) for each in tree.expressions]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return [name for name, _ in known], [tuple(value for _, value in known)]


def _literal(tree: exp.Expr) -> tuple[str, object] | None:
    if isinstance(tree, exp.Alias):
        inner = _literal(tree.this)
        return None if inner is None else (tree.alias, inner[1])
    if isinstance(tree, exp.Null):
        return "NULL", None
    if isinstance(tree, exp.Boolean):
        return str(tree.this).lower(), bool(tree.this)
    if isinstance(tree, exp.Neg):
        inner = _literal(tree.this)
        positive = inner is not None and isinstance(inner[1], int) and not isinstance(inner[1], bool) and inner[1] > 0
        return (f"-{inner[0]}", -inner[1]) if inner is not None and positive and isinstance(inner[1], int) else None
    if tree.is_string:
        return tree.this, tree.this
    if isinstance(tree, exp.Literal) and tree.this.isdecimal() and str(int(tree.this)) == tree.this:
        number = int(tree.this)
        return (tree.this, number) if number <= _LONG_MAX else None
    return None


_SIGNS = {kind.change_type: kind.sign for kind in RowKind}
_TEXTS = {("statement",), ("view",), ("plan",)}
_SPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_WAIT_SECONDS = 0.2


def statements_of(texts: Iterable[str]) -> list[Statement]:
    """Parse all texts, so that a syntax error is found before any statement runs.

    Raises:
        SqlError: a text cannot be parsed; the message names the position.
    """
    return [statement for text in texts for statement in parse(text)]


def statements_in(file: Path) -> list[Statement]:
    """Parse a file, so that a syntax error is found before any of its statements runs.

    Raises:
        InvalidInputError: the file cannot be decoded or parsed; the message names the position.
    """
    try:
        return statements_of([text_of(file.read_bytes(), str(file))])
    except SqlError as error:
        msg = f"{file}: {error}"
        raise InvalidInputError(msg) from error


def text_of(given: bytes, place: str) -> str:
    """Decode SQL that comes from a place, such as a file.

    Raises:
        InvalidInputError: it is not UTF-8.
    """
    try:
        return given.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        msg = f"{place}: expected UTF-8 text, got byte {given[error.start]:#04x} at {error.start}."
        raise InvalidInputError(msg) from error


class Runner:
    """Runs the statements of one command line or prompt and tracks the queries they start."""

    def __init__(self, catalog: Catalog, console: Console, *, as_json: bool, live: bool) -> None:
        """Use ``of``."""
        self.catalog = catalog
        self.console = console
        self.queries: list[StreamingQuery] = []
        self._as_json = as_json
        self._live = live
        self._screen = Screen(console, silent=as_json)

    @classmethod
    def of(
        cls,
        warehouse: str,
        settings: Mapping[str, str],
        options: Mapping[str, object] | None = None,
        *,
        as_json: bool,
        live: bool,
    ) -> Runner:
        """Return a runner for a warehouse; Spark starts when a statement first needs it.

        Raises:
            InvalidInputError: a setting is invalid, or both ``--live`` and ``--json`` are given.
        """
        if as_json and live:
            msg = "--live and --json exclude each other. Leave one out."
            raise InvalidInputError(msg)
        console = result_console(soft_wrap=as_json)
        for logger in _SPARK_LOGGERS:
            # Errors are printed once, on one line; PySpark would also log them with the Java stack trace.
            PySparkLogger.getLogger(logger).disabled = True
        # Some Spark settings, such as memory, take effect only at startup.
        config = {key: value for key, value in settings.items() if key.startswith(SPARK)}
        others = {key: value for key, value in settings.items() if key not in config}
        start = partial(session, storage=storage_of(warehouse), config=config)
        catalog = Catalog(start, warehouse, settings=others, options=options)
        return cls(catalog, console, as_json=as_json, live=live)

    def run_all(self, statements: Sequence[Statement]) -> None:
        """Run statements, then wait until the queries they started end, one fails, or Ctrl-C is pressed."""
        try:
            with ended_by_sigterm():
                followed = [self.run(statement) for statement in statements]
                self._until_stopped(has_inserts=len(self.queries) > sum(query is not None for query in followed))
        finally:
            self.stop()

    def _until_stopped(self, *, has_inserts: bool) -> None:
        try:
            self.wait(self.queries)
        except KeyboardInterrupt:
            # Ctrl-C is the normal way to end running queries; during a statement it is a failure.
            if not self._as_json:
                self.console.print(f"Stopped.{' The same INSERT continues from its checkpoint.' * has_inserts}")

    def run(self, statement: Statement) -> StreamingQuery | None:
        """Run a statement and print its result. Queries that keep running are added to ``queries``.

        Returns:
            The query that keeps printing the rows of a continuous SELECT; None for any other statement.

        Raises:
            TableStoreError: the statement failed.
        """
        constant = constant_row(statement) if isinstance(statement, Select) else None
        if constant is not None:
            show_rows(self.console, *constant, as_json=self._as_json)
            return None
        with _spark_errors():
            result = self.catalog.execute(statement)
            self.queries += result.queries
            return self._show(result)

    def wait(self, queries: Sequence[StreamingQuery]) -> None:
        """Wait for queries to end and display their progress; raise the error of a query that failed.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM ended the wait.
        """
        if not queries:
            return
        if not self._as_json:
            self.console.print("Running. Press Ctrl-C to stop.", style="dim")
        with interrupts_noted() as interrupted, self._screen, _spark_errors():
            while any(query.isActive for query in queries):
                for query in queries:
                    self._screen.tell(query.id, progress_text(query.lastProgress))
                if interrupted.wait(_WAIT_SECONDS):
                    raise KeyboardInterrupt
            for query in queries:
                error = query.exception()
                if error is not None:
                    raise error

    def stop(self, queries: Sequence[StreamingQuery] | None = None) -> None:
        """Stop the given queries; None stops all."""
        for query in self.queries if queries is None else queries:
            query.stop()

    def _show(self, result: Result) -> StreamingQuery | None:
        """Print a statement's result; return the query that keeps printing a continuous one, else None."""
        if result.frame is not None and result.frame.isStreaming:
            return self._follow(result, result.frame)
        if result.frame is not None:
            with waiting("Reading ..."):
                rows = result.frame.toLocalIterator()
            show_rows(self.console, result.frame.columns, map(tuple, _shown(rows)), as_json=self._as_json)
        elif result.columns in _TEXTS:
            for row in result.rows:
                self._say({result.columns[0]: row[0]}, f"{row[0]};")
        elif result.columns:
            show_rows(self.console, result.columns, result.rows, as_json=self._as_json)
        else:
            self._say({"message": result.message}, f"{result.message}.")
        return None

    def _follow(self, result: Result, frame: DataFrame) -> StreamingQuery:
        """Start a query that prints each change of a continuous result or, with ``--live``, the current result."""
        has_changes = CHANGE_TYPE in frame.columns
        shown: list[LiveTable | RowPrinter] = []

        def changes(batch: DataFrame) -> Iterator[tuple[object, ...]]:
            for row in _shown(batch.toLocalIterator()):
                sign = _SIGNS[row[CHANGE_TYPE]] if has_changes else "+I"
                yield (sign, *(row[number] for number, name in enumerate(batch.columns) if name != CHANGE_TYPE))

        def show_batch(batch: DataFrame, number: int) -> None:
            # A query with a lookup join has its columns only in the batch.
            names = [name for name in batch.columns if name != CHANGE_TYPE]
            if not shown:
                printer = RowPrinter(self.console, ["op", *names], as_json=self._as_json)
                shown.append(LiveTable(names, has_changes=has_changes) if self._live else printer)
            view = shown[0]
            if isinstance(view, LiveTable):
                view.apply(changes(batch))
                self._screen.show(view.view(self.console.height))
            else:
                view.show(changes(batch))

        self._screen.keeps_last = self._live
        query = self.catalog.follow(result, show_batch)
        self.queries.append(query)
        return query

    def _say(self, fields: Mapping[str, object], text: str) -> None:
        if self._as_json:
            print_json(self.console, fields)
        else:
            self.console.print(Text(text), soft_wrap=True)


def _shown(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows of a frame.

    Raises:
        InvalidInputError: Python does not have a date or timestamp of a row.
    """
    try:
        yield from rows
    except (OverflowError, ValueError) as error:
        if isinstance(error, PySparkException):
            raise
        msg = f"a date or timestamp of the result cannot be shown ({error}). CAST the column AS STRING."
        raise InvalidInputError(msg) from error


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Convert Spark errors to ``TableStoreError``, without stack traces.

    The message of an error that a data source raised is within a traceback, which is within Spark's message.
    """
    try:
        yield
    except PySparkException as error:
        text = str(error).split("\n\nJVM stacktrace")[0].split("\n\tat ")[0].strip()
        raise TableStoreError(own_message(error) or text) from error
