"""The row format ``csv``: bytes and readings equal to those measured on Flink, whose CSV is Jackson's."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.csv import bulk_reader
from tablestore.connectors.formats.registry import open_row_format
from tablestore.connectors.formats.types import TIME
from tests.connectors.formats.row_cases import ITEMS, LTZ, NTZ, ORDER, ORDERS, PAGEVIEWS, TIMES, read, rows, written
from tests.connectors.formats.row_properties import batches, check_bulk_is_one_by_one, damaged
from tests.harness import schema_strategies as tables

SNA = pa.schema([("s", pa.string()), ("n", pa.decimal128(4, 1)), ("a", pa.list_(pa.string()))])
FLAT = pa.schema(
    [
        pa.field("i", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("n", pa.decimal128(10, 2)),
        pa.field("w", pa.decimal128(38, 12)),
        pa.field("b", pa.bool_()),
        pa.field("t", NTZ),
        pa.field("z", LTZ),
        pa.field("y", pa.date32()),
        pa.field("k", TIME),
        pa.field("must", pa.int16(), nullable=False),
    ]
)
NESTED = FLAT.append(pa.field("x", pa.binary())).append(pa.field("l", pa.list_(pa.int32())))
OPTIONS: list[dict[str, str]] = [
    {},
    {"null-literal": "n/a"},
    {"field-delimiter": ";", "quote-character": "'"},
    {"field-delimiter": "|", "null-literal": "NULL"},
    {"field-delimiter": r"\t"},
    {"escape-character": "\\"},
    {"write-bigdecimal-in-scientific-notation": "false"},
]


@pytest.mark.parametrize(
    ("schema", "row", "expected"),
    [
        (PAGEVIEWS, ("eu", 3, 2), "eu,3,2"),
        (PAGEVIEWS, ("eu", None, 2), "eu,,2"),
        (ORDERS, ORDER, '7,"p,""q""",12.5,"2024-01-02 03:04:05.6"'),
        (SNA, ("eu", Decimal("100"), ["a", "b"]), 'eu,"1E+2",a;b'),
        (SNA, ("", Decimal("-0.5"), ["a", None, "b c"]), ',-0.5,"a;;b c"'),
        (SNA, (None, None, None), ",,"),
        (SNA, ("1234567890123456789012345", None, []), '"1234567890123456789012345",,'),
        (SNA, ("123456789012345678901234", None, ["q"]), "123456789012345678901234,,q"),
        (SNA, ("#c", None, ["#"]), '"#c",,"#"'),
        (SNA, (" a", None, None), '" a",,'),
        (SNA, ("a\nb", None, None), '"a\nb",,'),
        (SNA, ("-é", None, None), "-é,,"),
        (pa.schema([("x", pa.binary())]), (b"\x00\xff\x07\x08",), "AP8HCA=="),
        (pa.schema([("d", pa.date32()), ("b", pa.bool_())]), (dt.date(2024, 1, 2), True), "2024-01-02,true"),
        (pa.schema([("d", pa.float64()), ("i", pa.int8())]), (-1.5, -5), "-1.5,-5"),
        (TIMES, (dt.time(10, 11, 12, 340_000), [dt.time(0), None]), "10:11:12.34,00:00:00;"),
        (pa.schema([("r", pa.struct([("x", pa.int8()), ("y", pa.string())]))]), ({"x": 1, "y": "a"},), "1;a"),
    ],
)
def test_the_bytes_are_flinks(schema: pa.Schema, row: tuple[Any, ...], expected: str) -> None:
    assert written("csv", schema, row).decode() == expected


def test_a_row_that_is_null_is_read_as_written() -> None:
    """Of an array that is NULL, an empty field makes an empty one, as in Flink."""
    inner = pa.struct([("x", pa.int8()), ("y", pa.string())])
    schema = pa.schema([("r", inner), ("a", pa.list_(pa.string())), ("s", inner)])
    row = (None, None, {"x": 1, "y": "a"})
    assert written("csv", schema, row).decode() == ",,1;a"
    assert read("csv", schema, b",,1;a") == [(None, [], row[2])]
    with pytest.raises(BadRecordError, match="must not be NULL"):
        read("csv", pa.schema([pa.field("r", inner, nullable=False), ("s", pa.string())]), b",a")


