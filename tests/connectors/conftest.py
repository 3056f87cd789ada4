"""Fixtures of the connectors' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from log_system.kafka.local import LocalKafka
from tests.connectors.wire import Wire


@pytest.fixture(scope="session")
def wire(kafka: LocalKafka) -> Wire:
    return Wire(kafka.bootstrap_servers)


class Lab:
    """Reads and writes tables by Spark, as a user does."""

    def __init__(self, spark: SparkSession, wire: Wire, tmp_path: Path) -> None:
        self.spark = spark
        self.wire = wire
        self.tmp_path = tmp_path
        self._names = 0

    def options(self, topic: str | None, given: Mapping[str, Any]) -> dict[str, str]:
        """Give options by keyword: ``__`` stands for a dot, ``_`` for a dash."""
        named = {name.replace("__", ".").replace("_", "-"): str(value) for name, value in given.items()}
        base = {"properties.bootstrap.servers": self.wire.servers}
        return base | ({"topic": topic} if topic is not None else {}) | named

    def kafka(self, topic: str | None, schema: str, given: Mapping[str, Any] | None = None, **options: Any) -> DataFrame:
        """Read a standard table, from the earliest offset unless told otherwise."""
        base = {"format": "json", "scan__startup__mode": "earliest-offset"}
        return self.read("kafka-table", topic, schema, base | options, given)

    def upsert(self, topic: str, schema: str, given: Mapping[str, Any] | None = None, **options: Any) -> DataFrame:
        """Read an upsert table."""
        base = {"key__format": "json", "value__format": "json"}
        return self.read("upsert-kafka", topic, schema, base | options, given)

    def read(
        self, name: str, topic: str | None, schema: str, options: Mapping[str, Any], given: Mapping[str, Any] | None
    ) -> DataFrame:
        all_options = self.options(topic, {k: v for k, v in options.items() if v is not None}) | dict(given or {})
        return self.spark.read.format(name).schema(schema).options(**all_options).load()

    def stream(self, topic: str | None, schema: str, name: str = "kafka-table", **options: Any) -> Stream:
        """Make a streaming read."""
        base = {"format": "json", "scan__startup__mode": "earliest-offset"}
        if name == "upsert-kafka":
            base = {"key__format": "json", "value__format": "json"}
        given = self.options(topic, {k: v for k, v in (base | options).items() if v is not None})
        frame = self.spark.readStream.format(name).schema(schema).options(**given).load()
        self._names += 1
        return Stream(self, frame, self.tmp_path / f"checkpoint-{self._names}")


class Stream:
    """A streaming query into memory, run to the end of what is there as often as a test likes."""

    def __init__(self, lab: Lab, frame: DataFrame, checkpoint: Path) -> None:
        self.lab = lab
        self.frame = frame
        self.checkpoint = checkpoint
        self.batches: list[list[Row]] = []

    def run(self) -> list[Row]:
        """Run until everything that is there now is read; give the rows of this run."""
        before = len(self.batches)
        query = self.start(availableNow=True)
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        return [row for batch in self.batches[before:] for row in batch]

    def start(self, **trigger: Any) -> Any:
        writer = self.frame.writeStream.foreachBatch(lambda frame, _: self.batches.append(frame.collect()))
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]


@pytest.fixture
def lab(spark: SparkSession, wire: Wire, tmp_path: Path) -> Lab:
    return Lab(spark, wire, tmp_path)


@pytest.fixture
def made(wire: Wire, topic: Callable[[], str]) -> Iterator[Callable[..., str]]:
    """Return a factory of topics that are there."""
    yield lambda partitions=1, **config: wire.make(topic(), partitions, **config)
