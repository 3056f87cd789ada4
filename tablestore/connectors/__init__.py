"""Flink's ``kafka`` and ``upsert-kafka`` connectors on Spark: rows in Kafka topics, with Flink's own options.

Names are imported on first use: Spark starts a Python process for each source of a query, which needs few modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tablestore.connectors.api import read, read_changes, read_stream, write, write_stream
    from tablestore.connectors.spark.partition_watermarks import read_with_watermark

__all__ = ["read", "read_changes", "read_stream", "read_with_watermark", "write", "write_stream"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    place = "spark.partition_watermarks" if name == "read_with_watermark" else "api"
    value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value
