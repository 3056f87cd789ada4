"""Avro with a schema registry: payloads as Flink and Debezium write them, checked with another Avro library."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.errors import BadRecordError, InvalidInputError, UnavailableError
from snapshot.row_kind import KIND
from tablestore.connectors.formats.avro.registry_formats import DebeziumAvroFormat, RegistryAvroFormat
from tablestore.connectors.formats.avro.resolving_bulk import resolving_bulk
from tablestore.connectors.formats.avro.writer_schema import parse_schema
from tablestore.connectors.formats.base import RowFormat
from tablestore.connectors.formats.registry import open_changelog_format, open_row_format
from tablestore.connectors.formats.types import TIME, with_precision
from tests.connectors.formats.row_cases import rows
from tests.connectors.formats.row_properties import batches
from tests.connectors.harness.schema_registry import SchemaRegistryServer, basic, schema_registry
from tests.harness import schema_strategies as tables

ITEM = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
KINDS = ("+I", "-U", "+U", "-D")
AT = with_precision(pa.field("at", pa.timestamp("us")), 3)


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with schema_registry() as made:
        yield made


def opened(server: SchemaRegistryServer, schema: pa.Schema = ITEM, **more: str) -> RegistryAvroFormat:
    options = {"url": server.url, "subject": "s", **{name.replace("_", "-"): value for name, value in more.items()}}
    made = open_row_format("avro-confluent", schema, options, side="value")
    assert isinstance(made, RegistryAvroFormat)
    return made


def payload(number: int, schema: Any, record: Any) -> bytes:
    """Return a message as others write it."""
    buffer = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
    buffer.seek(5)
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return buffer.getvalue()


def sent(server: SchemaRegistryServer, schema: Any, *records: Any) -> list[bytes]:
    number = server.add(schema)
    return [payload(number, schema, record) for record in records]


def found(server: SchemaRegistryServer, data: bytes) -> Any:
    """Return a message as others read it."""
    assert data[:1] == b"\0"
    schema = server.schema(int.from_bytes(data[1:5], "big"))
    return fastavro.schemaless_reader(io.BytesIO(data[5:]), fastavro.parse_schema(schema), None)


def test_a_row_is_written_with_the_id_of_its_schema(server: SchemaRegistryServer) -> None:
    """The schema is Flink's, registered under the subject once in a process."""
    row_format = opened(server, subject="topic-value")
    data = pickle.loads(pickle.dumps(row_format)).encode(rows(ITEM, (1, "bolt"), (None, "nut")))
    assert [each[:1] for each in data] == [b"\0", b"\0"]
    assert [each[5:] for each in data] == [b"\x02\x02\x08bolt", b"\x00\x06nut"]
    number = int.from_bytes(data[0][1:5], "big")
    assert server.subjects["topic-value"] == [number]
    assert server.schema(number) == {
        "type": "record", "name": "record", "namespace": "org.apache.flink.avro.generated", "fields": [
            {"name": "id", "type": ["null", "long"], "default": None}, {"name": "name", "type": "string"},
        ],
    }  # fmt: skip
    decoded = row_format.decode([data[0], None, b"", data[1]])
    assert decoded.batch.to_pylist() == [{"id": 1, "name": "bolt"}, {"id": None, "name": "nut"}]
    assert decoded.record.tolist() == [0, 3]
    before = len(server.requests)
    row_format.decode(row_format.encode(rows(ITEM, (1, "bolt"))))
    assert len(server.requests) == before


