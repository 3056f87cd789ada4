"""Runs batch queries in Spark SQL, with the query's tables registered as temporary views."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType, TimestampType
from sqlglot import exp

from log_system.kafka.client.secrets import wrap
from snapshot.errors import InvalidInputError, NotFoundError
from snapshot.row_kind import CHANGE_TYPE
from tablestore.connectors.java_regex import compile_pattern
from tablestore.connectors.option_names import Connector
from tablestore.context import TableContext
from tablestore.options.read_options import OWN
from tablestore.read.time_travel import chosen_snapshot
from tablestore.spark.connect import arrow_frame, is_remote
from tablestore.sql.catalog.binding import SHOWN, connector_of
from tablestore.sql.catalog.definitions import Definition, Made
from tablestore.sql.catalog.hints import SCHEMA, batch_read, partitions_read, range_read, read_by, with_hints
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_frames import (
    ConnectorTable,
    GeneratedTable,
    ShownTable,
    with_computed,
    with_computed_then,
)
from tablestore.sql.catalog.table_references import (
    BINLOG,
    COMPACTED,
    check_there,
    definition_of,
    is_change_table,
    is_inside,
    is_proctime,
    tables_in,
)
from tablestore.sql.parser.dialect import to_spark
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.errors import SqlError
from tablestore.sql.parser.functions.arithmetic import with_flink_arithmetic
from tablestore.sql.parser.qualify import Source, qualified, query_of_cte, read_instead, table_alias
from tablestore.sql.parser.statements import CreateTable, CreateView, PhysicalColumn, Query
from tablestore.sql.parser.types import of_spark
from tablestore.sql.parser.window_types import WindowKind, names_of, take_windows
from tablestore.sql.queries.unsupported import refuse
from tablestore.sql.queries.windows import MARK, over_sessions, windowed
from tablestore.sql.system_tables.audit_log import past_changes
from tablestore.sql.system_tables.metadata_columns import in_sql
from tablestore.table.store import TableStore

#: Maximum nesting of views. A deeper one is taken to read itself, which views can when their definitions change.
DEPTH_MAX = 32
_NO_TIME: Final = "UNSUPPORTED_TIME_TYPE"
_OF_WINDOW: Final = re.compile("(TUMBLE|HOP|SESSION)_(START|END|ROWTIME|PROCTIME)")
"""Functions of the window by which a query groups, which are replaced where it does."""
_TAKE_PATTERNS: Final = ("REGEXP", "REGEXP_EXTRACT", "REGEXP_REPLACE")
"""Functions whose second argument is a regular expression."""
#: Spark's position in the generated SQL, which users never see, at the end of an error message.
_PLACE_IN_SPARK: Final = re.compile(r";? line \d+,? pos \d+$")


def batch_frame(scope: Scope, query: Query, depth: int = 0) -> DataFrame:
    """Return the rows of a query over the current rows of its tables.

    Raises:
        NotFoundError: it reads a table that does not exist.
        InvalidInputError: Spark rejects the query.
    """
    check_there(scope, query)
    query = with_hints(scope, query)
    try:
        query = _as_of_times(scope, query)
        frames = {name: batch_table(scope, name, depth) for name in tables_in(query)}
        return over(scope.spark, *_with_times(scope.spark, query.tree, frames))
    except RefusedError as error:
        raise placed(error, query) from None


def _as_of_times(scope: Scope, query: Query) -> Query:
    """Return a query in which tables as of a time are replaced by tables with the option ``timestamp``.

    Tables as of ``PROCTIME()`` stay as they are: a batch query reads current rows.

    Raises:
        RefusedError: a time is that of an event, or a table has no old snapshots.
    """
    query = replace(query, tree=query.tree.copy())
    for table in list(query.tree.find_all(exp.Table)):
        version = table.args.get("version")
        if version is None or is_proctime(scope, version.expression, query):
            continue
        if version.expression.find(exp.Column, exp.Query):
            reason = (
                f"'{table.name}' FOR SYSTEM_TIME AS OF an event time is not supported in a batch query, which reads "
                "the current row of each key and not its versions: SET 'execution.runtime-mode' = 'streaming', or join "
                "with current rows: FOR SYSTEM_TIME AS OF a column AS PROCTIME()."
            )
            raise RefusedError(table, reason)
        inside = is_inside(scope, table.name)
        if table.name not in tables_in(query) or inside or not scope.definition(table.name, stored=False).path:
            of_files = (
                " For files, partitions and buckets, use the hint OPTIONS('timestamp' = '...')." if inside else ""
            )
            reason = (
                f"'{table.name}' FOR SYSTEM_TIME AS OF a time: only tables of the store have old snapshots.{of_files}"
            )
            raise RefusedError(table, reason)
        time = ("timestamp", str(_millis(scope, version.expression, table)))
        read_by(scope, table, (*scope.definition(table.name).hints, time, (SCHEMA, OWN)))
    return query


def _millis(scope: Scope, moment: exp.Expr, table: exp.Table) -> int:
    """Return a constant time in milliseconds since the epoch; a TIMESTAMP is by the clock of the session's time zone.

    Raises:
        RefusedError: it is not a time.
    """
    time = over(scope.spark, exp.Select(expressions=[exp.alias_(moment.copy(), "time")]), {})
    found = None
    if isinstance(time.schema[0].dataType, TimestampType | TimestampNTZType):
        found = time.select(F.unix_millis(F.col("time").cast("timestamp"))).collect()[0][0]
    if found is None:
        reason = f"'{table.name}' FOR SYSTEM_TIME AS OF: expected a TIMESTAMP, such as TIMESTAMP '2024-01-31 12:00:00'."
        raise RefusedError(table, reason)
    return int(found)


def _with_times(
    spark: SparkSession, tree: exp.Expr, frames: dict[str, DataFrame]
) -> tuple[exp.Expr, dict[str, DataFrame]]:
    """Replace tables with windows by frames with window columns, and lookup joins by plain joins."""
    tree, frames = tree.copy(), dict(frames)
    for number, table in enumerate(list(tree.find_all(exp.Table))):
        # A batch query reads current rows anyway, as a lookup does.
        table.set("version", None)
        windows = take_windows(table)
        if windows is None:
            continue
        alias, key = table.alias or table.name, f"{table.name}@{number}"
        named = query_of_cte(table)
        frame = frames[table.name] if named is None else over(spark, *_with_times(spark, named, frames))
        frames[key] = windowed(frame, windows, table).drop(MARK)
        table.set("this", exp.to_identifier(key, quoted=True))
        table.set("alias", table_alias(alias))
        select = table.find_ancestor(exp.Select)
        if windows.kind is WindowKind.SESSION and select is not None:
            said = qualified(select, {alias.lower(): Source(alias, names_of(tuple(frames[key].columns)))})
            over_sessions(said, alias, windows)
            tree = said if select is tree else tree
            select.replace(said)
    return tree, frames


def batch_table(scope: Scope, name: str, depth: int) -> DataFrame:
    """Return the current rows of a table, a view or a metadata table such as ``t$snapshots``."""
    if is_inside(scope, name):
        return _inside(scope, name)
    definition = scope.definition(name)
    made = definition.made
    if isinstance(made, CreateView):
        check_depth(made, depth)
        with within_view(made):
            frame = batch_frame(scope, made.query, depth + 1)
        return frame.toDF(*names_of_view(made, frame.columns))
    table = opened(scope, definition)
    if isinstance(table, TableStore):
        between, partitions = range_read(definition), partitions_read(definition)
        frame = table.read(**batch_read(definition)) if between is None else between.rows(table)
        if partitions is not None:
            kept = scope.kept_partitions
            frame = partitions.rows_of(frame) if kept is None else kept.rows_of(name, partitions, frame)
        return (with_computed if (SCHEMA, OWN) not in definition.hints else with_computed_then)(frame, made)
    return table.read()


def shape_of(scope: Scope, name: str) -> Made:
    """Return the definition of a table or view; of a metadata table, one with its columns, for which Spark is needed.

    Raises:
        NotFoundError: there is no such table or view.
    """
    if not is_inside(scope, name):
        return scope.definition(name).made
    fields = batch_table(scope, name, 0).schema
    return CreateTable(
        name, tuple(PhysicalColumn(each.name, of_spark(each.dataType, nullable=each.nullable)) for each in fields)
    )


def _inside(scope: Scope, name: str) -> DataFrame:
    """Return the rows of a metadata table, named ``table$what``."""
    opened, what = open_inside(scope, name), name.rpartition("$")[2]
    definition = definition_of(scope, name)
    made = definition.made
    assert isinstance(made, CreateTable), "a view has no metadata tables"
    if is_change_table(scope, name):
        snapshot = batch_read(definition) if definition.hints else None
        return past_changes(opened, made, paired=what == BINLOG, between=range_read(definition), snapshot=snapshot)
    if what == COMPACTED:
        return opened.inspect.compacted()
    table = scope.context_of(definition)
    return arrow_frame(scope.spark, in_sql(table, made, what, _snapshot_of_hint(table, definition)))


def _snapshot_of_hint(table: TableContext, definition: Definition) -> int | None:
    if not definition.hints:
        return None
    arguments = batch_read(definition)
    return chosen_snapshot(table.files, *(arguments.get(name) for name in ("snapshot", "timestamp", "tag")))


def open_inside(scope: Scope, name: str) -> TableStore:
    """Open the table of a metadata table.

    Raises:
        InvalidInputError: it is a connector table, which has no metadata tables.
    """
    table = name.rpartition("$")[0]
    opened = open_table(scope, table)
    if not isinstance(opened, TableStore):
        msg = f"'{name}': '{table}' is a table of a connector; only store tables have metadata tables."
        raise InvalidInputError(msg)
    return opened


@contextmanager
def within_view(made: CreateView) -> Iterator[None]:
    """Prefix errors with a view's name, since their position is in the view's text."""
    try:
        yield
    except SqlError as error:
        msg = f"view '{made.name}': {error}"
        raise InvalidInputError(msg) from error
    except NotFoundError as error:
        msg = f"view '{made.name}': {error}"
        raise NotFoundError(msg) from error


def check_depth(made: CreateView, depth: int) -> None:
    """Check that a view does not read itself through other views.

    Raises:
        InvalidInputError: the nesting is deeper than `DEPTH_MAX`.
    """
    if depth > DEPTH_MAX:
        msg = f"view '{made.name}' reads itself through other views. DROP it, and CREATE it over tables."
        raise InvalidInputError(msg)


def names_of_view(made: CreateView, given: Sequence[str]) -> Sequence[str]:
    """Return the names of a view's columns.

    Raises:
        InvalidInputError: the number of names in the view differs from the number of columns of its query.
    """
    if made.columns and len(made.columns) != len(given):
        msg = f"view '{made.name}' has {len(made.columns)} columns, its query gives {len(given)}. CREATE it again."
        raise InvalidInputError(msg)
    return made.columns or given


def open_table(scope: Scope, name: str, options: Mapping[str, object] | None = None) -> ConnectorTable | TableStore:
    """Open a store table or a connector table.

    Raises:
        NotFoundError: there is no table of that name.
        InvalidInputError: the name is that of a view.
    """
    definition = scope.definition(name, stored=False)
    if not isinstance(definition.made, CreateTable):
        msg = f"'{name}' is a view: read it by SELECT * FROM `{name}`."
        raise InvalidInputError(msg)
    return opened(scope, definition, options)


def opened(
    scope: Scope, definition: Definition, options: Mapping[str, object] | None = None
) -> ConnectorTable | TableStore:
    """Open the table of a definition that has been read."""
    assert isinstance(definition.made, CreateTable), "a view is no table"
    if definition.path is None:
        connector = connector_of(definition.made)
        assert connector is not None, "a store table has a path"
        kinds = {Connector.DATAGEN: GeneratedTable, **dict.fromkeys(SHOWN, ShownTable)}
        return kinds.get(connector, ConnectorTable)(scope, definition.made, options)
    runtime = scope.runtime_of(definition) | wrap(options or {})
    return TableStore.open(
        scope.spark, scope.place_of(definition), options=runtime, allow_references=scope.allowed.entries
    )


def over(spark: SparkSession, tree: exp.Expr, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a query, with its table names resolved to frames.

    Raises:
        RefusedError: Spark rejects the query.
    """
    tree = tree.copy()
    _check_patterns(spark, tree)
    # Unique names, so that the Spark session's own views are not replaced.
    views = {name: f"_{uuid.uuid4().hex}" for name in frames}
    for table in list(tree.find_all(exp.Table)):
        if table.name in views and isinstance(table.this, exp.Identifier):
            read_instead(table, views[table.name])
    named = {views[name]: frame for name, frame in frames.items()}
    try:
        _with_generators(tree, lambda probe: _run(spark, to_spark(probe), named).schema[0].dataType)
        tree = with_flink_arithmetic(tree, lambda each, select: _type_in(spark, each, select, named))
        return _run(spark, to_spark(tree), named)
    except (AnalysisException, ParseException) as error:
        message = _reason(error)
        for name, view in views.items():
            # Names of frames in FROM have a number after an @.
            message = message.replace(view, name.partition("@")[0])
        raise RefusedError(_named_in(error, tree), _PLACE_IN_SPARK.sub("", message)) from error


