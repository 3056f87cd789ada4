"""Builds the merge rule of a table from its options and columns, and checks that they are consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.merge import merge_rules
from snapshot.merge.merge_rules import SKETCHES, ColumnRule, Deletes, Function, MergeRule
from snapshot.merge.sketches import missing_library
from snapshot.schema.defaults import DEFAULT_VALUE, FIELDS, default_of
from snapshot.schema.spec import ROWKIND_FIELD
from tablestore.options.declaration import OptionSpec
from tablestore.options.merge_options import (
    AGGREGATE,
    AGGREGATION_REMOVE,
    ASCENDING,
    DEFAULT_FUNCTION,
    DELIMITER,
    DISTINCT,
    FUNCTION,
    IGNORE_RETRACT,
    NESTED_KEY,
    PARTIAL_REMOVE,
    REMOVE_ON_GROUP,
    SEQUENCE_FIELD,
    SEQUENCE_GROUP,
    SORT_ORDER,
    Engine,
    MergeOptions,
    split_field_option,
)
from tablestore.options.value_types import BOOLEAN, COLUMNS

PRODUCT_DIGITS_MAX = 18
"""Products of decimals with more digits would overflow DECIMAL during the computation."""
_TAKES_BACK = (
    Function.SUM, Function.PRODUCT, Function.COUNT, Function.LAST_VALUE, Function.LAST_NON_NULL_VALUE, Function.COLLECT,
    Function.MERGE_MAP, Function.NESTED_UPDATE,
)  # fmt: skip


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type))


def _is_ordered(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        _is_number(data_type) or types.is_string(data_type) or types.is_date(data_type) or types.is_timestamp(data_type)
    )


def _multiplies(data_type: pa.DataType) -> bool:
    return _is_number(data_type) and not (pa.types.is_decimal(data_type) and data_type.precision > PRODUCT_DIGITS_MAX)


def _has_rows(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) and pa.types.is_struct(data_type.value_type))


_FITS: Mapping[Function, tuple[Callable[[pa.DataType], bool], str]] = {
    Function.SUM: (_is_number, "a number"),
    Function.PRODUCT: (_multiplies, f"a number (a DECIMAL of at most {PRODUCT_DIGITS_MAX} digits)"),
    Function.COUNT: (lambda kind: kind in (pa.int32(), pa.int64()), "INT or BIGINT"),
    Function.MAX: (_is_ordered, "a number, string, date or timestamp"),
    Function.MIN: (_is_ordered, "a number, string, date or timestamp"),
    Function.BOOL_OR: (pa.types.is_boolean, "BOOLEAN"),
    Function.BOOL_AND: (pa.types.is_boolean, "BOOLEAN"),
    Function.LISTAGG: (pa.types.is_string, "STRING"),
    Function.COLLECT: (pa.types.is_list, "an ARRAY"),
    Function.MERGE_MAP: (pa.types.is_map, "a MAP"),
    Function.NESTED_UPDATE: (_has_rows, "an ARRAY of rows (STRUCT)"),
    **dict.fromkeys(SKETCHES, (pa.types.is_binary, "BINARY")),
}
"""The column types that a function accepts; functions that are not listed accept any type."""
_TAKERS: Mapping[str, Sequence[Engine]] = {
    SEQUENCE_GROUP: [Engine.PARTIAL_UPDATE],
    DEFAULT_VALUE: [each for each in Engine if each is not Engine.PARTIAL_UPDATE],
}
"""The merge engines of per-column options that are not those of aggregate functions."""


def merge_rule(
    options: MergeOptions, schema: pa.Schema, primary_key: Sequence[str], partition_by: Sequence[str]
) -> MergeRule:
    """Return the rule by which rows of a key are merged.

    Args:
        options: the table's merge options.
        schema: the table's columns.
        primary_key: the key columns; empty for a table without a key.
        partition_by: the partition columns. Those outside the key keep the first value of a merged row.

    Raises:
        InvalidInputError: an option names a column that is unknown or has an unsuitable type, or options contradict
            each other.
    """
    made = _Maker(options, schema, primary_key)
    rule = made.rule()
    stays = [name for name in partition_by if name in rule.columns and not made.is_ruled(name)]
    if options.engine not in (Engine.PARTIAL_UPDATE, Engine.AGGREGATION) or not stays:
        return rule
    first = ColumnRule(Function.FIRST_VALUE, retracts=False, ignore_retract=True)
    return replace(rule, columns={**rule.columns, **dict.fromkeys(stays, first)})


class _Maker:
    """Builds a merge rule."""

    def __init__(self, options: MergeOptions, schema: pa.Schema, primary_key: Sequence[str]) -> None:
        self._options = options
        self._schema = schema
        self._key = primary_key
        self._values = [name for name in schema.names if name not in primary_key]
        self._given: dict[str, dict[str, str]] = {}
        for name, text in options.fields.items():
            column, what = split_field_option(name)
            self._given.setdefault(what, {})[column] = text

    def rule(self) -> MergeRule:
        self._check_columns()
        self._check_engine()
        options, name = self._options, self._options.engine.value
        plain = MergeRule(ignore_delete=options.ignore_delete, ignore_preimages=options.ignore_preimages, name=name)
        descending = options.sort_order != ASCENDING
        ordered = merge_rules.Sequence(options.sequence_field, descending=descending)
        whole = (ordered,) if options.sequence_field else ()
        if options.engine is Engine.FIRST_ROW:
            first = {column: ColumnRule(Function.FIRST_VALUE, retracts=False) for column in self._values}
            return replace(plain, columns=first, deletes=Deletes.REFUSE)
        if options.engine is Engine.PARTIAL_UPDATE:
            return self._partial_update(plain, whole)
        if options.engine is Engine.AGGREGATION:
            columns = {column: self._aggregate(column, 0 if whole else None) for column in self._values}
            removes = options.aggregation_remove
            plain = replace(plain, deletes=Deletes.REMOVE if removes else Deletes.RETRACT, takes_back=removes)
            return replace(plain, columns=self._ordered(columns, whole), sequences=whole)
        if not whole:
            return plain
        last = {column: ColumnRule(Function.LAST_VALUE, sequence=0) for column in self._values}
        return replace(plain, columns=last, sequences=whole)

    def is_ruled(self, column: str) -> bool:
        """Return whether options say how a column is merged, or it orders rows."""
        groups = list(self._groups())
        of_groups = {name for fields, members in groups for name in (*fields, *members)}
        return column in {*self._given.get(AGGREGATE, {}), *self._options.sequence_field, *of_groups}

    def _partial_update(self, plain: MergeRule, whole: tuple[merge_rules.Sequence, ...]) -> MergeRule:
        options, groups = self._options, list(self._groups())
        if groups and (whole or options.partial_remove):
            other = SEQUENCE_FIELD.name if whole else PARTIAL_REMOVE
            msg = (
                f"option '{other}' does not go with sequence groups, each of which has its own. Leave one of them out."
            )
            raise InvalidInputError(msg)
        held = {column: number for number, (_, members) in enumerate(groups) for column in members}
        columns: dict[str, ColumnRule] = {}
        for column in self._values:
            function = self._function(column)
            if column in held:
                columns[column] = self._aggregate(column, held[column], Function.LAST_VALUE)
            elif function not in (None, Function.LAST_NON_NULL_VALUE) and not self._is_sequence(column, groups):
                msg = (
                    f"column '{column}': merge-engine='partial-update' takes {AGGREGATE} '{function}' in a sequence "
                    f"group only. Name the column in a group, fields.<sequence column>.{SEQUENCE_GROUP}, or use "
                    "merge-engine='aggregation'."
                )
                raise InvalidInputError(msg)
            else:
                columns[column] = ColumnRule(Function.LAST_NON_NULL_VALUE, 0 if whole else None, ignore_retract=True)
        sequences = whole or self._removing(groups)
        deletes = Deletes.RETRACT if groups else Deletes.REMOVE if options.partial_remove else Deletes.REFUSE
        return replace(plain, columns=self._ordered(columns, sequences), sequences=sequences, deletes=deletes)

    def _groups(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yield the sequence columns and the members of each sequence group; a column is in one group at most."""
        seen: set[str] = set()
        for names, text in self._given.get(SEQUENCE_GROUP, {}).items():
            option = f"{FIELDS}{names}.{SEQUENCE_GROUP}"
            fields, members = self._named(option, names), self._named(option, text)
            self._check_order(option, fields)
            twice = [name for name in (*fields, *members) if name in seen]
            if twice or set(fields) & set(members):
                msg = f"option '{option}': column '{(twice or members)[0]}' is in a sequence group already."
                raise InvalidInputError(msg)
            seen |= {*fields, *members}
            yield fields, members

    def _is_sequence(self, column: str, groups: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> bool:
        return any(column in fields for fields, _ in groups) or column in self._options.sequence_field

    def _ordered(
        self, columns: dict[str, ColumnRule], sequences: Sequence[merge_rules.Sequence]
    ) -> Mapping[str, ColumnRule]:
        """Return the column rules with the rule of sequence columns added: the value of the newest row."""
        for number, sequence in enumerate(sequences):
            for name in sequence.fields:
                if name in self._given.get(AGGREGATE, {}):
                    msg = f"column '{name}' defines the order of rows and cannot have an {AGGREGATE}. Leave it out."
                    raise InvalidInputError(msg)
                columns[name] = ColumnRule(Function.LAST_VALUE, sequence=number)
        return columns

    def _function(self, column: str) -> Function | None:
        text = self._given.get(AGGREGATE, {}).get(column)
        return self._options.default_function if text is None else FUNCTION.parse(text)

    def _aggregate(
        self, column: str, sequence: int | None, otherwise: Function = Function.LAST_NON_NULL_VALUE
    ) -> ColumnRule:
        function = self._function(column) or otherwise
        data_type = self._schema.field(column).type
        fits, expected = _FITS.get(function, (None, ""))
        is_sequence = column in self._options.sequence_field
        if fits is not None and not fits(data_type) and not is_sequence:
            msg = (
                f"column '{column}': {AGGREGATE} '{function}' needs {expected}; its type is {data_type}. Choose "
                "another."
            )
            raise InvalidInputError(msg)
        if library := missing_library(function):
            msg = (
                f"column '{column}': {AGGREGATE} '{function}' needs the package {library} here and on executors: "
                "pip install tablestore[sketches]."
            )
            raise InvalidInputError(msg)
        return ColumnRule(
            function,
            sequence,
            delimiter=self._given.get(DELIMITER, {}).get(column, ","),
            nested_key=self._nested_key(column),
            distinct=BOOLEAN.parse(self._given.get(DISTINCT, {}).get(column, "false")),
            retracts=function in _TAKES_BACK and not (function is Function.PRODUCT and pa.types.is_decimal(data_type)),
            ignore_retract=BOOLEAN.parse(self._given.get(IGNORE_RETRACT, {}).get(column, "false")),
        )

    def _nested_key(self, column: str) -> tuple[int, ...]:
        """Return the positions of the fields of ``nested-key``."""
        text = self._given.get(NESTED_KEY, {}).get(column)
        if text is None:
            return ()
        name = f"{FIELDS}{column}.{NESTED_KEY}"
        row = self._schema.field(column).type.value_type
        fields = [row.field(number).name for number in range(row.num_fields)]
        names = OptionSpec(name, COLUMNS).parse(text)
        for each in names:
            if each not in fields:
                msg = f"option '{name}': there is no field '{each}'; the rows have {fields}."
                raise InvalidInputError(msg)
        return tuple(fields.index(each) for each in names)

    def _removing(self, groups: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> tuple[merge_rules.Sequence, ...]:
        """Return the sequences of groups; deletes of those that ``remove-record-on-sequence-group`` names remove."""
        named = self._options.remove_groups
        for name in named:
            if not any(name in fields for fields, _ in groups):
                columns = [field for fields, _ in groups for field in fields]
                msg = f"option '{REMOVE_ON_GROUP.name}': '{name}' orders no sequence group; expected some of {columns}."
                raise InvalidInputError(msg)
        return tuple(
            merge_rules.Sequence(fields, is_group=True, removes=bool(set(fields) & set(named))) for fields, _ in groups
        )

    def _check_columns(self) -> None:
        if self._options.sort_order != ASCENDING and not self._options.sequence_field:
            msg = f"option '{SORT_ORDER}'='{self._options.sort_order}' needs option '{SEQUENCE_FIELD.name}'. Set both."
            raise InvalidInputError(msg)
        self._check_order(SEQUENCE_FIELD.name, self._named(SEQUENCE_FIELD.name, ",".join(self._options.sequence_field)))
        kind = self._options.rowkind_field
        if kind is not None:
            self._named(ROWKIND_FIELD, kind, single=True)
            given = self._schema.field(kind).type
            if not pa.types.is_string(given):
                msg = f"option '{ROWKIND_FIELD}': column '{kind}' has type {given}; expected STRING."
                raise InvalidInputError(msg)
        for what, options in self._given.items():
            for column, text in options.items() if what != SEQUENCE_GROUP else ():
                self._named(f"{FIELDS}{column}.{what}", column, single=True)
                if what == DEFAULT_VALUE:
                    default_of(column, text, self._schema.field(column).type)
        for what, functions in (
            (DELIMITER, (Function.LISTAGG,)),
            (DISTINCT, (Function.COLLECT, Function.LISTAGG)),
            (NESTED_KEY, (Function.NESTED_UPDATE,)),
        ):
            for column in self._given.get(what, {}):
                if self._function(column) not in functions:
                    named = " and ".join(f"'{function}'" for function in functions)
                    msg = f"option '{FIELDS}{column}.{what}' is for {AGGREGATE} {named} only. Leave it out."
                    raise InvalidInputError(msg)
        for column, delimiter in self._given.get(DELIMITER, {}).items():
            if not delimiter and BOOLEAN.parse(self._given.get(DISTINCT, {}).get(column, "false")):
                msg = (
                    f"option '{FIELDS}{column}.{DELIMITER}': expected a text that divides distinct texts, got an empty "
                    f"one. Set a delimiter, or leave out '{FIELDS}{column}.{DISTINCT}'."
                )
                raise InvalidInputError(msg)

    def _named(self, option: str, text: str, *, single: bool = False) -> tuple[str, ...]:
        """Parse and check the names of columns that are not in the key."""
        names = (text,) if single else OptionSpec(option, COLUMNS).parse(text) if text else ()
        for name in names:
            if name in self._key:
                msg = f"option '{option}': column '{name}' is in the primary key, which is not merged. Leave it out."
                raise InvalidInputError(msg)
            if name not in self._values:
                msg = f"option '{option}': there is no column '{name}'; the table has {self._values} besides its key."
                raise InvalidInputError(msg)
        if len(set(names)) != len(names):
            msg = f"option '{option}' names a column twice: {list(names)}."
            raise InvalidInputError(msg)
        return names

    def _check_order(self, option: str, names: Sequence[str]) -> None:
        for name in names:
            data_type = self._schema.field(name).type
            if not _is_ordered(data_type):
                msg = f"option '{option}': column '{name}' has type {data_type}; expected {_FITS[Function.MAX][1]}."
                raise InvalidInputError(msg)

    def _check_engine(self) -> None:
        """Check that the table's merge engine supports the given options."""
        options, engine = self._options, self._options.engine
        aggregates = (Engine.AGGREGATION, Engine.PARTIAL_UPDATE)
        known: list[tuple[str, bool, Sequence[Engine]]] = [
            (SEQUENCE_FIELD.name, bool(options.sequence_field), [e for e in Engine if e is not Engine.FIRST_ROW]),
            (PARTIAL_REMOVE, options.partial_remove, [Engine.PARTIAL_UPDATE]),
            (REMOVE_ON_GROUP.name, bool(options.remove_groups), [Engine.PARTIAL_UPDATE]),
            (AGGREGATION_REMOVE, options.aggregation_remove, [Engine.AGGREGATION]),
            (DEFAULT_FUNCTION, options.default_function is not None, aggregates),
        ]
        for name in options.fields:
            what = split_field_option(name)[1]
            known.append((name, True, _TAKERS.get(what, aggregates)))
        for name, is_given, takers in known:
            if is_given and engine not in takers:
                words = " or ".join(f"merge-engine='{each}'" for each in takers)
                msg = f"option '{name}' needs {words}; this table has '{engine}'. Change one of them."
                raise InvalidInputError(msg)
