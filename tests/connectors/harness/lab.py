"""Reads and writes tables the way Spark asks the data sources; ``test_spark.py`` does it with Spark itself."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.schema.spark_types import arrow_schema
from tablestore.connectors.spark.datasource import KafkaDataSource, UpsertKafkaDataSource
from tablestore.connectors.spark.stream import KafkaStream
from tests.connectors.harness.wire import Wire

Row = dict[str, Any]
_TYPES: Mapping[str, DataType] = {
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "STRING": StringType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "BYTES": BinaryType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampNTZType(),
    "TIMESTAMP_LTZ": TimestampType(),
    "DECIMAL(10, 2)": DecimalType(10, 2),
    "MAP<STRING, BYTES>": MapType(StringType(), BinaryType()),
    "ARRAY<ROW<key STRING, value BYTES>>": ArrayType(StructType().add("key", "string").add("value", "binary")),
}
_SOURCES = {"kafka": KafkaDataSource, "upsert-kafka": UpsertKafkaDataSource}


def schema_of(text: str) -> StructType:
    """Make columns of ``name TYPE, ...`` in the pages' types."""
    found = StructType()
    for column in re.split(r",\s*(?![^<(]*[>)])", text):
        name, kind = column.strip().split(" ", 1)
        found.add(StructField(name, _TYPES[kind.strip()]))
    return found


def named(given: Mapping[str, Any]) -> dict[str, str]:
    """Write options given by keyword: ``__`` stands for a dot, ``_`` for a dash; None leaves one out.

    A name with a dot in it is taken as it is.
    """
    names = {name: name if "." in name else name.replace("__", ".").replace("_", "-") for name in given}
    return {names[name]: str(value) for name, value in given.items() if value is not None}


def shipped(thing: Any) -> Any:
    """Send something to a task."""
    return pickle.loads(pickle.dumps(thing))


class Lab:
    """A user of the connectors."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def options(self, connector: str, topic: str | None, given: Mapping[str, Any]) -> dict[str, str]:
        formats = {"format": "json"} if connector == "kafka" else {"key__format": "json", "value__format": "json"}
        if "value__format" in given and connector == "kafka":
            formats = {}
        start = {"scan__startup__mode": "earliest-offset"} if connector == "kafka" else {}
        base = {"properties__bootstrap__servers": self.wire.servers, "topic": topic}
        return named({**base, **formats, **start, **given})

    def source(self, connector: str, topic: str | None, given: Mapping[str, Any]) -> KafkaDataSource:
        return _SOURCES[connector](CaseInsensitiveDict(self.options(connector, topic, given)))

    def read(self, topic: str | None, columns: str, kind: str = "kafka", **options: Any) -> list[Row]:
        """Read as ``spark.read`` does."""
        reader = self.source(kind, topic, options).reader(schema_of(columns))
        found: list[Row] = []
        for part in reader.partitions():
            for batch in shipped(reader).read(part):
                assert batch.schema == arrow_schema(schema_of(columns))
                found += batch.to_pylist(maps_as_pydicts="strict")
        return found

    def upsert(self, topic: str | None, columns: str, key: str, **options: Any) -> list[Row]:
        """Read an upsert table as ``spark.read`` does, in the order of its first key column."""
        rows = self.read(topic, columns, "upsert-kafka", **{"primary_key": key} | options)
        return sorted(rows, key=lambda row: str(row[key.split(",", maxsplit=1)[0]]))

    def stream(self, topic: str | None, columns: str, kind: str = "kafka", **options: Any) -> Stream:
        """Begin a query."""
        reader = self.source(kind, topic, options).streamReader(schema_of(columns))
        assert isinstance(reader, KafkaStream)
        return Stream(reader)

    def write(
        self,
        topic: str | None,
        columns: str,
        rows: Iterable[Sequence[Any]] | Sequence[Iterable[Sequence[Any]]],
        kind: str = "kafka",
        **options: Any,
    ) -> None:
        """Write as ``df.write`` does, in one task."""
        self.write_tasks(topic, columns, [list(rows)], kind, **options)

    def write_tasks(
        self,
        topic: str | None,
        columns: str,
        tasks: Sequence[Sequence[Sequence[Any]]],
        kind: str = "kafka",
        **options: Any,
    ) -> None:
        """Write as ``df.write`` does, one list of rows a task."""
        writer = self.source(kind, topic, options).writer(schema_of(columns), False)
        messages = [shipped(writer).write(iter([batch_of(columns, rows)])) for rows in tasks]
        shipped(writer).commit(messages)

    def write_batch(
        self,
        topic: str,
        columns: str,
        rows: Sequence[Sequence[Any]],
        number: int,
        kind: str = "kafka",
        **options: Any,
    ) -> None:
        """Write a micro-batch as ``df.writeStream`` does."""
        writer = self.source(kind, topic, options).streamWriter(schema_of(columns), False)
        messages = [shipped(writer).write(iter([batch_of(columns, rows)]))]
        shipped(writer).commit(messages, number)


def batch_of(columns: str, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    schema = arrow_schema(schema_of(columns))
    each = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), field.type) for values, field in zip(each, schema, strict=True)], schema=schema
    )


class Stream:
    """A streaming query, run to the end of what is there as often as a test likes."""

    def __init__(self, reader: KafkaStream) -> None:
        self.reader = reader
        self.at: Any = None
        self.batches: list[list[Row]] = []

    def run(self, limit: ReadLimit | None = None) -> list[Row]:
        """Do what Spark does with a trigger at a time, until there is nothing new; give the rows of this run."""
        before = len(self.batches)
        if self.at is None:
            self.at = self.reader.initialOffset()
        limit = limit or self.reader.getDefaultReadLimit()
        while (end := self.reader.latestOffset(self.at, limit)) != self.at:
            self.batches.append(self.rows(self.at, end))
            self.at = end
        return [row for batch in self.batches[before:] for row in batch]

    def rows(self, start: Any, end: Any) -> list[Row]:
        found: list[Row] = []
        for part in self.reader.partitions(start, end):
            for batch in shipped(self.reader).read(part):
                found += batch.to_pylist(maps_as_pydicts="strict")
        return found


ALL = ReadAllAvailable()
