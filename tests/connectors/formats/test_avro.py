"""The row format ``avro``: bytes and schemas equal to those measured on Flink, and any Avro library reads them."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.registry import open_row_format
from tablestore.connectors.formats.types import TIME, with_precision
from tests.connectors.formats.row_cases import (
    AT,
    EVENTS,
    ITEMS,
    LTZ,
    NTZ,
    ORDER,
    ORDERS,
    PAGEVIEWS,
    millis,
    read,
    rows,
    written,
)
from tests.connectors.formats.row_properties import batches, check_bulk_is_one_by_one, damaged
from tests.harness import schema_strategies as tables

REGION = pa.schema([pa.field("user_region", pa.string(), nullable=False)])
HEAD = '{"type":"record","name":"record","namespace":"org.apache.flink.avro.generated","fields":['
CLOCK = with_precision(pa.field("k", TIME), 3)
FLAT = pa.schema(
    [
        pa.field("i", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("n", pa.decimal128(10, 2)),
        pa.field("w", pa.decimal128(38, 12)),
        pa.field("b", pa.bool_()),
        pa.field("t", pa.int8()),
        pa.field("y", pa.date32()),
        pa.field("x", pa.binary()),
        pa.field("at", NTZ),
        CLOCK,
        pa.field("must", pa.string(), nullable=False),
        pa.field("too", pa.int16(), nullable=False),
    ]
)
NESTED = FLAT.append(pa.field("r", pa.struct([("p", pa.int32()), ("q", pa.list_(pa.map_(pa.string(), pa.binary())))])))

LISTS = pa.schema(
    [
        pa.field("l", pa.list_(pa.list_(pa.string()))),
        pa.field("r", pa.struct([pa.field("p", pa.int32(), nullable=False), ("q", pa.list_(pa.float64()))])),
        pa.field("s", pa.list_(pa.struct([("b", pa.bool_()), ("n", pa.decimal128(10, 2))])), nullable=False),
    ]
)


@pytest.mark.parametrize(
    ("schema", "row", "expected"),
    [
        (REGION, ("eu",), "046575"),
        (PAGEVIEWS, ("eu", 3, 2), "04657502060204"),
        (ORDERS, ORDER, "020e020a702c227122020404e202c0eb86829963"),
        (EVENTS, (5, "hi", AT), "020a0204686902c0eb86829963"),
        (pa.schema([CLOCK]), (dt.time(10, 11, 12, 345_000),), "02b2cdfc22"),
        (EVENTS, (None, None, None), "000000"),
        (
            LISTS,
            ([["a"], [], None], {"p": 1, "q": None}, [{"b": True, "n": None}]),
            "020602020202610002000000020200020202010000",
        ),
    ],
)
def test_the_bytes_are_flinks(schema: pa.Schema, row: tuple[Any, ...], expected: str) -> None:
    payload = written("avro", schema, row)
    assert payload.hex() == expected
    assert read("avro", schema, payload) == [row]


def test_the_schema_is_flinks() -> None:
    region = '{"name":"user_region","type":"string"}'
    assert _schema(REGION) == f"{HEAD}{region}]}}"
    counts = ",".join(f'{{"name":"{name}","type":["null","long"],"default":null}}' for name in ("pv", "uv"))
    assert _schema(PAGEVIEWS) == f"{HEAD}{region},{counts}]}}"
    assert [field["type"] for field in json.loads(_schema(ORDERS))["fields"]] == [
        ["null", "long"],
        ["null", "string"],
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
        ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    ]
    nested = pa.schema([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))]))])
    assert '"name":"record_a","fields":[{"name":"b"' in _schema(nested)
    assert '"name":"record_a_b","fields":[{"name":"c","type":["null","int"],"default":null}]' in _schema(nested)


def _schema(schema: pa.Schema, **options: str) -> str:
    row_format: Any = open_row_format("avro", schema, {k.replace("__", "."): v for k, v in options.items()}, side="")
    return str(row_format.avro_schema)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("t", NTZ), "Avro does not support TIMESTAMP type with precision: 6, it only supports"),
        (millis("t", LTZ), "does not hold TIMESTAMP_LTZ"),
        (pa.field("t", TIME), "'t': Avro does not support TIME type with precision: 6"),
        (pa.field("t", pa.list_(TIME)), r"'t\.element'.*precision: 6"),
        (pa.field("t", pa.struct([("u", pa.list_(NTZ))])), r"'t\.u\.element'.*precision: 6"),
        (pa.field("m", pa.map_(pa.int32(), pa.int32())), "maps with string keys only"),
        (pa.field("a-b", pa.int32()), "letters, digits and '_' only"),
        (pa.field("1a", pa.int32()), "begin with no digit"),
    ],
)
def test_what_avro_cannot_hold_is_refused(field: pa.Field, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_row_format("avro", pa.schema([field]), {}, side="")


@pytest.mark.parametrize(
    ("kind", "digits", "logical", "number"),
    [
        (NTZ, 3, "local-timestamp-millis", 1_704_164_645_600),
        (NTZ, 6, "local-timestamp-micros", 1_704_164_645_600_000),
        (LTZ, 3, "timestamp-millis", 1_704_164_645_600),
        (LTZ, 6, "timestamp-micros", 1_704_164_645_600_000),
    ],
)
def test_the_newer_mapping_of_timestamps(kind: pa.DataType, digits: int, logical: str, number: int) -> None:
    schema = pa.schema([with_precision(pa.field("t", kind, nullable=False), digits)])
    assert f'"logicalType":"{logical}"' in _schema(schema, timestamp_mapping__legacy="false")
    row_format = open_row_format("avro", schema, {"timestamp_mapping.legacy": "false"}, side="")
    batch = rows(schema, (AT.replace(tzinfo=dt.UTC) if kind == LTZ else AT,))
    (payload,) = row_format.encode(batch)
    assert fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(json.loads('"long"'))) == number
    assert row_format.decode([payload]).batch.equals(batch)


def test_a_record_without_fields_is_zero_bytes_and_no_null() -> None:
    row_format = open_row_format("avro", pa.schema([]), {}, side="value")
    assert row_format.encode(pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))) == [b"", b""]
    assert row_format.decode([b"", None, b""]).record.tolist() == [0, 2]


def test_null_is_no_row() -> None:
    assert read("avro", ITEMS, None) == []


@pytest.mark.parametrize(
    ("payload", "field", "message"),
    [
        ("", "item_id", "1 bytes are needed"),
        ("02", "item_id", "1 bytes are needed"),
        ("0202", "behavior", "1 bytes are needed"),
        ("04", "item_id", "marked by 0 or 1, got 2"),
        ("0100", "item_id", "marked by 0 or 1, got -1"),
        ("0202020461", "behavior", "2 bytes are needed"),
        ("02020201", "behavior", "-1 bytes are needed"),
        ("020202feffffffffffffffff01", "behavior", "bytes are needed"),
        ("02020204ffff", "behavior", "not UTF-8"),
        ("02ffffffffffffffffffff0100", "item_id", "more than"),
        ("02ffffffffffffffffff0200", "item_id", "more than 64 bits"),
        ("000000", None, "1 bytes follow"),
    ],
)
def test_bad_payloads(payload: str, field: str | None, message: str) -> None:
    good = bytes.fromhex("0202020261")
    with pytest.raises(BadRecordError, match=message) as raised:
        open_row_format("avro", ITEMS, {}, side="").decode([good, None, bytes.fromhex(payload), good, b"x"])
    assert raised.value.position == 2
    assert raised.value.field == field


def test_an_integer_in_a_longer_spelling_is_read() -> None:
    assert read("avro", ITEMS, bytes.fromhex("820082800000")) == [(1, None)]


@given(st.data())
def test_rows_of_any_flat_or_nested_schema_come_back(data: st.DataObject) -> None:
    columns = data.draw(
        st.lists(st.sampled_from([*NESTED, *list(LISTS)[:1]]), min_size=1, max_size=6, unique_by=lambda f: f.name)
    )
    schema = pa.schema(columns)
    batch = data.draw(batches(schema))
    row_format: Any = pickle.loads(
        pickle.dumps(open_row_format("avro", schema, {"timestamp_mapping.legacy": "false"}, side=""))
    )
    payloads = row_format.encode(batch)
    parsed = fastavro.parse_schema(json.loads(row_format.avro_schema.replace("logicalType", "doc")))
    alike = [name for name in schema.names if name in ("i", "s", "d", "b", "t", "x", "must", "too")]
    for number, payload in enumerate(payloads):
        theirs = fastavro.schemaless_reader(io.BytesIO(payload), parsed)
        assert list(theirs) == schema.names
        assert [repr(theirs[name]) for name in alike] == [repr(batch[name][number].as_py()) for name in alike]
    decoded = row_format.decode(payloads)
    assert decoded.record.tolist() == list(range(len(batch)))
    for ours, theirs in zip(decoded.batch, batch, strict=True):
        assert tables.identical(ours, theirs)
    check_bulk_is_one_by_one(row_format, schema, payloads)


@pytest.mark.parametrize(
    "unscaled", [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, -32768, 10**37, -(10**37), 10**38 - 1]
)
def test_decimals_are_as_short_as_javas(unscaled: int) -> None:
    schema = pa.schema([pa.field("n", pa.decimal128(38, 0), nullable=False)])
    payload = written("avro", schema, (Decimal(unscaled),))
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    assert payload == bytes([2 * size]) + unscaled.to_bytes(size, "big", signed=True)
    assert read("avro", schema, payload) == [(Decimal(unscaled),)]


@pytest.mark.parametrize("schema", [FLAT, NESTED, LISTS, PAGEVIEWS], ids=["flat", "nested", "lists", "pageviews"])
@given(st.data())
def test_damage_is_never_read_otherwise_than_one_by_one(schema: pa.Schema, data: st.DataObject) -> None:
    row_format = open_row_format("avro", schema, {"timestamp_mapping.legacy": "false"}, side="")
    good = row_format.encode(data.draw(batches(schema)))
    payloads = [data.draw(damaged(payload) | st.just(payload) | st.binary(max_size=8)) for payload in good]
    check_bulk_is_one_by_one(row_format, schema, payloads)


@pytest.mark.parametrize(
    "numbers", [[2**63 - 1, -(2**63)], [0, -1, 1, 63, 64, -64, -65, 2**31, -(2**35), 2**56, 2**62]]
)
def test_integers_are_zigzag(numbers: list[int]) -> None:
    schema = pa.schema([pa.field("i", pa.int64(), nullable=False)])
    row_format = open_row_format("avro", schema, {}, side="")
    batch = rows(schema, *((n,) for n in numbers))
    payloads = row_format.encode(batch)
    for number, payload in zip(numbers, payloads, strict=True):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "long", number)
        assert payload == out.getvalue()
    assert row_format.decode(payloads).batch.equals(batch)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.date32()])
def test_integers_that_do_not_fit_are_errors(kind: pa.DataType) -> None:
    payload = bytes.fromhex("02feffffffffffffffff01")
    with pytest.raises(BadRecordError, match="does not fit the column"):
        read("avro", pa.schema([("i", kind)]), payload)
