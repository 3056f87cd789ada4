"""The service's metrics, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tablestore.service.watcher import TableState
from tablestore.write.metrics import Measured

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAUGES: tuple[tuple[str, str, Callable[[TableState], float]], ...] = (
    ("snapshot", "The newest committed snapshot.", lambda s: s.newest),
    ("published_snapshot", "The newest snapshot in the log.", lambda s: s.published),
    ("publish_lag_snapshots", "Committed snapshots that the log lacks.", lambda s: s.behind.snapshots),
    ("publish_lag_seconds", "Age of the oldest snapshot that the log lacks.", lambda s: s.behind.seconds),
    ("compacted_snapshot", "The snapshot that Delta readers outside see.", lambda s: s.merged),
    ("compaction_lag_snapshots", "Snapshots since the last compaction.", lambda s: s.newest - s.merged),
    ("compaction_lag_seconds", "How long Delta readers outside have been behind.", lambda s: s.merged_age),
    ("up", "Whether the last look at the table succeeded.", lambda s: not s.error),
)


class ServiceMetrics:
    """Collects the states of tables when it is asked, and the durations of operations as they end."""

    def __init__(self, states: Callable[[], Sequence[TableState]]) -> None:
        """Collect the states that ``states`` returns at each request."""
        self._registry = CollectorRegistry()
        self._registry.register(_States(states))
        self._seconds = Histogram(
            "tablestore_operation_seconds",
            "Duration of a publish, compaction or expiry.",
            ["table", "operation"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._rows = Counter(
            "tablestore_operation_rows",
            "Changes published or compacted; for expire, snapshots.",
            ["table", "operation"],
            registry=self._registry,
        )

    def hook(self, measured: Measured) -> None:
        """Count an operation; see ``TableStore.metrics``."""
        self._seconds.labels(measured.path, measured.what).observe(measured.seconds)
        self._rows.labels(measured.path, measured.what).inc(measured.rows)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _States(Collector):
    """Turns the states of tables into metrics."""

    def __init__(self, states: Callable[[], Sequence[TableState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all tables."""
        states = self._states()
        for name, help_text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"tablestore_{name}", help_text, labels=["table"])
            for state in states:
                gauge.add_metric([state.path], float(value(state)))
            yield gauge
        yield from _verified(states)
        yield from _consumers(states)
        errors = CounterMetricFamily("tablestore_errors", "Attempts that failed.", labels=["table", "kind"])
        for state in states:
            for kind, count in state.errors.items():
                errors.add_metric([state.path, kind], count)
        yield errors


def _verified(states: Sequence[TableState]) -> Iterable[Metric]:
    snapshot = GaugeMetricFamily(
        "tablestore_verified_snapshot", "The newest snapshot of the last comparison of log and table.", labels=["table"]
    )
    differences = GaugeMetricFamily(
        "tablestore_verify_differences", "Differences that the last comparison found.", labels=["table"]
    )
    for state in states:
        if state.verified is not None:
            snapshot.add_metric([state.path], state.verified)
            differences.add_metric([state.path], state.differences)
    return snapshot, differences


def _consumers(states: Sequence[TableState]) -> Iterable[Metric]:
    labels = ["table", "consumer"]
    snapshots = GaugeMetricFamily("tablestore_consumer_lag_snapshots", "Snapshots not read.", labels=labels)
    seconds = GaugeMetricFamily("tablestore_consumer_lag_seconds", "Age of the oldest one not read.", labels=labels)
    for state in states:
        for name, behind in state.consumers.items():
            snapshots.add_metric([state.path, name], behind.snapshots)
            seconds.add_metric([state.path, name], behind.seconds)
    return snapshots, seconds
