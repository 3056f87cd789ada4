"""Merge engine options, named as in Paimon; ``rule_of_options.py`` builds the merge rule from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import Function
from tablestore.options.declaration import Group, OptionSpec
from tablestore.options.value_types import BOOLEAN, COLUMNS, RETENTION, choice

FIELDS: Final = "fields."
AGGREGATE: Final = "aggregate-function"
SEQUENCE_GROUP: Final = "sequence-group"
DELIMITER: Final = "list-agg-delimiter"
DISTINCT: Final = "distinct"
IGNORE_RETRACT: Final = "ignore-retract"


class Engine(StrEnum):
    """How rows with the same key are merged."""

    DEDUPLICATE = "deduplicate"
    FIRST_ROW = "first-row"
    PARTIAL_UPDATE = "partial-update"
    AGGREGATION = "aggregation"


MERGE_ENGINE: Final = OptionSpec(
    "merge-engine",
    choice(Engine),
    "deduplicate",
    "What several rows of one key become: the last (`deduplicate`), the first (`first-row`), the last value that is "
    "not NULL of each column (`partial-update`), or what the aggregate functions make of them (`aggregation`). See "
    "[merge engines](../guide/merge_engines.md).",
)
SEQUENCE_FIELD: Final = OptionSpec(
    "sequence.field",
    COLUMNS,
    None,
    "Columns that say which row of a key is newer, whatever the order of arrival: a row with a smaller sequence is "
    "late and loses. Deletes too.",
)
DELETE_RETENTION: Final = OptionSpec(
    "sequence.delete-retention",
    RETENTION,
    "7 d",
    "With `sequence.field`: how long a delete is remembered at least. A row that is older than the delete and comes "
    "later than this is taken for a new one; -1 for ever.",
)
IGNORE_DELETE: Final = OptionSpec(
    "ignore-delete", BOOLEAN, "false", "Deletes, and preimages, that are written are dropped."
)
PARTIAL_REMOVE: Final = OptionSpec(
    "partial-update.remove-record-on-delete",
    BOOLEAN,
    "false",
    "With `merge-engine=partial-update`: a delete removes the row. Otherwise it is refused, or with sequence groups "
    "sets their columns to NULL.",
)
AGGREGATION_REMOVE: Final = OptionSpec(
    "aggregation.remove-record-on-delete",
    BOOLEAN,
    "false",
    "With `merge-engine=aggregation`: a delete removes the row. Otherwise its values are taken back from the row.",
)
DEFAULT_FUNCTION: Final = OptionSpec(
    "fields.default-aggregate-function",
    choice(Function),
    None,
    "The aggregate function of columns that name none; without it `last_non_null_value`.",
)
MERGE_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    MERGE_ENGINE,
    SEQUENCE_FIELD,
    DELETE_RETENTION,
    IGNORE_DELETE,
    PARTIAL_REMOVE,
    AGGREGATION_REMOVE,
    DEFAULT_FUNCTION,
)
FIELD_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    AGGREGATE: ("word", "How values of the column are folded; see [merge engines](../guide/merge_engines.md)."),
    SEQUENCE_GROUP: (
        "columns",
        "With `merge-engine=partial-update`: the columns named here are ordered by `<column>` (or several, separated "
        "by commas), and so are written whole: NULL too.",
    ),
    DELIMITER: ("text", "Stands between the strings of `listagg`; a comma if it is not given."),
    DISTINCT: ("boolean", "`collect` keeps the first of equal elements."),
    IGNORE_RETRACT: ("boolean", "Deletes and preimages take nothing back from this column."),
}
"""Per-column options: the last part of the name, with the type and the documentation."""


@dataclass(frozen=True, kw_only=True)
class MergeOptions(Group):
    """Options that determine how rows with the same key are merged.

    Attributes:
        engine: the merge engine.
        sequence_field: columns that order the rows of a key; empty for the order of arrival.
        delete_retention_ms: how long a delete is remembered, in milliseconds; -1 forever.
        ignore_delete: whether deletes are dropped.
        partial_remove: whether a delete removes the row in the ``partial-update`` engine.
        aggregation_remove: whether a delete removes the row in the ``aggregation`` engine.
        default_function: the aggregate function of columns without one of their own.
        fields: the other options that begin with ``fields.``, unparsed.
    """

    engine: Engine = MERGE_ENGINE.field
    sequence_field: tuple[str, ...] = field(default=(), metadata={"spec": SEQUENCE_FIELD})
    delete_retention_ms: int = DELETE_RETENTION.field
    ignore_delete: bool = IGNORE_DELETE.field
    partial_remove: bool = PARTIAL_REMOVE.field
    aggregation_remove: bool = AGGREGATION_REMOVE.field
    default_function: Function | None = field(default=None, metadata={"spec": DEFAULT_FUNCTION})
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> MergeOptions:
        """Parse the merge options and ignore the others.

        Raises:
            InvalidInputError: a value is invalid.
        """
        named = {name: text for name, text in given.items() if is_field_option(name)}
        for name, text in named.items():
            _, suffix = split_field_option(name)
            if suffix in (DISTINCT, IGNORE_RETRACT):
                OptionSpec(name, BOOLEAN, None, "").parse(text)
            elif suffix == AGGREGATE:
                OptionSpec(name, choice(Function), None, "").parse(text)
        return cls.read(given, fields=named)

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return super().to_properties() | dict(self.fields)

    def check_key(self, primary_key: Sequence[str]) -> None:
        """Check that a table with merge options has a primary key.

        Raises:
            InvalidInputError: it has no primary key.
        """
        given = self.to_properties()
        if given and not primary_key:
            msg = (
                f"option '{next(iter(given))}' needs a primary key, by which rows are merged; this table has none. "
                "Declare one, or leave the option out."
            )
            raise InvalidInputError(msg)


def is_field_option(name: str) -> bool:
    """Return whether the name is a per-column option."""
    return name.startswith(FIELDS) and name != DEFAULT_FUNCTION.name and split_field_option(name)[1] in FIELD_OPTIONS


def split_field_option(name: str) -> tuple[str, str]:
    """Split ``fields.<column>.<suffix>`` into column and suffix; the column name may contain dots."""
    column, _, suffix = name.removeprefix(FIELDS).rpartition(".")
    return column, suffix
