"""A stream of an eventual log runs while the table's columns change: it has every row, or says that it cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import InvalidInputError
from snapshot.schema.evolution import AddColumn, AllowNull, Change, DropColumn, WidenColumn
from tablestore import LocalTable, create_local, open_local
from tablestore.context import TableContext
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.normalized_stream import NormalizedStream
from tablestore.streaming.snapshot_stream import feed_schema
from tests.harness.spark_tables import log_options

COLUMNS = "id bigint not null, n int, q int not null, s string"
ROW = {"n": 0, "q": 7, "s": "s"}
CHANGES: dict[str, tuple[Change, dict[str, Any], str, str]] = {
    "added": (AddColumn("x", StringType()), {"x": "x"}, "", ""),
    "dropped": (DropColumn("s"), {}, "", ""),
    "required": (DropColumn("q"), {}, "", "q"),
    "nullable": (AllowNull("q"), {"q": None}, "", "q"),
    "widened": (WidenColumn("n", LongType()), {"n": 1 << 40}, "n", "n"),
}
"""Changes, the values of the rows after them, and the column for which a stream cannot go on, with a key and without.

With a key, any other column of a stream may be NULL, as in deletes."""


class Stream:
    """A stream as Spark asks it, from its beginning."""

    def __init__(self, path: str, kind: type[EventualStream]) -> None:
        given = {"path": path, "readChangeFeed": "true", "scan-mode": "earliest"}
        self._reader = kind(parse_read_options(given), feed_schema(TableContext.open(path).spec))
        self._at = self._reader.initialOffset()

    def read(self) -> list[dict[str, Any]]:
        """Read a micro-batch."""
        end = self._reader.latestOffset(self._at, ReadAllAvailable())
        parts = self._reader.partitions(self._at, end)
        self._at = end
        return [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]


def rows(table: LocalTable, first: int, **values: Any) -> pa.Table:
    """Make four rows with the columns that the table has."""
    made = [{"id": number, **ROW, **values} for number in range(first, first + 4)]
    return pa.Table.from_pylist(made, open_local(table.path).schema)


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row["id"])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("log_format", ["json", "arrow", "debezium-json"])
@pytest.mark.parametrize(
    ("kind", "key"),
    [(EventualStream, ["id"]), (NormalizedStream, ["id"]), (EventualStream, [])],
    ids=["raw", "normalized", "append"],
)
def test_rows_after_a_change_arrive_or_the_stream_says_that_it_has_to_be_started_again(
    kafka: LocalKafka,
    tmp_path: Path,
    topic: Callable[[], str],
    kind: type[EventualStream],
    key: list[str],
    log_format: str,
    change: str,
) -> None:
    """Records that cannot be decoded are skipped, as those of others: none of the table's own may be among them."""
    more = {"log__format": log_format, "log__consistency": "eventual", "log__foreign-records": "skip"}
    options, path = log_options(kafka.bootstrap_servers, topic(), **more), str(tmp_path / "t")
    table = create_local(path, COLUMNS, primary_key=key, log_system="kafka", options=options)
    stream = Stream(path, kind)
    table.write(rows(table, 0))
    assert [row["id"] for row in by_id(stream.read())] == list(range(4))
    table.write(rows(table, 4))
    altered, values, *stops = CHANGES[change]
    with open_local(path) as other:
        other.alter(altered)
    table.write(rows(table, 8, **values))
    stopping = stops[not key]
    if stopping:
        with pytest.raises(InvalidInputError, match=f"start it again: column '{stopping}'"):
            stream.read()
    else:
        found = by_id(stream.read())
        assert [row["id"] for row in found] == list(range(4, 12))
        assert [row["s"] for row in found] == ["s"] * 4 + [None if change == "dropped" else "s"] * 4
    assert [row["id"] for row in by_id(Stream(path, kind).read())] == list(range(12))
    assert table.verify().ok
    table.close()
