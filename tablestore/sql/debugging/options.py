"""The options of ``datagen``, ``print`` and ``blackhole`` tables, by Flink's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.errors import InvalidInputError
from tablestore.connectors.option_names import Connector, refuse_unknown
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.value_types import BOOLEAN, VERBATIM, OptionType, choice, duration_or_ms, integer
from tablestore.sql.parser.statements import PhysicalColumn
from tablestore.sql.parser.types import FlinkType

NUMBER_OF_ROWS: Final = "number-of-rows"
_FIELDS: Final = "fields."
_WHOLE: Final[Mapping[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
"""The number of bits of whole numbers."""
_TEXT_LENGTH: Final = 100
"""The length of texts and bytes whose type has none."""
_COLLECTION_LENGTH: Final = 3
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1


class Kind(StrEnum):
    """How the values of a column are generated."""

    RANDOM = "random"
    SEQUENCE = "sequence"


_NAMES: Final = ("kind", "min", "max", "max-past", "length", "var-len", "start", "end", "null-rate")


@dataclass(frozen=True)
class Field:
    """A column, or a part of one, with the options of its generator.

    Attributes:
        path: its name in options, after ``fields.``.
        type: its declared type.
        kind: how its values are generated.
        given: its options, parsed, with defaults.
        parts: the element of an array, the key and the value of a map, or the fields of a row.
    """

    path: str
    type: FlinkType
    kind: Kind
    given: Mapping[str, Any]
    parts: tuple[Field, ...]

    def option(self, name: str) -> str:
        """Return the full name of an option."""
        return f"{_FIELDS}{self.path}.{name}"

    def lacks(self, name: str) -> str:
        """Return the sentence that the field has no option of a name."""
        kind = f" and kind '{self.kind}'" if "kind" in self.given else ""
        return f"'{self.path}' of type {self.type.text}{kind} has no '{name}'."

    def all(self) -> Iterator[Field]:
        """Yield this field and those within it."""
        yield self
        for part in self.parts:
            yield from part.all()


@dataclass(frozen=True, kw_only=True)
class Generated(Group):
    """A table of generated rows.

    Attributes:
        name: the table's name, with which its values differ from those of other tables.
        fields: its columns, by name.
    """

    name: str
    fields: Mapping[str, Field]
    rows_per_second: int = option("rows-per-second", integer(1), "10000")
    number_of_rows: int | None = optional(NUMBER_OF_ROWS, integer(0))
    parallelism: int | None = optional("scan.parallelism", integer(1))

    @classmethod
    def of(cls, name: str, columns: Sequence[PhysicalColumn], options: Mapping[str, object]) -> Generated:
        """Return the table described by columns and options, whose names are case-insensitive.

        Raises:
            InvalidInputError: an option is unknown, missing, invalid, or does not fit its column.
        """
        given = {key.lower(): str(value) for key, value in options.items()}
        fields = {each.name: _field(each.name.lower(), each.type, given, is_column=True) for each in columns}
        names = [(field, each) for column in fields.values() for field in column.all() for each in _NAMES]
        own = ["connector", *(spec.name for spec in cls.specs())]
        refuse_unknown(
            Connector.DATAGEN,
            given,
            (),
            further=[*own, *(field.option(each) for field, each in names if each in field.given)],
            hints={field.option(each): field.lacks(each) for field, each in names if each not in field.given},
        )
        return cls.read(given, name=name, fields=fields)

    @property
    def rows(self) -> int | None:
        """How many rows there are; None if the table is unbounded."""
        sequences = [field.given for field in self.fields.values() if field.kind is Kind.SEQUENCE]
        counts = [int(given["end"]) - int(given["start"]) + 1 for given in sequences]
        counts += [] if self.number_of_rows is None else [self.number_of_rows]
        return min(*counts, _LONG_MAX) if counts else None


@dataclass(frozen=True, kw_only=True)
class Printed(Group):
    """A table of the ``print`` or the ``blackhole`` connector, whose rows are printed or dropped."""

    identifier: str = option("print-identifier", VERBATIM, "")
    to_stderr: bool = option("standard-error", BOOLEAN, "false")
    parallelism: int | None = optional("sink.parallelism", integer(1))

    @classmethod
    def of(cls, connector: Connector, options: Mapping[str, object]) -> Printed:
        """Return the table described by options, whose names are case-insensitive; ``blackhole`` has none.

        Raises:
            InvalidInputError: an option is unknown or invalid.
        """
        given = {key.lower(): str(value) for key, value in options.items()}
        own = [spec.name for spec in cls.specs()] if connector is Connector.PRINT else []
        refuse_unknown(connector, given, (), further=["connector", *own])
        return cls.read(given)


def _field(
    path: str, kind: FlinkType, options: Mapping[str, str], *, is_column: bool = False, is_key: bool = False
) -> Field:
    """Return a column (``is_column``) or a part of one, such as the key of a map (``is_key``), with its options."""
    prefix = f"{_FIELDS}{path}."
    given: dict[str, Any] = {}
    if is_column:
        spec = OptionSpec("kind", choice(Kind), Kind.RANDOM)
        given["kind"] = spec.parse(options.get(f"{prefix}kind", Kind.RANDOM), prefix)
    generator = given.get("kind", Kind.RANDOM)
    specs = _of_sequence(path, kind) if generator is Kind.SEQUENCE else _of_random(kind, is_key=is_key)
    for spec in specs:
        text = options.get(f"{prefix}{spec.name}", spec.default)
        if text is None:
            msg = f"option '{prefix}{spec.name}' is required for '{prefix}kind' = 'sequence' but missing."
            raise InvalidInputError(msg)
        given[spec.name] = spec.parse(text, prefix)
    for low, high in (("min", "max"), ("start", "end")):
        if low in given and given[low] > given[high]:
            msg = (
                f"option '{prefix}{low}': expected at most '{prefix}{high}', which is {given[high]}, got {given[low]}."
            )
            raise InvalidInputError(msg)
    if not kind.nullable and given.get("null-rate"):
        msg = f"option '{prefix}null-rate': '{path}' is NOT NULL. Leave it out, or declare the type without NOT NULL."
        raise InvalidInputError(msg)
    parts = tuple(
        _field(f"{path}.{name.lower()}", part, options, is_key=isinstance(kind.spark, MapType) and name == "key")
        for name, part in kind.parts
    )
    return Field(path, kind, generator, given, parts)


def _of_sequence(path: str, kind: FlinkType) -> tuple[OptionSpec[Any], ...]:
    """Return the options of a sequence of a type.

    Raises:
        InvalidInputError: there are none.
    """
    limits = _limits(LongType() if isinstance(kind.spark, StringType | BinaryType) else kind.spark)
    if limits is None:
        msg = (
            f"option '{_FIELDS}{path}.kind': expected 'random' for type {kind.text}, got 'sequence', which numbers, "
            "texts and bytes can have."
        )
        raise InvalidInputError(msg)
    number = _number(max(int(limits[0]), -_LONG_MAX - 1), min(int(limits[1]), _LONG_MAX), is_whole=True)
    return OptionSpec("start", number), OptionSpec("end", number)


def _of_random(kind: FlinkType, *, is_key: bool) -> tuple[OptionSpec[Any], ...]:
    """Return the options of random values of a type."""
    specs: list[OptionSpec[Any]] = [] if is_key else [OptionSpec("null-rate", _RATE, "0")]
    limits = _limits(kind.spark)
    if limits is not None:
        is_whole = type(kind.spark) in _WHOLE
        number = _number(*limits, is_whole=is_whole)
        # Flink takes Java's Double.MIN_VALUE, which is above 0, for the least number that has a fraction.
        least = limits[0] if is_whole else 0
        specs += [OptionSpec("min", number, str(least)), OptionSpec("max", number, str(limits[1]))]
    elif isinstance(kind.spark, StringType | BinaryType) and not kind.is_padded:
        most = kind.length or _INT_MAX
        length = integer(1, most, f"a whole number from 1 to {most}")
        specs += [OptionSpec("length", length, str(most if most < _INT_MAX else _TEXT_LENGTH))]
        specs += [OptionSpec("var-len", BOOLEAN, "false")]
    elif isinstance(kind.spark, ArrayType | MapType):
        specs += [OptionSpec("length", integer(1, _INT_MAX), str(_COLLECTION_LENGTH))]
    elif isinstance(kind.spark, TimestampType | TimestampNTZType):
        specs += [OptionSpec("max-past", duration_or_ms(), "0")]
    return tuple(specs)


def _limits(kind: DataType) -> tuple[Decimal, Decimal] | None:
    """Return the least and the greatest number of a type; None if it is not one of numbers."""
    if type(kind) in _WHOLE:
        half = 1 << _WHOLE[type(kind)] - 1
        return Decimal(-half), Decimal(half - 1)
    if isinstance(kind, DecimalType):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
    elif isinstance(kind, FloatType):
        most = Decimal("3.4028234663852886E38")
    elif isinstance(kind, DoubleType):
        most = Decimal("1.7976931348623157E308")
    else:
        return None
    # Unlike a minus, it does not round.
    return most.copy_negate(), most


def _number(low: Decimal | int, high: Decimal | int, *, is_whole: bool) -> OptionType[Decimal]:
    """Return the type of numbers with both bounds."""

    def parse(text: str) -> Decimal:
        try:
            value = Decimal(text.strip())
        except InvalidOperation:
            raise ValueError(text) from None
        if not value.is_finite() or not low <= value <= high or (is_whole and value != int(value)):
            raise ValueError(text)
        return value

    return OptionType("number", f"a {'whole ' if is_whole else ''}number from {low} to {high}", parse)


def _parse_rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


_RATE: Final = OptionType("number", "a number from 0 to 1", _parse_rate)
