"""The row format ``json``: bytes and readings equal to those measured on Flink."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.registry import open_row_format
from tests.connectors.formats.row_cases import (
    AT,
    ITEMS,
    LTZ,
    NTZ,
    ORDER,
    ORDERS,
    PAGEVIEWS,
    Q02,
    TIMES,
    millis,
    read,
    rows,
    written,
)

ONE_OF_EACH = pa.schema(
    [
        ("b", pa.bool_()),
        ("i", pa.int8()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("bin", pa.binary()),
        ("day", pa.date32()),
        ("at", LTZ),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.decimal128(5, 1))),
        ("row", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
ROW = (
    True, -128, 0.1, 0.1, b"\x00\xff", dt.date(2024, 1, 2), AT.replace(tzinfo=dt.UTC),
    [1, None], [("a", Decimal("20.0")), ("b", None)], {"x": 1, "y": None},
)  # fmt: skip
ROW_JSON = (
    b'{"b":true,"i":-128,"f":0.1,"d":0.1,"bin":"AP8=","day":"2024-01-02","at":"2024-01-02 03:04:05.6Z",'
    b'"list":[1,null],"map":{"a":2E+1,"b":null},"row":{"x":1,"y":null}}'
)


def moment(*time: int) -> dt.datetime:
    return dt.datetime(2024, 1, 2, *time)


@pytest.mark.parametrize(
    ("schema", "row", "expected"),
    [
        (PAGEVIEWS, ("eu", 3, 2), '{"user_region":"eu","pv":3,"uv":2}'),
        (PAGEVIEWS, ("eu", None, 2), '{"user_region":"eu","pv":null,"uv":2}'),
        (
            Q02,
            (1, 2, moment(3, 4, 5, 123456), "eu"),
            '{"user_id":1,"page_id":2,"viewtime":"2024-01-02 03:04:05.123456","user_region":"eu"}',
        ),
        (
            ORDERS,
            ORDER,
            r'{"order_id":7,"product":"p,\"q\"","amount":12.5,"created_at":"2024-01-02 03:04:05.6"}',
        ),
        (pa.schema([("user_id", pa.int64())]), (5,), '{"user_id":5}'),
        (
            TIMES,
            (dt.time(10, 11, 12, 340_000), [dt.time(0), None, dt.time(23, 59, 59, 999_999)]),
            '{"k":"10:11:12.34","l":["00:00:00",null,"23:59:59.999999"]}',
        ),
        (pa.schema([("payload", pa.string())]), ("x",), '{"payload":"x"}'),
        (ONE_OF_EACH, ROW, ROW_JSON.decode()),
        (ONE_OF_EACH, (None,) * 10, "{" + ",".join(f'"{name}":null' for name in ONE_OF_EACH.names) + "}"),
        (
            pa.schema([("s", pa.string())]),
            ("\x00\x1f\b\f\n\r\t/\x7f\u2028é𝄞",),
            '{"s":"\\u0000\\u001F\\b\\f\\n\\r\\t/\x7f\u2028é𝄞"}',
        ),
        (pa.schema([('a"é', pa.int32())]), (1,), '{"a\\"é":1}'),
        (pa.schema([("d", pa.float64())]), (float("nan"),), '{"d":"NaN"}'),
        (pa.schema([("d", pa.float32())]), (float("-inf"),), '{"d":"-Infinity"}'),
        (pa.schema([("l", pa.list_(pa.list_(pa.int32())))]), ([[], None, [1]],), '{"l":[[],null,[1]]}'),
    ],
)  # fmt: skip
def test_the_bytes_are_flinks(schema: pa.Schema, row: tuple[Any, ...], expected: str) -> None:
    payload = written("json", schema, row)
    assert payload.decode() == expected
    if row[0] == row[0]:
        assert open_row_format("json", schema, {}, side="").decode([payload]).batch.equals(rows(schema, row))


@pytest.mark.parametrize(
    ("amount", "expected", "plain"),
    [
        ("0.00", "0", "0"), ("100.00", "1E+2", "100"), ("12.50", "12.5", "12.5"), ("-120.00", "-1.2E+2", "-120"),
        ("99999999.99", "99999999.99", "99999999.99"), ("-0.01", "-0.01", "-0.01"), ("10.01", "10.01", "10.01"),
    ],
)  # fmt: skip
def test_decimals_lose_their_trailing_zeros(amount: str, expected: str, plain: str) -> None:
    schema = pa.schema([("a", pa.decimal128(10, 2))])
    row = (Decimal(amount),)
    assert written("json", schema, row) == f'{{"a":{expected}}}'.encode()
    assert written("json", schema, row, encode__decimal_as_plain_number="true") == f'{{"a":{plain}}}'.encode()
    assert read("json", schema, f'{{"a":{expected}}}'.encode()) == [row]


def test_a_small_decimal_has_an_exponent_as_javas() -> None:
    schema = pa.schema([("a", pa.decimal128(12, 10))])
    assert written("json", schema, (Decimal("0.0000001230"),)) == b'{"a":1.23E-7}'
    assert written("json", schema, (Decimal("0.000001"),)) == b'{"a":0.000001}'


@pytest.mark.parametrize(
    ("time", "expected"), [((3, 4, 5), "03:04:05"), ((3, 4, 5, 120_000), "03:04:05.12"), ((0, 0), "00:00:00")]
)
def test_a_timestamp_has_as_many_digits_as_it_needs(time: tuple[int, ...], expected: str) -> None:
    schema = pa.schema([millis("t")])
    assert written("json", schema, (moment(*time),)) == f'{{"t":"2024-01-02 {expected}"}}'.encode()
    iso = f'{{"t":"2024-01-02T{expected}"}}'.encode()
    assert written("json", schema, (moment(*time),), timestamp_format__standard="ISO-8601") == iso
    assert read("json", schema, iso, timestamp_format__standard="ISO-8601") == [(moment(*time),)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10:11:12", dt.time(10, 11, 12)),
        ("00:00:00.5", dt.time(0, 0, 0, 500_000)),
        ("23:59:59.999999999", dt.time(23, 59, 59, 999_999)),
        *((text, None) for text in ("24:00:00", "10:60:00", "10:11:60", "10:11", "9:11:12", "10:11:12Z", "10:11:12.")),
        *((text, None) for text in (" 10:11:12", "10-11-12", "37")),
    ],
)
def test_times_that_are_read(text: str, expected: dt.time | None) -> None:
    """In one batch with others, which is read in bulk, and in a list."""
    row_format = open_row_format("json", TIMES, {}, side="")
    good = b'{"k":"10:11:12.3","l":["00:00:01"]}'
    for payload in (f'{{"k":"{text}","l":[]}}', f'{{"k":null,"l":["{text}"]}}'):
        payloads = [good, payload.encode(), good]
        if expected is None:
            with pytest.raises(BadRecordError, match=r"expected a time as 12:30:00\.5, got '") as raised:
                row_format.decode(payloads)
            assert raised.value.position == 1
        else:
            row = row_format.decode(payloads).batch.to_pylist()[1]
            assert [row["k"], *row["l"]] == ([expected] if row["k"] is not None else [None, expected])


def test_null_fields_can_be_left_out() -> None:
    assert (
        written("json", PAGEVIEWS, ("eu", None, 2), encode__ignore_null_fields="true") == b'{"user_region":"eu","uv":2}'
    )
    assert written("json", ITEMS, (None, None), encode__ignore_null_fields="true") == b"{}"


@pytest.mark.parametrize("payload", [None, b"", b"null", b"  ", b" null\n"])
def test_nothing_is_no_row(payload: bytes | None) -> None:
    assert read("json", ITEMS, payload) == []


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"item_id":1}', [(1, None)]),
        (b'{"item_id":"12","behavior":5,"extra":1}', [(12, "5")]),
        (b' {"behavior" : "b" , "item_id" : " 7 "} ', [(7, "b")]),
        (b'{"item_id":1.0,"behavior":1.10}', [(1, "1.10")]),
        (b'{"item_id":1,"item_id":2}', [(2, None)]),
        (b'{"item\\u005fid":3}', [(3, None)]),
        (b'{"behavior":true}', [(None, "true")]),
        (b'{"behavior":{"a": [1.10, "x", null]}}', [(None, '{"a":[1.10,"x",null]}')]),
        (b'{"behavior":"line\nbreak"}', [(None, "line\nbreak")]),
        (b"{}", [(None, None)]),
    ],
)
def test_readings(payload: bytes, expected: list[tuple[Any, ...]]) -> None:
    assert read("json", ITEMS, payload) == expected


@pytest.mark.parametrize(
    ("payload", "field", "kept"),
    [
        (b'{"item_id":1', None, []),
        (b'{"item_id":"x","behavior":"b"}', "item_id", [(None, "b")]),
        (b'{"item_id":1.5,"behavior":"b"}', "item_id", [(None, "b")]),
        (b'{"item_id":true,"behavior":"b"}', "item_id", [(None, "b")]),
        (b'{"item_id":"0x1f","behavior":"b"}', "item_id", [(None, "b")]),
        (b'{"item_id":9223372036854775808}', "item_id", [(None, None)]),
        (b'{"item_id":[1],"behavior":"b"}', "item_id", [(None, "b")]),
        (b'{"behavior":"\\ud800"}', "behavior", [(None, None)]),
        (b'[{"item_id":1},{"item_id":2}]', None, []),
        (b"5", None, []),
        (b'{"item_id":1}x', None, []),
        (b'{"item_id":1}{"item_id":2}', None, []),
        (b'{"item_id":1,}', None, []),
        (b'{"item_id":1,"z":NaN}', None, []),
        (b'{"item_id":1,"z":[1, ]}', None, []),
        (b"\xff", None, []),
        (b'{"item_id":1,"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, []),
        (b'{"item_id":1' + b"0" * 100_000 + b"}", "item_id", [(None, None)]),
    ],
)
def test_bad_payloads(payload: bytes, field: str | None, kept: list[tuple[Any, ...]]) -> None:
    row_format = open_row_format("json", ITEMS, {}, side="value")
    good = b'{"item_id":1,"behavior":"b"}'
    with pytest.raises(BadRecordError) as raised:
        row_format.decode([good, None, payload, good, b"x"])
    assert raised.value.position == 2
    assert raised.value.field == field
    assert len(str(raised.value)) < 400
    assert row_format.decode([good]).batch.to_pylist() == [{"item_id": 1, "behavior": "b"}]
    skipping = open_row_format("json", ITEMS, {"ignore-parse-errors": "true"}, side="value")
    decoded = skipping.decode([good, payload, good])
    assert list(zip(*decoded.batch.to_pydict().values(), strict=True)) == [(1, "b"), *kept, (1, "b")]
    assert decoded.record.tolist() == ([0, 1, 2] if kept else [0, 2])


def test_a_missing_field_can_be_an_error() -> None:
    with pytest.raises(BadRecordError, match="'behavior' is missing") as raised:
        read("json", ITEMS, b'{"item_id":1}', fail_on_missing_field="true")
    assert raised.value.field == "behavior"
    assert read("json", ITEMS, b'{"item_id":1,"behavior":null}', fail_on_missing_field="true") == [(1, None)]


def test_null_in_a_column_that_forbids_it_is_an_error() -> None:
    with pytest.raises(BadRecordError, match="must not be NULL") as raised:
        read("json", PAGEVIEWS, b'{"pv":1}')
    assert raised.value.field == "user_region"
    assert read("json", PAGEVIEWS, b'{"pv":1}', ignore_parse_errors="true") == []
    with pytest.raises(InvalidInputError, match="'user_region' is NULL"):
        written("json", PAGEVIEWS, (None, 1, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-02 03:04:05", moment(3, 4, 5)),
        ("2024-01-02 03:04:05.6", moment(3, 4, 5, 600_000)),
        ("2024-01-02 03:04:05.123456", moment(3, 4, 5, 123_456)),
        ("2024-01-02 03:04:05.123456789", moment(3, 4, 5, 123_456)),
    ],
)
def test_timestamps_that_are_read(text: str, expected: dt.datetime) -> None:
    assert read("json", pa.schema([millis("t")]), f'{{"t":"{text}"}}'.encode()) == [(expected,)]
    with_zone = [(expected.replace(tzinfo=dt.UTC),)]
    assert read("json", pa.schema([millis("t", LTZ)]), f'{{"t":"{text}Z"}}'.encode()) == with_zone


@pytest.mark.parametrize(
    "value",
    [
        '"2024-01-02T03:04:05"', '"2024-01-02 03:04:05Z"', '"2024-01-02"', "1704164645000", '"2024-02-30 00:00:00"',
        '"2024-01-02 24:00:00"', '"2024-01-02 03:04"', '"2024-01-02 03:04:05.1234567890"', '"2024-1-2 03:04:05"', '""',
    ],
)  # fmt: skip
def test_timestamps_that_are_not(value: str) -> None:
    with pytest.raises(BadRecordError, match="expected a timestamp"):
        read("json", pa.schema([millis("t")]), f'{{"t":{value}}}'.encode())


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.decimal128(10, 2), "1.005", Decimal("1.01")),
        (pa.decimal128(10, 2), '"1E+2"', Decimal("100.00")),
        (pa.decimal128(10, 2), "0.12499999999999999999999", Decimal("0.12")),
        (pa.decimal128(10, 2), "1e-999999999", Decimal("0.00")),
        (pa.decimal128(38, 18), "0.123456789012345678", Decimal("0.123456789012345678")),
        (pa.decimal128(38, 18), '"0.123456789012345678"', Decimal("0.123456789012345678")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.float64(), '"NaN"', "nan"),
        (pa.float64(), '"-Infinity"', float("-inf")),
        (pa.float64(), "1e-400", 0.0),
        (pa.float64(), '"1.5"', 1.5),
        (pa.float32(), "0.1", 0.10000000149011612),
        (pa.float64(), "5", 5.0),
        (pa.bool_(), '" TRUE "', True),
        (pa.binary(), '"AP8="', b"\x00\xff"),
        (pa.date32(), '"2024-01-02"', dt.date(2024, 1, 2)),
        (pa.list_(pa.int64()), '["1", 2, null]', [1, 2, None]),
        (pa.map_(pa.string(), pa.int64()), '{"a":1,"b":null,"a":3}', [("a", 3), ("b", None)]),
        (pa.struct([("x", pa.int32())]), '{"y":1}', {"x": None}),
        (pa.struct([("x", pa.list_(pa.string()))]), '{"x":["a",1]}', {"x": ["a", "1"]}),
    ],
)
def test_values_that_are_read(kind: pa.DataType, value: str, expected: Any) -> None:
    ((found,),) = read("json", pa.schema([("c", kind)]), f'{{"c":{value}}}'.encode())
    assert repr(found) == expected if expected == "nan" else found == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.decimal128(4, 2), "100"), (pa.decimal128(4, 2), "99.995"), (pa.decimal128(4, 2), "1e999999999"),
        (pa.decimal128(4, 2), "true"), (pa.decimal128(4, 2), '"1_0"'), (pa.decimal128(4, 2), '"NaN"'),
        (pa.float64(), "1e400"), (pa.float32(), "1e39"), (pa.float64(), '"nan"'), (pa.float64(), "true"),
        (pa.float64(), '"1.5f"'), (pa.int8(), "128"), (pa.int32(), '"1.0"'), (pa.int32(), '"1e1"'),
        (pa.bool_(), "1"), (pa.bool_(), '"yes"'), (pa.binary(), '"A"'), (pa.binary(), "1234"), (pa.binary(), '"AP8"'),
        (pa.date32(), '"2024-02-30"'), (pa.date32(), '"0000-01-01"'), (pa.date32(), '"2024-01-02 00:00:00"'),
        (pa.list_(pa.int64()), '{"a":1}'), (pa.list_(pa.int64()), '["x"]'), (pa.map_(pa.string(), pa.int64()), "[]"),
        (pa.struct([("x", pa.int32())]), "[]"), (pa.struct([("x", pa.int32())]), "5"),
        (pa.struct([("x", pa.int32())]), '{"x":"a"}'),
        (pa.struct([pa.field("x", pa.int32(), nullable=False)]), "{}"),
    ],
)  # fmt: skip
def test_values_that_are_not(kind: pa.DataType, value: str) -> None:
    schema = pa.schema([("c", kind), ("z", pa.int32())])
    payload = f'{{"c":{value},"z":1}}'.encode()
    with pytest.raises(BadRecordError) as raised:
        read("json", schema, payload)
    assert raised.value.field == "c"
    ((found, z),) = read("json", schema, payload, ignore_parse_errors="true")
    assert z == 1
    assert not found or kind.num_fields


@pytest.mark.parametrize("year", [-1, 0, 10_000])
@pytest.mark.parametrize("kind", [pa.date32(), NTZ, LTZ])
def test_years_that_text_cannot_say_are_refused(year: int, kind: pa.DataType) -> None:
    schema = pa.schema([("l", pa.list_(kind))])
    days = (year - 1970) * 365.2425 + 100
    number = int(days) if pa.types.is_date(kind) else int(days) * 86_400_000_000
    with pytest.raises(InvalidInputError, match="'l': format 'json' writes the years 1 to 9999 only"):
        written("json", schema, ([number],))


def test_no_columns_are_still_rows() -> None:
    row_format = open_row_format("json", pa.schema([]), {}, side="key")
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert row_format.encode(nothing) == [b"{}", b"{}"]
    decoded = row_format.decode([b"{}", None, b'{"a":1}', b"null"])
    assert decoded.record.tolist() == [0, 2]
    assert decoded.batch.num_columns == 0


def test_other_map_keys_than_strings_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="maps with string keys only"):
        open_row_format("json", pa.schema([("m", pa.map_(pa.int32(), pa.int32()))]), {}, side="")
