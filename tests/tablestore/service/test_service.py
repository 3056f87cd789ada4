"""The service publishes what writers left behind, maintains tables, and says how they are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import InvalidInputError
from snapshot.store.commit import CommitId
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.service.page import picture
from tablestore.service.service import Service, http_server
from tablestore.service.watcher import Schedule, TableState
from tablestore.streaming.consumers import Consumers
from tablestore.write.writer import Writer
from tests.harness.local_writes import make_table, write
from tests.harness.table_audit import assert_log_is_table, audit

QUICK = Schedule(poll=0.05, grace=0.2, maintain=0.2, retry=0.1)
PARTITIONS = 2


def until(seen: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until a function returns something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, "it was never seen"
        time.sleep(0.02)
    return found


def state_of(service: Service) -> TableState:
    (state,) = service.states
    return state


def metrics(service: Service) -> dict[str, float]:
    """Return the metrics of a single table by their names without labels of the table."""
    found = {}
    for line in service.metrics.text().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[re.sub(r'table="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")] = float(value)
    return found


@contextmanager
def served(service: Service, token: str | None = None) -> Iterator[Callable[..., tuple[int, str]]]:
    """Serve over HTTP and yield a function that gets a page: its status and text."""
    with http_server(service, "127.0.0.1", 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()

        def get(path: str, **headers: str) -> tuple[int, str]:
            request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        try:
            yield get
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
    return make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), compaction__commits=4)


def topic_of(table: TableContext) -> str:
    assert table.options.log is not None
    return table.options.log.kafka.topic


def test_what_a_writer_left_is_published_within_seconds_by_nobody_else(kafka: LocalKafka, table: TableContext) -> None:
    path = Path(table.path)
    write(Writer(table, None), [(n, f"v{n}") for n in range(20)])
    assert table.index.latest().snapshot == 0
    with Service(lambda: [table.path], schedule=QUICK) as service:
        until(lambda: service.states and state_of(service).published == 1)
        for batch in range(3):
            write(Writer(TableContext.open(table.path), None), [(n, f"{batch}.{n}") for n in range(10)])
            until(lambda batch=batch: state_of(service).published >= 2 + batch)
        shown = until(lambda: (found := metrics(service))["tablestore_publish_lag_snapshots"] == 0 and found)
        until(lambda: metrics(service)["tablestore_compaction_lag_snapshots"] == 0)
    assert_log_is_table(path, kafka.bootstrap_servers, topic_of(table), PARTITIONS)
    assert shown["tablestore_up"] == 1
    assert shown["tablestore_snapshot"] == shown["tablestore_published_snapshot"] >= 4
    assert shown['tablestore_operation_seconds_count{operation="compact"}'] == 1
    assert TableContext.open(table.path).files.root_for(4)[1] == 4, "four commits are due for a compaction"


def test_live_writers_are_left_alone(kafka: LocalKafka, table: TableContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that publishes by itself is not fenced: the service takes over only where nothing moves."""
    taken: list[str] = []
    take_over = KafkaPublisher.take_over

    def counted(publisher: KafkaPublisher, **given: Any) -> None:
        taken.append(threading.current_thread().name)
        take_over(publisher, **given)

    monkeypatch.setattr(KafkaPublisher, "take_over", counted)
    with (
        Service(lambda: [table.path], schedule=Schedule(poll=0.01, grace=1.0)) as service,
        open_local(table.path) as local,
    ):
        for n in range(20):
            local.write([{"id": n, "v": str(n)}])
        until(lambda: state_of(service).published == local.snapshots(1)[0].id)
    assert [name for name in taken if "watch" in name] == []
    assert len(taken) == 1
    audit(Path(table.path), kafka.bootstrap_servers, topic_of(table), PARTITIONS)


def test_several_services_and_writers_at_once_double_nothing(kafka: LocalKafka, table: TableContext) -> None:
    with (
        Service(lambda: [table.path], schedule=QUICK) as one,
        Service(lambda: [table.path], schedule=QUICK) as other,
        open_local(table.path) as local,
    ):
        for n in range(12):
            if n % 2:
                write(Writer(TableContext.open(table.path), None), [(n, "left"), (n % 3, f"left {n}")])
            else:
                local.write([{"id": n, "v": "published"}, {"id": n % 3, "v": f"published {n}"}])
        newest = TableContext.open(table.path).files.latest()
        until(lambda: min(state_of(one).published, state_of(other).published) >= newest)
    assert_log_is_table(Path(table.path), kafka.bootstrap_servers, topic_of(table), PARTITIONS)


def test_a_broker_that_is_away_is_said_and_waited_for(tmp_path: Path, topic: Callable[[], str]) -> None:
    data = tmp_path / "kafka"
    with LocalKafka(data) as broker:
        servers, port = broker.bootstrap_servers, int(broker.bootstrap_servers.rpartition(":")[2])
        table = make_table(tmp_path / "t", servers, name := topic(), log__request_timeout="2 s")
        write(Writer(table, None), [(1, "a")])
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as get:
        until(lambda: service.states and state_of(service).error)
        assert "committed but not yet in the log" in state_of(service).error
        status, text = get("/healthz")
        assert (status, json.loads(text)["ok"]) == (503, False)
        assert metrics(service)["tablestore_up"] == 0
        assert any(name.startswith("tablestore_errors_total") for name in metrics(service))
        with LocalKafka(data, port):
            until(lambda: state_of(service).published == 1 and not state_of(service).error, 60)
            assert get("/healthz")[0] == 200
            audit(tmp_path / "t", servers, name, PARTITIONS)


