"""What a table is: its columns, key, partitions and options, kept in the commit table's Delta properties."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from snapshot.errors import CorruptedError
from snapshot.schema import BUCKET
from snapshot.schema_json import arrow_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPEC_PROPERTY = "tablestore.spec"
_FORMAT = 1


@dataclass(frozen=True)
class TableSpec:
    """The definition of a table.

    Attributes:
        table_id: unique for each ``create``; names the table's transactional id and consumer group.
        schema_json: the user's columns, as Spark's schema JSON.
        primary_key: key columns in the order they were declared; empty for an append table.
        partition_by: the user's partition columns.
        properties: options as stored strings; never a secret.
        owns_topic: whether ``create`` made the log's topic, so that ``drop`` removes it.
    """

    table_id: str
    schema_json: str
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)
    owns_topic: bool = False

    @cached_property
    def schema(self) -> StructType:
        """The user's columns as Spark types."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - who reads without Spark never waits for PySpark

        return StructType.fromJson(json.loads(self.schema_json))

    @cached_property
    def arrow(self) -> pa.Schema:
        """The user's columns as Arrow types."""
        return arrow_columns(self.schema_json)

    @property
    def has_key(self) -> bool:
        """Whether the table has a primary key."""
        return bool(self.primary_key)

    @property
    def root_partitions(self) -> tuple[str, ...]:
        """Partition columns of the root Delta table."""
        return (*self.partition_by, BUCKET) if self.has_key else self.partition_by

    def to_json(self) -> str:
        """Give the text that ``from_json`` reads."""
        return json.dumps(
            {
                "format": _FORMAT,
                "table_id": self.table_id,
                "schema": json.loads(self.schema_json),
                "primary_key": list(self.primary_key),
                "partition_by": list(self.partition_by),
                "properties": self.properties,
                "owns_topic": self.owns_topic,
            }
        )

    @classmethod
    def from_json(cls, text: str, path: str) -> TableSpec:
        """Read a spec.

        Raises:
            CorruptedError: the text is not a spec this version can read.
        """
        try:
            raw = json.loads(text)
            if raw["format"] != _FORMAT:
                msg = f"{path}: table format {raw['format']} is not {_FORMAT}; open it with the version that wrote it."
                raise CorruptedError(msg)
            return cls(
                table_id=raw["table_id"],
                schema_json=json.dumps(raw["schema"]),
                primary_key=tuple(raw["primary_key"]),
                partition_by=tuple(raw["partition_by"]),
                properties=dict(raw["properties"]),
                owns_topic=bool(raw["owns_topic"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg_0 = f"{path}: Delta property {SPEC_PROPERTY!r} is not a table spec: {error}."
            raise CorruptedError(msg_0) from error