def _reason(error: PySparkException) -> str:
    """Return what Spark says of a query that it rejects, without its words for names that are not known."""
    parameters, condition = error.getMessageParameters() or {}, str(error.getCondition())
    if condition == _NO_TIME:
        return "type TIME is off in this Spark: SET 'spark.sql.timeType.enabled' = 'true', or use STRING."
    if condition == "UNRESOLVED_ROUTINE":
        name = parameters["routineName"].strip("`")
        kind = _OF_WINDOW.fullmatch(name.upper())
        return f"{name} goes with GROUP BY {kind[1]}(...)." if kind else f"there is no function {name}."
    if condition.startswith("UNRESOLVED_COLUMN."):
        proposed = parameters.get("proposal", "").split(", ")
        # Others are columns that the plan of a query has added.
        shown = [each for each in proposed if CHANGE_TYPE not in each and not each.startswith("`_joined`")]
        similar = f"; similar ones are {', '.join(shown)}" if any(shown) else ""
        return f"there is no column {parameters['objectName']}{similar}."
    return str(error).split(";\n'")[0].split("\n\n")[0].split("== SQL")[0].strip()


def _check_patterns(spark: SparkSession, tree: exp.Expr) -> None:
    """Check the regular expressions that are literals: Spark looks at them when the first row comes."""
    for call in tree.find_all(exp.RegexpLike, exp.Anonymous):
        given = (call.expression,) if isinstance(call, exp.RegexpLike) else call.expressions[1:2]
        if isinstance(call, exp.Anonymous) and call.name.upper() not in _TAKE_PATTERNS:
            continue
        for pattern in (each for each in given if each.is_string):
            try:
                compile_pattern(pattern.name, "")
            except InvalidInputError:
                # Java has a few patterns that it does not know.
                probe = exp.RegexpLike(this=exp.Literal.string(""), expression=pattern.copy())
                try:
                    spark.sql(to_spark(exp.Select(expressions=[probe]))).collect()
                except PySparkException:
                    reason = f"'{pattern.name}' is not a regular expression of Java, which this function takes."
                    raise RefusedError(call.find(exp.Column), reason) from None


