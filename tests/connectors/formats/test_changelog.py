"""The changelog formats: messages as Debezium, Canal, Maxwell and Ogg write them, and as Flink writes them."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.base import ChangelogFormat
from tablestore.connectors.formats.changelog.format import ChangelogJsonFormat
from tablestore.connectors.formats.changelog.layouts import LAYOUTS
from tablestore.connectors.formats.registry import open_changelog_format
from tests.connectors.harness.changelog_messages import message_of

ITEM = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2))])
NARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])
KINDS = ("+I", "-U", "+U", "-D")
BOLT, NUT = {"id": 1, "name": "bolt", "price": 0.25}, {"id": 1, "name": "nut", "price": 0.5}
SOURCE = {
    "db": "shop",
    "schema": "public",
    "table": "items",
    "ts_ms": 1_600_000_000_123,
    "snapshot": False,
    "lsn": None,
}
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "name": st.none() | st.text(max_size=4) | st.sampled_from(['"', "\\", "é}", "null", "[1"]),
        "price": st.none() | st.decimals(-99, 99, places=2).map(float),
    }
)


def opened(
    name: str, options: Mapping[str, str] | None = None, *, schema: pa.Schema = ITEM, metadata: tuple[str, ...] = ()
) -> ChangelogFormat:
    return open_changelog_format(name, schema, options or {}, side="", metadata=metadata)


def changes(name: str, messages: list[Any], schema: pa.Schema = ITEM, **options: str) -> list[tuple[int, str, Any]]:
    """Decode messages to the position of each row's message, its kind and its values."""
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    found = opened(name, given, schema=schema).decode([as_bytes(message) for message in messages])
    rows = [list(row.values()) for row in found.batch.to_pylist()]
    return [(at, KINDS[kind], tuple(row)) for at, (*row, kind) in zip(found.record.tolist(), rows, strict=True)]


def as_bytes(message: Any) -> bytes | None:
    return message if message is None or isinstance(message, bytes) else json.dumps(message).encode()


def item(row: Mapping[str, Any]) -> tuple[Any, ...]:
    price = row["price"]
    return row["id"], row["name"], None if price is None else Decimal(str(price)).quantize(Decimal("0.01"))


def debezium(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1_600_000_001_000, **more}


def test_debezium_messages_are_inserts_updates_of_two_rows_and_deletes() -> None:
    messages = [
        debezium("c", None, BOLT),
        debezium("r", None, BOLT),
        debezium("u", BOLT, NUT),
        debezium("d", NUT, None),
    ]
    bolt, nut = item(BOLT), item(NUT)
    assert changes("debezium-json", [*messages, None, b"", b"null"]) == [
        (0, "+I", bolt), (1, "+I", bolt), (2, "-U", bolt), (2, "+U", nut), (3, "-D", nut),
    ]  # fmt: skip
    wrapped = [{"schema": {"type": "struct"}, "payload": message} for message in messages]
    assert changes("debezium-json", wrapped, schema_include="true") == changes("debezium-json", messages)


def test_canal_messages_hold_lists_of_rows_and_the_fields_that_changed() -> None:
    one, two = {"id": "1", "name": "bolt", "price": "0.25"}, {"id": "2", "name": None, "price": "7"}
    other = {"database": "shop", "table": "other", "type": "INSERT", "data": "not looked at"}
    items = {"database": "shop", "table": "items", "isDdl": False}
    messages = [
        {**items, "type": "INSERT", "data": [one, two], "old": None},
        other,
        {**items, "type": "CREATE", "data": None},
        {**items, "type": "UPDATE", "data": [one, two], "old": [{"price": "0.5"}, {"name": "x", "price": None}]},
        {**items, "type": "DELETE", "data": [one]},
    ]
    assert changes("canal-json", messages, table__include="item.*", database__include="(?i)SHOP") == [
        (0, "+I", (1, "bolt", Decimal("0.25"))), (0, "+I", (2, None, Decimal("7.00"))),
        (3, "-U", (1, "bolt", Decimal("0.50"))), (3, "+U", (1, "bolt", Decimal("0.25"))),
        (3, "-U", (2, "x", None)), (3, "+U", (2, None, Decimal("7.00"))),
        (4, "-D", (1, "bolt", Decimal("0.25"))),
    ]  # fmt: skip
    with pytest.raises(BadRecordError, match="record 1: expected a JSON array") as raised:
        changes("canal-json", messages)
    assert raised.value.field == "data"
    with pytest.raises(InvalidInputError, match=r"'canal-json.table.include': '\(' is not a Java regular expression"):
        changes("canal-json", [], table__include="(")


