"""What a query comes to: its rows, or that it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException

from snapshot.errors import TableStoreError
from tablestore.sql import Catalog
from tests.peers.flink import Flink, FlinkError
from tests.peers.values import rows


@dataclass(frozen=True)
class Failure:
    """A query that fails; all failures are alike.

    Attributes:
        message: of the error, to show.
    """

    message: str = field(compare=False)


Outcome = list[Any] | tuple[Any, ...] | Failure


def theirs_of(peer: Flink, text: str) -> list[Any] | Failure:
    """Return what Flink makes of a query."""
    try:
        return peer.sql(text)
    except FlinkError as error:
        return Failure(str(error))


def ours_of(catalog: Catalog, text: str) -> list[Any] | Failure:
    """Return what this program makes of a query."""
    try:
        frame = catalog.sql(text).frame
        assert frame is not None
        return rows(frame)
    except (TableStoreError, PySparkException) as error:
        return Failure(str(error))
