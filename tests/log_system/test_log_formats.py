"""The log formats: what is written is as documented, and what cannot be is refused by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from log_system.formats import open_format
from snapshot.errors import CorruptedError, InvalidInputError
from snapshot.row_kind import KIND, RowKind
from tests.contracts.log_format_contract import ORDERS, ROW, ROW_JSON, LogFormatContract, changes, shared
from tests.harness import schema_strategies as tables


@pytest.fixture(scope="module", autouse=True)
def _no_format_outlives_the_tests() -> Iterator[None]:
    """Close the shared connections: DuckDB complains about those that the interpreter's end finds open."""
    yield
    shared.cache_clear()


class TestJson(LogFormatContract):
    name = "json"

    def kinds(self, primary_key: list[str]) -> list[RowKind]:
        return list(tables.KEYED_JSON_KINDS) if primary_key else [RowKind.INSERT]

    def expected(self, batch: pa.RecordBatch, primary_key: list[str]) -> pa.RecordBatch:
        """Deletes keep their key only, and an insert of a key is an update of it."""
        if not primary_key:
            return batch
        deleted = pc.equal(batch[KIND], int(RowKind.DELETE))
        rows = pa.array(np.arange(len(batch)))
        live = pc.if_else(deleted, None, rows)
        columns = [
            batch.column(i).take(rows if field.name in primary_key else live)
            for i, field in enumerate(batch.schema.remove(len(batch.schema) - 1))
        ]
        kinds = pc.if_else(deleted, int(RowKind.DELETE), int(RowKind.UPDATE_AFTER)).cast(pa.int8())
        return pa.RecordBatch.from_arrays([*columns, kinds], schema=batch.schema)

    def check_accepted(self, damaged: bytes, batch: pa.RecordBatch) -> None:
        theirs = json.loads(damaged)
        row = dict(zip(batch.schema.names, (tables.plain(column)[0] for column in batch), strict=True))
        assert theirs["id"] == row["id"] == 1
        assert theirs.get("name") == row["name"]
        price = theirs.get("price")
        assert (
            math.isnan(row["price"]) if price == "NaN" else row["price"] == (price if price is None else float(price))
        )
        exact = json.loads(damaged, parse_float=Decimal).get("total")
        assert exact == row["total"]
        assert theirs.get("tags") == row["tags"]
        written = None if row["at"] is None else np.datetime_as_string(np.datetime64(row["at"], "us")) + "Z"
        # numpy pads negative years with zeros; the format does not.
        assert theirs.get("at") == (written and re.sub("^-0+(?=[0-9])", "-", written))

    def test_the_wire(self) -> None:
        rows: list[dict[str, Any]] = [ROW, ROW | {"id": 2}, {"id": 3}]
        records = open_format("json", ORDERS, ["id"]).encode(changes(ORDERS, rows, [0, 3, 2]))
        assert records.keys == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
        nothing = b'{"id":3,"name":null,"price":null,"total":null,"at":null,"tags":null}'
        assert records.values == [ROW_JSON, None, nothing]
        assert list(records.rows) == [1, 1, 1]

    def test_a_key_has_its_columns_in_key_order(self) -> None:
        records = open_format("json", ORDERS, ["name", "id"]).encode(changes(ORDERS, [ROW], [0]))
        assert records.keys == [b'{"name":"a","id":1}']

    def test_without_a_key_records_have_none(self) -> None:
        log_format = open_format("json", ORDERS, [])
        records = log_format.encode(changes(ORDERS, [ROW], [0]))
        assert (records.keys, records.values) == ([None], [ROW_JSON])
        assert log_format.decode([b"anything"], records.values).batch[KIND].to_pylist() == [RowKind.INSERT]

    @pytest.mark.parametrize(
        ("primary_key", "row", "kind", "message"),
        [
            (["id"], ROW, RowKind.UPDATE_BEFORE, "cannot carry UPDATE_BEFORE"),
            ([], ROW, RowKind.DELETE, "needs a primary key to carry a delete"),
            (["id"], {"name": "a"}, RowKind.INSERT, "primary key column 'id' must not be NULL"),
            ([], {"at": -(2**63)}, RowKind.INSERT, "column 'at': timestamps before -290308-12-22"),
        ],
    )
    def test_what_json_cannot_carry_is_refused(
        self, primary_key: list[str], row: dict[str, Any], kind: RowKind, message: str
    ) -> None:
        log_format = open_format("json", ORDERS, primary_key)
        with pytest.raises(InvalidInputError, match=message):
            log_format.encode(changes(ORDERS, [row], [kind]))
        assert log_format.encode(changes(ORDERS, [ROW], [0])).values == [ROW_JSON], (
            "an error must not outlive its batch"
        )

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"x", "Malformed JSON"),
            (b"", "Malformed JSON"),
            (b"[1]", "not a JSON object"),
            (b"null", "not a JSON object"),
            (b'{"id":1}{"id":1}', "Malformed JSON"),
            (b"\xff", "UTF8"),
            (b'{"name":"a"}', "column 'id'"),
            (b'{"id":null}', "column 'id'"),
            (b'{"id":2}', "column 'id'"),
            (b'{"id":"1"}', "column 'id'"),
            (b'{"id":1,"id":1}', "given twice"),
            (b'{"id":1,"name":5}', "column 'name'"),
            (b'{"id":1,"price":"12"}', "column 'price'"),
            (b'{"id":1,"price":NaN}', "NaN is not JSON"),
            (b'{"id":1,"price":1e999}', "column 'price'"),
            (b'{"id":1,"total":1.005}', "column 'total'"),
            (b'{"id":1,"total":1.00000000000000000001}', "column 'total'"),
            (b'{"id":1,"total":"1.00"}', "column 'total'"),
            (b'{"id":1,"total":99999999999.00}', "column 'total'"),
            (b'{"id":1,"at":"2024-01-02T03:04:05.123456+02:00"}', "column 'at'"),
            (b'{"id":1,"at":"yesterday"}', "column 'at'"),
            (b'{"id":1,"tags":[1.5]}', "column 'tags'"),
            (b'{"id":1,"tags":[4294967296]}', "column 'tags'"),
            (b'{"id":1,"tags":{"a":1}}', "column 'tags'"),
            (b'{"id":1,"tags":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
        ],
    )
    def test_a_record_of_another_kind_is_named(self, value: bytes, message: str) -> None:
        good = b'{"id":1}'
        with pytest.raises(CorruptedError, match=rf"(?s)^record 2: .*{message}"):
            shared("json").decode([good] * 4, [good, None, value, b"x"])

    @pytest.mark.parametrize(
        ("key", "value"), [(None, None), (None, b'{"id":1}'), (b"{}", None), (b'{"id":2}', b'{"id":1}')]
    )
    def test_a_key_that_is_missing_or_not_the_rows_is_an_error(self, key: bytes | None, value: bytes | None) -> None:
        with pytest.raises(CorruptedError, match=r"^record 0: "):
            shared("json").decode([key], [value])

    def test_other_spellings_of_the_same_values_are_read(self) -> None:
        value = rb' {"name":"\u0061", "total":1.25e1,"price":5E-1, "id":1, "other":{"a":[]},"tags":[1, null]} '
        batch = shared("json").decode([b'{ "id": 1 }'], [value]).batch
        assert batch.drop_columns(["at", KIND]).to_pylist() == [
            {"id": 1, "name": "a", "price": 0.5, "total": Decimal("12.50"), "tags": [1, None]}
        ]

    def test_null_where_the_schema_forbids_it_is_an_error(self) -> None:
        schema = pa.schema([pa.field("a", pa.list_(pa.field("element", pa.int32(), nullable=False)))])
        with pytest.raises(CorruptedError, match="record 1: column 'a' is NULL"):
            open_format("json", schema, []).decode([None, None], [b'{"a":[1]}', b'{"a":[null]}'])

    def test_the_documented_examples(self) -> None:
        text = (Path(__file__).parent.parent.parent / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
        examples = re.findall(r"^\| `([^`|]+)` \| `([^`]+)` \| `([^`]+)` \|", text, re.MULTILINE)
        assert len(examples) > 20
        for name, value, written in examples:
            field = spark_types.StructField("c", _SPARK_TYPES[name])
            schema = to_arrow_schema(spark_types.StructType([field]), timezone="UTC")
            log_format = open_format("json", schema, [])
            records = log_format.encode(changes(schema, [{"c": eval(value, _VALUES)}], [0]))
            assert records.values == [f'{{"c":{written}}}'.encode()], name
            assert log_format.decode(records.keys, records.values).batch.schema.field("c") == schema.field("c")


class TestDebezium(LogFormatContract):
    """As Flink writes it; the upserts of a table that does not look up what they replace."""

    name = "debezium-json"

    def check_accepted(self, damaged: bytes, batch: pa.RecordBatch) -> None:
        framed = json.loads(damaged)
        assert framed["before"] is None
        assert framed["op"] == "c"
        TestJson().check_accepted(damaged.removeprefix(b'{"before":null,"after":').removesuffix(b',"op":"c"}'), batch)

    def kinds(self, primary_key: list[str]) -> list[RowKind]:
        return list(tables.KEYED_JSON_KINDS) if primary_key else [RowKind.INSERT]

    def expected(self, batch: pa.RecordBatch, primary_key: list[str]) -> pa.RecordBatch:
        """Whole rows come back, of deletes too; an insert of a key is an update of it."""
        live = int(RowKind.UPDATE_AFTER if primary_key else RowKind.INSERT)
        kinds = pc.if_else(pc.equal(batch[KIND], int(RowKind.DELETE)), int(RowKind.DELETE), live).cast(pa.int8())
        return batch.set_column(batch.num_columns - 1, batch.schema.field(KIND), kinds)

    def test_the_wire(self) -> None:
        rows: list[dict[str, Any]] = [ROW, ROW, ROW, ROW, {"id": 2}]
        kinds = [RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE, RowKind.DELETE]
        log_format = open_format("debezium-json", ORDERS, ["id"], changelog=True)
        records = log_format.encode(changes(ORDERS, rows, list(map(int, kinds))))
        brought, taken = b'{"before":null,"after":%s,"op":"c"}' % ROW_JSON, b'{"before":%s,"after":null,"op":"d"}'
        nothing = b'{"id":2,"name":null,"price":null,"total":null,"at":null,"tags":null}'
        assert records.values == [brought, taken % ROW_JSON, brought, taken % ROW_JSON, taken % nothing]
        assert records.keys == [b'{"id":1}'] * 4 + [b'{"id":2}']
        decoded = log_format.decode(records.keys, records.values).batch
        assert decoded[KIND].to_pylist() == [RowKind.INSERT, RowKind.DELETE, RowKind.INSERT] + [RowKind.DELETE] * 2

    def test_rows_before_a_change_need_a_full_changelog(self) -> None:
        log_format = open_format("debezium-json", ORDERS, ["id"])
        with pytest.raises(InvalidInputError, match="changelog-producer='lookup' only"):
            log_format.encode(changes(ORDERS, [ROW], [RowKind.UPDATE_BEFORE]))

    @pytest.mark.parametrize("strange", [None, b"", b"null", ROW_JSON, b'{"before":null,"after":null,"op":"u"}'])
    def test_the_first_record_of_another_kind_is_named(self, strange: bytes | None) -> None:
        log_format = open_format("debezium-json", ORDERS, ["id"])
        value = log_format.encode(changes(ORDERS, [ROW], [0])).values[0]
        with pytest.raises(CorruptedError, match=r"^record 1: expected .*before"):
            log_format.decode([b'{"id":1}'] * 3, [value, strange, strange])
        with pytest.raises(CorruptedError, match=r"^record 0: "):
            log_format.decode([b'{"id":2}', b'{"id":1}'], [value, strange])


class TestArrow(LogFormatContract):
    name = "arrow"

    def kinds(self, primary_key: list[str]) -> list[RowKind]:
        return list(RowKind)

    @pytest.mark.parametrize("limit", [1, 3_000, 20_000, 900_000])
    def test_records_stay_under_the_limit(self, limit: int) -> None:
        rng = np.random.default_rng(1)
        rows = [{"id": i, "name": "x" * int(n)} for i, n in enumerate(rng.integers(0, 200, 2_000))]
        batch = changes(ORDERS, rows, [0] * len(rows))
        log_format = open_format("arrow", ORDERS, ["id"], max_record_bytes=limit)
        records = log_format.encode(batch)
        assert set(records.keys) == {None}
        assert all(len(v or b"") <= limit or n == 1 for v, n in zip(records.values, records.rows, strict=True))
        assert log_format.decode(records.keys, records.values).batch == batch

    def test_any_arrow_reader_opens_a_record(self) -> None:
        batch = changes(ORDERS, [ROW], [1])
        (value,) = open_format("arrow", ORDERS, ["id"]).encode(batch).values
        with pa.ipc.open_stream(value) as reader:
            assert reader.read_all().to_batches() == [batch]

    @pytest.mark.parametrize("value", [None, b"", b"12345678", b"TSA1\0\0\0\0", b"TSA1" * 1000])
    def test_a_record_of_another_kind_is_named(self, value: bytes | None) -> None:
        (good,) = open_format("arrow", ORDERS, ["id"]).encode(changes(ORDERS, [ROW], [1])).values
        with pytest.raises(CorruptedError, match=r"^record 1: "):
            shared("arrow").decode([None, None], [good, value])

    def test_a_column_of_another_type_is_an_error(self) -> None:
        records = open_format("arrow", pa.schema([("id", pa.int32())]), []).encode(
            changes(pa.schema([("id", pa.int32())]), [{"id": 1}], [0])
        )
        with pytest.raises(CorruptedError, match="record 0: column 'id' must be of type int64, the record has int32"):
            shared("arrow").decode(records.keys, records.values)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"log\.format must be one of 'json', .*'debezium-json', got 'avro'"):
        open_format("avro", ORDERS, ["id"])


