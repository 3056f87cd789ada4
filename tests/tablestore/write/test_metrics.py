"""What writers tell of their operations: Prometheus metrics without a service, and OpenTelemetry spans."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.errors import ConflictError, InvalidInputError
from tablestore import LocalTable, PublishPendingError, WriterMetrics, create_local, open_local, trace, tracing
from tablestore.write.metrics import Measured, Observer, ignore, observe
from tests.harness.waiting import PATIENCE_SECONDS


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[LocalTable]:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "bucket": 2}
    with create_local(
        tmp_path / "t", "id int, v string", primary_key="id", log_system="kafka", options=options
    ) as made:
        yield made


@pytest.fixture
def metrics() -> Iterator[Callable[..., float | None]]:
    registry = CollectorRegistry()
    exported = WriterMetrics(registry)
    yield lambda name, **labels: registry.get_sample_value(f"tablestore_{name}", labels)
    exported.close()
    assert list(registry.collect()) == []


@pytest.fixture
def spans() -> Iterator[Callable[[], list[ReadableSpan]]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace(provider)
    yield lambda: list(exporter.get_finished_spans())
    tracing.stop_tracing()


def test_a_writer_is_measured_without_a_service(table: LocalTable, metrics: Callable[..., float | None]) -> None:
    for n in range(3):
        table.write([{"id": n, "v": "a"}, {"id": 9, "v": "b"}])
    table.delete("id = 9")
    path = table.path
    counts = {
        each: metrics("operation_seconds_count", table=path, operation=each)
        for each in ("write", "delete", "commit", "publish", "compact")
    }
    assert counts == {"write": 3, "delete": 1, "commit": 4, "publish": 4, "compact": None}
    assert metrics("operation_rows_total", table=path, operation="publish") == 7
    assert metrics("snapshot", table=path) == metrics("published_snapshot", table=path) == 4
    assert metrics("operation_seconds_sum", table=path, operation="commit") > 0


def test_the_names_are_those_of_the_service(table: LocalTable) -> None:
    from tablestore.service.metrics import ServiceMetrics  # noqa: PLC0415 - the registry is its own

    registry = CollectorRegistry()
    exported = WriterMetrics(registry)
    table.write([{"id": 1, "v": "a"}])
    exported.close()
    service = {line.split()[2] for line in ServiceMetrics(list).text().decode().splitlines() if line[:6] == "# TYPE"}
    names = {f"{each.name}{'_total' if each.type == 'counter' else ''}" for each in registry.collect()}
    assert names <= service


def test_two_exporters_of_one_registry_are_refused() -> None:
    registry = CollectorRegistry()
    exported = WriterMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        WriterMetrics(registry)
    exported.close()


def test_fences_retries_and_errors_are_counted(
    table: LocalTable, metrics: Callable[..., float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table.path
    table.write([{"id": 1, "v": "a"}])
    with open_local(path) as other:
        other.write([{"id": 2, "v": "b"}])
        table.write([{"id": 3, "v": "c"}])
    assert metrics("fences_total", table=path) >= 1
    commit, failures = DeltaLog.commit, [ConflictError("another writer was first")]

    def conflicting(*given: object, **named: object) -> object:
        if failures:
            raise failures.pop()
        return commit(*given, **named)

    monkeypatch.setattr(DeltaLog, "commit", conflicting)
    table.write([{"id": 4, "v": "d"}])
    assert metrics("commit_conflicts_total", table=path) == 1
    monkeypatch.setattr("tablestore.write.writer.publish_through", _broken)
    with pytest.raises(PublishPendingError):
        table.write([{"id": 5, "v": "e"}])
    assert metrics("errors_total", table=path, kind="publish-pending") == 1, "once, not for publish and write"
    assert metrics("snapshot", table=path) == 5
    assert metrics("published_snapshot", table=path) == 4


def _broken(*_: object, **__: object) -> None:
    message = "the broker is away"
    raise ConnectionError(message)


def test_a_broken_observer_stops_nothing(table: LocalTable) -> None:
    class Broken:
        def measured(self, measured: Measured) -> None:
            raise ValueError

        counted = failed = measured

    broken: Observer = Broken()
    observe(broken)
    try:
        assert table.write([{"id": 1, "v": "a"}]) is not None
    finally:
        ignore(broken)


def test_spans_of_commit_and_publish_are_within_that_of_the_write(
    table: LocalTable, spans: Callable[[], list[ReadableSpan]]
) -> None:
    table.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    table.recover()
    found = {each.name: each for each in spans()}
    write = found["tablestore write"]
    assert {each.parent.span_id for name, each in found.items() if name == "tablestore commit"} == {
        write.context.span_id
    }
    publishes = [each for each in spans() if each.name == "tablestore publish" and each.parent is not None]
    assert [each.parent.span_id for each in publishes] == [write.context.span_id]
    assert dict(publishes[0].attributes) == {
        "tablestore.table": table.path, "tablestore.snapshot": 1, "tablestore.rows": 2,
    }  # fmt: skip
    assert write.status.status_code is not StatusCode.ERROR


def test_a_span_has_the_error(
    table: LocalTable, spans: Callable[[], list[ReadableSpan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablestore.write.writer.publish_through", _broken)
    with pytest.raises(PublishPendingError):
        table.write([{"id": 1, "v": "a"}])
    failed = [each.name for each in spans() if each.status.status_code is StatusCode.ERROR]
    assert failed == ["tablestore publish", "tablestore write"]
    committed = [each for each in spans() if each.name == "tablestore commit"]
    assert [each.attributes["tablestore.snapshot"] for each in committed] == [1]


def test_nothing_is_traced_unless_it_is_switched_on(table: LocalTable) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    table.write([{"id": 1, "v": "a"}])
    assert exporter.get_finished_spans() == ()


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(InvalidInputError, match=r"OTEL_TRACES_EXPORTER: .* got 'carrier-pigeon'"):
        trace()


def test_without_the_switch_nothing_of_opentelemetry_or_prometheus_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom tablestore import create_local\n"
        f"create_local({str(tmp_path / 't')!r}, 'id int', primary_key='id').write([{{'id': 1}}])\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert ran.stdout.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidInputError, match=r"pip install tablestore\[otel\]"):
        trace()
