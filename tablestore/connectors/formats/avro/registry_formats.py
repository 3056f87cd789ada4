"""The row formats ``avro-confluent`` and ``debezium-avro-confluent``: Avro whose schemas are in a schema registry.

A payload is a zero byte, the schema's id in four bytes, and the record. Rows are written with the table's schema, and
read from any schema, as Avro resolves one to the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.base import as_binary
from log_system.kafka.client.secrets import ClientValue
from snapshot.errors import BadRecordError, InvalidInputError
from snapshot.row_kind import KIND, RowKind
from tablestore.connectors.formats.avro.format import AvroRowFormat
from tablestore.connectors.formats.avro.resolving_bulk import resolving_bulk
from tablestore.connectors.formats.avro.row_reader import AvroRowReader
from tablestore.connectors.formats.avro.schema_registry import SchemaRegistry
from tablestore.connectors.formats.avro.writer_schema import parse_schema
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import BulkRows, Read, ReadBulk, as_mask, decode_in_bulk, in_order
from tablestore.connectors.formats.options import FormatOptions
from tablestore.connectors.formats.text_format import PortableFormat
from tablestore.connectors.formats.types import check_rows
from tablestore.connectors.formats.values import UnfitError, shown
from tablestore.options.declaration import option, optional
from tablestore.options.value_types import VERBATIM, OptionType, choice

_HEAD: Final = 5
_THERE: Final = b"\x02"
"""The branch of a value in a union with null first."""
_CREDENTIAL: Final = OptionType[ClientValue]("credential", "a text", lambda given: given)


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(each.strip().rstrip("/") for each in text.split(","))
    if not all(each.startswith(("http://", "https://")) for each in urls):
        raise ValueError(text)
    return urls


def _json(text: str) -> str:
    json.loads(text)
    return text


_SCHEMA: Final = OptionType("JSON", "a schema of Avro in JSON", _json)
_URLS: Final = OptionType("addresses", "addresses such as 'http://registry:8081'", _urls)


@dataclass(frozen=True, kw_only=True)
class RegistryOptions(FormatOptions):
    """The options of the formats with a schema registry."""

    format: ClassVar[str] = "avro-confluent"
    urls: tuple[str, ...] = option("url", _URLS, None)
    subject: str | None = optional("subject", VERBATIM, "Where the schema of written rows is registered.")
    schema: str | None = optional("schema", _SCHEMA, "The schema to register, such as one with documentation.")
    basic_source: str = option("basic-auth.credentials-source", choice(("USER_INFO",)), "USER_INFO")
    user_info: ClientValue | None = optional("basic-auth.user-info", _CREDENTIAL, "`user:password`.")
    bearer_source: str = option("bearer-auth.credentials-source", choice(("STATIC_TOKEN",)), "STATIC_TOKEN")
    token: ClientValue | None = optional("bearer-auth.token", _CREDENTIAL)

    @classmethod
    def of(cls, options: Mapping[str, str], *, side: str) -> Self:
        """Parse a format's options; old names begin with ``schema-registry.``.

        Raises:
            InvalidInputError: an option is unknown, invalid or missing.
        """
        options = {name.removeprefix("schema-registry."): value for name, value in options.items()}
        name = f"{side}.{cls.format}.url" if side else f"{cls.format}.url"
        if set(options) <= {spec.name for spec in cls.specs()} and "url" not in options:
            msg = f"Missing required options are: {name} (the schema registry, such as 'http://registry:8081')."
            raise InvalidInputError(msg)
        return super().of(options, side=side)


@dataclass(frozen=True, kw_only=True)
class DebeziumRegistryOptions(RegistryOptions):
    """The options of ``debezium-avro-confluent``."""

    format: ClassVar[str] = "debezium-avro-confluent"


class RegistryAvroFormat(PortableFormat):
    """Row format that encodes each row as an Avro record whose schema is in a schema registry."""

    name = "avro-confluent"
    options: type[RegistryOptions] = RegistryOptions
    is_nullable = False

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema, without contacting the registry.

        ``options`` are without prefix; ``side`` is ``key``, ``value`` or empty, for messages.

        Raises:
            InvalidInputError: Avro does not support a column type or name, or an option is invalid.
        """
        super().__init__(schema, options, side)
        found = self.options.of(options, side=side)
        self._prefix, self._subject = found.option_prefix, found.subject
        self._registry = SchemaRegistry(found.urls, found.user_info, found.token, found.option_prefix)
        self._avro = AvroRowFormat(schema, {}, side=side)
        avro = self._avro.avro_schema
        self.avro_schema = f'["null",{avro}]' if self.is_nullable else avro
        if found.schema is not None:
            self._check_given(found.schema)
            self.avro_schema = found.schema
        self._readers: dict[bytes, tuple[ReadBulk, Read]] = {}

    def _check_given(self, given: str) -> None:
        """Raise if records of the schema in the options are not those of the table's schema."""
        reason = ""
        try:
            is_same = parse_schema(json.loads(given)).same_encoding(parse_schema(json.loads(self.avro_schema)))
        except UnfitError as error:
            is_same, reason = False, f" ({error.reason})"
        if not is_same:
            msg = (
                f"Option '{self._prefix}schema': expected a schema with the fields and types of the table's, of which "
                f"names of records, documentation and defaults may differ{reason}. The table's is {self.avro_schema}, "
                f"got {given}"
            )
            raise InvalidInputError(msg)

    def check_subject(self) -> str:
        """Return the subject under which the schema is registered.

        Raises:
            InvalidInputError: there is none.
        """
        if self._subject is None:
            msg = f"Option '{self._prefix}subject' is required for serialization, such as 'topic-value'."
            raise InvalidInputError(msg)
        return self._subject

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows to one payload each.

        Raises:
            InvalidInputError: the columns do not match the schema, the schema does not allow a NULL, or the registry
                rejects the schema.
            UnavailableError: the registry does not answer.
        """
        payloads = self._avro.encode_column(rows)
        if not len(rows):
            return payloads
        number = self._registry.register(self.check_subject(), self.avro_schema)
        head = b"\0" + number.to_bytes(4, "big") + (_THERE if self.is_nullable else b"")
        empty = pa.scalar(b"", pa.large_binary())
        return pc.binary_join_element_wise(pa.scalar(head, pa.large_binary()), payloads, empty)

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. A null or empty payload produces no row.

        Raises:
            BadRecordError: a payload is invalid; the error is about the first one.
            UnavailableError: the registry does not answer.
        """
        array = as_binary(payloads)
        heads = pc.binary_slice(array, 0, _HEAD).to_pylist()
        positions: dict[bytes, list[int]] = {}
        for position, head in enumerate(heads):
            if head:
                positions.setdefault(head, []).append(position)
        parts, errors = [], []
        for head, chosen in positions.items():
            # Arrow fails without an end, which may be beyond the payloads.
            bodies = pc.binary_slice(array.take(pa.array(chosen)), _HEAD, 1 << 31)
            try:
                found = decode_in_bulk(bodies, self._schema, *self._readers_of(head), text=False)
                parts.append(BulkRows(np.array(chosen)[found.record], found.batch))
            except UnfitError as error:
                errors.append(BadRecordError(chosen[0], error.reason, error.field))
            except BadRecordError as error:
                errors.append(BadRecordError(chosen[error.position], error.reason, error.field))
        if errors:
            raise min(errors, key=lambda error: error.position)
        return in_order(parts, self._schema)

    def _readers_of(self, head: bytes) -> tuple[ReadBulk, Read]:
        """Return what decodes payloads of the schema that a payload's head names: many at once, and one."""
        if head not in self._readers:
            if len(head) < _HEAD or head[0]:
                msg = f"expected a zero byte and the id of a schema in the schema registry, got {head.hex()}"
                raise UnfitError(msg)
            *referred, schema = self._registry.schema(int.from_bytes(head[1:], "big"))
            written = parse_schema(schema, referred)
            one = AvroRowReader(written, self._avro.fields).read
            self._readers[head] = resolving_bulk(written, self._schema), one
        return self._readers[head]


