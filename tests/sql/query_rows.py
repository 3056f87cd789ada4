"""The rows of a query that is bounded."""

from __future__ import annotations

from typing import Any

from tablestore.sql import Catalog


def rows(catalog: Catalog, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a SELECT, as tuples."""
    frame = catalog.sql(text).frame
    assert frame is not None
    return [tuple(row) for row in frame.collect()]
