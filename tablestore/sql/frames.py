"""Queries as frames: tables become views of a moment, and Spark does the rest."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from snapshot.errors import InvalidInputError
from tablestore.sql.ddl import tables_in
from tablestore.sql.dialect import to_spark
from tablestore.sql.scope import Scope
from tablestore.sql.statements import CreateTable, CreateView, Query
from tablestore.sql.tables import ConnectorTable, with_computed
from tablestore.store import TableStore

#: Views in views, and what may be read by itself through definitions that were changed.
DEPTH_MAX = 32


def batch_frame(scope: Scope, query: Query, depth: int = 0) -> DataFrame:
    """Give the rows of a query over what is there now.

    Raises:
        NotFoundError: it reads a table that does not exist.
        InvalidInputError: Spark does not understand it.
    """
    frames = {name: _batch_table(scope, name, depth) for name in tables_in(query)}
    return over(scope.spark, query.tree, frames)


def _batch_table(scope: Scope, name: str, depth: int) -> DataFrame:
    made = scope.definition(name).made
    if isinstance(made, CreateView):
        return of_view(made, lambda query: batch_frame(scope, query, depth + 1), depth)
    table = open_table(scope, name)
    return with_computed(table.read(), made) if isinstance(table, TableStore) else table.read()


def of_view(made: CreateView, frame_of: Callable[[Query], DataFrame], depth: int) -> DataFrame:
    """Give the rows of a view.

    Raises:
        InvalidInputError: it reads itself, or its query gives another number of columns than it has names.
    """
    if depth > DEPTH_MAX:
        msg = f"view '{made.name}' reads itself, through others. DROP it, and CREATE it over tables."
        raise InvalidInputError(msg)
    frame = frame_of(made.query)
    if not made.columns:
        return frame
    if len(made.columns) != len(frame.columns):
        msg = (
            f"view '{made.name}' has {len(made.columns)} columns, its query gives {len(frame.columns)}. CREATE it anew."
        )
        raise InvalidInputError(msg)
    return frame.toDF(*made.columns)


def open_table(scope: Scope, name: str, options: Mapping[str, str] | None = None) -> ConnectorTable | TableStore:
    """Open a table of either kind.

    Raises:
        InvalidInputError: this is a view.
    """
    definition = scope.definition(name)
    if not isinstance(definition.made, CreateTable):
        msg = f"'{name}' is a view: read it by SELECT * FROM `{name}`."
        raise InvalidInputError(msg)
    if definition.path is None:
        return ConnectorTable(scope, definition.made, options)
    runtime = scope.runtime_of(definition) | dict(options or {})
    return TableStore.open(scope.spark, scope.place_of(definition), options=runtime)


def over(spark: SparkSession, tree: exp.Expr, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Run a query over frames that stand for its tables.

    Raises:
        InvalidInputError: Spark does not understand it.
    """
    tree = tree.copy()
    # Names that nobody else uses, so that the session's own views stay as they are.
    views = {name: f"_{uuid.uuid4().hex}" for name in frames}
    for table in list(tree.find_all(exp.Table)):
        if table.name in views and isinstance(table.this, exp.Identifier):
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(views[table.name], quoted=True))
    try:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(views[name])
        return spark.sql(to_spark(tree))
    except (AnalysisException, ParseException) as error:
        message = str(error).split(";\n'")[0].split("\n\n")[0].split("== SQL")[0].strip()
        for name, view in views.items():
            message = message.replace(view, name)
        raise InvalidInputError(message) from error
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)
