"""Flink's types and what they are on Spark.

Spark's ``TIMESTAMP`` is with local time zone and Flink's is without, and Spark's have six digits where Flink's say how
many; so a column keeps Flink's own words beside Spark's type.
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
)

from snapshot.quoting import backquoted

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
"""Other words of Flink's for the same types."""
UNSUPPORTED: Final = {
    "TIME": "Spark's tables cannot hold it; use TIMESTAMP or STRING",
    "INTERVAL": "intervals cannot be columns; use BIGINT",
    "MULTISET": "Spark has none; use MAP<T, INT>",
    "RAW": "it belongs to Java classes; use BYTES",
    "VARIANT": "it is not there yet; use STRING",
    "NULL": "a column needs the type of its values",
}
"""Flink's types that have no place here, and what to use instead."""
PRECISION_MAX: Final = 6
KNOWN: Final = (*_SIMPLE, *_SIZED, *_TIMESTAMPS, "DECIMAL", "ARRAY", "MAP", "ROW")


@dataclass(frozen=True)
class FlinkType:
    """A type as declared.

    Attributes:
        text: in Flink's words, spelled one way, without ``NOT NULL``.
        spark: Spark's type for it.
        nullable: whether ``NOT NULL`` is missing.
        digits: of a second, where it is a timestamp.
    """

    text: str
    spark: DataType
    nullable: bool = True
    digits: int | None = None

    @property
    def declared(self) -> str:
        """The type as a column declares it."""
        return self.text if self.nullable else f"{self.text} NOT NULL"


def plain(name: str, sizes: tuple[int, ...]) -> FlinkType:
    """Make a type without types in it.

    Args:
        name: Flink's word, in capitals.
        sizes: the numbers in brackets.

    Raises:
        ValueError: there is no such type with such numbers; the message says what there is.
    """
    name = SYNONYMS.get(name, name)
    if name in UNSUPPORTED:
        msg = f"type {name} is not supported: {UNSUPPORTED[name]}"
        raise ValueError(msg)
    if name in _TIMESTAMPS:
        return _timestamp(name, sizes)
    if name == "DECIMAL":
        return _decimal(sizes)
    if name in _SIZED:
        if len(sizes) > 1 or (sizes and sizes[0] < 1):
            msg = f"type {name} takes one length from 1, came {_listed(sizes)}"
            raise ValueError(msg)
        return FlinkType(f"{name}({sizes[0] if sizes else 1})", _SIZED[name])
    if name not in _SIMPLE:
        msg = f"there is no type {name}; there are {', '.join(KNOWN)}"
        raise ValueError(msg)
    if sizes:
        msg = f"type {name} takes no numbers, came {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(name, _SIMPLE[name])


def array_of(element: FlinkType) -> FlinkType:
    """Make ``ARRAY<element>``."""
    return FlinkType(f"ARRAY<{element.declared}>", ArrayType(element.spark, element.nullable))


def map_of(key: FlinkType, value: FlinkType) -> FlinkType:
    """Make ``MAP<key, value>``."""
    return FlinkType(f"MAP<{key.declared}, {value.declared}>", MapType(key.spark, value.spark, value.nullable))


def row_of(fields: tuple[tuple[str, FlinkType], ...]) -> FlinkType:
    """Make ``ROW<name type, ...>``."""
    inner = ", ".join(f"{backquoted(name)} {kind.declared}" for name, kind in fields)
    return FlinkType(f"ROW<{inner}>", StructType([StructField(n, k.spark, k.nullable) for n, k in fields]))


def of_spark(kind: DataType, *, nullable: bool = True) -> FlinkType:
    """Say a type of Spark's in Flink's words.

    Raises:
        ValueError: Flink has none.
    """
    found: FlinkType | None = None
    if isinstance(kind, DecimalType):
        found = _decimal((kind.precision, kind.scale))
    elif isinstance(kind, ArrayType):
        found = array_of(of_spark(kind.elementType, nullable=kind.containsNull))
    elif isinstance(kind, MapType):
        found = map_of(
            of_spark(kind.keyType, nullable=False), of_spark(kind.valueType, nullable=kind.valueContainsNull)
        )
    elif isinstance(kind, StructType):
        found = row_of(tuple((f.name, of_spark(f.dataType, nullable=f.nullable)) for f in kind.fields))
    else:
        names = [name for name, each in (_SIMPLE | _TIMESTAMPS).items() if type(each) is type(kind)]
        if not names:
            msg = f"there is no word of Flink's for {kind.simpleString()}"
            raise ValueError(msg)
        found = plain(names[0], ())
    return replace(found, nullable=nullable)


def _timestamp(name: str, sizes: tuple[int, ...]) -> FlinkType:
    digits = sizes[0] if sizes else PRECISION_MAX
    if len(sizes) > 1 or digits > PRECISION_MAX:
        msg = f"type {name} has 0 to {PRECISION_MAX} digits of a second here, as Spark has; came {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(f"{name}({digits})", _TIMESTAMPS[name], digits=digits)


def _decimal(sizes: tuple[int, ...]) -> FlinkType:
    precision, scale = (*sizes, 0, 0)[:2] if sizes else (10, 0)
    if len(sizes) > 2 or not 1 <= precision <= 38 or scale > precision:
        msg = f"type DECIMAL takes a precision from 1 to 38 and a scale up to it, came {_listed(sizes)}"
        raise ValueError(msg)
    return FlinkType(f"DECIMAL({precision}, {scale})", DecimalType(precision, scale))


def _listed(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"
