"""Renders every statement, so that what a text becomes can be written down: as ``render``, with the others added."""

from __future__ import annotations

from snapshot.quoting import backquoted, text_literal
from tablestore.dml.merge_clauses import Action
from tablestore.sql.parser.procedures import Call, Constant
from tablestore.sql.parser.render import (
    column_text,
    hint_text,
    names_text,
    options_text,
    partition_text,
    render,
    watermark_text,
)
from tablestore.sql.parser.statements import (
    AlterAdd,
    AlterDrop,
    AlterModify,
    AlterRename,
    AlterRenameColumn,
    AlterReset,
    AlterSet,
    AlterWatermark,
    Assignments,
    ColumnPosition,
    Delete,
    Describe,
    Drop,
    DropPartitions,
    Explain,
    Expression,
    Merge,
    MergeClause,
    Overwrite,
    ResetOption,
    Select,
    SetOption,
    ShowCreate,
    ShowPartitions,
    ShowTables,
    StatementSet,
    Truncate,
    Update,
)

__all__ = ["render"]


@render.register
def _(dropped: Drop) -> str:
    kind = ("TEMPORARY " * dropped.temporary) + ("VIEW" if dropped.is_view else "TABLE")
    return f"DROP {kind} {'IF EXISTS ' * dropped.if_exists}{backquoted(dropped.name)}"


@render.register
def _(altered: AlterSet) -> str:
    return f"{_altered(altered)} SET ({options_text(altered.options, ', ')})"


@render.register
def _(altered: AlterReset) -> str:
    return f"{_altered(altered)} RESET ({', '.join(map(text_literal, altered.keys))})"


@render.register
def _(altered: AlterRename) -> str:
    return f"{_altered(altered)} RENAME TO {backquoted(altered.to)}"


@render.register
def _(altered: AlterRenameColumn) -> str:
    return f"{_altered(altered)} RENAME {backquoted(altered.column)} TO {backquoted(altered.to)}"


@render.register
def _(altered: AlterAdd) -> str:
    return f"{_altered(altered)} ADD ({_placed(altered)})"


@render.register
def _(altered: AlterModify) -> str:
    return f"{_altered(altered)} MODIFY ({_placed(altered)})"


@render.register
def _(altered: AlterDrop) -> str:
    return f"{_altered(altered)} DROP ({names_text(altered.columns)})"


@render.register
def _(altered: AlterWatermark) -> str:
    if altered.watermark is None:
        return f"{_altered(altered)} DROP WATERMARK"
    return f"{_altered(altered)} {'ADD' if altered.is_new else 'MODIFY'} {watermark_text(altered.watermark)}"


@render.register
def _(shown: ShowTables) -> str:
    like = "" if shown.like == "%" else f"{' NOT' * shown.is_negated} LIKE {text_literal(shown.like)}"
    return f"SHOW {'VIEWS' if shown.views_only else 'TABLES'}{like}"


@render.register
def _(shown: ShowPartitions) -> str:
    partition = f" PARTITION ({_assigned(shown.partition)})" if shown.partition else ""
    return f"SHOW PARTITIONS {backquoted(shown.name)}{partition}"


@render.register
def _(shown: ShowCreate) -> str:
    return f"SHOW CREATE {'VIEW' if shown.is_view else 'TABLE'} {backquoted(shown.name)}"


@render.register
def _(shown: Describe) -> str:
    return f"DESCRIBE {backquoted(shown.name)}"


@render.register
def _(inserts: StatementSet) -> str:
    return "EXECUTE STATEMENT SET BEGIN\n" + "".join(f"{render(each)};\n" for each in inserts.inserts) + "END"


@render.register
def _(select: Select) -> str:
    return select.query.text


@render.register
def _(explain: Explain) -> str:
    return f"EXPLAIN {render(explain.statement)}"


@render.register
def _(option: SetOption) -> str:
    return "SET" if option.key is None else f"SET {options_text([(option.key, option.value or '')], '')}"


