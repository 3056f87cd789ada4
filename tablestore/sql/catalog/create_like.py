"""``CREATE TABLE ... LIKE``: merges the source table's definition into the new one, by Flink's rules."""

from __future__ import annotations

from dataclasses import replace

from snapshot.errors import InvalidInputError
from tablestore.sql.parser.statements import Column, ComputedColumn, CreateTable, MetadataColumn, Strategy

_PART_OF = {ComputedColumn: "GENERATED", MetadataColumn: "METADATA"}


def merged(made: CreateTable, source: CreateTable) -> CreateTable:
    """Return a new table's definition merged with that of the source table.

    Physical columns are always included. By default options are OVERWRITING, and all other parts INCLUDING.

    Args:
        made: the new table; its ``like`` has the strategy for each part.
        source: the table named in ``LIKE``.

    Raises:
        InvalidInputError: both tables define the same thing and the strategy does not allow overwriting.
    """
    given = dict(made.like.strategies) if made.like else {}
    all_parts = given.get("ALL")

    def strategy(part: str) -> Strategy:
        usual = Strategy.OVERWRITING if part == "OPTIONS" and all_parts is None else Strategy.INCLUDING
        return given.get(part, all_parts or usual)

    options = dict(source.options) if strategy("OPTIONS") is not Strategy.EXCLUDING else {}
    for name, value in made.options:
        if name in options and strategy("OPTIONS") is Strategy.INCLUDING:
            raise _both(made, f"option '{name}'", "OVERWRITING OPTIONS")
        options[name] = value
    watermark = source.watermark if strategy("WATERMARKS") is not Strategy.EXCLUDING else None
    if made.watermark and watermark and strategy("WATERMARKS") is Strategy.INCLUDING:
        raise _both(made, "a WATERMARK", "OVERWRITING WATERMARKS or EXCLUDING WATERMARKS")
    key = source.primary_key if strategy("CONSTRAINTS") is not Strategy.EXCLUDING else ()
    if made.primary_key and key:
        raise _both(made, "a PRIMARY KEY", "EXCLUDING CONSTRAINTS")
    partitions = source.partitioned_by if strategy("PARTITIONS") is not Strategy.EXCLUDING else ()
    if made.partitioned_by and partitions:
        raise _both(made, "PARTITIONED BY", "EXCLUDING PARTITIONS")
    return replace(
        made,
        columns=_columns(made, source, strategy("GENERATED"), strategy("METADATA")),
        primary_key=made.primary_key or key,
        watermark=made.watermark or watermark,
        partitioned_by=made.partitioned_by or partitions,
        options=tuple(options.items()),
        comment=made.comment if made.comment is not None else source.comment,
    )


def _columns(made: CreateTable, source: CreateTable, generated: Strategy, metadata: Strategy) -> tuple[Column, ...]:
    strategies = {"GENERATED": generated, "METADATA": metadata}
    columns: dict[str, Column] = {}
    for column in source.columns:
        part = _PART_OF.get(type(column))
        if part is None or strategies[part] is not Strategy.EXCLUDING:
            columns[column.name] = column
    for column in made.columns:
        there = columns.get(column.name)
        part = _PART_OF.get(type(column))
        overwrites = part is not None and type(there) is type(column) and strategies[part] is Strategy.OVERWRITING
        if there is not None and not overwrites:
            raise _both(made, f"column '{column.name}'", f"OVERWRITING {part or 'GENERATED'}")
        columns[column.name] = column
    return tuple(columns.values())


def _both(made: CreateTable, what: str, remedy: str) -> InvalidInputError:
    source = made.like.source if made.like else ""
    msg = (
        f"table '{made.name}': {what} is in this table and in '{source}', which it is LIKE. Use LIKE ... ({remedy}), "
        "or leave it out."
    )
    return InvalidInputError(msg)