def test_tables_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.service.service._LIST_SECONDS", 0.05)
    monkeypatch.setattr("tablestore.service.watcher._LOOK_SECONDS", 0.05)
    paths: list[str] = []
    with Service(lambda: paths, schedule=QUICK) as service:
        assert service.states == []
        one = create_local(tmp_path / "one", "id int", primary_key="id")
        paths.append(one.path)
        one.write([{"id": 1}])
        until(lambda: service.states and state_of(service).newest == 1)
        create_drop.drop(TableContext.open(one.path))
        until(lambda: state_of(service).error)
        again = create_local(tmp_path / "one", "id int", primary_key="id")
        until(lambda: not state_of(service).error and state_of(service).newest == 0)
        again.write([{"id": 1}])
        again.write([{"id": 2}])
        until(lambda: state_of(service).newest == 2)
        paths.clear()
        until(lambda: service.states == [])


def test_the_pages_show_tables_and_need_the_token(table: TableContext) -> None:
    with open_local(table.path) as local:
        for n in range(5):
            local.write([{"id": n, "v": "<b>"}])
    Consumers(TableContext.open(table.path).files.storage).put("dashboards", 1)
    schedule = Schedule(poll=0.05, grace=0.2, maintain=60, verify=0.1, retry=0.1)
    with Service(lambda: [table.path], schedule=schedule) as service, served(service, "secret") as get:
        until(lambda: service.states and state_of(service).verified)
        for path in ("/", "/metrics", "/healthz", f"/table?path={table.path}"):
            assert get(path)[0] == 401
            assert get(path, Authorization="Bearer wrong")[0] == 401
            assert get(path, Authorization="Bearer secret")[0] == 200
        status, text = get("/?token=secret")
        assert status == 200
        assert "token=secret" in text
        assert table.path in text
        assert "up to snapshot" in text
        detail = get(f"/table?path={table.path}&token=secret")[1]
        assert f"Kafka topic {topic_of(table)}" in detail
        assert "<svg" in detail
        assert detail.count("<td>upsert</td>") == 5
        assert "not yet" not in detail
        assert get("/table?path=/none&token=secret")[0] == 404
        assert get("/none?token=secret")[0] == 404
        assert 'dashboards</td><td><span class="bad">5 ' in detail
        shown = metrics(service)
        assert shown["tablestore_verify_differences"] == 0
        assert shown['tablestore_consumer_lag_snapshots{consumer="dashboards"}'] == 5
    with pytest.raises(InvalidInputError, match=r"host: expected a loopback address .*got '0\.0\.0\.0'"):
        http_server(service, "0.0.0.0", 0, None)
    with http_server(service, "127.0.0.1", 0, None) as taken, pytest.raises(InvalidInputError, match="Choose another"):
        http_server(service, "127.0.0.1", taken.server_port, None)


def test_nothing_from_a_table_is_taken_for_html(tmp_path: Path) -> None:
    table = create_local(tmp_path / "<i>t", "id int, `<script>` string", primary_key="id")
    table.write([{"id": 1, "<script>": "x"}])
    table.write([{"id": 2, "<script>": "x"}])
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as get:
        until(lambda: service.states and state_of(service).newest == 2)
        for path in ("/", f"/table?path={urllib.request.quote(table.path)}"):
            status, text = get(path)
            assert status == 200
            assert "&lt;i&gt;t" in text
            assert "<script>" not in text
            assert "<i>t" not in text


def test_a_picture_needs_two_snapshots(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id int", primary_key="id")
    assert "<svg" not in picture(table.snapshots(), 0)
    table.write([{"id": 1}])
    drawn = picture(table.snapshots(), 0)
    assert "1 is the newest" not in drawn
    assert "0 is the newest in the log" in drawn


def test_the_command_serves_until_it_is_told_to_stop(kafka: LocalKafka, table: TableContext) -> None:
    """Killed in between, the next one goes on where it was."""
    command = [sys.executable, "-c", "from tablestore.cli import app; app()", "serve", table.path, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        return process, re.search(r"http://\S+/", line)[0]

    def published(address: str) -> int:
        with urllib.request.urlopen(f"{address}metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(r"tablestore_published_snapshot\{.*\} (\d+)", text)
        return int(found[1]) if found else -1

    commit = CommitId("left", 1)
    process, address = start()
    try:
        write(Writer(TableContext.open(table.path), None), [(1, "a")], commit)
        until(lambda: published(address) == 1)
        process.kill()
        process.wait()
        write(Writer(TableContext.open(table.path), None), [(2, "b")])
        process, address = start()
        until(lambda: published(address) == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    audit(Path(table.path), kafka.bootstrap_servers, topic_of(table), PARTITIONS)