@pytest.mark.parametrize(
    ("options", "row", "expected"),
    [
        ({"disable_quote_character": "true"}, ('a"b\nc', None, ["x y"]), 'a"b\nc,,x y'),
        ({"escape_character": "\\"}, ("a\\b", None, None), '"a\\\\b",,'),
        ({"escape_character": "\\"}, ('a"b,', None, ['q"r']), '"a""b,",,"q""r"'),
        ({"null_literal": "n/a"}, (None, None, None), "n/a,n/a,n/a"),
        ({"null_literal": "n/a"}, ("a", None, ["a", None]), "a,n/a,a;n/a"),
        ({"field_delimiter": ";"}, ("a b,:", None, None), '"a b,:";;'),
        ({"field_delimiter": "\t"}, ("a b!", None, None), '"a b!"\t\t'),
        ({"quote_character": "'"}, ("a\"b&'", None, ["z"]), "'a\"b&''',,z"),
        ({"field_delimiter": "|"}, ("a é 1", Decimal("100"), ["a", "b"]), '"a é 1"|"1E+2"|"a;b"'),
        ({"array_element_delimiter": "--"}, ("a", None, ["a", "b"]), "a,,a--b"),
        ({"write_bigdecimal_in_scientific_notation": "false"}, ("a", Decimal("100"), None), "a,100,"),
    ],
)
def test_options_of_writing(options: dict[str, str], row: tuple[Any, ...], expected: str) -> None:
    assert written("csv", SNA, row, **options).decode() == expected


@pytest.mark.parametrize(
    ("payload", "expected", "options"),
    [
        (b"1,b", (1, "b"), {}),
        (b"1,", (1, ""), {}),
        (b",b", (None, "b"), {}),
        (b' 1 ," b "', (1, " b "), {}),
        (b"1, b ", (1, " b "), {}),
        (b'1,"a""b"', (1, 'a"b'), {}),
        (b'"1" ,a"b', (1, 'a"b'), {}),
        (b"1,b,", (1, "b"), {}),
        (b"1,b\r\n", (1, "b"), {}),
        (b'1,"a\nb"', (1, "a\nb"), {}),
        (b'1, "a"', (1, ' "a"'), {}),
        (b"1,#c", (1, "#c"), {"allow_comments": "true"}),
        (b"1,a\\,b", (1, "a,b"), {"escape_character": "\\"}),
        (b'1,"a\\"b\\n"', (1, 'a"b\n'), {"escape_character": "\\"}),
        (b'1,"a"', (1, '"a"'), {"disable_quote_character": "true"}),
        (b'n/a,"n/a"', (None, None), {"null_literal": "n/a"}),
        (b"1;b", (1, "b"), {"field_delimiter": ";"}),
    ],
)
def test_readings(payload: bytes, expected: tuple[Any, ...], options: dict[str, str]) -> None:
    assert read("csv", ITEMS, payload, **options) == [expected]


@pytest.mark.parametrize(
    ("payload", "field", "message", "kept"),
    [
        (b"1", None, "Row length mismatch. 2 fields expected but was 1", [(1, None)]),
        (b"x,b", "item_id", "expected an integer, got 'x'", [(None, "b")]),
        (b"1.0,b", "item_id", "expected an integer", [(None, "b")]),
        (b"1,b,c", None, "2 fields expected but was 3", []),
        (b'1,"b', None, "closing quote is missing", []),
        (b'1,"b"c', None, "behind a closing quote", []),
        (b"1,b\n2,c", None, "more than one line", []),
        (b"\n1,b", None, "more than one line", []),
        (b"\xff,b", None, "not UTF-8", []),
        (b"\xef\xbb\xbf1,b", "item_id", "expected an integer", [(None, "b")]),
        (b"", None, "2 fields expected but was 1", [(None, None)]),
    ],
)
def test_bad_payloads(payload: bytes, field: str | None, message: str, kept: list[Any]) -> None:
    with pytest.raises(BadRecordError, match=message) as raised:
        open_row_format("csv", ITEMS, {}, side="value").decode([b"1,b", None, payload, b"1,b", b"x"])
    assert raised.value.position == 2
    assert raised.value.field == field
    assert read("csv", ITEMS, payload, ignore_parse_errors="true") == kept


