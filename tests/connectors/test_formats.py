"""Every format through both connectors: the pages' types come back as they were written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from log_system.formats.row_formats import ROW_FORMATS
from tests.connectors.lab import Lab

Topics = Callable[..., str]
FORMATS = [name for name in ROW_FORMATS if name != "raw"]
PRECISIONS = {f"precision__{name}": 3 for name in ("ts", "ltz")}
COLUMNS = "k BIGINT, s STRING, i INT, d DECIMAL(10, 2), ts TIMESTAMP, ltz TIMESTAMP_LTZ"
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 600_000)
ROW: dict[str, Any] = {
    "k": 7, "s": 'p,"q"\n\u00e4', "i": -5, "d": Decimal("12.50"), "ts": MOMENT, "ltz": MOMENT.replace(tzinfo=dt.UTC),
}  # fmt: skip
NULLS: dict[str, Any] = dict.fromkeys(ROW) | {"k": 8, "s": ""}


def given(name: str, connector: str) -> dict[str, Any]:
    key = {"primary_key": "k"} if connector == "upsert-kafka" else {"key__fields": "k"}
    return {"key__format": name, "value__format": name, **key, **PRECISIONS}


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
@pytest.mark.parametrize("name", FORMATS)
def test_b33_b39_the_pages_types_come_back_in_every_format(lab: Lab, made: Topics, name: str, connector: str) -> None:
    """Keys and values are bytes, the types are the format's: each type of the pages round-trips in each format."""
    topic = made(cleanup_policy="compact")
    rows = [list(ROW.values()), list(NULLS.values())]
    lab.write(topic, COLUMNS, rows, connector, **given(name, connector))
    found = lab.read(topic, COLUMNS, connector, **given(name, connector))
    assert sorted(found, key=lambda row: row["k"]) == [ROW, NULLS]


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "csv"])
def test_b39_maps_of_bytes_come_back(lab: Lab, made: Topics, name: str, connector: str) -> None:
    """`MAP<STRING, BYTES>`, in the formats that have maps."""
    topic = made(cleanup_policy="compact")
    options = {key: value for key, value in given(name, connector).items() if not key.startswith("precision")}
    lab.write(topic, "k BIGINT, m MAP<STRING, BYTES>", [(1, [("a", b"\x00\xff")])], connector, **options)
    found = lab.read(topic, "k BIGINT, m MAP<STRING, BYTES>", connector, **options)
    assert found == [{"k": 1, "m": {"a": b"\x00\xff"}}]