def test_maxwell_messages_hold_the_fields_that_changed_null_among_them() -> None:
    messages = [
        {"type": "insert", "data": BOLT, "ts": 1},
        {"type": "update", "data": BOLT, "old": {"name": None}},
        {"type": "update", "data": BOLT, "old": {"price": 3, "unknown": 1}},
        {"type": "delete", "data": BOLT},
    ]
    bolt = item(BOLT)
    assert changes("maxwell-json", messages) == [
        (0, "+I", bolt), (1, "-U", (1, None, bolt[2])), (1, "+U", bolt),
        (2, "-U", (1, "bolt", Decimal("3.00"))), (2, "+U", bolt), (3, "-D", bolt),
    ]  # fmt: skip


def test_messages_that_are_read_one_by_one_stay_in_order_among_the_others() -> None:
    """Names with escapes are left out of the bulk; of a field that occurs twice, the last counts."""
    escaped = rb'{"type":"update","data":{"id":1,"name":"b"},"o\u006cd":{"name":"a"}}'
    twice = b'{"type":"x","data":{"id":2},"old":{"id":7},"old":{"id":3},"type":"update"}'
    update = [("-U", (1, "a")), ("+U", (1, "b"))]
    other = [("-U", (3, None)), ("+U", (2, None))]
    found = changes("maxwell-json", [twice, escaped, twice, escaped, twice], NARROW)
    expected = enumerate([other, update, other, update, other])
    assert found == [(at, kind, row) for at, changed in expected for kind, row in changed]


def test_ogg_messages_are_inserts_updates_of_two_rows_and_deletes() -> None:
    messages = [
        {"op_type": "I", "before": None, "after": BOLT, "table": "SHOP.ITEMS"},
        {"op_type": "U", "before": BOLT, "after": NUT},
        {"op_type": "D", "before": NUT},
    ]
    assert changes("ogg-json", messages) == [
        (0, "+I", item(BOLT)), (1, "-U", item(BOLT)), (1, "+U", item(NUT)), (2, "-D", item(NUT)),
    ]  # fmt: skip


UTC = dt.UTC
NAMES = {"id": 4, "name": 12}


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        (
            "debezium-json",
            debezium("c", None, BOLT, schema="text"),
            {
                "schema": "text",
                "ingestion-timestamp": dt.datetime(2020, 9, 13, 12, 26, 41, tzinfo=UTC),
                "source.timestamp": dt.datetime(2020, 9, 13, 12, 26, 40, 123000, tzinfo=UTC),
                "source.database": "shop",
                "source.schema": "public",
                "source.table": "items",
                "source.properties": [
                    ("db", "shop"), ("schema", "public"), ("table", "items"), ("ts_ms", "1600000000123"),
                    ("snapshot", "false"), ("lsn", None),
                ],
            },
        ),
        (
            "canal-json",
            {"type": "INSERT", "data": [BOLT], "database": "shop", "table": "items", "sqlType": NAMES,
             "pkNames": ["id"], "ts": 1_600_000_000_001, "es": 1_600_000_000_000},
            {
                "database": "shop", "table": "items", "sql-type": list(NAMES.items()), "pk-names": ["id"],
                "ingestion-timestamp": dt.datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC),
                "event-timestamp": dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC),
            },
        ),
        (
            "maxwell-json",
            {"type": "insert", "data": BOLT, "database": "shop", "table": "items", "ts": 1_600_000_000,
             "primary_key_columns": ["id", "c"]},
            {
                "database": "shop", "table": "items", "primary-key-columns": ["id", "c"],
                "ingestion-timestamp": dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC),
            },
        ),
        (
            "ogg-json",
            {"op_type": "I", "after": BOLT, "table": "S.ITEMS", "primary_keys": ["id"],
             "op_ts": "2020-09-13 12:26:40.000001", "current_ts": "2020-09-13 12:26:41"},
            {
                "table": "S.ITEMS", "primary-keys": ["id"],
                "ingestion-timestamp": dt.datetime(2020, 9, 13, 12, 26, 41, tzinfo=UTC),
                "event-timestamp": dt.datetime(2020, 9, 13, 12, 26, 40, 1, tzinfo=UTC),
            },
        ),
    ],
)  # fmt: skip
def test_metadata_of_a_message(name: str, message: dict[str, Any], expected: dict[str, Any]) -> None:
    bare = {field: message[field] for field in message if field in ("op", "type", "op_type", "after", "data")}
    found = opened(name, metadata=tuple(expected)).decode([as_bytes(message), as_bytes(bare)])
    rows = [{key: row[key] for key in expected} for row in found.batch.to_pylist()]
    assert rows == [expected, dict.fromkeys(expected)]


