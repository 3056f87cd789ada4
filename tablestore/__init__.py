"""The table store with an external log: snapshots in Delta Lake files, changes in a Kafka log, on Spark.

Each name is loaded when it is first used, so that what needs no Spark (``open_local``) does not wait for PySpark.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from log_system.kafka.local import LocalKafka
    from snapshot.evolve import (
        AddColumn,
        AllowNull,
        CommentColumn,
        DropColumn,
        MoveColumn,
        RenameColumn,
        WidenColumn,
    )
    from snapshot.records import Snapshot
    from tablestore.local import LocalTable, open_local
    from tablestore.recover import PublishPendingError
    from tablestore.session import register, session
    from tablestore.sql.catalog import Catalog
    from tablestore.store import TableStore
    from tablestore.verbs.clauses import when_matched, when_not_matched, when_not_matched_by_source

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
    "open_local",
    "register",
    "session",
    "when_matched",
    "when_not_matched",
    "when_not_matched_by_source",
]

_PLACES = {
    "AddColumn": "snapshot.evolve",
    "AllowNull": "snapshot.evolve",
    "Catalog": "tablestore.sql.catalog",
    "CommentColumn": "snapshot.evolve",
    "DropColumn": "snapshot.evolve",
    "LocalKafka": "log_system.kafka.local",
    "LocalTable": "tablestore.local",
    "MoveColumn": "snapshot.evolve",
    "PublishPendingError": "tablestore.recover",
    "RenameColumn": "snapshot.evolve",
    "Snapshot": "snapshot.records",
    "TableStore": "tablestore.store",
    "WidenColumn": "snapshot.evolve",
    "open_local": "tablestore.local",
    "register": "tablestore.session",
    "session": "tablestore.session",
    "when_matched": "tablestore.verbs.clauses",
    "when_not_matched": "tablestore.verbs.clauses",
    "when_not_matched_by_source": "tablestore.verbs.clauses",
}


class _Package(ModuleType):
    """This package: a module in it that is called like a public name does not hide that name when it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _PLACES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