OTHERS = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "tree", "type": {"type": "record", "name": "Node", "fields": [
            {"name": "next", "type": ["null", "Node"]}, {"name": "tags", "type": {"type": "map", "values": "bytes"}},
        ]}},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "M"]}},
        {"name": "name", "type": {"type": "string", "connect.name": "x"}},
        {"name": "small", "type": "int"},
        {"name": "other", "type": ["string", "null", "double"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 1}},
        {"name": "cost", "type": {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 8,
                                  "scale": 3}},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "n", "type": "int"}, {"name": "again", "type": ["null", "F"]}, {"name": "yes", "type": "boolean"},
        ]}}},
        {"name": "ratio", "type": "float"},
    ],
}  # fmt: skip
WANTED = pa.schema(
    [
        ("ratio", pa.float64()), ("small", pa.float64()), ("name", pa.binary()), ("size", pa.string()),
        ("price", pa.decimal128(10, 2)), ("cost", pa.decimal128(10, 3)), ("hash", pa.binary()), AT,
        ("day", pa.date32()), ("missing", pa.string()), ("other", pa.string()),
        ("lines", pa.list_(pa.struct([("yes", pa.bool_()), ("n", pa.int64()), ("no", pa.int8())]))),
        ("tree", pa.struct([("tags", pa.map_(pa.string(), pa.string()))])),
    ]
)  # fmt: skip


def test_any_schema_is_read_as_avro_resolves_it(server: SchemaRegistryServer) -> None:
    node = {"next": {"next": None, "tags": {}}, "tags": {"a": b"x"}}
    line = {"n": 7, "again": Decimal("0.001"), "yes": True}
    record = {
        "tree": node, "size": "M", "name": "é", "small": 3, "other": None, "price": Decimal("1.5"),
        "cost": Decimal("-2.125"), "hash": b"ab", "at": dt.datetime(2024, 1, 2, 3, 4, 5, 600, dt.UTC),
        "day": dt.date(1969, 12, 31), "lines": [line], "ratio": 0.5,
    }  # fmt: skip
    data = sent(server, OTHERS, record, {**record, "other": "o", "at": None}, {**record, "other": 0.5})
    (own,) = opened(server, WANTED).encode(rows(WANTED, (1.0, *[None] * 12)))
    decoded = opened(server, WANTED).decode([data[0], own, data[1]])
    first, second, third = decoded.batch.to_pylist()
    assert first == {
        "ratio": 0.5, "small": 3.0, "name": "é".encode(), "size": "M", "price": Decimal("1.50"),
        "cost": Decimal("-2.125"), "hash": b"ab", "at": dt.datetime(2024, 1, 2, 3, 4, 5, 600), "other": None,
        "day": dt.date(1969, 12, 31), "missing": None, "lines": [{"yes": True, "n": 7, "no": None}],
        "tree": {"tags": [("a", "x")]},
    }  # fmt: skip
    assert second["ratio"] == 1.0
    assert third == {**first, "other": "o", "at": None}
    with pytest.raises(BadRecordError, match=r"type double, which a column of type string cannot hold") as raised:
        opened(server, WANTED).decode([None, *data])
    assert (raised.value.position, raised.value.field) == (3, "other")


