"""Plans lookup joins: ``JOIN t FOR SYSTEM_TIME AS OF s.proctime``, of a stream with a store table's current rows.

The table may be a view of store tables, such as of those rows that are in the newest partition.

Spark reads a static table as planned at the start of a query. So each micro-batch is joined by itself, with the
snapshot that is the newest at that time. Results already written are not corrected when the table changes later.
Tables of a connector are joined by ``temporal_joins.py``.

Of a table with a key whose rows change, the result of a changed row replaces that before, by key. The row that a change
replaces is not looked up once more, since the looked-up table may be another one by now. So the result has no rows
before updates, and goes into tables that take rows and deletes by the key of the table that changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from snapshot.row_kind import CHANGE_TYPE, RowKind
from tablestore.spark.connect import is_remote
from tablestore.sql.catalog.binding import connector_of
from tablestore.sql.catalog.hints import LookupHint, lookup_hints, partitions_read
from tablestore.sql.catalog.partition_choice import KeptPartitions
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_references import tables_in
from tablestore.sql.parser.qualify import Source, kept_key, named_table, output_names, qualified
from tablestore.sql.parser.statements import CreateTable, CreateView
from tablestore.sql.queries.append_query import is_grouped
from tablestore.sql.queries.batch_query import batch_table, over
from tablestore.sql.queries.joins import equalities
from tablestore.sql.queries.relation import Parts, QueryInput, Relation
from tablestore.sql.queries.unsupported import BATCH, refuse

_INSTEAD: Final = "INSERT its result INTO a table and read that"
_FOUND: Final = "_found"
"""Column of the frames of looked-up tables that is true: it is NULL where a row has no match."""
_REPLACED: Final = "a lookup join does not look up the rows that changes replace"
"""Why the rows before changes are not known."""


def lookups_in(select: exp.Select) -> list[exp.Join]:
    """Return the lookup joins of a SELECT."""
    return [join for join in select.args.get("joins") or [] if join.this.args.get("version") is not None]


def side_of(join: exp.Join) -> str:
    """Return ``INNER`` or ``LEFT``.

    Raises:
        RefusedError: the join is of another kind.
    """
    side = join.side or join.kind or "INNER"
    if side not in {"INNER", "LEFT"} or join.method or join.args.get("using"):
        name = join.method or ("USING in a" if join.args.get("using") else side)
        refuse(join.this, f"{name} JOIN FOR SYSTEM_TIME AS OF", "use INNER or LEFT JOIN ... ON")
    return side


def take_lookups(scope: Scope, select: exp.Select) -> dict[str, exp.Table]:
    """Replace the lookup tables of a SELECT by names of frames, in place; return the tables by these names.

    Raises:
        RefusedError: a lookup table is a view of other than store tables, or the join is neither INNER nor LEFT.
    """
    found: dict[str, exp.Table] = {}
    for number, join in enumerate(lookups_in(select)):
        table = join.this
        made = scope.definition(table.name).made
        if isinstance(made, CreateView):
            _check_view(scope, made, table)
        side_of(join)
        key = f"{table.name}@lookup{number}"
        table.replace(named_table(key, table.alias or table.name))
        found[key] = table
    _check_hints(select, found)
    return found


def _check_hints(select: exp.Select, tables: dict[str, exp.Table]) -> None:
    """Check that LOOKUP hints are of store tables; the rows of others are kept as state, not looked up again."""
    for hint in lookup_hints(select):
        if not any(map(hint.is_of, tables.values())):
            why = "its rows are read as a stream; a row that has no match when it comes stays without"
            refuse(select.expressions[0], f"hint LOOKUP for '{hint.table}', a table of a connector,", why)


def _check_view(scope: Scope, view: CreateView, place: exp.Table) -> None:
    """Check that a view reads store tables only, whose current rows each micro-batch can read.

    Raises:
        RefusedError: it reads a table of a connector.
    """
    for name in tables_in(view.query):
        definition = scope.find(name)
        if definition is None:
            continue
        if isinstance(definition.made, CreateView):
            _check_view(scope, definition.made, place)
        elif connector_of(definition.made) is not None:
            why = f"'{name}' in it is a table of a connector; INSERT its rows INTO a store table, and look that up"
            refuse(place, f"the view '{view.name}' FOR SYSTEM_TIME AS OF", why)


def looked_up(scope: Scope, select: exp.Select, parts: Parts, tables: dict[str, exp.Table]) -> Relation:
    """Plan a SELECT with lookup joins.

    Raises:
        RefusedError: it cannot be computed for each micro-batch by itself.
    """
    stream = _stream(select, parts)
    rows = stream.relation.changes() if stream.relation.rows is None else stream.relation.rows
    others = parts.frames_but(stream)
    if others and is_remote(scope.spark):
        why = f"not over Spark Connect: their rows cannot be joined with a micro-batch on the server; {_INSTEAD}"
        refuse(select.expressions[0], "a lookup join with further tables", why)
    key: tuple[int, ...] | None = None
    if not stream.relation.grows:
        columns = {key: batch_table(scope, table.name, depth=0).columns for key, table in tables.items()}
        select, key = _by_key(scope, select, parts, stream, tables, columns)
    retries = {
        key: hint
        for hint in lookup_hints(select)
        for key, table in tables.items()
        if hint.attempts is not None and hint.is_of(table)
    }
    joined = _LookedUp(scope, select, tables, stream.key, others, retries, changes=key is not None)
    # The result's columns do not depend on rows: a lookup table has the same columns at any time.
    shape = joined(rows)
    if key is None:
        return Relation(tuple(shape.columns), rows, chained=stream.relation.chained, each=joined, shape=shape)
    names = tuple(shape.columns[:-1])
    return Relation(names, changelog=lambda: rows, key=key, chained=True, each=joined, shape=shape, blind=_REPLACED)


@dataclass(frozen=True)
class _LookedUp:
    """Joins a micro-batch with the newest rows of tables; over Spark Connect, in a process of the server.

    Attributes:
        scope: where the tables are defined.
        select: the SELECT.
        tables: the looked-up tables, by the names of their frames.
        stream: the name of the micro-batch's frame.
        others: further frames by their names; none over Spark Connect.
        retries: how often rows without a match are looked up again, by the name of the looked-up frame.
        changes: whether the rows of the stream are changes by key, and the SELECT is that of `_by_key`.
        kept: the newest partitions of the tables, where they are not looked for in each micro-batch.
    """

    scope: Scope
    select: exp.Select
    tables: dict[str, exp.Table]
    stream: str
    others: dict[str, DataFrame]
    retries: dict[str, LookupHint]
    changes: bool = False
    kept: KeptPartitions = field(default_factory=KeptPartitions)

    def __call__(self, batch: DataFrame) -> DataFrame:
        """Return the joined rows of a micro-batch."""
        # A micro-batch has its own Spark session, and everything joined with it must be read in that session.
        scope = self.scope.within(batch.sparkSession, self.kept)
        if self.changes:
            batch = batch.where(F.col(CHANGE_TYPE) != RowKind.UPDATE_BEFORE.change_type)
        frames = {key: self._read(scope, key) for key in self.tables}
        frames |= {**self.others, self.stream: batch}
        lives = batch.where(F.col(CHANGE_TYPE) != RowKind.DELETE.change_type) if self.changes else batch
        # The shape of the result is asked for before there is a micro-batch.
        for key, hint in self.retries.items() if not batch.isStreaming else ():
            missed = _missed(self.select, key)
            for _ in range(hint.attempts or 0):
                if over(batch.sparkSession, missed, {**frames, self.stream: lives}).isEmpty():
                    break
                time.sleep((hint.delay_ms or 0) / 1000)
                frames[key] = self._read(scope, key)
        return over(batch.sparkSession, self.select, frames)

    def _read(self, scope: Scope, key: str) -> DataFrame:
        frame = batch_table(scope, self.tables[key].name, depth=0)
        return frame.withColumn(_FOUND, F.lit(True)) if self.changes else frame


def _missed(select: exp.Select, key: str) -> exp.Select:
    """Return the query of the rows that have no match in a looked-up frame."""
    made = exp.select("1")
    made.set("from_", select.args["from_"].copy())
    for join in select.args["joins"]:
        made.append("joins", join.copy())
        if join.this.name == key:
            made.args["joins"][-1].set("side", "LEFT")
            made.args["joins"][-1].set("kind", "ANTI")
            return made
    raise AssertionError(key)


def _stream(select: exp.Select, parts: Parts) -> QueryInput:
    at = select.expressions[0]
    if is_grouped(select) or select.args.get("distinct"):
        refuse(at, "an aggregate or DISTINCT over a lookup join", _INSTEAD)
    if len(parts.endless) != 1:
        refuse(at, "a lookup with a join of unbounded tables", _INSTEAD)
    (stream,) = parts.endless
    if not stream.relation.grows and stream.relation.key is None:
        why = (
            "a retraction could differ from the row that was added, and the rows have no key; join the tables without "
            f"FOR SYSTEM_TIME AS OF, or {BATCH}"
        )
        refuse(stream.place, f"a lookup for '{stream.alias}', whose rows change,", why)
    return stream


def _by_key(
    scope: Scope,
    select: exp.Select,
    parts: Parts,
    stream: QueryInput,
    tables: Mapping[str, exp.Table],
    columns: Mapping[str, Sequence[str]],
) -> tuple[exp.Select, tuple[int, ...]]:
    """Return a SELECT that makes of each changed row one of its result, or a delete, and the positions of its key.

    Args:
        scope: where the tables are defined.
        select: the SELECT, whose FROM names frames.
        parts: its other inputs.
        stream: the one of them whose rows change.
        tables: the looked-up tables, by the names of their frames.
        columns: their columns.

    Returns:
        A SELECT with the columns of the given one and ``_change_type``, over changes without the rows before updates
        and looked-up frames with `_FOUND`.

    Raises:
        RefusedError: a row could have several rows in the result, or the result lacks the key.
    """
    at, joins = select.expressions[0], select.args.get("joins") or []
    if len(parts.inputs) != 1 or len(joins) != len(tables) or select.args.get("laterals"):
        refuse(at, f"a lookup for '{stream.alias}', whose rows change, with further tables", BATCH)
    sources = {each.this.name: Source(each.this.alias, tuple(columns[each.this.name])) for each in joins}
    said = qualified(select, parts.sources() | {each.alias.lower(): each for each in sources.values()})
    known = {(stream.alias, name): name for name in stream.relation.names}
    present: list[exp.Expr] = [exp.column(CHANGE_TYPE, table=stream.alias, quoted=True).neq(RowKind.DELETE.change_type)]
    if (where := said.args.get("where")) is not None:
        present.append(where.this.copy())
        said.set("where", None)
    for join in said.args["joins"]:
        source = sources[join.this.name]
        equal, _ = equalities(join.args.get("on"), known, source.alias)
        if not _is_unique(scope, tables[join.this.name], {other for _, other in equal}):
            why = (
                "a changed row must have at most one match, so that it replaces the row before: ON equals the whole "
                f"PRIMARY KEY of '{source.alias}' with columns. INSERT the rows of '{stream.alias}' INTO a table "
                "without a key, if each is to be looked up once"
            )
            refuse(join.this, f"a lookup for '{stream.alias}', whose rows change,", why)
        known |= {(source.alias, name): name for name in source.names}
        if join.side != "LEFT":
            present.append(exp.column(_FOUND, table=source.alias, quoted=True).is_(exp.null()).not_())
            join.set("side", "LEFT")
            join.set("kind", None)
    own = tuple(stream.relation.names[position] for position in stream.relation.key or ())
    key = kept_key(said, {stream.alias.lower(): own})
    if key is None:
        why = f"select its key ({', '.join(own)}), by which a changed row replaces the one before"
        refuse(at, f"a lookup for '{stream.alias}', whose rows change, without its key", why)
    is_there = exp.and_(*present)
    outputs: list[exp.Expr] = []
    for number, (each, name) in enumerate(zip(said.expressions, output_names(said), strict=True)):
        value = each.unalias()
        # Of a row that is not in the result, such as a deleted one, nothing but the key is computed.
        kept = value.copy() if number in key else exp.Case().when(is_there.copy(), value.copy())
        outputs.append(exp.alias_(kept, name, quoted=True))
    kind = exp.Case().when(is_there, exp.column(CHANGE_TYPE, table=stream.alias, quoted=True))
    outputs.append(exp.alias_(kind.else_(exp.Literal.string(RowKind.DELETE.change_type)), CHANGE_TYPE, quoted=True))
    said.set("expressions", outputs)
    return said, key


def _is_unique(scope: Scope, table: exp.Table, equal: set[str]) -> bool:
    """Return whether at most one row of a looked-up table has given values in some columns."""
    definition = scope.definition(table.name)
    made = definition.made
    if not isinstance(made, CreateTable) or not made.primary_key:
        return False
    chosen = partitions_read(definition)
    is_newest = chosen is not None and chosen.by == made.partitioned_by and chosen.count == 1
    return {name for name in made.primary_key if not (is_newest and name in made.partitioned_by)} <= equal
