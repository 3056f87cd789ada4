"""Every format through both connectors: the pages' types come back as they were written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.registry import ROW_FORMATS, WITH_REGISTRY
from tests.connectors.harness.lab import Lab

Topics = Callable[..., str]
FORMATS = [name for name in ROW_FORMATS if name not in ("raw", *WITH_REGISTRY)]
PRECISIONS = {f"precision__{name}": 3 for name in ("ts", "ltz")}
COLUMNS = "k BIGINT, s STRING, i INT, d DECIMAL(10, 2), ts TIMESTAMP, ltz TIMESTAMP_LTZ"
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 600_000)
ROW: dict[str, Any] = {
    "k": 7, "s": 'p,"q"\n\u00e4', "i": -5, "d": Decimal("12.50"), "ts": MOMENT, "ltz": MOMENT.replace(tzinfo=dt.UTC),
}  # fmt: skip
CHANGES = [("a", None, "insert"), ("b", None, "delete"), ("c", "z", "update_postimage")]
NULLS: dict[str, Any] = dict.fromkeys(ROW) | {"k": 8, "s": ""}


def given(name: str, connector: str) -> dict[str, Any]:
    key = {"primary_key": "k"} if connector == "upsert-kafka" else {"key__fields": "k"}
    if name == "avro":
        # Flink's default refuses TIMESTAMP_LTZ.
        key["value.avro.timestamp_mapping.legacy"] = "false"
    return {"key__format": name, "value__format": name, **key, **PRECISIONS}


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
@pytest.mark.parametrize("name", FORMATS)
def test_b33_b39_the_pages_types_come_back_in_every_format(lab: Lab, made: Topics, name: str, connector: str) -> None:
    """Keys and values are bytes in the declared format: each type of the pages round-trips in each format."""
    topic = made(cleanup_policy="compact")
    rows = [list(ROW.values()), list(NULLS.values())]
    lab.write(topic, COLUMNS, rows, connector, **given(name, connector))
    found = lab.read(topic, COLUMNS, connector, **given(name, connector))
    assert sorted(found, key=lambda row: row["k"]) == [ROW, NULLS]


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "csv"])
def test_b39_maps_of_bytes_come_back(lab: Lab, made: Topics, name: str, connector: str) -> None:
    """`MAP<STRING, BYTES>` round-trips in the formats that have maps."""
    topic = made(cleanup_policy="compact")
    options = {key: value for key, value in given(name, connector).items() if not key.startswith("precision")}
    lab.write(topic, "k BIGINT, m MAP<STRING, BYTES>", [(1, [("a", b"\x00\xff")])], connector, **options)
    found = lab.read(topic, "k BIGINT, m MAP<STRING, BYTES>", connector, **options)
    assert found == [{"k": 1, "m": {"a": b"\x00\xff"}}]


def test_b38_avro_writes_flinks_bytes_on_both_connectors(lab: Lab, made: Topics) -> None:
    """Avro values of a `kafka` table, and Avro keys and values of an upsert table, are the bytes that Flink writes."""
    topic, upserts = made(), made(cleanup_policy="compact")
    columns = "user_id BIGINT, message STRING, event_ts TIMESTAMP"
    lab.write(topic, columns, [(5, "hi", MOMENT), (None, None, None)], format="avro", **{"precision.event_ts": 3})
    assert lab.wire.values(topic) == [bytes.fromhex("020a0204686902c0eb86829963"), bytes(3)]
    formats = {"key__format": "avro", "value__format": "avro", "primary_key": "user_region"}
    regions = "user_region STRING, pv BIGINT, uv BIGINT"
    lab.write(upserts, regions, [("eu", 3, 2)], "upsert-kafka", **formats)
    assert lab.wire.pairs(upserts) == [(bytes.fromhex("046575"), bytes.fromhex("04657502060204"))]
    assert lab.read(upserts, regions, "upsert-kafka", **formats) == [{"user_region": "eu", "pv": 3, "uv": 2}]


def test_g12_an_empty_avro_record_is_no_delete(lab: Lab, made: Topics) -> None:
    """In Avro, a row that has only key columns has an empty value, which is not null."""
    topic = made(cleanup_policy="compact")
    given = {"value__fields_include": "EXCEPT_KEY", "key__format": "avro", "value__format": "avro"}
    lab.write(topic, "k INT", [(1,)], "upsert-kafka", primary_key="k", **given)
    assert lab.wire.values(topic) == [b""]
    assert lab.upsert(topic, "k INT", "k", **given) == [{"k": 1}]


def test_g09_an_empty_csv_field_is_null_but_for_strings(lab: Lab, made: Topics) -> None:
    """`csv` writes NULL as an empty field, as Flink does (`eu,,2`), and reads it back as NULL, which Flink rejects."""
    topic = made()
    columns = "user_region STRING, pv BIGINT, uv BIGINT"
    lab.write(topic, columns, [("eu", 3, 2), ("eu", None, 2)], format="csv")
    assert lab.wire.values(topic) == [b"eu,3,2", b"eu,,2"]
    assert lab.read(topic, columns, format="csv") == [
        {"user_region": "eu", "pv": 3, "uv": 2},
        {"user_region": "eu", "pv": None, "uv": 2},
    ]


def test_raw_is_the_bytes_themselves(lab: Lab, made: Topics) -> None:
    topic = made()
    raw = {"key__format": "raw", "key__fields": "k", "value__format": "raw", "value__fields_include": "EXCEPT_KEY"}
    lab.write(topic, "k STRING, v BYTES", [("a", b"\x00\xff")], **raw)
    assert lab.wire.pairs(topic) == [(b"a", b"\x00\xff")]
    assert lab.read(topic, "k STRING, v BYTES", **raw) == [{"k": "a", "v": b"\x00\xff"}]


def test_null_in_raw_is_a_message_without_key_or_value(lab: Lab, made: Topics) -> None:
    topic = made()
    raw = {"key__format": "raw", "key__fields": "k", "value__format": "raw", "value__fields_include": "EXCEPT_KEY"}
    lab.write(topic, "k STRING, v BIGINT", [("a", None), (None, 1), ("", 2)], **raw)
    assert lab.wire.pairs(topic) == [(b"a", None), (None, bytes(7) + b"\1"), (b"", bytes(7) + b"\2")]
    expected = [{"k": "a", "v": None}, {"k": None, "v": 1}, {"k": "", "v": 2}]
    assert lab.read(topic, "k STRING, v BIGINT", **raw) == expected
    assert lab.read(topic, "v BIGINT", value__format="raw") == [{"v": None}, {"v": 1}, {"v": 2}]


def test_null_as_the_raw_value_of_an_upsert_table_is_refused(lab: Lab, made: Topics) -> None:
    """It would be a delete."""
    topic = made()
    raw = {"primary_key": "k", "value__format": "raw", "value__fields_include": "EXCEPT_KEY"}
    for columns, rows in (("k STRING, v STRING", [("a", None)]), ("k STRING, v STRING, _change_type STRING", CHANGES)):
        with pytest.raises(InvalidInputError, match="'v': an 'upsert-kafka' table with 'raw' values cannot have NULL"):
            lab.write(topic, columns, rows, "upsert-kafka", **raw)
    lab.write(topic, "k STRING, v STRING, _change_type STRING", CHANGES[1:], "upsert-kafka", **raw)
    lab.wire.send(topic, [b"x"])
    assert lab.wire.pairs(topic) == [(b'{"k":"b"}', None), (b'{"k":"c"}', b"z"), (None, b"x")]
    assert lab.upsert(topic, "k STRING, v STRING", "k", **raw) == [{"k": "c", "v": "z"}]
    raw["key__format"] = "raw"
    assert lab.upsert(topic, "k STRING, v STRING", "k", **raw) == [{"k": '{"k":"c"}', "v": "z"}]