@render.register
def _(option: ResetOption) -> str:
    return "RESET" if option.key is None else f"RESET {text_literal(option.key)}"


@render.register
def _(delete: Delete) -> str:
    return f"DELETE FROM {_aliased(delete.name, delete.alias)}{_where(delete.where)}"


@render.register
def _(update: Update) -> str:
    return f"UPDATE {_aliased(update.name, update.alias)} SET {_assigned(update.assignments)}{_where(update.where)}"


@render.register
def _(truncate: Truncate) -> str:
    return f"TRUNCATE TABLE {backquoted(truncate.name)}"


@render.register
def _(dropped: DropPartitions) -> str:
    partitions = ", ".join(f"PARTITION ({_assigned(each)})" for each in dropped.partitions)
    head = f"ALTER TABLE {'IF EXISTS ' * dropped.if_exists}{backquoted(dropped.name)}"
    return f"{head} DROP {'IF EXISTS ' * dropped.if_there}{partitions}"


@render.register
def _(overwrite: Overwrite) -> str:
    names = f" ({names_text(overwrite.columns)})" if overwrite.columns else ""
    partition = partition_text(overwrite.partition)
    if overwrite.hints:
        partition = f" {hint_text(overwrite.hints)}{partition}"
    return f"INSERT OVERWRITE {backquoted(overwrite.target)}{partition}{names}\n{overwrite.query.text}"


@render.register
def _(merge: Merge) -> str:
    source = backquoted(merge.source) if isinstance(merge.source, str) else f"({merge.source.text})"
    alias = f" AS {backquoted(merge.source_alias)}" if merge.source_alias else ""
    head = f"MERGE INTO {_aliased(merge.name, merge.alias)} USING {source}{alias} ON {merge.on.text}"
    return "\n".join([head, *map(_clause, merge.clauses)])


def _clause(clause: MergeClause) -> str:
    condition = "" if clause.condition is None else f" AND {clause.condition.text}"
    done = clause.action.upper()
    if clause.action is Action.UPDATE:
        done += f" SET {_assigned(clause.assignments) or '*'}"
    elif clause.action is Action.INSERT:
        values = ", ".join(value.text for _, value in clause.assignments)
        names = names_text(name for name, _ in clause.assignments)
        done += f" ({names}) VALUES ({values})" if clause.assignments else "" if clause.values else " *"
        done += f" VALUES ({', '.join(value.text for value in clause.values)})" if clause.values else ""
    return f"{clause.match.upper()}{condition} THEN {done}"


@render.register
def _(call: Call) -> str:
    said = ", ".join(f"{backquoted(name)} => {_constant(value)}" for name, value in call.arguments)
    return f"CALL sys.{backquoted(call.name)}({said})"


def _constant(value: Constant) -> str:
    return text_literal(value) if isinstance(value, str) else str(value).upper()


def _aliased(name: str, alias: str) -> str:
    return backquoted(name) + (f" AS {backquoted(alias)}" if alias else "")


def _assigned(assignments: Assignments) -> str:
    return ", ".join(f"{backquoted(name)} = {value.text}" for name, value in assignments)


def _where(where: Expression | None) -> str:
    return "" if where is None else f" WHERE {where.text}"


def _placed(altered: AlterAdd | AlterModify) -> str:
    places = altered.places or (None,) * len(altered.columns)
    return ", ".join(column_text(column) + _place(place) for column, place in zip(altered.columns, places, strict=True))


def _place(place: ColumnPosition | None) -> str:
    return "" if place is None else " FIRST" if place.after is None else f" AFTER {backquoted(place.after)}"


def _altered(
    altered: AlterSet
    | AlterReset
    | AlterRename
    | AlterRenameColumn
    | AlterAdd
    | AlterModify
    | AlterDrop
    | AlterWatermark,
) -> str:
    kind = "VIEW" if isinstance(altered, AlterRename) and altered.is_view else "TABLE"
    return f"ALTER {kind} {'IF EXISTS ' * altered.if_exists}{backquoted(altered.name)}"
