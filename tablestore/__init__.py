"""The table store with an external log: snapshots in Delta Lake files, changes in a Kafka log, on Spark."""

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
from tablestore.recover import PublishPendingError
from tablestore.session import register, session
from tablestore.sql.catalog import Catalog
from tablestore.store import TableStore

__all__ = [
    "AddColumn",
    "AllowNull",
    "Catalog",
    "CommentColumn",
    "DropColumn",
    "LocalKafka",
    "MoveColumn",
    "PublishPendingError",
    "RenameColumn",
    "Snapshot",
    "TableStore",
    "WidenColumn",
    "register",
    "session",
]
