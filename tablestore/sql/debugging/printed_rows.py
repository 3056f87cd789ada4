"""Writes rows as Flink's ``print`` connector does, such as ``+I[1, apple, 2026-01-01T08:00]``, or nowhere."""

from __future__ import annotations

import sys
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, SIGNS, RowKind
from tablestore.sql.debugging.options import Printed


def print_rows(frame: DataFrame, options: Printed) -> None:
    """Print rows, or changes with ``_change_type``, to this program's standard output or error, one in a line."""
    start = f"{options.identifier}> " if options.identifier else ""
    stream = sys.stderr if options.to_stderr else sys.stdout
    for row in _in_text(frame).toLocalIterator():
        print(f"{start}{row[0]}", file=stream)
    stream.flush()


def drop_rows(frame: DataFrame) -> None:
    """Compute rows, and drop them."""
    frame.write.format("noop").mode("append").save()


def _in_text(frame: DataFrame) -> DataFrame:
    """Return a frame's rows as one column of text."""
    sign: Column = F.lit(RowKind.INSERT.sign)
    if CHANGE_TYPE in frame.columns:
        signs = F.create_map(*map(F.lit, chain(*zip(CHANGE_TYPE_NAMES, SIGNS, strict=True))))
        sign = signs[F.col(CHANGE_TYPE)]
    fields = [each for each in frame.schema if each.name != CHANGE_TYPE]
    values = [_text(F.col(backquoted(each.name)), each.dataType) for each in fields]
    return frame.select(_listed(F.concat(sign, F.lit("[")), F.array(*values), "]"))


def _text(value: Column, kind: DataType) -> Column:
    """Return a value as Java writes it; ``null`` if it is NULL."""
    return F.coalesce(_not_null(value, kind), F.lit("null"))


def _not_null(value: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampNTZType | TimeType):
        return _time(F.regexp_replace(value.cast("string"), ":00$", ""))
    if isinstance(kind, TimestampType):
        epoch = F.lit("1970-01-01").cast("timestamp_ntz")
        in_utc = F.timestamp_add("MICROSECOND", F.unix_micros(value), epoch)
        return F.concat(_time(in_utc.cast("string")), F.lit("Z"))
    if isinstance(kind, BinaryType):
        nothing = F.array().cast("array<int>")
        places = F.when(F.length(value) == 0, nothing).otherwise(F.sequence(F.lit(1), F.length(value)))
        return _listed(F.lit("["), F.transform(places, lambda place: _byte(value.substr(place, F.lit(1)))), "]")
    if isinstance(kind, ArrayType):
        return _listed(F.lit("["), F.transform(value, lambda each: _text(each, kind.elementType)), "]")
    if isinstance(kind, MapType):
        entries = F.transform(F.map_entries(value), lambda each: _entry(each, kind))
        return _listed(F.lit("{"), entries, "}")
    if isinstance(kind, StructType):
        fields = F.array(*(_text(value[each.name], each.dataType) for each in kind.fields))
        return F.when(value.isNotNull(), _listed(F.lit(f"{RowKind.INSERT.sign}["), fields, "]"))
    return value.cast("string")


def _entry(entry: Column, kind: MapType) -> Column:
    return F.concat(_text(entry["key"], kind.keyType), F.lit("="), _text(entry["value"], kind.valueType))


def _time(text: Column) -> Column:
    """Return the text of a time as in ISO 8601, with 3 or 6 digits of its second's fraction if it has one."""
    text = F.replace(text, F.lit(" "), F.lit("T"))
    whole, fraction = F.substring_index(text, ".", 1), F.substring_index(text, ".", -1)
    padded = F.rpad(fraction, F.when(F.length(fraction) > 3, 6).otherwise(3), F.lit("0"))
    return F.when(text == whole, whole).otherwise(F.concat(whole, F.lit("."), padded))


def _byte(value: Column) -> Column:
    """Return a byte as a signed number."""
    number = F.conv(F.hex(value), 16, 10).cast("int")
    return F.when(number > 127, number - 256).otherwise(number).cast("string")


def _listed(start: Column, texts: Column, end: str) -> Column:
    return F.concat(start, F.array_join(texts, ", "), F.lit(end))