def _with_generators(tree: exp.Expr, type_of: Callable[[exp.Select], DataType]) -> None:
    """Replace each UNNEST in a query by Spark's ``LATERAL VIEW`` of a generator, which its type determines, in place.

    ``type_of`` returns the type of the only column of a SELECT.

    Raises:
        RefusedError: what is unnested is neither an array nor a map, the names do not fit, or the join has conditions.
    """
    for select in tree.find_all(exp.Select):
        first = select.args["from_"].this if select.args.get("from_") else None
        if isinstance(first, exp.Unnest):
            alone = exp.Select(expressions=[first.expressions[0].copy()])
            view = _lateral_view(first, type_of(alone), is_outer=False)
            first.replace(exp.Table(this=view.this, alias=view.args["alias"]))
        for join in [each for each in select.args.get("joins") or [] if isinstance(each.this, exp.Unnest)]:
            if (join.side or join.kind or "CROSS") not in {"CROSS", "INNER", "LEFT"} or join.args.get("using"):
                refuse(join.this, f"{join.side or join.kind} JOIN UNNEST", "use CROSS JOIN or LEFT JOIN ... ON TRUE")
            on = join.args.get("on")
            if on is not None and on != exp.true():
                refuse(
                    join.this, "a JOIN UNNEST with a condition in ON", "use ON TRUE, and put the condition into WHERE"
                )
            view = _lateral_view(join.this, type_of(_probe(select, join)), is_outer=join.side == "LEFT")
            join.pop()
            select.append("laterals", view)


