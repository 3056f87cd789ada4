"""The table store with an external log: snapshots in Delta Lake files, changes in a Kafka log, on Spark."""

from log_system.kafka.local import LocalKafka
from snapshot.records import Snapshot
from tablestore.recover import PublishPendingError
from tablestore.session import register, session
from tablestore.sql.catalog import Catalog
from tablestore.store import TableStore
from tablestore.verbs.clauses import when_matched, when_not_matched, when_not_matched_by_source

__all__ = [
    "Catalog",
    "LocalKafka",
    "PublishPendingError",
    "Snapshot",
    "TableStore",
    "register",
    "session",
    "when_matched",
    "when_not_matched",
    "when_not_matched_by_source",
]