def test_null_is_no_row_and_a_comment_is_an_error_unless_ignored() -> None:
    assert read("csv", ITEMS, None) == []
    with pytest.raises(BadRecordError, match="a comment"):
        read("csv", ITEMS, b"#1,b", allow_comments="true")
    assert read("csv", ITEMS, b"#1,b", allow_comments="true", ignore_parse_errors="true") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field-delimiter": "ab"}, "csv.field-delimiter': expected one character, .*, got 'ab'"),
        ({"quote-character": "'", "disable-quote-character": "true"}, "cannot be set while"),
        ({"quote-character": ","}, "must be different characters"),
        ({"array-element-delimiter": ""}, "must not be empty"),
        ({"null-litteral": "x"}, "Did you mean 'value.csv.null-literal'"),
        ({"allow-comments": "yes"}, "expected 'true' or 'false', got 'yes'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_row_format("csv", ITEMS, options, side="value")


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int32()), pa.list_(pa.list_(pa.int32()))])
def test_deeper_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="format 'csv'"):
        open_row_format("csv", pa.schema([("c", kind)]), {}, side="value")


def test_no_columns_are_still_rows() -> None:
    row_format = open_row_format("csv", pa.schema([]), {}, side="value")
    assert row_format.encode(pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))) == [b""]
    assert row_format.decode([b"", None, b""]).record.tolist() == [0, 2]


@pytest.fixture(params=[0, 64], ids=["all in bulk", "few one by one"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "_SMALL", max(request.param, 1))


@given(st.data())
def test_rows_come_back(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(OPTIONS))
    schema = pa.schema(data.draw(st.lists(st.sampled_from(list(FLAT)), min_size=1, unique_by=lambda f: f.name)))
    batch = data.draw(batches(schema))
    row_format = open_row_format("csv", schema, options, side="")
    payloads = row_format.encode(batch)
    decoded = row_format.decode(payloads)
    assert decoded.record.tolist() == list(range(len(batch)))
    null = options.get("null-literal", "")
    for field, ours, theirs in zip(schema, decoded.batch, batch, strict=True):
        if pa.types.is_string(field.type):
            # Text has no NULL of its own: it is read as what it is written as, and the other way round.
            back = [null if v is None else v for v in theirs.to_pylist()]
            assert [null if v is None else v for v in ours.to_pylist()] == back
        else:
            assert tables.identical(ours, theirs)
    check_bulk_is_one_by_one(row_format, schema, payloads)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ignore", ["true", "false"])
@given(st.data())
def test_damage_is_never_read_otherwise_than_one_by_one(ignore: str, data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(OPTIONS))
    schema = data.draw(st.sampled_from([FLAT, NESTED, ITEMS]))
    row_format = open_row_format("csv", schema, {**options, "ignore-parse-errors": ignore}, side="")
    good = row_format.encode(data.draw(batches(schema)))
    payloads = [data.draw(damaged(payload) | st.just(payload)) for payload in good]
    check_bulk_is_one_by_one(row_format, schema, payloads)


LINES = st.lists(
    st.sampled_from(["1", "b", ",", ",", '"', '"', '""', " ", "\n", "\t", "\ufeff", ";", "n/a", "2024-01-02", "\x00"]),
    max_size=8,
).map(lambda parts: "".join(parts).encode())  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ignore", ["true", "false"])
@given(st.lists(LINES, max_size=8))
def test_any_lines_are_read_as_one_by_one(ignore: str, payloads: list[bytes | None]) -> None:
    row_format = open_row_format("csv", ITEMS, {"ignore-parse-errors": ignore}, side="")
    check_bulk_is_one_by_one(row_format, ITEMS, payloads)


def test_other_years_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="'y': format 'csv' writes the years 1 to 9999 only"):
        open_row_format("csv", pa.schema([("y", pa.date32())]), {}, side="").encode(
            rows(pa.schema([("y", pa.date32())]), (-800_000,))
        )
