"""What a table to be created is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql.types import StructType

from snapshot.schema.spark_types import table_schema
from snapshot.storage import Storage
from tablestore.options.specification import LOG_SYSTEM, TableOptions
from tablestore.options.table_options import parse_options


@dataclass(frozen=True)
class TableDefinition:
    """A table to be created, as its creator gives it.

    Attributes:
        path: the table's folder.
        schema: the columns.
        primary_key: the key columns; empty for an append table.
        partition_by: the partition columns of the base table.
        log_system: ``kafka`` or ``files``; None leaves it to the option ``log.system``.
        options: the table's options.
    """

    path: str
    schema: StructType
    _: KW_ONLY
    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    log_system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored_schema(self) -> StructType:
        """The columns as the table stores them: key columns are NOT NULL."""
        return table_schema(self.schema, self.primary_key)

    @cached_property
    def named_options(self) -> Mapping[str, Any]:
        """The options; with a Kafka log they name its topic, by default as the table's folder."""
        if "kafka" not in (self.log_system, self.options.get(LOG_SYSTEM.name)):
            return self.options
        return {"kafka.topic": Storage.at(self.path).root.rpartition("/")[2], **self.options}

    @cached_property
    def parsed(self) -> TableOptions:
        """The options, parsed and checked.

        Raises:
            InvalidInputError: as for ``parse_options``.
        """
        return parse_options(self.named_options, log_system=self.log_system, primary_key=self.primary_key)