class _Envelopes(RegistryAvroFormat):
    """The changes of ``debezium-avro-confluent`` as rows of ``before``, ``after`` and ``op``."""

    name = "debezium-avro-confluent"
    options = DebeziumRegistryOptions
    is_nullable = True


class DebeziumAvroFormat(PortableFormat):
    """Changelog format with Debezium's changes in Avro, whose schemas are in a schema registry.

    As in Flink, an update is written as a delete and an insert.
    """

    name = "debezium-avro-confluent"

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema; the arguments are those of `RegistryAvroFormat`."""
        super().__init__(schema, options, side)
        row = pa.struct(list(schema))
        self._envelope = pa.schema([("before", row), ("after", row), ("op", pa.string())])
        self._envelopes = _Envelopes(self._envelope, options, side=side)
        self.avro_schema = self._envelopes.avro_schema

    def check_writable(self) -> None:
        """Raise if there is no subject under which the schema is registered."""
        self._envelopes.check_subject()

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows as inserts."""
        return self.encode_changes(rows, np.zeros(len(rows), bool))

    def encode_changes(self, rows: pa.RecordBatch, retracted: np.ndarray) -> pa.Array:
        """Encode rows as inserts, and those of the mask as deletes.

        Raises:
            InvalidInputError: a row cannot be encoded, or the registry rejects the schema.
        """
        check_rows(rows, self._schema, self.name)
        before, after = (
            pa.StructArray.from_arrays(rows.columns, fields=list(self._schema), mask=pa.array(mask))
            for mask in (~retracted, retracted)
        )
        op = pc.if_else(pa.array(retracted), "d", "c")
        return self._envelopes.encode_column(pa.RecordBatch.from_arrays([before, after, op], schema=self._envelope))

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode messages to changes; null and empty payloads produce no row."""
        try:
            found = self._envelopes.decode(payloads)
        except BadRecordError as error:
            # A message before it may be no valid change.
            self.decode(payloads[: error.position])
            raise
        before, after, op = found.batch.columns
        is_update, is_delete, is_create, is_read = (as_mask(pc.equal(op, value)) for value in ("u", "d", "c", "r"))
        is_insert = is_create | is_read
        has_before, has_after = (as_mask(column.is_valid()) for column in (before, after))
        bad = ~(is_insert | is_update | is_delete) | (~has_before & ~is_insert) | (~has_after & ~is_delete)
        if bad.any():
            raise _bad(found, int(np.flatnonzero(bad)[0]))
        counts = 1 + is_update
        row = np.repeat(np.arange(len(op)), counts)
        is_second = np.concatenate(([False], row[1:] == row[:-1])) if len(row) else np.zeros(0, bool)
        kind = np.where(is_insert[row], RowKind.INSERT, np.where(is_delete[row], RowKind.DELETE, RowKind.UPDATE_BEFORE))
        kind = np.where(is_second, RowKind.UPDATE_AFTER, kind).astype(np.int8)
        is_before = (kind == RowKind.DELETE) | (kind == RowKind.UPDATE_BEFORE)
        rows = pa.concat_arrays([before, after]).take(pa.array(row + np.where(is_before, 0, len(op))))
        columns = [*rows.flatten(), pa.array(kind)]
        return DecodedRows(pa.RecordBatch.from_arrays(columns, [*self._schema.names, KIND]), found.record[row])


def _bad(found: DecodedRows, number: int) -> BadRecordError:
    """Return the error for an envelope that is not a change."""
    row = {name: column[number] for name, column in zip(found.batch.schema.names, found.batch.columns, strict=True)}
    op, position = row["op"].as_py(), int(found.record[number])
    if op not in ("c", "r", "u", "d"):
        return BadRecordError(position, f'unknown "op" value {shown(op)}; expected one of c, r, u, d', "op")
    name = "after" if op in ("c", "r") or row["before"].is_valid else "before"
    reason = f'the "{name}" field of a message with "op" {op!r} is null'
    if name == "before":
        reason += "; if Debezium reads Postgres, set the table's REPLICA IDENTITY to FULL"
    return BadRecordError(position, reason, name)