@pytest.mark.parametrize(
    ("schema", "primary_key", "message"),
    [
        (pa.schema([("a", pa.int8()), ("A", pa.int8())]), [], "distinct"),
        (pa.schema([("_kind", pa.int8())]), [], "_kind"),
        (pa.schema([("a", pa.int8())]), ["b"], "primary key column 'b'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(schema: pa.Schema, primary_key: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_format("json", schema, primary_key)


def test_floats_are_written_shortest_and_come_back() -> None:
    bits = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    schema = pa.schema([("f", pa.float32())])
    numbers = bits.view(np.float32)
    log_format = open_format("json", schema, [])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array(np.zeros(len(bits), np.int8))], schema=schema.append(pa.field(KIND, pa.int8()))
    )
    records = log_format.encode(batch)
    back = log_format.decode(records.keys, records.values).batch["f"].to_numpy()
    assert np.array_equal(back, numbers, equal_nan=True)
    finite = numbers[np.isfinite(numbers)][:2_000]
    written = [json.loads(v or b"")["f"] for v in records.values]
    texts = [text for text in written if not isinstance(text, str)][:2_000]
    assert [str(np.float32(t)) for t in texts] == [str(f) for f in finite]
    assert all(len(repr(t).replace("-", "")) <= 24 for t in texts)


_SPARK_TYPES: dict[str, spark_types.DataType] = {
    "boolean": spark_types.BooleanType(),
    "byte": spark_types.ByteType(),
    "short": spark_types.ShortType(),
    "int": spark_types.IntegerType(),
    "long": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "decimal(10,2)": spark_types.DecimalType(10, 2),
    "decimal(38,0)": spark_types.DecimalType(38, 0),
    "decimal(38,38)": spark_types.DecimalType(38, 38),
    "string": spark_types.StringType(),
    "binary": spark_types.BinaryType(),
    "date": spark_types.DateType(),
    "timestamp": spark_types.TimestampType(),
    "timestamp_ntz": spark_types.TimestampNTZType(),
    "array<int>": spark_types.ArrayType(spark_types.IntegerType()),
    "array<double>": spark_types.ArrayType(spark_types.DoubleType()),
    "map<string,int>": spark_types.MapType(spark_types.StringType(), spark_types.IntegerType()),
    "map<int,string>": spark_types.MapType(spark_types.IntegerType(), spark_types.StringType()),
    "struct<x:int,y:binary>": spark_types.StructType(
        [
            spark_types.StructField("x", spark_types.IntegerType()),
            spark_types.StructField("y", spark_types.BinaryType()),
        ]
    ),
}
_VALUES: dict[str, Any] = {"Decimal": Decimal, "nan": math.nan, "inf": math.inf, "pa": pa}
