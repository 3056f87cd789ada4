"""What every row format starts from: it travels by what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

MEMORY_LIMIT = "256MB"
"""How much memory the DuckDB of one format may use."""


class PortableFormat:
    """A row format that pickle makes anew from its schema and options; what it has prepared or opened stays behind."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], side: str) -> None:
        """Keep what it is made from."""
        self._schema = schema
        self._made_from = (schema, dict(options), side)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel by what it was made from."""
        return _make, (type(self), *self._made_from)


def _make(kind: Callable[..., Any], schema: pa.Schema, options: Mapping[str, str], side: str) -> Any:
    return kind(schema, options, side=side)
