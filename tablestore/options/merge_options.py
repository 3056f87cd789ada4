"""Merge engine options, named as in Paimon; ``rule_of_options.py`` builds the merge rule from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import Function
from snapshot.schema.defaults import DEFAULT_VALUE, FIELDS
from snapshot.schema.spec import IGNORE_DELETE, IGNORE_PREIMAGES, KEEPS_LAST, MERGE_ENGINE, ROWKIND_FIELD
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.value_types import BOOLEAN, COLUMNS, RETENTION, VERBATIM, OptionType, choice

AGGREGATE: Final = "aggregate-function"
SEQUENCE_GROUP: Final = "sequence-group"
DELIMITER: Final = "list-agg-delimiter"
DISTINCT: Final = "distinct"
IGNORE_RETRACT: Final = "ignore-retract"
NESTED_KEY: Final = "nested-key"
_NOT_HERE: Final[Mapping[str, str]] = {
    "rbm64": "the bytes of its bitmaps are a form of one Java class; use 'rbm32', whose format has a specification",
    "roaring_bitmap": "use 'rbm32'",
    "nested_partial_update": "use 'nested_update', which replaces whole elements by their nested-key",
    "merge_map_with_keytime": "use 'merge_map' in a sequence group",
}
"""Paimon's functions that are not supported, with what to use instead."""


class Engine(StrEnum):
    """How rows with the same key are merged."""

    DEDUPLICATE = KEEPS_LAST
    FIRST_ROW = "first-row"
    PARTIAL_UPDATE = "partial-update"
    AGGREGATION = "aggregation"


SEQUENCE_FIELD: Final = OptionSpec(
    "sequence.field",
    COLUMNS,
    None,
    "Columns that decide which row of a key is newer, regardless of the order of arrival: a row or delete with a "
    "smaller sequence is late and ignored.",
)
ASCENDING: Final = "ascending"
SORT_ORDER: Final = "sequence.field.sort-order"


FUNCTION: Final = OptionType("word", choice(Function).expected, lambda text: Function(text.strip().lower()))
REMOVE_ON_GROUP: Final = OptionSpec(
    "partial-update.remove-record-on-sequence-group",
    COLUMNS,
    None,
    "Sequence columns: a delete that has one of them, and is not late in its group, removes the row, and what it knew "
    "of the order is forgotten.",
)
PARTIAL_REMOVE: Final = "partial-update.remove-record-on-delete"
AGGREGATION_REMOVE: Final = "aggregation.remove-record-on-delete"
DEFAULT_FUNCTION: Final = "fields.default-aggregate-function"

_FIELD_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    OptionSpec(
        f"{FIELDS}<column>.{AGGREGATE}",
        FUNCTION,
        doc="How values of the column are folded; see [merge engines](../guide/merge_engines.md).",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{SEQUENCE_GROUP}",
        COLUMNS,
        doc="With `merge-engine=partial-update`: the columns named here are ordered by `<column>` (or several, "
        "separated by commas), and so are written whole: NULL too.",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{DELIMITER}",
        VERBATIM,
        doc="Stands between the strings of `listagg`; a comma if it is not given.",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{DISTINCT}",
        BOOLEAN,
        doc="`collect` keeps the first of equal elements, `listagg` of equal texts between delimiters.",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{NESTED_KEY}",
        COLUMNS,
        doc="Fields of the rows in an array by which `nested_update` replaces them; without it, rows are added.",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{IGNORE_RETRACT}",
        BOOLEAN,
        doc="Deletes and preimages take nothing back from this column.",
    ),
    OptionSpec(
        f"{FIELDS}<column>.{DEFAULT_VALUE}",
        VERBATIM,
        doc="What is written in place of NULL, also in a column that rows lack. May change after `create`, for rows "
        "that are written then. Not for columns of the primary key, nor with `partial-update`.",
    ),
)
FIELD_OPTIONS: Final = {spec.name.rpartition(".")[2]: spec for spec in _FIELD_OPTIONS}
"""The declarations of per-column options, by the last part of the name."""


