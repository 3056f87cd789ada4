"""Rows of any schema, through each format and each connector and a real broker: they come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from snapshot.merge.bucket_hash import key_types_allowed
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from tablestore.connectors.spark.datasource import KafkaDataSource, UpsertKafkaDataSource
from tests.connectors.formats.row_properties import may_be_null, within_years
from tests.connectors.formats.test_avro import LISTS, NESTED
from tests.connectors.formats.test_csv import FLAT
from tests.connectors.formats.test_json_bulk_reader import schemas
from tests.connectors.harness.lab import named, shipped
from tests.connectors.harness.wire import Wire
from tests.harness import schema_strategies as tables

KEY = "The Key"
SOURCES = {"kafka": KafkaDataSource, "upsert-kafka": UpsertKafkaDataSource}
AVRO = {f"{side}.avro.timestamp_mapping.legacy": "false" for side in ("key", "value")}


def columns(name: str) -> st.SearchStrategy[list[pa.Field]]:
    """Columns that a format can hold: for JSON of any types, nested in any way."""
    if name == "json":
        return schemas().map(list)
    some = FLAT if name == "csv" else [*NESTED, *LISTS]
    return st.lists(st.sampled_from(list(some)), max_size=6, unique_by=lambda field: field.name)


def keys(name: str) -> st.SearchStrategy[pa.DataType]:
    """Types of a primary key that a format can hold."""
    if name == "json":
        return tables.key_types.filter(key_types_allowed)
    allowed = [field.type for field in FLAT if key_types_allowed(field.type)]
    # Avro takes TIME(3), which an Arrow type alone does not say; see test_times_of_day.py.
    return st.sampled_from([kind for kind in allowed if name != "avro" or not pa.types.is_time(kind)])


@st.composite
def rows(draw: st.DrawFn, name: str) -> pa.RecordBatch:
    """Rows with a key of few values, so that keys are there several times, in a schema as Spark makes it."""
    key = pa.field("k" if name == "avro" else KEY, draw(keys(name)), nullable=False)
    rest = [field for field in draw(columns(name)) if field.name.casefold() != key.name.casefold()]
    schema = arrow_schema(from_arrow_schema(pa.schema([key, *rest])))
    count = draw(st.integers(1, 8))
    few = draw(st.lists(within_years(key.type), min_size=1, max_size=3))
    data = [pa.array(draw(st.lists(st.sampled_from(few), min_size=count, max_size=count)), schema.field(0).type)]
    data += [
        pa.array(draw(st.lists(may_be_null(field), min_size=count, max_size=count)), field.type)
        for field in list(schema)[1:]
    ]
    return pa.RecordBatch.from_arrays(data, schema=schema)


def written_and_read(
    wire: Wire, topic: str, connector: str, options: dict[str, Any], batch: pa.RecordBatch, kinds: Sequence[str]
) -> pa.RecordBatch:
    """Do what Spark does with two tasks of a batch write, then with those of a batch read."""
    given = {"properties__bootstrap__servers": wire.servers, "topic": topic, **options}
    source = SOURCES[connector](CaseInsensitiveDict(named(given)))
    struct: StructType = from_arrow_schema(batch.schema)
    changed = batch
    if connector == "upsert-kafka":
        changed = batch.append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))
    writer = source.writer(from_arrow_schema(changed.schema), False)
    middle = len(batch) // 2
    messages = [shipped(writer).write(iter([part])) for part in (changed.slice(0, middle), changed.slice(middle))]
    shipped(writer).commit(messages)
    reader = source.reader(struct)
    found = [each for part in reader.partitions() for each in shipped(reader).read(part)]
    return pa.Table.from_batches(found, schema=batch.schema).combine_chunks()


@pytest.mark.parametrize("connector", ["kafka", "upsert-kafka"])
@pytest.mark.parametrize("name", ["json", "csv", "avro"])
def test_b33_rows_of_any_schema_come_back(wire: Wire, topic: Callable[[], str], name: str, connector: str) -> None:
    """Rows of any supported schema round-trip through each format and each connector; of each key, the last one."""

    @settings(max_examples=max(1, settings().max_examples // 8))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        batch = data.draw(rows(name))
        key = batch.schema.names[0]
        include = data.draw(st.sampled_from(["ALL", "EXCEPT_KEY"]))
        options = {"key__format": name, "value__format": name, "value__fields_include": include}
        options |= AVRO if name == "avro" else {}
        kinds = ["insert"] * len(batch)
        if connector == "kafka":
            options |= {"key__fields": key, "scan__startup__mode": "earliest-offset"}
        else:
            options["primary_key"] = key
            words = st.sampled_from(["insert", "update_postimage", "delete"])
            kinds = data.draw(st.lists(words, min_size=len(batch), max_size=len(batch)))
        found = written_and_read(wire, wire.make(topic()), connector, options, batch, kinds)
        wanted = batch
        if connector == "upsert-kafka":
            last = {repr(value): number for number, value in enumerate(tables.plain(batch.column(0)))}
            wanted = batch.take(pa.array([n for n in sorted(last.values()) if kinds[n] != "delete"], pa.int64()))
        assert found.num_rows == wanted.num_rows
        for column in wanted.schema.names:
            ours, theirs = found.column(column), wanted.column(column)
            theirs = theirs.combine_chunks() if isinstance(theirs, pa.ChunkedArray) else theirs
            ours = ours.combine_chunks() if isinstance(ours, pa.ChunkedArray) else ours
            if name == "csv" and pa.types.is_string(theirs.type):
                # Text of csv has no NULL of its own: it is written, and so read, as nothing.
                ours, theirs = (pa.array([v or "" for v in each.to_pylist()]) for each in (ours, theirs))
            assert tables.identical(ours, theirs), (column, found.to_pylist(), wanted.to_pylist())

    check()
