"""Flink's data types, their Spark types, and the parser for types in column declarations.

Spark's ``TIMESTAMP`` has a local time zone and Flink's has none; Spark's timestamps always have a precision of six
digits, while Flink's declare theirs. So a column keeps the Flink type besides the Spark type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)
from sqlglot.tokenizer_core import TokenType

from snapshot.quoting import backquoted
from tablestore.sql.parser.token_reader import Reader

_SIMPLE: Final[dict[str, DataType]] = {
    "STRING": StringType(),
    "BYTES": BinaryType(),
    "BOOLEAN": BooleanType(),
    "TINYINT": ByteType(),
    "SMALLINT": ShortType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "FLOAT": FloatType(),
    "DOUBLE": DoubleType(),
    "DATE": DateType(),
}
_SIZED: Final[dict[str, DataType]] = {
    "CHAR": StringType(),
    "VARCHAR": StringType(),
    "BINARY": BinaryType(),
    "VARBINARY": BinaryType(),
}
_TIMESTAMPS: Final[dict[str, DataType]] = {"TIMESTAMP": TimestampNTZType(), "TIMESTAMP_LTZ": TimestampType()}
SYNONYMS: Final = {"INTEGER": "INT", "DEC": "DECIMAL", "NUMERIC": "DECIMAL"}
"""Flink's synonyms of type names."""
UNSUPPORTED: Final = {
    "INTERVAL": "intervals cannot be columns; use BIGINT",
    "MULTISET": "Spark has none; use MAP<T, INT>",
    "RAW": "it belongs to Java classes; use BYTES",
    "VARIANT": "use STRING, and functions such as JSON_VALUE",
    "NULL": "a column needs the type of its values",
}
"""Flink types that are not supported, with the reason and what to use instead."""
PRECISION_MAX: Final = 6
TIME: Final = TimeType(PRECISION_MAX)
"""The Spark type of all times: Spark does not compare those of different precisions."""
_TIME_DIGITS_MAX: Final = 3
KNOWN: Final = (*_SIMPLE, *_SIZED, "TIME", *_TIMESTAMPS, "DECIMAL", "ARRAY", "MAP", "ROW")


@dataclass(frozen=True)
class FlinkType:
    """A declared Flink type.

    Attributes:
        text: the type in Flink SQL, in canonical spelling, without ``NOT NULL``.
        spark: the corresponding Spark type.
        nullable: False if declared ``NOT NULL``.
        digits: for a timestamp or time, the number of fractional digits of a second; None for other types.
        length: of CHAR, VARCHAR, BINARY and VARBINARY; None for other types.
        parts: the types within the type by name: ``element``; ``key`` and ``value``; fields.
    """

    text: str
    spark: DataType
    nullable: bool = True
    digits: int | None = None
    length: int | None = None
    parts: tuple[tuple[str, FlinkType], ...] = ()

    @property
    def is_padded(self) -> bool:
        """Whether all values have the length of the type."""
        return self.text.startswith(("CHAR(", "BINARY("))

    def within(self, step: str) -> tuple[tuple[str, int], ...]:
        """Return the digits of the timestamps and times in this type by path, which begins with a step.

        The keys of maps are left out.
        """
        found = [("", self.digits)] if self.digits is not None else []
        for name, kind in self.parts:
            if name != "key" or not isinstance(self.spark, MapType):
                found += kind.within(name)
        return tuple((f".{step.lower()}{path}", digits) for path, digits in found)

    @property
    def declared(self) -> str:
        """The type as a column declares it."""
        return self.text if self.nullable else f"{self.text} NOT NULL"


def plain(name: str, sizes: tuple[int, ...]) -> FlinkType:
    """Return a type that contains no other types.

    Args:
        name: Flink's name of the type, in upper case.
        sizes: the numbers in parentheses, such as length, precision and scale.

    Raises:
        ValueError: there is no such type, or it does not accept these numbers; the message says what is valid.
    """
    name = SYNONYMS.get(name, name)
    if name in UNSUPPORTED:
        msg = f"type {name} is not supported: {UNSUPPORTED[name]}"
        raise ValueError(msg)
    if name in _TIMESTAMPS:
        return _timestamp(name, sizes)
    if name == "TIME":
        return _time(sizes)
    if name == "DECIMAL":
        return _decimal(sizes)
    if name in _SIZED:
        if len(sizes) > 1 or (sizes and sizes[0] < 1):
            msg = f"type {name} takes one length from 1, got {_listed(sizes)}"
            raise ValueError(msg)
        length = sizes[0] if sizes else 1
        return FlinkType(f"{name}({length})", _SIZED[name], length=length)
    if name not in _SIMPLE:
        msg = f"there is no type {name}; there are {', '.join(KNOWN)}"
        raise ValueError(msg)
    if sizes:
        msg = f"type {name} takes no numbers, got {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(name, _SIMPLE[name])


def array_of(element: FlinkType) -> FlinkType:
    """Return ``ARRAY<element>``."""
    spark = ArrayType(element.spark, element.nullable)
    return FlinkType(f"ARRAY<{element.declared}>", spark, parts=(("element", element),))


def map_of(key: FlinkType, value: FlinkType) -> FlinkType:
    """Return ``MAP<key, value>``."""
    spark = MapType(key.spark, value.spark, value.nullable)
    return FlinkType(f"MAP<{key.declared}, {value.declared}>", spark, parts=(("key", key), ("value", value)))