def test_times_of_other_writers_are_times_of_day(server: SchemaRegistryServer) -> None:
    """Those of milliseconds are read in bulk, those of microseconds one by one; a day has no more than 24 hours."""
    kinds = {"ms": {"type": "int", "logicalType": "time-millis"}, "us": {"type": "long", "logicalType": "time-micros"}}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    wanted = pa.schema([with_precision(pa.field(name, TIME), 3) for name in kinds])
    data = sent(server, {"type": "record", "name": "R", "fields": fields}, *({name: dt.time(23, 59, 59, 999_000) for name in kinds},) * 3)  # fmt: skip  # noqa: E501
    rows = opened(server, wanted).decode(data).batch.to_pylist()
    assert rows == [{name: dt.time(23, 59, 59, 999_000) for name in kinds}] * 3
    for field in fields:
        number = {"name": field["name"], "type": field["type"]["type"]}
        schema = {"type": "record", "name": "One", "fields": [field]}
        one = pa.schema([wanted.field(field["name"])])
        ahead = server.add(schema).to_bytes(4, "big")
        for day in (86_400_000_000, -1):
            plain = {"type": "record", "name": "One", "fields": [number]}
            bad = b"\0" + ahead + payload(0, plain, {field["name"]: day // 1000 if field["name"] == "ms" else day})[5:]
            with pytest.raises(BadRecordError, match=r"is not a time of day"):
                opened(server, one).decode([bad])


def test_what_cannot_be_read_is_named(server: SchemaRegistryServer) -> None:
    row_format = opened(server)
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    missing = {"name": "x", "subject": "none", "version": 3}
    for bad, match in [
        (b"\1\0\0\0\1", "expected a zero byte and the id of a schema.*, got 0100000001"),
        (b"\0\0", "expected a zero byte and the id of a schema"),
        (b"\0\0\0\xff\xff", "the schema registry has no schema with the id 65535"),
        (payload(server.add("x", schemaType="JSON"), "string", "x"), "expected one of Avro.* got one of JSON"),
        (payload(server.add(record, references=[missing]), record, {"id": 1}), "no version 3 of subject 'none'"),
        (payload(server.add({"type": "what"}), "string", "x"), "is not one of Avro"),
        (sent(server, record, {"id": 1})[0], "no such field, and the column is NOT NULL"),
        (sent(server, "string", "x")[0], "the message has the type string"),
        (row_format.encode(rows(ITEM, (1, "bolt")))[0] + b"x", "1 bytes follow the last field"),
    ]:
        good = row_format.encode(rows(ITEM, (1, "bolt")))
        with pytest.raises(BadRecordError, match=match) as raised:
            row_format.decode([*good, bad, b"\2"])
        assert raised.value.position == 1, match


def test_schemas_refer_to_others(server: SchemaRegistryServer) -> None:
    """One to two others, of which one refers to the other, too."""
    unit = {"type": "enum", "name": "Unit", "namespace": "shop", "symbols": ["KG", "PIECE"]}
    amount = {"type": "record", "name": "shop.Amount", "fields": [
        {"name": "n", "type": "long"}, {"name": "unit", "type": "Unit"},
    ]}  # fmt: skip
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [
        {"name": "amount", "type": "shop.Amount"}, {"name": "per", "type": ["null", "Unit"]},
    ]}  # fmt: skip
    to_unit = {"name": "shop.Unit", "subject": "shop.Unit", "version": 2}
    to_amount = {"name": "shop.Amount", "subject": "amounts/all", "version": 1}
    server.subjects["shop.Unit"] = [server.add("string"), server.add(unit)]
    server.subjects["amounts/all"] = [server.add(amount, references=[to_unit])]
    number = server.add(line, references=[to_amount, to_unit])
    buffer = io.BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(unit, named_schemas=named)
    fastavro.parse_schema(amount, named_schemas=named)
    parsed = fastavro.parse_schema(line, named_schemas=named)
    record = {"amount": {"n": 3, "unit": "KG"}, "per": "PIECE"}
    fastavro.schemaless_writer(buffer, parsed, record)
    data = b"\0" + number.to_bytes(4, "big") + buffer.getvalue()
    schema = pa.schema([("amount", pa.struct([("unit", pa.string()), ("n", pa.int64())])), ("per", pa.string())])
    assert opened(server, schema).decode([data]).batch.to_pylist() == [record]


def test_the_schema_of_the_options_is_registered(server: SchemaRegistryServer) -> None:
    """It has the fields and types of the table's; names of records, documentation and defaults may differ."""
    given = {"type": "record", "name": "Item", "namespace": "shop", "doc": "An item.", "fields": [
        {"name": "id", "type": ["null", "long"]}, {"name": "name", "type": "string", "default": "bolt"},
    ]}  # fmt: skip

    def with_schema(text: str) -> RowFormat:
        options = {"url": server.url, "subject": "given", "schema": text}
        return open_row_format("avro-confluent", ITEM, options, side="value")

    row_format = with_schema(json.dumps(given))
    (data,) = pickle.loads(pickle.dumps(row_format)).encode(rows(ITEM, (1, "nut")))
    assert server.schema(server.subjects["given"][-1]) == given
    assert found(server, data) == {"id": 1, "name": "nut"}
    assert row_format.decode([data]).batch.to_pylist() == [{"id": 1, "name": "nut"}]
    for fields, match in [
        ([{"name": "id", "type": "long"}, given["fields"][1]], "expected a schema with the fields and types"),
        (given["fields"][::-1], "'value.avro-confluent.schema'"),
        ([{"name": "id", "type": "Missing"}], r"defaults may differ \(.*KeyError\('shop.Missing'\)\)"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            with_schema(json.dumps({**given, "fields": fields}))
    with pytest.raises(InvalidInputError, match="a schema of Avro in JSON"):
        with_schema("{")
    row = {"type": "record", "name": "Row", "fields": given["fields"]}
    envelope = ["null", {"type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": ["null", "string"]},
    ]}]  # fmt: skip
    options = {"url": server.url, "subject": "changes", "schema": json.dumps(envelope)}
    changes = open_changelog_format("debezium-avro-confluent", ITEM, options, side="value")
    (data,) = changes.encode(rows(ITEM, (1, "nut")))
    assert server.schema(server.subjects["changes"][-1]) == envelope
    assert found(server, data) == {"before": None, "after": {"id": 1, "name": "nut"}, "op": "c"}


def test_credentials_are_sent(server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(ITEM, (1, "bolt"))
    monkeypatch.setattr(server, "authorization", basic("me:pass word"))
    opened(server, subject="a", **{"basic-auth.user-info": "me:pass word"}).encode(batch)
    monkeypatch.setenv("REGISTRY_TOKEN", "t1")
    monkeypatch.setattr(server, "authorization", "Bearer t1")
    opened(server, subject="b", **{"bearer-auth.token": "env:REGISTRY_TOKEN"}).encode(batch)
    with pytest.raises(InvalidInputError, match=r"under 'c' \('value.avro-confluent.subject'\): .*\(401\).*Unauth"):
        opened(server, subject="c").encode(batch)


def test_options_are_those_of_flink(server: SchemaRegistryServer) -> None:
    batch = rows(ITEM, (1, "bolt"))
    old = {"schema-registry.url": f"http://127.0.0.1:1, {server.url}/", "schema-registry.subject": "old"}
    open_row_format("avro-confluent", ITEM, old, side="").encode(batch)
    assert "old" in server.subjects
    with pytest.raises(InvalidInputError, match=r"Missing required options are: key.avro-confluent.url"):
        open_row_format("avro-confluent", ITEM, {}, side="key")
    with pytest.raises(InvalidInputError, match=r"'avro-confluent.url': expected addresses such as .*, got 'ftp://x'"):
        open_row_format("avro-confluent", ITEM, {"url": "ftp://x"}, side="")
    with pytest.raises(InvalidInputError, match=r"unsupported option 'avro-confluent.ssl.keystore.location'"):
        open_row_format("avro-confluent", ITEM, {"url": "http://x", "ssl.keystore.location": "/k.jks"}, side="")
    with pytest.raises(InvalidInputError, match=r"'avro-confluent.subject' is required for serialization"):
        open_row_format("avro-confluent", ITEM, {"url": server.url}, side="").encode(batch)
    with pytest.raises(InvalidInputError, match=r"'refused'.*incompatible.*The schema is \{"):
        opened(server, subject="refused").encode(batch)
    with pytest.raises(UnavailableError, match=r"does not answer \('value.avro-confluent.url'\): http://127.0.0.1:1: "):
        opened(server, url="http://127.0.0.1:1").encode(batch)


@given(data=st.data())
def test_any_row_is_read_as_others_read_it_and_from_a_longer_schema(server: SchemaRegistryServer, data: Any) -> None:
    """A field more in the schema, and every payload is read by the reader of other schemas."""
    schema, _ = data.draw(tables.tables())
    batch = data.draw(batches(schema))
    try:
        row_format = opened(server, schema)
    except InvalidInputError:
        return
    payloads = row_format.encode(batch)
    expected = row_format.decode(payloads).batch
    if not payloads:
        return
    longer = server.schema(int.from_bytes(payloads[0][1:5], "big"))
    for kind, value in (({"type": "array", "items": ["null", "int"]}, "0402020000"), (["null", "string"], "020261")):
        further = [{"name": "further", "type": kind}, *longer["fields"]]
        number = server.add({**longer, "fields": further})
        head = b"\0" + number.to_bytes(4, "big") + bytes.fromhex(value)
        resolved = row_format.decode([head + each[5:] for each in payloads]).batch
        for ours, theirs in zip(resolved, expected, strict=True):
            assert tables.identical(ours, theirs)


def test_plain_records_of_others_are_read_in_bulk(server: SchemaRegistryServer) -> None:
    """As if each is read by itself, which another field that is a map makes happen."""
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "y", "type": "float"}, {"name": "x", "type": "int"}],
    }
    fields = [
        {"name": "skipped", "type": ["null", "bytes"]}, {"name": "f", "type": "float"}, {"name": "i", "type": "int"},
        {"name": "inner", "type": ["null", inner]}, {"name": "at", "type": {"type": "long", "logicalType":
        "timestamp-millis"}}, {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
    ]  # fmt: skip
    plain = {"type": "record", "name": "Plain", "fields": fields}
    mapped = {**plain, "fields": [*fields, {"name": "m", "type": {"type": "map", "values": "int"}}]}
    schema = pa.schema(
        [
            pa.field("i", pa.int64(), nullable=False),
            ("f", pa.float64()),
            (
                "inner",
                pa.struct([pa.field("x", pa.float64()), pa.field("z", pa.string()), pa.field("y", pa.float32())]),
            ),
            ("missing", pa.string()),
            ("day", pa.date32()),
            AT,
        ]
    )
    records = [
        {"skipped": b"s" if n % 2 else None, "f": n / 3, "i": -n, "inner": {"y": 0.5, "x": n} if n % 3 else None,
         "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n), "m": {"k": n},
         "day": dt.date(2024, 1, 1) if n % 4 else None}
        for n in range(20)
    ]  # fmt: skip
    row_format = opened(server, schema)
    one_by_one = row_format.decode(sent(server, mapped, *records))
    data = sent(server, plain, *records)
    bulk = resolving_bulk(parse_schema(plain), schema)
    (part,) = bulk(pa.array([each[5:] for each in data], pa.large_binary()))
    part.batch.validate(full=True)
    assert part.position.tolist() == list(range(20))
    assert row_format.decode(data).batch.equals(one_by_one.batch)
    assert part.batch.equals(one_by_one.batch)
    with pytest.raises(BadRecordError, match="1 bytes follow the last field") as raised:
        row_format.decode([*data, data[3] + b"x"])
    assert raised.value.position == 20
    nullable = {"type": "record", "name": "N", "fields": [{"name": "i", "type": ["null", "int"]}]}
    with pytest.raises(BadRecordError, match="must not be NULL") as raised:
        row_format.decode([*data, *sent(server, nullable, {"i": 1}, {"i": None})])
    assert (raised.value.position, raised.value.field) == (21, "i")


def debezium(server: SchemaRegistryServer, schema: pa.Schema = ITEM) -> DebeziumAvroFormat:
    options = {"url": server.url, "subject": "changes"}
    made = open_changelog_format("debezium-avro-confluent", schema, options, side="")
    assert isinstance(made, DebeziumAvroFormat)
    return made


def changes(made: DebeziumAvroFormat, payloads: list[bytes | None]) -> list[tuple[int, str, Any]]:
    decoded = made.decode(payloads)
    decoded.batch.validate(full=True)
    listed = [list(row.values()) for row in decoded.batch.to_pylist()]
    return [(at, KINDS[kind], tuple(row)) for at, (*row, kind) in zip(decoded.record.tolist(), listed, strict=True)]


def test_changes_are_written_as_flink_does(server: SchemaRegistryServer) -> None:
    """The envelope is nullable, as are both rows in it; an update is a delete and an insert."""
    made = pickle.loads(pickle.dumps(debezium(server)))
    data = made.encode_changes(rows(ITEM, (1, "a"), (1, "b"), (2, "c")), np.array([True, False, False])).to_pylist()
    assert [each[5:].hex() for each in data] == ["02020202026100020264", "02000202020262020263", "02000202040263020263"]
    assert [found(server, each) for each in data] == [
        {"before": {"id": 1, "name": "a"}, "after": None, "op": "d"},
        {"before": None, "after": {"id": 1, "name": "b"}, "op": "c"},
        {"before": None, "after": {"id": 2, "name": "c"}, "op": "c"},
    ]
    null, record = server.schema(int.from_bytes(data[0][1:5], "big"))
    row = [{"name": "id", "type": ["null", "long"], "default": None}, {"name": "name", "type": "string"}]
    sides = [
        {"name": name, "type": ["null", {"type": "record", "name": f"record_{name}", "fields": row}], "default": None}
        for name in ("before", "after")
    ]
    assert null == "null"
    assert record == {
        "type": "record", "name": "record", "namespace": "org.apache.flink.avro.generated",
        "fields": [*sides, {"name": "op", "type": ["null", "string"], "default": None}],
    }  # fmt: skip
    assert changes(made, [data[0], None, *data[1:], b"", data[0][:5] + b"\0"]) == [
        (0, "-D", (1, "a")), (2, "+I", (1, "b")), (3, "+I", (2, "c")),
    ]  # fmt: skip


def envelope(*more: Any) -> Any:
    value = {"type": "record", "name": "Value", "fields": [{"name": "name", "type": "string"},
                                                          {"name": "id", "type": "int"}]}  # fmt: skip
    return {
        "type": "record", "name": "Envelope", "namespace": "shop.items", "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "ts", "type": "long"}]}},
            {"name": "op", "type": "string"}, *more,
        ],
    }  # fmt: skip


