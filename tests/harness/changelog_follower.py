"""Follows a changelog with a query, and refuses every change that cannot follow the one before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.harness.spark_tables import AVAILABLE

Emitted = tuple[Any, Any, str]


class Auditor:
    """Follows a changelog, with a checkpoint, and refuses every illegal change."""

    def __init__(self, checkpoint: Path, source: Callable[[], DataFrame]) -> None:
        self._checkpoint, self._source = checkpoint, source
        self.table: dict[Any, Any] = {}

    def follow(self) -> list[list[Emitted]]:
        """Run the query until it has caught up; give what each micro-batch emitted."""
        found: list[list[Emitted]] = []
        query = (
            self._source()
            .writeStream.foreachBatch(lambda b, _: found.append([tuple(row)[:3] for row in b.collect()]))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**AVAILABLE)
            .start()
        )
        query.awaitTermination()
        for batch in found:
            self._apply(batch)
        return [batch for batch in found if batch]

    def _apply(self, batch: list[Emitted]) -> None:
        waiting: dict[Any, Any] = {}
        for key, value, kind in batch:
            if kind == "insert":
                assert key not in self.table, f"{key} is inserted and there"
                self.table[key] = value
            elif kind == "update_preimage":
                assert self.table[key] == value, f"the preimage of {key} is {value}, {self.table[key]} was emitted"
                waiting[key] = value
            elif kind == "update_postimage":
                assert waiting.pop(key) != value, f"{key} is updated to what it was"
                self.table[key] = value
            else:
                assert self.table.pop(key) == value, f"the delete of {key} carries {value}"
        assert not waiting


def keys_in_state(states: Path) -> int:
    """Count the rows in the newest versions of the only query's state in a folder."""
    (query,) = states.iterdir()
    newest = (max(partition.glob("*.json"), key=lambda file: int(file.stem)) for partition in query.iterdir())
    return sum(segment["rows"] for file in newest for segment in json.loads(file.read_text())["segments"])
