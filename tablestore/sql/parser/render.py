"""Renders definitions and inserts as canonical text that parses to the same statement, except masked credentials."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from log_system.kafka.client.secrets import MASK, ClientValue, holds_secret
from snapshot.quoting import backquoted, text_literal
from tablestore.sql.parser.statements import (
    Column,
    ComputedColumn,
    CreateTable,
    CreateView,
    Expression,
    Insert,
    MetadataColumn,
    Options,
    Watermark,
)


def hint_text(options: Options) -> str:
    """Return a hint with credentials masked."""
    return f"/*+ OPTIONS({options_text(options, ', ')}) */"


@singledispatch
def render(statement: CreateTable | CreateView | Insert) -> str:
    """Return a statement as text, with credentials in options masked.

    Raises:
        TypeError: statements of this type are not rendered.
    """
    msg = f"not rendered: {statement!r}"
    raise TypeError(msg)


@render.register
def _(made: CreateTable) -> str:
    lines = [column_text(column) for column in made.columns]
    if made.watermark is not None:
        lines.append(watermark_text(made.watermark))
    if made.primary_key:
        lines.append(f"PRIMARY KEY ({names_text(made.primary_key)}) NOT ENFORCED")
    body = "".join([" (\n  ", ",\n  ".join(lines), "\n)"]) if lines else ""
    name = f"{'IF NOT EXISTS ' * made.if_not_exists}{backquoted(made.name)}"
    text = f"CREATE {'TEMPORARY ' * made.temporary}TABLE {name}{body}"
    text += f"\nCOMMENT {text_literal(made.comment)}" if made.comment is not None else ""
    text += f"\nPARTITIONED BY ({names_text(made.partitioned_by)})" if made.partitioned_by else ""
    options = options_text(made.options, ",\n  ")
    text += f"\nWITH (\n  {options}\n)" if made.options else ""
    if made.like is not None:
        parts = " ".join(f"{strategy.value} {part}" for part, strategy in made.like.strategies)
        text += f"\nLIKE {backquoted(made.like.source)}" + (f" ({parts})" if parts else "")
    return text


@render.register
def _(made: CreateView) -> str:
    exists, names = "IF NOT EXISTS " * made.if_not_exists, f" ({names_text(made.columns)})" if made.columns else ""
    comment = f" COMMENT {text_literal(made.comment)}" if made.comment is not None else ""
    temporary = "TEMPORARY " * made.temporary
    return f"CREATE {temporary}VIEW {exists}{backquoted(made.name)}{names}{comment} AS\n{made.query.text}"


@render.register
def _(insert: Insert) -> str:
    names = f" ({names_text(insert.columns)})" if insert.columns else ""
    hint = f" {hint_text(insert.hints)}" if insert.hints else ""
    return (
        f"INSERT INTO {backquoted(insert.target)}{hint}{partition_text(insert.partition)}{names}\n{insert.query.text}"
    )


def partition_text(partition: Iterable[tuple[str, Expression | None]]) -> str:
    """Return ``PARTITION (...)`` after a table's name; empty without columns."""
    values = [backquoted(name) + ("" if value is None else f" = {value.text}") for name, value in partition]
    return f" PARTITION ({', '.join(values)})" if values else ""


def watermark_text(watermark: Watermark) -> str:
    """Return the declaration of a watermark."""
    return f"WATERMARK FOR {backquoted(watermark.column)} AS {watermark.expression}"


def names_text(names: Iterable[str]) -> str:
    """Return quoted names, separated by commas."""
    return ", ".join(map(backquoted, names))


def options_text(options: Iterable[tuple[str, ClientValue]], between: str) -> str:
    """Return options with credentials masked."""
    return between.join(
        f"{text_literal(key)} = {text_literal(MASK if holds_secret(key, value) else str(value))}"
        for key, value in options
    )


def column_text(column: Column) -> str:
    """Return the declaration of a column."""
    comment = f" COMMENT {text_literal(column.comment)}" if column.comment is not None else ""
    if isinstance(column, ComputedColumn):
        return f"{backquoted(column.name)} AS {column.expression}{comment}"
    text = f"{backquoted(column.name)} {column.type.declared}"
    if isinstance(column, MetadataColumn):
        text += f" METADATA FROM {text_literal(column.key)}" + " VIRTUAL" * column.is_virtual
    return text + comment
