"""The table store with an external log: snapshots in Delta Lake files, changes in a Kafka log, on Spark.

Names are imported on first use, so that code that needs no Spark (``open_local``) does not import PySpark.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from log_system.local_kafka.owned import LocalKafka
    from snapshot.records import Snapshot
    from snapshot.schema.evolution import (
        AddColumn,
        AllowNull,
        CommentColumn,
        DropColumn,
        MoveColumn,
        RenameColumn,
        WidenColumn,
    )
    from tablestore.dml.merge_clauses import when_matched, when_not_matched, when_not_matched_by_source
    from tablestore.local.table import LocalTable, create_local, open_local
    from tablestore.session import register, session
    from tablestore.sql.session import Catalog
    from tablestore.table.store import TableStore
    from tablestore.tracing import trace
    from tablestore.write.prometheus import WriterMetrics
    from tablestore.write.publish import PublishPendingError

__all__ = [
    "AddColumn",
    "AllowNull",
    "Catalog",
    "CommentColumn",
    "DropColumn",
    "LocalKafka",
    "LocalTable",
    "MoveColumn",
    "PublishPendingError",
    "RenameColumn",
    "Snapshot",
    "TableStore",
    "WidenColumn",
    "WriterMetrics",
    "create_local",
    "open_local",
    "register",
    "session",
    "trace",
    "when_matched",
    "when_not_matched",
    "when_not_matched_by_source",
]

_PLACES = {
    "AddColumn": "snapshot.schema.evolution",
    "AllowNull": "snapshot.schema.evolution",
    "Catalog": "tablestore.sql.session",
    "CommentColumn": "snapshot.schema.evolution",
    "DropColumn": "snapshot.schema.evolution",
    "LocalKafka": "log_system.local_kafka.owned",
    "LocalTable": "tablestore.local.table",
    "MoveColumn": "snapshot.schema.evolution",
    "PublishPendingError": "tablestore.write.publish",
    "RenameColumn": "snapshot.schema.evolution",
    "Snapshot": "snapshot.records",
    "TableStore": "tablestore.table.store",
    "WidenColumn": "snapshot.schema.evolution",
    "WriterMetrics": "tablestore.write.prometheus",
    "create_local": "tablestore.local.table",
    "open_local": "tablestore.local.table",
    "register": "tablestore.session",
    "session": "tablestore.session",
    "trace": "tablestore.tracing",
    "when_matched": "tablestore.dml.merge_clauses",
    "when_not_matched": "tablestore.dml.merge_clauses",
    "when_not_matched_by_source": "tablestore.dml.merge_clauses",
}


class _Package(ModuleType):
    """The class of this package: importing a submodule never hides a public name of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        from snapshot.messages import version_of  # noqa: PLC0415 - as the other names, on first use

        return version_of("tablestore")
    if name not in _PLACES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether imported yet or not."""
    return sorted({*globals(), *__all__})
