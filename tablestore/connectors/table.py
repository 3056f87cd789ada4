"""A connector table: its parsed options and its columns, validated against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.types import StructType

from snapshot.errors import InvalidInputError
from snapshot.merge.bucket_hash import key_types_allowed
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.formats.registry import format_metadata
from tablestore.connectors.formats.types import with_precision
from tablestore.connectors.kafka.message_codec import Coding
from tablestore.connectors.kafka.message_mapping import MessageMapping, check_writable, make_mapping
from tablestore.connectors.kafka.scan_planner import ScanSpec
from tablestore.connectors.option_names import PRIMARY_KEY, Connector, Side
from tablestore.connectors.options import ConnectorOptions, FieldsInclude, parse_options


@dataclass(frozen=True)
class KafkaTable:
    """A table whose rows are the messages of Kafka topics. Cheap to pickle.

    Attributes:
        options: the table's options.
        coding: where in a message each column is stored, and in which format.
    """

    options: ConnectorOptions
    coding: Coding

    @classmethod
    def of(
        cls, connector: Connector, options: Mapping[str, object], schema: StructType, side: Side | None = None
    ) -> KafkaTable:
        """Return the table described by options and columns, without contacting a broker.

        Args:
            connector: ``kafka`` or ``upsert-kafka``.
            options: the options as the user wrote them.
            schema: the columns; ``_change_type`` and ``_seq`` are ignored.
            side: whether the table is a source or a sink; None checks only what must hold for both.

        Raises:
            InvalidInputError: the options are invalid, or do not match the columns.
        """
        parsed = parse_options(connector, options, side)
        fields = [field for field in schema.fields if field.name not in (CHANGE_TYPE, SEQ)]
        layout = make_mapping(
            _with_precisions(arrow_schema(StructType(fields)), parsed.precisions),
            key=parsed.key_fields,
            prefix=parsed.key_prefix,
            except_key=parsed.fields_include is FieldsInclude.EXCEPT_KEY,
            metadata=parsed.metadata,
            value_metadata=format_metadata(parsed.value_format.name),
            is_upsert=parsed.is_upsert,
        )
        _check_primary_key(parsed, layout)
        if side is Side.SINK:
            check_writable(layout, has_topics=parsed.has_topics)
        coding = Coding(layout, parsed.key_format, parsed.value_format)
        # Opening a format validates its options and the column types.
        coding.open_key()
        coding.open_value()
        changelog = coding.open_changelog()
        if side is Side.SINK and changelog is not None:
            changelog.check_writable()
        return cls(parsed, coding)

    def scan_spec(self) -> ScanSpec:
        """Return the scan of a read of this table: topics, start, end and settings."""
        options = self.options
        properties = options.properties
        return ScanSpec(
            client=options.client(),
            topics=options.topics,
            pattern=options.pattern,
            group=options.group_id,
            start=options.start,
            bound=options.bound,
            isolation=properties.isolation_level,
            reset=properties.reset,
            discovery_ms=options.discovery_ms,
        )


def _check_primary_key(options: ConnectorOptions, layout: MessageMapping) -> None:
    """Raise if a column of the primary key is missing, or has a type that cannot be compared."""
    for name in options.primary_key:
        if name not in (*layout.key, *layout.value):
            msg = f"option '{PRIMARY_KEY}': '{name}' is not a physical column; there are {', '.join(layout.value)}."
            raise InvalidInputError(msg)
        kind = layout.schema.field(name).type
        if not key_types_allowed(kind):
            msg = f"option '{PRIMARY_KEY}': column '{name}' has type {kind}, which "
            msg += "cannot be compared as a key (float, double and nested types cannot). Choose another."
            raise InvalidInputError(msg)


def _with_precisions(schema: pa.Schema, precisions: Mapping[str, int]) -> pa.Schema:
    """Return the columns with their declared precisions.

    Raises:
        InvalidInputError: a ``precision.*`` option names an unknown column, or one that is no time. Those of
            ``metadata.*`` are not checked: a written frame may omit metadata columns.
    """
    unknown = set(precisions)
    fields = [_with_precision(field, field.name.lower(), precisions, unknown) for field in schema]
    for name in sorted(unknown):
        named = ", ".join(field.name.lower() for field in schema)
        msg = f"option 'precision.{name}': there is no column '{name}'; the columns are {named}."
        raise InvalidInputError(msg)
    return pa.schema(fields)


def _with_precision(field: pa.Field, path: str, precisions: Mapping[str, int], unknown: set[str]) -> pa.Field:
    """Return a field with the precisions of it and of what is in it, whose names are taken out of ``unknown``."""
    unknown.discard(path)
    kind, digits = field.type, precisions.get(path)
    if digits is not None:
        if not (pt.is_timestamp(kind) or pt.is_time(kind)):
            msg = f"option 'precision.{path}': column '{path}' must be a timestamp or a time, got {kind}."
            raise InvalidInputError(msg)
        return with_precision(field, digits)

    def inner(part: pa.Field, step: str) -> pa.Field:
        return _with_precision(part, f"{path}.{step}", precisions, unknown)

    if pt.is_struct(kind):
        kind = pa.struct([inner(part, part.name.lower()) for part in kind])
    elif pt.is_list(kind):
        kind = pa.list_(inner(kind.value_field, "element"))
    elif pt.is_map(kind):
        kind = pa.map_(kind.key_field, inner(kind.item_field, "value"))
    return field.with_type(kind)
