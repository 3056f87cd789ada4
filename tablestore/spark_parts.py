"""How a part of a read travels through Spark."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from tablestore.parts import Part


class ReadPart(InputPartition):
    """Carries a part through Spark."""

    def __init__(self, part: Part) -> None:
        """Carry ``part``."""
        super().__init__(part)
        self.part = part