@dataclass(frozen=True, kw_only=True)
class MergeOptions(Group):
    """Options that determine how rows with the same key are merged.

    Attributes:
        sequence_field: columns that order the rows of a key; empty for the order of arrival.
        sort_order: whether the greatest or the smallest sequence is the newest.
        delete_retention_ms: how long a delete is remembered, in milliseconds; -1 forever.
        fields: the other options that begin with ``fields.``, unparsed.
    """

    engine: Engine = option(
        MERGE_ENGINE,
        choice(Engine),
        KEEPS_LAST,
        "How several rows of one key are merged: keep the last (`deduplicate`), the first (`first-row`), the last "
        "value of each column that is not NULL (`partial-update`), or apply aggregate functions (`aggregation`). See "
        "[merge engines](../guide/merge_engines.md).",
    )
    sequence_field: tuple[str, ...] = field(default=(), metadata={"spec": SEQUENCE_FIELD})
    sort_order: str = option(
        SORT_ORDER,
        choice((ASCENDING, "descending")),
        ASCENDING,
        "With `descending`, the row with the smallest `sequence.field` is the newest. NULL is the oldest in any case.",
    )
    delete_retention_ms: int = option(
        "sequence.delete-retention",
        RETENTION,
        "7 d",
        "With `sequence.field`: minimum time for which a delete is remembered; -1 for unlimited. A row with a smaller "
        "sequence that arrives later than this is treated as new.",
    )
    ignore_delete: bool = option(IGNORE_DELETE, BOOLEAN, "false", "Ignore deletes and preimages in writes.")
    ignore_preimages: bool = option(IGNORE_PREIMAGES, BOOLEAN, "false", "Ignore preimages in writes.")
    partial_remove: bool = option(
        PARTIAL_REMOVE,
        BOOLEAN,
        "false",
        "With `merge-engine=partial-update`: a delete removes the row. Otherwise it is refused, or with sequence "
        "groups sets their columns to NULL.",
    )
    rowkind_field: str | None = optional(
        ROWKIND_FIELD,
        VERBATIM,
        "A STRING column whose value is the kind of each written row: `+I` and `+U` upsert it, `-D` deletes it, "
        "`-U` is the row before an update, which is deleted unless a `+U` of its key follows. With merge engines that "
        "take values back, it takes them back, and with the others it is ignored. A column `_change_type`, if rows "
        "have it, is taken instead.",
    )
    remove_groups: tuple[str, ...] = field(default=(), metadata={"spec": REMOVE_ON_GROUP})
    aggregation_remove: bool = option(
        AGGREGATION_REMOVE,
        BOOLEAN,
        "false",
        "With `merge-engine=aggregation`: a delete removes the row. Otherwise its values are taken back from the row. "
        "Those of a preimage are in any case.",
    )
    default_function: Function | None = optional(
        DEFAULT_FUNCTION,
        FUNCTION,
        "The aggregate function of columns that name none; without it `last_non_null_value`.",
    )
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> MergeOptions:
        """Parse the merge options and ignore the others.

        Raises:
            InvalidInputError: a value is invalid.
        """
        named = {name: text for name, text in given.items() if is_field_option(name)}
        _check_functions(given)
        for name, text in named.items():
            _, suffix = split_field_option(name)
            # The columns of a sequence group are parsed when the table's columns are known.
            if suffix != SEQUENCE_GROUP:
                OptionSpec(name, FIELD_OPTIONS[suffix].type).parse(text)
        return cls.read(given, fields=named)

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return super().to_properties() | dict(self.fields)

    def check_key(self, primary_key: Sequence[str]) -> None:
        """Check that a table with merge options has a primary key.

        Raises:
            InvalidInputError: it has no primary key.
        """
        given = [name for name in self.to_properties() if not is_default(name)]
        if given and not primary_key:
            msg = (
                f"option '{given[0]}' needs a primary key, by which rows are merged; this table has none. "
                "Declare one, or leave the option out."
            )
            raise InvalidInputError(msg)


def _check_functions(given: Mapping[str, str]) -> None:
    for name, text in given.items():
        function = text.strip().lower()
        if name.startswith(FIELDS) and name.endswith(AGGREGATE) and function in _NOT_HERE:
            msg = f"option '{name}': function '{function}' is not supported: {_NOT_HERE[function]}."
            raise InvalidInputError(msg)


def is_field_option(name: str) -> bool:
    """Return whether the name is a per-column option."""
    return name.startswith(FIELDS) and name != DEFAULT_FUNCTION and split_field_option(name)[1] in FIELD_OPTIONS


def is_default(name: str) -> bool:
    """Return whether the name is the option of a column's default."""
    return is_field_option(name) and split_field_option(name)[1] == DEFAULT_VALUE


def split_field_option(name: str) -> tuple[str, str]:
    """Split ``fields.<column>.<suffix>`` into column and suffix; the column name may contain dots."""
    column, _, suffix = name.removeprefix(FIELDS).rpartition(".")
    return column, suffix
