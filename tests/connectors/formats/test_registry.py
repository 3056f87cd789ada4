"""The row formats by name, and ``raw``, which has little of its own."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.csv import format as row_csv
from tablestore.connectors.formats.json import format as row_json
from tablestore.connectors.formats.registry import ROW_FORMATS, WITH_REGISTRY, open_row_format
from tests.connectors.formats.row_cases import ITEMS, read, rows, written
from tests.connectors.formats.row_properties import batches, may_be_null
from tests.harness import schema_strategies as tables

ALONE = [name for name in ROW_FORMATS if name not in WITH_REGISTRY]
"""The formats without a schema registry; ``test_avro_registry.py`` has the others."""
RAW_KINDS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
]  # fmt: skip


def one(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", kind, nullable=False)])


@pytest.mark.parametrize(
    ("side", "option"), [("key", "key.format"), ("value", "value.format"), ("", "format")]
)  # fmt: skip
def test_an_unknown_format_names_the_option(side: str, option: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{option} must be one of 'json', 'csv', 'avro', 'raw',.* got 'orc'"):
        open_row_format("orc", ITEMS, {}, side=side)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_an_unknown_option_is_named_with_its_side(name: str) -> None:
    schema = one(pa.int64())
    with pytest.raises(InvalidInputError, match=rf"^unsupported option 'key\.{name}\.codec'.*has "):
        open_row_format(name, schema, {"codec": "snappy"}, side="key")
    with pytest.raises(InvalidInputError, match=rf"^unsupported option '{name}\.codec'"):
        open_row_format(name, schema, {"codec": "snappy"}, side="")


def test_both_json_flags_are_refused() -> None:
    message = r"value\.json\.fail-on-missing-field and value\.json\.ignore-parse-errors shouldn't both be true"
    with pytest.raises(InvalidInputError, match=message):
        open_row_format("json", ITEMS, {"fail-on-missing-field": "true", "ignore-parse-errors": "true"}, side="value")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp-format.standard": "UTC"}, r"'value\.json\.timestamp-format\.standard': expected 'SQL' or 'ISO-"),
        ({"map-null-key.mode": "SKIP"}, r"expected 'FAIL' or 'DROP' or 'LITERAL', got 'SKIP'"),
        ({"ignore-parse-errors": "1"}, r"expected 'true' or 'false', got '1'"),
        ({"decode.json-parser.enabled": "no"}, r"expected 'true' or 'false', got 'no'"),
    ],
)
def test_wrong_values_of_json_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_row_format("json", ITEMS, options, side="value")


def test_words_of_options_are_read_in_any_case() -> None:
    spoken = {"ignore-parse-errors": "TRUE", "timestamp-format.standard": "iso-8601", "map-null-key.mode": "drop"}
    row_format = open_row_format("json", one(pa.int64()), spoken, side="")
    assert row_format.decode([b"{", b'{"c": 1}']).record.tolist() == [1]


@pytest.mark.parametrize("name", ALONE)
def test_other_columns_and_no_rows(name: str) -> None:
    schema = one(pa.int64())
    row_format = open_row_format(name, schema, {}, side="")
    with pytest.raises(InvalidInputError, match="need the columns"):
        row_format.encode(rows(pa.schema([("d", pa.int64())]), (1,)))
    with pytest.raises(InvalidInputError, match="need the columns"):
        row_format.encode(rows(one(pa.int32()), (1,)))
    assert list(row_format.encode(rows(schema))) == []
    nothing = row_format.decode([])
    assert (nothing.batch.num_rows, len(nothing.record), nothing.batch.schema) == (0, 0, schema)
    assert row_format.decode([None, None]).record.tolist() == []


@pytest.mark.parametrize("name", ALONE)
def test_a_format_travels_before_and_after_use(name: str) -> None:
    row_format: Any = pickle.loads(pickle.dumps(open_row_format(name, one(pa.string()), {}, side="")))
    batch = rows(one(pa.string()), ("a",), ("é",))
    payloads = row_format.encode(batch)
    assert row_format.decode(payloads).batch.equals(batch)
    assert pickle.loads(pickle.dumps(row_format)).decode(payloads).batch.equals(batch)


@pytest.mark.parametrize("name", [name for name in ALONE if name != "raw"])
def test_many_large_values_come_back_within_little_memory(name: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("data", pa.binary())])
    batch = rows(schema, *((n, f"{n}ä " * 80_000, bytes([n]) * 400_000) for n in range(80)))
    row_format = open_row_format(name, schema, {}, side="")
    assert row_format.decode(row_format.encode(batch)).batch.select(schema.names).equals(batch)


@pytest.mark.parametrize("name", ALONE)
def test_metadata_of_the_schema_stays(name: str) -> None:
    schema = pa.schema([pa.field("c", pa.string(), metadata={"comment": "x"})], metadata={"a": "b"})
    row_format = open_row_format(name, schema, {}, side="")
    decoded = row_format.decode(row_format.encode(rows(schema, ("a",))))
    assert decoded.batch.schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("kind", "value", "big", "little"),
    [
        (pa.bool_(), True, "01", "01"),
        (pa.int8(), -1, "ff", "ff"),
        (pa.int16(), 258, "0102", "0201"),
        (pa.int32(), 258, "00000102", "02010000"),
        (pa.int64(), 258, "0000000000000102", "0201000000000000"),
        (pa.float32(), 1.5, "3fc00000", "0000c03f"),
        (pa.float64(), 1.5, "3ff8000000000000", "000000000000f83f"),
        (pa.binary(), b"\x00\xff", "00ff", "00ff"),
        (pa.string(), "é", "c3a9", "c3a9"),
    ],
)
def test_raw_bytes(kind: pa.DataType, value: Any, big: str, little: str) -> None:
    for order, expected in (("big-endian", big), ("little-endian", little)):
        payload = written("raw", one(kind), (value,), endianness=order)
        assert payload.hex() == expected
        assert read("raw", one(kind), payload, endianness=order) == [(value,)]


@pytest.mark.parametrize("kind", RAW_KINDS, ids=str)
@given(st.data())
def test_raw_values_come_back(kind: pa.DataType, data: st.DataObject) -> None:
    batch = data.draw(batches(one(kind)))
    row_format = open_row_format("raw", one(kind), {}, side="")
    assert tables.identical(row_format.decode(row_format.encode(batch)).batch["c"], batch["c"])


def test_raw_character_sets() -> None:
    assert written("raw", one(pa.string()), ("é",), charset="ISO-8859-1") == b"\xe9"
    assert read("raw", one(pa.string()), b"\xe9", charset="ISO-8859-1") == [("é",)]
    with pytest.raises(InvalidInputError, match="cannot write '€'"):
        written("raw", one(pa.string()), ("€",), charset="ISO-8859-1")
    with pytest.raises(
        InvalidInputError, match=r"'value\.raw\.charset': expected the name of a character set, got 'x'"
    ):
        open_row_format("raw", one(pa.string()), {"charset": "x"}, side="value")


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.string(), pa.bool_()])
def test_raw_bytes_that_are_no_value(kind: pa.DataType) -> None:
    with pytest.raises(BadRecordError, match=r"got 3 bytes") as raised:
        read("raw", one(kind), b"\xff\xff\xff")
    assert raised.value.field == "c"


def test_what_raw_refuses() -> None:
    with pytest.raises(InvalidInputError, match=r"format 'raw' takes one column .* got item_id int64, behavior string"):
        open_row_format("raw", ITEMS, {}, side="")
    with pytest.raises(InvalidInputError, match="got c date32"):
        open_row_format("raw", one(pa.date32()), {}, side="")


@pytest.mark.parametrize("kind", RAW_KINDS, ids=str)
def test_null_in_raw_is_a_null_payload(kind: pa.DataType) -> None:
    """As in Flink; a column that is NOT NULL is never read as NULL."""
    schema = pa.schema([("c", kind)])
    for options in ({}, {"charset": "UTF-16BE"}):
        row_format = open_row_format("raw", schema, options, side="")
        assert row_format.encode_column(rows(schema, (None,))).to_pylist() == [None]
        decoded = row_format.decode([None])
        assert decoded.batch.to_pylist() == [{"c": None}]
        assert decoded.record.tolist() == [0]
    needed = pa.schema([pa.field("c", kind, nullable=False)])
    assert len(open_row_format("raw", needed, {}, side="").decode([None]).record) == 0


WIDE = pa.schema(
    [
        ("i", pa.int64()), ("t", pa.int8()), ("b", pa.bool_()), ("s", pa.string()), ("y", pa.date32()),
        ("f", pa.float32()), ("d", pa.float64()), ("n", pa.decimal128(10, 2)), ("w", pa.decimal128(38, 6)),
        ("e", pa.decimal128(20, 0)), ("z", pa.decimal128(38, 12)), ("ntz", pa.timestamp("us")),
        ("ltz", pa.timestamp("us", "UTC")), ("x", pa.binary()), ("l", pa.list_(pa.int32())),
    ]
)  # fmt: skip
USUAL = {
    "s": st.text('abc ,"\\\n\x01\u00e4', max_size=30),
    "f": st.floats(-1e6, 1e6, width=32) | st.integers(-1000, 1000),
    "d": st.floats(1e9, 1e16)
    | st.integers(-1000, 1000)
    | st.floats(1e-6, 1)
    | st.sampled_from([315890717476.9777, 1e10, 9999999999.5, 0.001, 0.000999, -0.0]),
    "n": st.integers(-200, 200).map(lambda cents: Decimal(cents) / 100) | st.just(Decimal("1200.00")),
    "ntz": st.integers(-2, 2_000_000_000).map(lambda tenths: tenths * 100_000),
}
OTHERWISE: list[tuple[str, dict[str, str]]] = [
    ("json", {}),
    ("json", {"timestamp-format.standard": "ISO-8601", "encode.ignore-null-fields": "true"}),
    ("json", {"encode.decimal-as-plain-number": "true"}),
    ("csv", {}),
    ("csv", {"field-delimiter": "|", "null-literal": "n/a", "write-bigdecimal-in-scientific-notation": "false"}),
    ("csv", {"field-delimiter": ":", "escape-character": "\\"}),
    ("csv", {"quote-character": "'", "field-delimiter": "\t"}),
    ("csv", {"disable-quote-character": "true"}),
]


@pytest.mark.parametrize(("name", "options"), OTHERWISE, ids=str)
@settings(max_examples=max(1, settings().max_examples // 3))
@given(data=st.data())
def test_arrow_and_duckdb_write_the_same_bytes(name: str, options: dict[str, str], data: st.DataObject) -> None:
    schema = pa.schema(data.draw(st.lists(st.sampled_from(list(WIDE)), min_size=1, unique_by=lambda f: f.name)))
    count = data.draw(st.integers(1, 120))
    columns = []
    for field in schema:
        some = data.draw(st.lists(USUAL.get(field.name, st.nothing()) | may_be_null(field), min_size=1, max_size=4))
        columns.append(pa.array([some[n % len(some)] for n in range(count)], field.type))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    by_arrow = list(open_row_format(name, schema, options, side="").encode(batch))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_json, "json_pieces", lambda *_, **__: None)
        patch.setattr(row_csv, "field_pieces", lambda *_, **__: None)
        assert by_arrow == list(open_row_format(name, schema, options, side="").encode(batch))