def _probe(select: exp.Select, join: exp.Join) -> exp.Select:
    """Return the query for what is unnested, over the tables before it."""
    (value,) = join.this.expressions
    before = select.args["joins"][: select.args["joins"].index(join)]
    return _over_tables_of(select, value, before)


def _type_in(
    spark: SparkSession, expression: exp.Expr, select: exp.Select | None, views: Mapping[str, DataFrame]
) -> DataType | None:
    """Return the type of an expression in a SELECT, or in one around it; None if Spark rejects it."""
    probes = [exp.Select(expressions=[expression.copy()])] if select is None else []
    while select is not None:
        probes.append(_over_tables_of(select, expression, select.args.get("joins") or []))
        if select.args.get("group"):
            # An aggregate needs no groups, unless it is beside what they are.
            probes.append(probes[-1].copy())
            probes[-1].set("group", select.args["group"].copy())
        select = select.parent_select
    for each in probes:
        with suppress(AnalysisException, ParseException):
            return _run(spark, to_spark(each), views).schema[0].dataType
    return None


def _over_tables_of(select: exp.Select, value: exp.Expr, joins: Sequence[exp.Join]) -> exp.Select:
    """Return a query for an expression over the tables of a SELECT with these of its joins."""
    made = exp.Select(expressions=[value.copy()], joins=[each.copy() for each in joins])
    if select.args.get("from_"):
        made.set("from_", select.args["from_"].copy())
    made.set("laterals", [each.copy() for each in select.args.get("laterals") or []])
    tables: list[exp.Expr] = []
    node: exp.Expr | None = select
    while node is not None:
        scope, node = node.args.get("with_"), node.parent
        tables = [*(each.copy() for each in scope.expressions), *tables] if scope is not None else tables
    if tables:
        made.set("with_", exp.With(expressions=tables))
    return made