def test_changes_are_read_as_debezium_writes_them(server: SchemaRegistryServer) -> None:
    """Its schema may change on the way."""
    made, a, b = debezium(server), {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    source = {"source": {"ts": 5}}
    first = sent(server, envelope(), {"before": None, "after": a, "op": "r", **source})
    later = envelope({"name": "ts_ms", "type": ["null", "long"], "default": None})
    second = sent(
        server, later, {"before": a, "after": b, "op": "u", **source}, {"before": b, "after": None, "op": "d", **source}
    )
    assert changes(made, [*first, *second, None]) == [
        (0, "+I", (1, "a")), (1, "-U", (1, "a")), (1, "+U", (1, "b")), (2, "-D", (1, "b")),
    ]  # fmt: skip
    assert changes(made, []) == []
    for record, match in [
        ({"before": None, "after": b, "op": "u"}, 'the "before" field of a message with "op" \'u\' is null.*REPLICA'),
        ({"before": None, "after": None, "op": "d"}, 'the "before" field'),
        ({"before": None, "after": None, "op": "c"}, 'the "after" field of a message with "op" \'c\' is null'),
        ({"before": a, "after": None, "op": "u"}, 'the "after" field'),
        ({"before": None, "after": a, "op": "t"}, "unknown \"op\" value 't'"),
    ]:
        (bad,) = sent(server, envelope(), {**record, **source})
        with pytest.raises(BadRecordError, match=match) as raised:
            changes(made, [*first, bad, b"no message"])
        assert raised.value.position == 1


@given(data=st.data())
def test_any_change_is_read_as_it_was_written(server: SchemaRegistryServer, data: Any) -> None:
    schema, _ = data.draw(tables.tables())
    batch = data.draw(batches(schema))
    try:
        made = debezium(server, schema)
    except InvalidInputError:
        return
    retracted = np.array(data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))), bool)
    payloads = made.encode_changes(batch, retracted)
    decoded = made.decode(payloads)
    assert decoded.batch.column(KIND).to_pylist() == np.where(retracted, 3, 0).tolist()
    expected = opened(server, schema).decode(opened(server, schema).encode(batch)).batch
    for ours, theirs in zip(decoded.batch.columns, expected.columns, strict=False):
        assert tables.identical(ours, theirs)


def test_the_schema_is_one_that_others_parse(server: SchemaRegistryServer) -> None:
    for made in (opened(server, WANTED), debezium(server, WANTED)):
        fastavro.parse_schema(json.loads(made.avro_schema))
