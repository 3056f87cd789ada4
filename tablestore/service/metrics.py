"""The service's metrics, in Prometheus's text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tablestore.service.watcher import TableState
from tablestore.write.prometheus import ERRORS, PUBLISHED, SNAPSHOT, OperationMetrics

_GAUGES: tuple[tuple[str, str, Callable[[TableState], float | None]], ...] = (
    (*SNAPSHOT, lambda s: s.newest),
    (*PUBLISHED, lambda s: s.published),
    ("tablestore_publish_lag_snapshots", "Committed snapshots that the log lacks.", lambda s: s.behind.snapshots),
    ("tablestore_publish_lag_seconds", "Age of the oldest snapshot that the log lacks.", lambda s: s.behind.seconds),
    ("tablestore_compacted_snapshot", "The snapshot that Delta readers outside see.", lambda s: s.merged),
    ("tablestore_compaction_lag_snapshots", "Snapshots since the last compaction.", lambda s: s.newest - s.merged),
    (
        "tablestore_compaction_lag_seconds",
        "How long Delta readers outside have been behind.",
        lambda s: s.merged_age,
    ),
    ("tablestore_up", "Whether the last look at the table succeeded.", lambda s: not s.error),
    (
        "tablestore_verified_snapshot",
        "Log and table were compared up to this snapshot.",
        lambda s: s.verify.snapshot,
    ),
    (
        "tablestore_verify_lag_snapshots",
        "Published snapshots that were not compared yet.",
        lambda s: None if s.verify.snapshot is None else max(0, s.published - s.verify.snapshot),
    ),
    (
        "tablestore_verify_differences",
        "Known differences between log and table.",
        lambda s: None if s.verify.snapshot is None and not s.verify.count else s.verify.count,
    ),
    ("tablestore_verify_running", "Whether log and table are being compared.", lambda s: s.verify.running),
    (
        "tablestore_verify_whole_snapshot",
        "How far the comparison of the whole log that is under way has come.",
        lambda s: s.verify.whole_snapshot,
    ),
    (
        "tablestore_verify_whole_timestamp_seconds",
        "When the last comparison of the whole log ended, in seconds since the epoch.",
        lambda s: s.verify.whole_ms / 1000 or None,
    ),
)


class ServiceMetrics(OperationMetrics):
    """Collects the states of tables when it is asked, and observes the operations of the service's handles."""

    def __init__(self, states: Callable[[], Sequence[TableState]]) -> None:
        """Collect the states that ``states`` returns at each request."""
        self._registry = CollectorRegistry()
        self._registry.register(_States(states))
        super().__init__(self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _States(Collector):
    """Turns the states of tables into metrics."""

    def __init__(self, states: Callable[[], Sequence[TableState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all tables; what is not known of a table has no value."""
        states = self._states()
        for name, help_text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=["table"])
            for state in states:
                found = value(state)
                if found is not None:
                    gauge.add_metric([state.path], float(found))
            yield gauge
        yield from _consumers(states)
        records = CounterMetricFamily("tablestore_verify_records", "Records compared.", labels=["table"])
        errors = CounterMetricFamily(*ERRORS, labels=["table", "kind"])
        for state in states:
            records.add_metric([state.path], state.verify.records)
            for kind, count in (Counter(state.errors) + Counter(state.verify.errors)).items():
                errors.add_metric([state.path, kind], count)
        yield records
        yield errors


def _consumers(states: Sequence[TableState]) -> Iterable[Metric]:
    labels = ["table", "consumer"]
    snapshots = GaugeMetricFamily("tablestore_consumer_lag_snapshots", "Snapshots not read.", labels=labels)
    seconds = GaugeMetricFamily("tablestore_consumer_lag_seconds", "Age of the oldest one not read.", labels=labels)
    for state in states:
        for name, behind in state.consumers.items():
            snapshots.add_metric([state.path, name], behind.snapshots)
            seconds.add_metric([state.path, name], behind.seconds)
    return snapshots, seconds