def _lateral_view(unnest: exp.Unnest, kind: DataType, *, is_outer: bool) -> exp.Lateral:
    value, alias, offset = unnest.expressions[0].copy(), unnest.args.get("alias"), unnest.args.get("offset")
    fields: list[str] | None = None
    if isinstance(kind, MapType):
        value, fields = exp.Anonymous(this="MAP_ENTRIES", expressions=[value]), ["key", "value"]
    elif not isinstance(kind, ArrayType):
        raise RefusedError(unnest, f"UNNEST: expected an ARRAY or a MAP, got {kind.simpleString()}.")
    elif isinstance(kind.elementType, StructType):
        fields = kind.elementType.fieldNames()
    names = [each.name for each in alias.args.get("columns") or []] if alias is not None else []
    own = fields or ["EXPR$0"]
    if names and len(names) != len(own):
        reason = f"UNNEST: it has {len(own)} columns ({', '.join(own)}), and {len(names)} names are given."
        raise RefusedError(unnest, reason)
    names = names or own
    if offset:
        value = _numbered(value, ["x"] if fields is None else [f"x.`{name}`" for name in fields])
        names = [*names, offset.name if isinstance(offset, exp.Identifier) else "ORDINALITY"]
    return exp.Lateral(
        this=exp.Anonymous(this="EXPLODE" if fields is None and not offset else "INLINE", expressions=[value]),
        view=True,
        outer=is_outer,
        alias=exp.TableAlias(
            this=exp.to_identifier((alias.name if alias is not None else "") or "_unnest", quoted=True),
            columns=[exp.to_identifier(name, quoted=True) for name in names],
        ),
    )


def _numbered(value: exp.Expr, fields: list[str]) -> exp.Expr:
    """Return an array of rows of these fields of each element ``x``, and its place, from 1 as in Flink."""
    said: exp.Expr = exp.maybe_parse(f"TRANSFORM(a, (x, i) -> STRUCT({', '.join(fields)}, i + 1))", dialect="spark")
    said.set("this", value.copy())
    return said


def _run(spark: SparkSession, text: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a query over frames, whose unique names are in backquotes in its text."""
    if is_remote(spark):
        # Spark Connect looks at a query when it runs it, long after views would be gone; so the frames go with it.
        if views:
            text = text.replace("{", "{{").replace("}", "}}")
        for view in views:
            text = text.replace(f"`{view}`", f"{{{view}}}")
        found = spark.sql(text, args=None, **views)
        found.schema  # noqa: B018 - only now is the query checked
        return found
    try:
        for view, frame in views.items():
            frame.createOrReplaceTempView(view)
        return spark.sql(text)
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _named_in(error: PySparkException, tree: exp.Expr) -> exp.Expr | None:
    """Return the column or function of a query that Spark's error refers to, or None."""
    parameters = error.getMessageParameters() or {}
    wanted = parameters.get("objectName") or parameters.get("routineName") or ""
    name = wanted.replace("`", "").rpartition(".")[2].lower()
    return next(
        (each for each in tree.find_all(exp.Column, exp.Anonymous) if name and each.name.lower() == name),
        None,
    )
