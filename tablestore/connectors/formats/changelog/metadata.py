"""Parts of a changelog message beside the row that columns can show: metadata keys ``value.*`` of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tablestore.connectors.formats.base import MetadataKind, text_or
from tablestore.connectors.formats.text_casts import cast_texts
from tablestore.connectors.formats.values import UnfitError, shown

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_NUMBERS: Final = pa.map_(pa.string(), pa.int32())
_NAMES: Final = pa.list_(pa.string())
_MILLIS: Final = pa.timestamp("ms", "UTC")
_MICROS: Final = pa.timestamp("us", "UTC")
_TEXT_OF_MILLIS: Final = r"^-?[0-9]{1,15}$"
_MILLIS_MAX: Final = 10**15
_MOMENT: Final = r"^([0-9-]{10})[T ]([0-9:]{8}(?:\.[0-9]{1,6})?)[0-9]{0,3}$"
"""A time as text: GoldenGate writes one with a T, another with a blank. Digits beyond microseconds are cut."""


@dataclass(frozen=True)
class MessageMetadata(MetadataKind):
    """A metadata key of a changelog format.

    Attributes:
        field: the field of the message, in the type in which it is decoded.
        entry: the key of the entry to return, if the field is a map.
        factor: the unit of a number in the field in milliseconds, if it is a time.
    """

    field: pa.Field
    entry: str = ""
    factor: int = 1

    @property
    def _is_moment(self) -> bool:
        """Whether the field is a time as text, and not a number of milliseconds."""
        return bool(pt.is_timestamp(self.type) and pt.is_string(self.field.type))

    @property
    def expected(self) -> str:
        """What the field has to be, for error messages."""
        return "a time as 2024-01-31 12:30:00.5" if self._is_moment else "milliseconds since 1970"

    def column(self, values: pa.Array) -> pa.Array:
        """Return the metadata of messages, whose field has these values, in the metadata's own type."""
        if self._is_moment:
            return _moments(values)[0].cast(self.type)
        if self.entry:
            values = pc.map_lookup(values, self.entry, "last")
        if pt.is_timestamp(self.type):
            values = pc.multiply(values.cast(pa.int64()), self.factor)
        # A timestamp without a time zone is taken as one of UTC.
        return values.cast(self.type)

    def valid(self, values: pa.Array) -> np.ndarray:
        """Return a mask of the values that ``column`` can convert: times have to be within Arrow's range."""
        if not pt.is_timestamp(self.type):
            return np.ones(len(values), bool)
        if self._is_moment:
            return _moments(values)[1]
        if self.entry:
            texts = pc.map_lookup(values, self.entry, "last")
            good = pc.match_substring_regex(texts, _TEXT_OF_MILLIS)
        else:
            limit = _MILLIS_MAX // self.factor
            good = pc.and_(pc.less(values, limit), pc.greater(values, -limit))
        return np.array(pc.fill_null(good, fill_value=True).to_numpy(zero_copy_only=False))


def check_times(wanted: Sequence[MessageMetadata], values: Mapping[str, Any]) -> None:
    """Check the fields of one message, by name.

    Raises:
        UnfitError: a field is not a time that a column can show.
    """
    for each in wanted:
        value = pa.array([values[each.field.name]], each.field.type)
        if not each.valid(value).all():
            msg = f"expected {each.expected}, got {shown(values[each.field.name])}"
            raise UnfitError(msg, each.field.name)


def _moments(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return times as text as timestamps, and a mask of those that are valid."""
    plain = pc.replace_substring_regex(texts, _MOMENT, r"\1 \2")
    moments, read = cast_texts(plain, pa.timestamp("us"), separator=" ")
    return moments, np.ones(len(texts), bool) if read is None else read


def _text(name: str) -> MessageMetadata:
    return MessageMetadata(pa.string(), "STRING", text_or(), pa.field(name, pa.string()))


def _time(name: str, factor: int = 1) -> MessageMetadata:
    fits = text_or(pt.is_timestamp, pt.is_date)
    return MessageMetadata(_MILLIS, "TIMESTAMP_LTZ(3)", fits, pa.field(name, pa.int64()), factor=factor)


def _micros(name: str) -> MessageMetadata:
    fits = text_or(pt.is_timestamp, pt.is_date)
    return MessageMetadata(_MICROS, "TIMESTAMP_LTZ(6)", fits, pa.field(name, pa.string()))


def _names(name: str) -> MessageMetadata:
    return MessageMetadata(_NAMES, "ARRAY<STRING>", _NAMES.equals, pa.field(name, _NAMES))


_SOURCE: Final = pa.field("source", _TEXTS)


def _source(entry: str) -> MessageMetadata:
    return MessageMetadata(pa.string(), "STRING", text_or(), _SOURCE, entry)


DEBEZIUM_METADATA: Final[Mapping[str, MessageMetadata]] = {
    "schema": _text("schema"),
    "ingestion-timestamp": _time("ts_ms"),
    "source.timestamp": MessageMetadata(
        _MILLIS, "TIMESTAMP_LTZ(3)", text_or(pt.is_timestamp, pt.is_date), _SOURCE, "ts_ms"
    ),
    "source.database": _source("db"),
    "source.schema": _source("schema"),
    "source.table": _source("table"),
    "source.properties": MessageMetadata(_TEXTS, "MAP<STRING, STRING>", _TEXTS.equals, _SOURCE),
}
CANAL_METADATA: Final[Mapping[str, MessageMetadata]] = {
    "database": _text("database"),
    "table": _text("table"),
    "sql-type": MessageMetadata(_NUMBERS, "MAP<STRING, INT>", _NUMBERS.equals, pa.field("sqlType", _NUMBERS)),
    "pk-names": _names("pkNames"),
    "ingestion-timestamp": _time("ts"),
    "event-timestamp": _time("es"),
}
MAXWELL_METADATA: Final[Mapping[str, MessageMetadata]] = {
    "database": _text("database"),
    "table": _text("table"),
    "primary-key-columns": _names("primary_key_columns"),
    # Maxwell's time is in seconds.
    "ingestion-timestamp": _time("ts", factor=1000),
}
OGG_METADATA: Final[Mapping[str, MessageMetadata]] = {
    "table": _text("table"),
    "primary-keys": _names("primary_keys"),
    "ingestion-timestamp": _micros("current_ts"),
    "event-timestamp": _micros("op_ts"),
}
