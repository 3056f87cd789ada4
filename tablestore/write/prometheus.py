"""Prometheus metrics of what writers do, in any process that writes; ``tablestore serve`` has the same."""

from __future__ import annotations

from snapshot.errors import InvalidInputError
from tablestore.write.metrics import Measured, ignore, observe

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    msg = "metrics for Prometheus need the package prometheus-client: pip install tablestore[serve]."
    raise InvalidInputError(msg) from error

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ERRORS = "tablestore_errors", "Attempts that failed."
SNAPSHOT = "tablestore_snapshot", "The newest committed snapshot."
PUBLISHED = "tablestore_published_snapshot", "The newest snapshot in the log."


class OperationMetrics:
    """An observer that measures operations: their durations, rows, fences, retries and conflicts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        self._seconds = Histogram(
            "tablestore_operation_seconds",
            "Duration of a write, commit, publish, compaction or expiry.",
            ["table", "operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._rows = Counter(
            "tablestore_operation_rows",
            "Changes written, published or compacted; for expire, snapshots.",
            ["table", "operation"],
            registry=registry,
        )
        events = {
            "fence": ("tablestore_fences", "Times that another publisher took the log over."),
            "retry": ("tablestore_publish_retries", "Times that a publish was tried again after an error."),
            "conflict": ("tablestore_commit_conflicts", "Times that another writer committed first."),
        }
        self._events = {
            event: Counter(name, text, ["table"], registry=registry) for event, (name, text) in events.items()
        }

    def measured(self, measured: Measured) -> None:
        """Count an operation and its rows."""
        self._seconds.labels(measured.path, measured.what).observe(measured.seconds)
        self._rows.labels(measured.path, measured.what).inc(measured.rows)

    def counted(self, path: str, what: str) -> None:
        """Count an event."""
        self._events[what].labels(path).inc()

    def failed(self, path: str, kind: str) -> None:
        """Do nothing: the caller that retries counts errors."""


class WriterMetrics(OperationMetrics):
    """The metrics of all tables that this process writes to, under the names that ``tablestore serve`` uses.

    ``WriterMetrics()`` registers them with prometheus_client's default registry, which the program exports as it
    likes, for example with ``prometheus_client.start_http_server(8000)``. Spark's driver counts; its tasks do not.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics and count from now on.

        Raises:
            ValueError: the registry has these metrics already.
        """
        super().__init__(registry)
        self._errors = Counter(*ERRORS, ["table", "kind"], registry=registry)
        self._snapshot = Gauge(*SNAPSHOT, ["table"], registry=registry)
        self._published = Gauge(*PUBLISHED, ["table"], registry=registry)
        self._registry = registry
        observe(self)

    def measured(self, measured: Measured) -> None:
        """Count an operation, and keep the newest snapshot that this process committed or published."""
        super().measured(measured)
        gauge = {"commit": self._snapshot, "publish": self._published}.get(measured.what)
        if gauge is not None and measured.snapshot is not None:
            gauge.labels(measured.path).set(measured.snapshot)

    def failed(self, path: str, kind: str) -> None:
        """Count a failed operation."""
        self._errors.labels(path, kind).inc()

    def close(self) -> None:
        """Stop counting, and remove the metrics from the registry."""
        ignore(self)
        metrics = (self._seconds, self._rows, *self._events.values(), self._errors, self._snapshot, self._published)
        for each in metrics:
            self._registry.unregister(each)