def row_of(fields: tuple[tuple[str, FlinkType], ...]) -> FlinkType:
    """Return ``ROW<name type, ...>``."""
    inner = ", ".join(f"{backquoted(name)} {kind.declared}" for name, kind in fields)
    spark = StructType([StructField(n, k.spark, k.nullable) for n, k in fields])
    return FlinkType(f"ROW<{inner}>", spark, parts=fields)


def of_spark(data_type: DataType, *, nullable: bool = True) -> FlinkType:
    """Return the Flink type for a Spark type.

    Raises:
        ValueError: no Flink type corresponds to it.
    """
    result: FlinkType | None = None
    if isinstance(data_type, DecimalType):
        result = _decimal((data_type.precision, data_type.scale))
    elif isinstance(data_type, TimeType):
        result = _time((_TIME_DIGITS_MAX,))
    elif isinstance(data_type, ArrayType):
        result = array_of(of_spark(data_type.elementType, nullable=data_type.containsNull))
    elif isinstance(data_type, MapType):
        result = map_of(
            of_spark(data_type.keyType, nullable=False),
            of_spark(data_type.valueType, nullable=data_type.valueContainsNull),
        )
    elif isinstance(data_type, StructType):
        result = row_of(tuple((f.name, of_spark(f.dataType, nullable=f.nullable)) for f in data_type.fields))
    else:
        names = [name for name, each in (_SIMPLE | _TIMESTAMPS).items() if type(each) is type(data_type)]
        if not names:
            msg = f"Flink SQL has no type for {data_type.simpleString()}"
            raise ValueError(msg)
        result = plain(names[0], ())
    return replace(result, nullable=nullable)


def _timestamp(name: str, sizes: tuple[int, ...]) -> FlinkType:
    digits = sizes[0] if sizes else PRECISION_MAX
    if len(sizes) > 1 or digits > PRECISION_MAX:
        msg = f"type {name} has 0 to {PRECISION_MAX} digits of a second here, as Spark has; got {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(f"{name}({digits})", _TIMESTAMPS[name], digits=digits)


def _time(sizes: tuple[int, ...]) -> FlinkType:
    digits = sizes[0] if sizes else 0
    if len(sizes) > 1 or digits > _TIME_DIGITS_MAX:
        msg = f"type TIME has 0 to {_TIME_DIGITS_MAX} digits of a second, as many as Flink keeps; got {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(f"TIME({digits})", TIME, digits=digits)


def _decimal(sizes: tuple[int, ...]) -> FlinkType:
    precision, scale = (*sizes, 0, 0)[:2] if sizes else (10, 0)
    if len(sizes) > 2 or not 1 <= precision <= 38 or scale > precision:
        msg = f"type DECIMAL takes a precision from 1 to 38 and a scale up to it, got {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(f"DECIMAL({precision}, {scale})", DecimalType(precision, scale))


def _listed(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


class TypeReader(Reader):
    """Parser for Flink's types."""

    def _type(self) -> FlinkType:
        """Parse a type, with an optional ``NOT NULL``."""
        kind = self._with_nullability(self._type_alone())
        while self._take("ARRAY"):
            kind = self._with_nullability(array_of(kind))
        return kind

    def _with_nullability(self, kind: FlinkType) -> FlinkType:
        if self._take("NOT", "NULL"):
            return replace(kind, nullable=False)
        self._take("NULL")
        return kind

    def _type_alone(self) -> FlinkType:
        token = self._curr
        if (
            self._at_end()
            or token.token_type in {TokenType.STRING, TokenType.IDENTIFIER}
            or not token.text[0].isalpha()
        ):
            self._expected("a type such as STRING, BIGINT or TIMESTAMP(3)")
        self._advance()
        # sqlglot tokenizes DOUBLE PRECISION as one word.
        name = token.text.upper().split()[0]
        if name == "ARRAY":
            return array_of(*self._between(1))
        if name == "MAP":
            return map_of(*self._between(2))
        if name == "ROW":
            return row_of(self._fields())
        if name == "DOUBLE":
            self._take("PRECISION")
        sizes = self._list_of(self._number) if self._is_word("(") else ()
        if name == "TIMESTAMP" and self._take("WITH", "LOCAL", "TIME", "ZONE"):
            name = "TIMESTAMP_LTZ"
        elif name == "TIMESTAMP" and self._is_word("WITH", "TIME", "ZONE"):
            self.raise_error("TIMESTAMP WITH TIME ZONE is not supported: use TIMESTAMP_LTZ, an instant", token)
        elif name in {"TIME", "TIMESTAMP"}:
            self._take("WITHOUT", "TIME", "ZONE")
        try:
            return plain(name, sizes)
        except ValueError as error:
            self.raise_error(str(error), token)

    def _between(self, count: int) -> tuple[FlinkType, ...]:
        """Parse ``<type, ...>`` with a given number of types."""
        self._need("<")
        kinds = [self._type()]
        while len(kinds) < count:
            self._need(",")
            kinds.append(self._type())
        self._need(">")
        return tuple(kinds)

    def _fields(self) -> tuple[tuple[str, FlinkType], ...]:
        """Parse ``<name type, ...>``, or the same in parentheses."""
        if self._is_word("("):
            return self._list_of(self._field_of_row)
        self._need("<")
        fields = [self._field_of_row()]
        while self._take(","):
            fields.append(self._field_of_row())
        self._need(">")
        return tuple(fields)

    def _field_of_row(self) -> tuple[str, FlinkType]:
        name, kind = self._name("the name of a field"), self._type()
        if self._curr and self._curr.token_type == TokenType.STRING:
            self._advance()
        return name, kind
