"""The row format ``json`` in bulk: rows of any schema come back, and no payload is read otherwise than one by one."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablestore.connectors.formats.json import bulk_reader
from tablestore.connectors.formats.registry import open_row_format
from tablestore.connectors.formats.types import TIME
from tests.connectors.formats.row_cases import LTZ, NTZ
from tests.connectors.formats.row_properties import batches, check_bulk_is_one_by_one, damaged
from tests.harness import schema_strategies as tables

EVERYTHING = pa.schema(
    [
        pa.field("i", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("n", pa.decimal128(10, 2)),
        pa.field("w", pa.decimal128(30, 12)),
        pa.field("b", pa.bool_()),
        pa.field("t", NTZ),
        pa.field("z", LTZ),
        pa.field("y", pa.date32()),
        pa.field("k", TIME),
        pa.field("x", pa.binary()),
        pa.field("must", pa.int8(), nullable=False),
        pa.field("l", pa.list_(pa.string())),
        pa.field("e", pa.list_(TIME)),
        pa.field("m", pa.map_(pa.string(), pa.decimal128(20, 2))),
        pa.field("r", pa.struct([("p", pa.int32()), ("q", pa.list_(pa.float64()))])),
    ]
)
MODES: list[dict[str, str]] = [{}, {"ignore-parse-errors": "true"}, {"fail-on-missing-field": "true"}]


@st.composite
def schemas(draw: st.DrawFn) -> pa.Schema:
    """Schemas that JSON can hold: maps by other keys than strings are not among them."""
    schema, _ = draw(tables.tables(keyed=False))
    return pa.schema([field for field in schema if not _has_other_map(field.type)])


def _has_other_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return not pa.types.is_string(kind.key_type) or _has_other_map(kind.item_type)
    return any(_has_other_map(kind.field(i).type) for i in range(kind.num_fields))


@given(st.data())
def test_rows_of_any_schema_come_back(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    batch = data.draw(batches(schema))
    options = {
        "timestamp-format.standard": data.draw(st.sampled_from(["SQL", "ISO-8601"])),
        "encode.decimal-as-plain-number": data.draw(st.sampled_from(["true", "false"])),
        "encode.ignore-null-fields": data.draw(st.sampled_from(["true", "false"])),
    }
    row_format = open_row_format("json", schema, options, side="value")
    payloads = row_format.encode(batch)
    for payload in payloads:
        json.loads(payload)
    decoded = pickle.loads(pickle.dumps(row_format)).decode(payloads)
    assert decoded.record.tolist() == list(range(len(batch)))
    if len(schema):
        for ours, theirs in zip(decoded.batch, batch, strict=True):
            assert tables.identical(ours, theirs)
    check_bulk_is_one_by_one(row_format, schema, payloads)


SPACE = st.sampled_from(["", "", "", " ", "\n\t "])
SOME_NUMBERS = [
    "0", "-0", "1", "-0.0", "1.0", "1.10", "12.5", "1.005", "1e2", "1E+2", "0.1", "127", "128", "1e400", "-1e-400",
     "9223372036854775807", "9223372036854775808", "0.12499999999999999999", "123456789.123456789012",
     "0.30000000000000000001", "1.5", "12345678901234567890.123456789012", "99999999.995", "16777217.0", "1e22",
]  # fmt: skip
SOME_TEXTS = [
    "", "a", "12", " 7 ", "1.50", "-0", "1e2", "0x1f", "true", "FALSE", "yes", "NaN", "Infinity", "-inf", "nan",
     "null", "2024-01-02", "2024-02-30", "2024-01-02 03:04:05", "2024-01-02 03:04:05.5", "2024-01-02 03:04:05.1234567",
     "2024-01-02 03:04:05Z", "2024-01-02T03:04:05", "2024-01-02 03:04", "0000-01-01", "AP8=", "AP8", "{", "[1]", "{}",
     "1.", ".5", "+5", "é", "line\nbreak", 'quo"te', "back\\slash", "x/y", "1_0", "٣", "\x00", "\u2028", "a,]", "1:nan",
]  # fmt: skip
OTHERS = ["null", "true", "false", "NaN", "-inf", "nan", "[1,]", '{"a":1, }', "{}", "[]", "[null]", '{"p":1}', '["a"]']
NUMBERS = st.sampled_from(SOME_NUMBERS)
TEXTS = st.sampled_from(SOME_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=4)


@st.composite
def spelled(draw: st.DrawFn, depth: int = 2) -> str:
    """JSON, rarely what is none, in many spellings."""
    if depth and draw(st.integers(0, 3)) == 0:
        names = st.sampled_from(["p", "q", "a"]) | TEXTS
        if draw(st.booleans()):
            items = draw(st.lists(spelled(depth=depth - 1), max_size=3))
            return "[" + draw(SPACE) + ("," + draw(SPACE)).join(items) + draw(SPACE) + "]"
        pairs = draw(st.lists(st.tuples(names, spelled(depth=depth - 1)), max_size=3))
        return "{" + ",".join(f"{quote(draw, n)}{draw(SPACE)}:{draw(SPACE)}{v}" for n, v in pairs) + draw(SPACE) + "}"
    kind = draw(st.integers(0, 9))
    if kind < 4:
        return draw(NUMBERS)
    if kind < 8:
        return quote(draw, draw(TEXTS))
    return draw(st.sampled_from(OTHERS))


def quote(draw: st.DrawFn, text: str) -> str:
    return json.dumps(text, ensure_ascii=draw(st.booleans()))


@st.composite
def fitting(draw: st.DrawFn, kind: pa.DataType) -> str:
    """JSON that a type may well take."""
    odd = draw(st.integers(0, 9))
    if odd == 0:
        return draw(spelled())
    if odd == 1:
        return "null"
    if pa.types.is_list(kind):
        return "[" + ",".join(draw(st.lists(fitting(kind.value_type), max_size=2))) + "]"
    if pa.types.is_map(kind):
        items = draw(st.dictionaries(TEXTS, fitting(kind.item_type), max_size=2))
        return "{" + ",".join(f"{quote(draw, name)}:{item}" for name, item in items.items()) + "}"
    if pa.types.is_struct(kind):
        return "{" + ",".join(f'"{f.name}":{draw(fitting(f.type))}' for f in kind) + "}"
    if pa.types.is_boolean(kind):
        return draw(st.sampled_from(["true", "false", '"true"']))
    if pa.types.is_temporal(kind):
        text = "2024-01-02" if pa.types.is_date(kind) else "2024-01-02 03:04:05.6"
        return f'"{text}Z"' if kind in (LTZ,) else f'"{text}"'
    if pa.types.is_binary(kind):
        return draw(st.sampled_from(['"AP8="', '"MTIz"', '""', '"AP9="', '"\\/w=="', "123"]))
    text = pa.types.is_string(kind)
    return quote(draw, draw(TEXTS)) if text and draw(st.integers(0, 3)) else draw(NUMBERS)


@st.composite
def objects(draw: st.DrawFn, schema: pa.Schema) -> bytes:
    """An object with the fields of a schema; now and then one is missing, unknown or there twice."""
    pairs = [(field.name, draw(fitting(field.type))) for field in schema if draw(st.integers(0, 7))]
    if draw(st.integers(0, 3)) == 0:
        pairs.append((draw(st.sampled_from([*schema.names, "unknown", "nan"])), draw(spelled())))
    space = draw(SPACE)
    inner = ",".join(f"{space}{quote(draw, n)}{space}:{space}{v}" for n, v in pairs)
    return ("{" + inner + draw(SPACE) + "}" + draw(SPACE)).encode()


@pytest.fixture(params=[0, 64], ids=["all in bulk", "few one by one"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "_SMALL", request.param)


@pytest.mark.parametrize("field", list(EVERYTHING), ids=lambda field: field.name)
def test_every_value_in_every_column_is_read_as_it_is_alone(field: pa.Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "_SMALL", 0)
    schema = pa.schema([field])
    quoted = [json.dumps(text, ensure_ascii=ascii_only) for text in SOME_TEXTS for ascii_only in (True, False)]
    tokens = [*SOME_NUMBERS, *quoted, *OTHERS]
    known = [f'{{"{field.name}":{token}}}'.encode() for token in tokens]
    unknown = [f'{{"{field.name}":null,"unknown":{token}}}'.encode() for token in tokens]
    twice = f'{{"{field.name}":null,"{field.name}":null}}'.encode()
    row_format = open_row_format("json", schema, {"ignore-parse-errors": "true"}, side="")
    check_bulk_is_one_by_one(row_format, schema, [*known, *unknown, twice])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("options", MODES, ids=str)
@given(st.data())
def test_bulk_is_one_by_one(options: dict[str, str], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(EVERYTHING.names), min_size=1, max_size=3, unique=True))
    schema = pa.schema([EVERYTHING.field(name) for name in names])
    payloads: list[Any] = data.draw(st.lists(objects(schema), max_size=12))
    check_bulk_is_one_by_one(open_row_format("json", schema, options, side=""), schema, payloads)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("options", MODES, ids=str)
@given(st.data())
def test_damage_is_never_read_otherwise_than_one_by_one(options: dict[str, str], data: st.DataObject) -> None:
    row_format = open_row_format("json", EVERYTHING, options, side="")
    good = row_format.encode(data.draw(batches(EVERYTHING)))
    payloads = [data.draw(damaged(payload) | st.just(payload)) for payload in good]
    check_bulk_is_one_by_one(row_format, EVERYTHING, payloads)


@pytest.mark.parametrize(
    "bad", [b'{"i":"x"}', b'{"i":1', b'{"i":1,"i":2}', b'{"l":5}', b'{"r":{"p":1,"p":2}}', b"\xff"]
)
def test_one_odd_payload_among_many_costs_only_itself(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([EVERYTHING.field(name) for name in ("i", "l", "r")])
    row_format: Any = open_row_format("json", schema, {"ignore-parse-errors": "true"}, side="")
    alone = []
    one = row_format._one
    monkeypatch.setattr(row_format, "_one", lambda payload: (alone.append(payload), one(payload))[1])
    good = b'{"i":1,"l":["a"],"r":{"p":2,"q":[]}}'
    payloads = [good] * 5_000 + [bad] + [good, b'{"i":1}'] * 1_000
    decoded = row_format.decode(payloads)
    assert decoded.batch["i"].to_pylist()[5_001:5_003] == [1, 1]
    assert len(alone) <= 64
    assert bad in alone
