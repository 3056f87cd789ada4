"""``ConnectorTable``: reads and writes a connector table as DataFrames; and helpers for computed columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType
from sqlglot import exp

from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.connectors import read, read_changes, read_stream, write, write_stream
from tablestore.connectors.option_names import FORMATS, STATE, Connector
from tablestore.connectors.spark.partition_watermarks import MESSAGE, Computed, read_with_watermark, with_watermark
from tablestore.spark.connect import check_streams, micro_batch
from tablestore.sql.catalog.binding import (
    Columns,
    check_sink,
    client_options,
    columns_of,
    connector_of,
    connector_options,
    expression_of,
    generated,
    insertable_columns,
    is_changelog,
    name_of,
    printed,
    schema_of,
    stored_columns,
)
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.debugging.generated_rows import bounded_rows, endless_rows
from tablestore.sql.debugging.options import NUMBER_OF_ROWS, Generated
from tablestore.sql.debugging.printed_rows import drop_rows, print_rows
from tablestore.sql.parser.dialect import to_spark
from tablestore.sql.parser.functions.arithmetic import with_flink_arithmetic
from tablestore.sql.parser.statements import ComputedColumn, CreateTable

_CHANGES: Final = (StructField(CHANGE_TYPE, StringType()), StructField(SEQ, LongType()))


class ConnectorTable:
    """A connector table of the catalog. Get one with ``Catalog.table(name)``."""

    def __init__(self, scope: Scope, made: CreateTable, runtime: Mapping[str, object] | None = None) -> None:
        """Use ``Catalog.table``."""
        connector = connector_of(made)
        assert connector is not None, "a store table is opened as a TableStore"
        self.connector: Connector = connector
        self._scope = scope
        self._made = made
        self._runtime = wrap(runtime or {})
        # Report options that a definition must not have now, not at the first read.
        self._options()

    @property
    def name(self) -> str:
        """The table's name."""
        return name_of(self._made)

    @property
    def schema(self) -> StructType:
        """The stored columns, without computed ones."""
        return schema_of(stored_columns(self._made))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns."""
        return self._made.primary_key

    def read(self) -> DataFrame:
        """Read the table up to its current end; see ``tablestore.connectors.read``."""
        frame = read(self._scope.spark, self.connector, self.schema, self._options())
        return with_computed(frame, self._made)

    def read_stream(self, *, ordered: bool = False) -> DataFrame:
        """Read the table as a stream; one of changes gives them with ``_change_type`` as the last column.

        Args:
            ordered: whether changes also have ``_seq`` after it; see ``read_changes`` and ``read_stream``.
        """
        if self.connector is Connector.UPSERT:
            options = self._options()
            options.setdefault(STATE.lower(), self._scope.states)
            frame = read_changes(self._scope.spark, self.schema, options, ordered=ordered)
        else:
            changes = _CHANGES[: 2 if ordered else 1] if is_changelog(self._made) else ()
            schema = StructType([*self.schema.fields, *changes])
            frame = read_stream(self._scope.spark, self.connector, schema, self._options())
        return with_computed(frame, self._made)

    def read_timed(self) -> DataFrame:
        """Read the table as a stream with the watermark of its definition; see ``read_with_watermark``.

        One of changes gives all of them, one for each message or row of it, with ``_change_type`` and ``_seq``.
        """
        watermark = self._made.watermark
        assert watermark is not None, "only a table with a watermark is read with it"
        computed = next((each for each in self._made.columns if each.name == watermark.column), None)
        changes = _CHANGES if self.connector is Connector.UPSERT or is_changelog(self._made) else ()
        schema = StructType([*self.schema.fields, *changes])
        expression = None
        if isinstance(computed, ComputedColumn):
            columns, tree = self._scope.spark.createDataFrame([], schema), expression_of(computed)
            expression = Computed(expression_in_spark(tree, columns), expression_in_spark(tree, columns, of=MESSAGE))
        frame = read_with_watermark(
            self._scope.spark,
            schema,
            self._options(),
            column=watermark.column,
            delay=f"{watermark.delay_ms} milliseconds",
            computed=expression,
            connector=self.connector,
        )
        return with_computed(frame, self._made, known=(watermark.column,))

    def write(self, frame: DataFrame) -> None:
        """Write a frame's rows; see ``tablestore.connectors.write``."""
        check_sink(self._made)
        options = self._options(self._written(frame))
        # With exactly-once delivery, rows are staged there before the transaction.
        options.setdefault("checkpointlocation", f"{self._scope.checkpoints}/{self.name}")
        write(frame, self.connector, options)

    def write_stream(
        self,
        frame: DataFrame,
        *,
        checkpoint: str,
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> StreamingQuery:
        """Start a query that writes a stream; see ``tablestore.connectors.write_stream``."""
        check_sink(self._made)
        writer = self._stream_writer(frame, checkpoint, output_mode, transform)
        writer = writer.queryName(query_name) if query_name else writer
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _stream_writer(
        self,
        frame: DataFrame,
        checkpoint: str,
        output_mode: str,
        transform: Callable[[DataFrame], DataFrame] | None,
    ) -> DataStreamWriter:
        # `transform` returns the same columns for every micro-batch, so the streaming frame itself shows them.
        columns = self._written(frame if transform is None else transform(frame))
        options = self._options(columns) | {"checkpointlocation": checkpoint}
        return write_stream(frame, self.connector, options, output_mode=output_mode, transform=transform)

    def _written(self, frame: DataFrame) -> Columns:
        names = {name.lower() for name in frame.columns}
        return tuple(column for column in insertable_columns(self._made) if column.name.lower() in names)

    def _options(self, columns: Columns | None = None) -> dict[str, ClientValue]:
        if self.connector not in FORMATS:
            return {**dict(self._made.options), **self._runtime}
        defined = connector_options(self._made, columns)
        runtime = self._scope.given_to_connectors | self._runtime
        return client_options(defined, runtime, self._scope.allowed, self._scope.settings.servers)

    def _as_given(self) -> CreateTable:
        """Return the definition with the options that the program gives, too."""
        return replace(self._made, options=tuple(self._options().items()))

    def __repr__(self) -> str:
        """Show the name and the connector."""
        return f"ConnectorTable({self.name!r}, {self.connector.value!r})"


class GeneratedTable(ConnectorTable):
    """A table of the ``datagen`` connector."""

    def read(self) -> DataFrame:
        """Return the table's rows.

        Raises:
            InvalidInputError: it is unbounded.
        """
        table = self._generated()
        if table.rows is None:
            msg = (
                f"table '{self.name}': an unbounded 'datagen' table has no end to read to. Set '{NUMBER_OF_ROWS}', in "
                "its definition or in a hint, or 'fields.#.kind' = 'sequence', or read it as a stream."
            )
            raise InvalidInputError(msg)
        return with_computed(bounded_rows(self._scope.spark, table, table.rows), self._made)

    def read_stream(self, *, ordered: bool = False) -> DataFrame:
        """Return the table's rows, which are no changes, as a stream.

        Raises:
            InvalidInputError: the table is bounded.
        """
        table = self._generated()
        if table.rows is not None:
            msg = f"table '{self.name}': a bounded 'datagen' table is no stream: use read()."
            raise InvalidInputError(msg)
        return with_computed(endless_rows(self._scope.spark, table), self._made)

    def read_timed(self) -> DataFrame:
        """Return the table's rows as a stream with the watermark of its definition, if it has one."""
        return timed_rows(self.read_stream(), self._made)

    def _generated(self) -> Generated:
        return generated(self._as_given())


class ShownTable(ConnectorTable):
    """A table of the ``print`` or the ``blackhole`` connector, which prints or drops the rows that it gets."""

    def read(self) -> NoReturn:
        """Raise an error, since the table has no rows.

        Raises:
            InvalidInputError: always.
        """
        msg = (
            f"table '{self.name}': Connector '{self.connector}' can only be used as a sink. It cannot be used as a "
            "source. Read the tables that its rows come from."
        )
        raise InvalidInputError(msg)

    def read_stream(self, *, ordered: bool = False) -> NoReturn:
        """Raise the error of `read`."""
        self.read()

    def read_timed(self) -> NoReturn:
        """Raise the error of `read`."""
        self.read()

    def write(self, frame: DataFrame) -> None:
        """Print a frame's rows, or compute and drop them."""
        self._show()(frame)

    def _stream_writer(
        self,
        frame: DataFrame,
        checkpoint: str,
        output_mode: str,
        transform: Callable[[DataFrame], DataFrame] | None,
    ) -> DataStreamWriter:
        check_streams(frame.sparkSession)
        show = self._show()

        def write_batch(batch: DataFrame, _: int) -> None:
            with micro_batch(batch):
                show(batch if transform is None else transform(batch))

        writer = frame.writeStream.outputMode(output_mode).foreachBatch(write_batch)
        return writer.option("checkpointLocation", checkpoint)

    def _show(self) -> Callable[[DataFrame], None]:
        options = printed(self._as_given())
        return partial(print_rows, options=options) if self.connector is Connector.PRINT else drop_rows


def timed_rows(frame: DataFrame, made: CreateTable) -> DataFrame:
    """Return a stream with Spark's watermark of all its rows that a definition declares, if it does."""
    if made.watermark is None:
        return frame
    return with_watermark(frame, made.watermark.column, f"{made.watermark.delay_ms} milliseconds")


def with_computed(frame: DataFrame, made: CreateTable, known: Collection[str] = ()) -> DataFrame:
    """Add a table's computed columns where it declares them; ``_change_type`` and ``_seq`` stay at the end.

    The frame has those that are ``known``.
    """
    declared = {column.name for column in made.columns}
    columns = [
        _computed(column, frame)
        if isinstance(column, ComputedColumn) and column.name not in known
        else F.col(backquoted(column.name))
        for column in made.columns
    ]
    further = [F.col(name) for name in (CHANGE_TYPE, SEQ) if name in frame.columns and name not in declared]
    return frame.select(*columns, *further)


def with_computed_then(frame: DataFrame, made: CreateTable) -> DataFrame:
    """Return the columns that a table had in an old snapshot, and the computed columns that can be made of them."""
    there = [name.lower() for name in frame.columns]
    if there == [column.name.lower() for column in made.physical]:
        return with_computed(frame, made)
    possible = [
        column
        for column in made.computed
        if column.name.lower() not in there and all(each.lower() in there for each in columns_of(column))
    ]
    return frame.select("*", *(_computed(column, frame) for column in possible))


def _computed(column: ComputedColumn, frame: DataFrame) -> Column:
    """Return a computed column over a frame."""
    return F.expr(expression_in_spark(expression_of(column), frame)).alias(column.name)


def expression_in_spark(tree: exp.Expr, frame: DataFrame, *, of: str = "") -> str:
    """Return an expression over the columns of a frame in Spark SQL; with ``of``, over fields of a struct of that name.

    The struct has a field for each column of the frame.
    """

    def type_of(expression: exp.Expr, _: exp.Select | None) -> DataType | None:
        try:
            return frame.select(F.expr(to_spark(expression))).schema[0].dataType
        except (AnalysisException, ParseException):
            return None

    found = with_flink_arithmetic(tree.copy(), type_of)
    return to_spark(found.transform(partial(_field_of, of)) if of else found)


def _field_of(struct: str, node: exp.Expr) -> exp.Expr:
    """Return a column as a field of a struct; other expressions as they are."""
    if not isinstance(node, exp.Column):
        return node
    names = [exp.to_identifier(struct), *(part.copy() for part in node.parts)]
    return exp.Dot.build(names)