@pytest.mark.parametrize("standard", ["SQL", "ISO-8601"])
def test_the_times_of_ogg_are_as_goldengate_writes_them(standard: str) -> None:
    """`current_ts` with a T and `op_ts` with a blank, whatever the option says of the row's timestamps."""
    times = ("ingestion-timestamp", "event-timestamp")
    message = {"op_type": "I", "after": BOLT, "op_ts": "2020-05-13 15:40:06.000001", "current_ts": "2020-05-13T13:39:35.766000123"}  # fmt: skip  # noqa: E501
    reader = opened("ogg-json", {"timestamp-format.standard": standard}, metadata=times)
    (row,) = reader.decode([as_bytes(message)]).batch.to_pylist()
    assert [row[name] for name in times] == [
        dt.datetime(2020, 5, 13, 13, 39, 35, 766_000, tzinfo=UTC),
        dt.datetime(2020, 5, 13, 15, 40, 6, 1, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    "time", ["2020-02-30 00:00:00", "2020-05-13", "yesterday", 1_600_000_000, "2020-05-13 25:00:00"]
)
@pytest.mark.parametrize("count", [1, 40])
def test_what_is_no_time_is_an_error_or_skips_the_message(time: Any, count: int) -> None:
    good = {"op_type": "I", "after": BOLT, "op_ts": "2020-05-13 15:40:06"}
    messages = [as_bytes(each) for each in (*[good] * count, good | {"op_ts": time}, good)]
    with pytest.raises(BadRecordError, match=r"expected a time as 2024-01-31 12:30:00\.5, got") as raised:
        opened("ogg-json", metadata=("event-timestamp",)).decode(messages)
    assert (raised.value.position, raised.value.field) == (count, "op_ts")
    found = opened("ogg-json", {"ignore-parse-errors": "true"}, metadata=("event-timestamp",)).decode(messages)
    assert found.record.tolist() == [*range(count), count + 1]


@pytest.mark.parametrize(
    ("name", "message", "field", "reason"),
    [
        ("debezium-json", debezium("u", None, BOLT), "before", 'the "before" field of an UPDATE .* REPLICA IDENTITY'),
        ("debezium-json", debezium("d", None, None), "before", "DELETE message is null.* Debezium reads Postgres"),
        ("ogg-json", {"op_type": "U", "after": BOLT}, "before", 'the "before" field .* REPLICA IDENTITY'),
        ("debezium-json", debezium("c", None, None), "after", 'the "after" field .* null or missing'),
        ("debezium-json", debezium("c", None, [1]), "after", "expected a JSON object, got"),
        ("debezium-json", debezium("t", None, None), "op", "unknown \"op\" value 't'; expected one of c, r, u, d"),
        ("debezium-json", debezium("c", None, {"id": "x"}), "after.id", "expected an integer, got 'x'"),
        ("debezium-json", {"before": None}, "op", 'unknown "op" value'),
        ("debezium-json", b"[1]", None, "expected a JSON object"),
        ("debezium-json", b'{"op":"c","after":{"id":1},}', None, "not valid JSON"),
        ("canal-json", {"type": "UPDATE", "data": [BOLT], "old": []}, "old", '"old" has 0 rows, and "data" has 1'),
        ("canal-json", {"type": "UPDATE", "data": [BOLT]}, "old", 'the "old" field .* null or missing'),
        ("canal-json", {"type": "INSERT", "data": [None]}, "data", "expected a JSON object"),
        ("maxwell-json", {"type": "bootstrap-insert", "data": BOLT}, "type", "unknown"),
    ],
)
def test_a_message_that_is_no_change_is_an_error_or_skipped(
    name: str, message: Any, field: str | None, reason: str
) -> None:
    good = {"op": "c", "op_type": "I", "type": "INSERT" if name == "canal-json" else "insert", "after": BOLT}
    good["data"] = [BOLT] if name == "canal-json" else BOLT
    with pytest.raises(BadRecordError, match=reason) as raised:
        changes(name, [good, message, good])
    assert (raised.value.position, raised.value.field) == (1, field)
    kept = changes(name, [good, message, good], ignore_parse_errors="true")
    assert [at for at, kind, row in kept if row == item(BOLT)] == [0, 2]
    # An invalid field is NULL, and the message is not skipped.
    assert kept[1:-1] == ([(1, "+I", (None, None, None))] if field == "after.id" else [])


def test_a_column_that_is_not_null_is_checked() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    partial = {"type": "update", "data": {"id": 1, "name": "b"}, "old": {"name": "a"}}
    assert changes("maxwell-json", [partial], schema) == [(0, "-U", (1, "a")), (0, "+U", (1, "b"))]
    with pytest.raises(BadRecordError, match="must not be NULL") as raised:
        changes("debezium-json", [debezium("c", None, {"id": 1})], schema)
    assert raised.value.field == "after.name"


def test_a_time_that_is_none_is_an_error() -> None:
    reader = opened("debezium-json", metadata=("source.timestamp",))
    with pytest.raises(BadRecordError, match="expected milliseconds"):
        reader.decode([as_bytes(debezium("c", None, BOLT, source={"ts_ms": "soon"}))])


@pytest.mark.parametrize(
    ("name", "inserted", "deleted"),
    [
        ("debezium-json", '{"before":null,"after":ROW,"op":"c"}', '{"before":ROW,"after":null,"op":"d"}'),
        ("canal-json", '{"data":[ROW],"type":"INSERT"}', '{"data":[ROW],"type":"DELETE"}'),
        ("maxwell-json", '{"data":ROW,"type":"insert"}', '{"data":ROW,"type":"delete"}'),
        ("ogg-json", '{"before":null,"after":ROW,"op_type":"I"}', '{"before":ROW,"after":null,"op_type":"D"}'),
    ],
)
def test_changes_are_written_as_flink_writes_them(name: str, inserted: str, deleted: str) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": None, "price": Decimal("200")}] * 2, schema=ITEM)
    written = opened(name).encode_changes(rows, np.array([False, True])).to_pylist()
    row = '{"id":1,"name":null,"price":2E+2}'
    assert [each.decode() for each in written] == [inserted.replace("ROW", row), deleted.replace("ROW", row)]
    options = {"encode.decimal-as-plain-number": "true", "encode.ignore-null-fields": "true"}
    (plain,) = opened(name, options).encode(rows.slice(0, 1))
    short = inserted.replace('"before":null,', "").replace("ROW", '{"id":1,"price":200}')
    assert plain.decode() == short


def test_options_are_those_of_flink() -> None:
    with pytest.raises(InvalidInputError, match=r"unsupported option 'debezium-json.schema-included'.*schema-include"):
        changes("debezium-json", [], schema_included="true")
    with pytest.raises(InvalidInputError, match=r"maxwell-json.timestamp-format.standard"):
        changes("maxwell-json", [], timestamp_format__standard="RFC")
    with pytest.raises(InvalidInputError, match="schema-include"):
        changes("canal-json", [], schema_include="true")
    with pytest.raises(InvalidInputError, match=r"doesn't support 'debezium-json.schema-include'"):
        opened("debezium-json", {"schema-include": "true"}).check_writable()
    at = pa.schema([("at", pa.timestamp("us"))])
    message = debezium("c", None, {"at": "2024-01-02T03:04:05"})
    rows = changes("debezium-json", [message], at, timestamp_format__standard="ISO-8601")
    assert rows == [(0, "+I", (dt.datetime(2024, 1, 2, 3, 4, 5),))]


def model(history: list[dict[str, Any] | None], name: str) -> tuple[list[dict[str, Any]], list[tuple[int, str, Any]]]:
    """Return the messages of one row's history, in which None is a delete, and the changes they are."""
    messages: list[dict[str, Any]] = []
    expected: list[tuple[int, str, Any]] = []
    last: dict[str, Any] | None = None
    for row in history:
        if last is None and row is None:
            continue
        kind = "+I" if last is None else "-D" if row is None else "+U"
        if last is not None:
            expected.append((len(messages), "-D" if row is None else "-U", item(last)))
        if row is not None:
            expected.append((len(messages), kind, item(row)))
        messages.append(message_of(name, last, row))
        last = row
    return messages, expected


@pytest.mark.parametrize("name", LAYOUTS)
@given(history=st.lists(st.none() | ROWS, max_size=12), indent=st.none() | st.just(1))
def test_any_history_of_a_row_is_read_in_bulk_as_the_changes_it_has(
    name: str, history: list[dict[str, Any] | None], indent: int | None
) -> None:
    messages, expected = model(history, name)
    reader = opened(name)
    assert isinstance(reader, ChangelogJsonFormat)
    reader._one = None  # type: ignore[assignment] # nothing is left to it
    found = reader.decode([json.dumps(message, indent=indent).encode() for message in messages])
    rows = [tuple(row.values()) for row in found.batch.to_pylist()]
    assert [
        (at, KINDS[kind], tuple(row)) for at, (*row, kind) in zip(found.record.tolist(), rows, strict=True)
    ] == expected


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-9, 9)
    | st.sampled_from(["1", "a", "c", "U", "INSERT", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
OPS = ["c", "u", "d", "I", "U", "D", "INSERT", "UPDATE", "DELETE", "CREATE", "insert", "update", "delete", "x"]
FIELDS = ["before", "after", "data", "old", "table", "ts_ms", "ts", "source", "payload"]
NOISE = st.builds(
    lambda fields, op, key: {**fields, key: op},
    st.dictionaries(st.sampled_from(FIELDS), JSONS | st.lists(st.fixed_dictionaries({"id": JSONS}), max_size=2)),
    st.sampled_from(OPS),
    st.sampled_from(["op", "type", "op_type"]),
)


@pytest.mark.parametrize("name", LAYOUTS)
@given(messages=st.lists(NOISE, max_size=6), options=st.sampled_from([{}, {"table.include": "a|1"}]))
def test_messages_read_in_bulk_are_those_read_one_by_one(
    name: str, messages: list[dict[str, Any]], options: dict[str, str]
) -> None:
    given = {"ignore-parse-errors": "true"} | (options if name == "canal-json" else {})
    metadata = ("source.timestamp", "ingestion-timestamp") if name == "debezium-json" else ("table",)
    both = [opened(name, given, schema=NARROW, metadata=metadata) for _ in range(2)]
    assert isinstance(both[1], ChangelogJsonFormat)
    both[1]._bulk = lambda texts: ()  # type: ignore[assignment] # all are left to the other reader
    payloads = [as_bytes(message) for message in messages] + [b'{"op":"c","after":{"id":1},"op":"d"}']
    bulk, one = (each.decode(payloads) for each in both)
    assert bulk.record.tolist() == one.record.tolist()
    assert bulk.batch.to_pylist() == one.batch.to_pylist()


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_is_read(name: str) -> None:
    rows = pa.RecordBatch.from_pylist(
        [dict(zip(ITEM.names, item(row), strict=True)) for row in (BOLT, NUT)], schema=ITEM
    )
    reader = pickle.loads(pickle.dumps(opened(name)))
    found = reader.decode(reader.encode_changes(rows, np.array([True, False])))
    assert found.batch.select(ITEM.names).to_pylist() == rows.to_pylist()
    assert [KINDS[kind] for kind in found.batch.column(3).to_pylist()] == ["-D", "+I"]
    assert found.record.tolist() == [0, 1]
