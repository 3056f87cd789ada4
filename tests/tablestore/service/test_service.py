"""The service publishes what writers left behind, maintains tables, and says how they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.maintenance import compact
from tablestore.service.attempts import Schedule
from tablestore.service.service import Service
from tablestore.write.writer import Writer
from tests.harness.faults import preceded
from tests.harness.local_writes import make_table, write
from tests.harness.table_audit import assert_log_is_table, audit
from tests.harness.waiting import PATIENCE_SECONDS, until
from tests.tablestore.service.serving import served, state_of

QUICK = Schedule(poll=0.05, grace=0.2, maintain=0.2, retry=0.1)
PARTITIONS = 2


def metrics(service: Service) -> dict[str, float]:
    """Return the metrics of a single table by their names without labels of the table."""
    found = {}
    for line in service.metrics.text().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[re.sub(r'table="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")] = float(value)
    return found


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
        until(lambda: metrics(service)["tablestore_publish_lag_snapshots"] == 0)
        until(lambda: metrics(service)["tablestore_compaction_lag_snapshots"] == 0)
        compactions = 'tablestore_operation_seconds_count{operation="compact"}'
        shown = until(lambda: (found := metrics(service)).get(compactions) and found)
    assert_log_is_table(path, kafka.bootstrap_servers, topic_of(table), PARTITIONS)
    assert shown["tablestore_up"] == 1
    assert shown["tablestore_snapshot"] == shown["tablestore_published_snapshot"] >= 4
    assert shown[compactions] == 1
    assert shown['tablestore_operation_seconds_count{operation="publish"}'] >= 1
    assert shown['tablestore_operation_rows_total{operation="publish"}'] >= 20 + 3 * 10
    assert TableContext.open(table.path).files.base_version(4).merged_through == 4, (
        "four commits are due for a compaction"
    )


def test_publishing_does_not_wait_for_a_compaction(table: TableContext) -> None:
    begun, done = threading.Event(), threading.Event()

    def compact_for_long() -> None:
        begun.set()
        assert done.wait(PATIENCE_SECONDS)

    for n in range(4):
        write(Writer(table, None), [(n, "a")])
    with (
        preceded(compact, "compact", compact_for_long),
        Service(lambda: [table.path], schedule=QUICK) as service,
    ):
        assert begun.wait(PATIENCE_SECONDS)
        write(Writer(TableContext.open(table.path), None), [(1, "b")])
        until(lambda: state_of(service).published >= 5)
        assert state_of(service).merged == 0
        done.set()
        until(lambda: state_of(service).merged >= 4)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that took a log over, in order."""
    names: list[str] = []
    take_over = KafkaPublisher.take_over

    def counted(publisher: KafkaPublisher, **given: Any) -> None:
        names.append(threading.current_thread().name)
        take_over(publisher, **given)

    monkeypatch.setattr(KafkaPublisher, "take_over", counted)
    return names


def test_live_writers_are_left_alone(kafka: LocalKafka, table: TableContext, taken: list[str]) -> None:
    """A writer that publishes by itself is not fenced: the service takes over only where nothing moves."""
    with (
        Service(lambda: [table.path], schedule=Schedule(poll=0.01, grace=3.0)) as service,
        open_local(table.path) as local,
    ):
        for n in range(20):
            local.write([{"id": n, "v": str(n)}])
        until(lambda: state_of(service).published == local.snapshots(1)[0].id)
    assert [name for name in taken if "watch" in name] == []
    assert len(taken) == 1
    audit(Path(table.path), kafka.bootstrap_servers, topic_of(table), PARTITIONS)


def test_a_writer_that_is_slow_is_fenced_a_few_times_only(
    kafka: LocalKafka, table: TableContext, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service waits for longer where the writer whose log it took over turns out to be alive."""
    publish = KafkaPublisher.publish

    def slow(publisher: KafkaPublisher, changes: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            time.sleep(1.5)
        return publish(publisher, changes)

    monkeypatch.setattr(KafkaPublisher, "publish", slow)
    with (
        Service(lambda: [table.path], schedule=Schedule(poll=0.02, grace=1.0)) as service,
        open_local(table.path) as local,
    ):
        fenced = [0]
        while len(fenced) <= 15 and (not fenced[-1] or fenced.count(fenced[-1]) < 4):
            local.write([{"id": len(fenced), "v": "x"}])
            fenced.append(sum("watch" in name for name in taken))
        assert fenced.count(fenced[-1]) == 4, "it was fenced, and then three writes in a row were left alone"
        # What a crash leaves is published all the same.
        write(Writer(TableContext.open(table.path), None), [(1, "left")])
        until(lambda: state_of(service).published == TableContext.open(table.path).files.latest())
    audit(Path(table.path), kafka.bootstrap_servers, topic_of(table), PARTITIONS)


def test_a_large_snapshot_that_its_writer_publishes_is_left_to_it(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index does not move for longer than the service waits, but records show that somebody publishes."""
    options = {"publish__driver_rows_max": 3, "publish__transaction_rows_max": 10}
    table = make_table(tmp_path / "large", kafka.bootstrap_servers, topic(), **options)
    send = Sender.send

    def slow(sender: Sender, *given: Any) -> int:
        time.sleep(0.5)
        return send(sender, *given)

    monkeypatch.setattr(Sender, "send", slow)
    with (
        Service(lambda: [table.path], schedule=Schedule(poll=0.02, grace=3.0)) as service,
        open_local(table.path) as local,
    ):
        began = time.monotonic()
        local.write([{"id": n, "v": str(n)} for n in range(200)])
        assert time.monotonic() - began > 4.0, "the partitions are published side by side"
        until(lambda: state_of(service).published == 1)
    assert taken == ["MainThread"]
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
        # The coordinators of a new broker may load for longer than two seconds.
        make_table(tmp_path / "first", servers, topic())
        table = make_table(tmp_path / "t", servers, name := topic(), log__request_timeout="2 s")
        write(Writer(table, None), [(1, "a")])
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as web:
        until(lambda: service.states and state_of(service).error)
        assert "committed but not yet in the log" in state_of(service).error
        answer = web.get("/healthz")
        assert (answer.status, json.loads(answer.text)["ok"]) == (503, False)
        assert "committed but not yet in the log" in web.get("/").text
        assert "committed but not yet in the log" in web.table(table.path).text
        assert metrics(service)["tablestore_up"] == 0
        assert any(name.startswith("tablestore_errors_total") for name in metrics(service))
        with LocalKafka(data, port):
            until(lambda: state_of(service).published == 1 and not state_of(service).error)
            assert web.get("/healthz").status == 200
            audit(tmp_path / "t", servers, name, PARTITIONS)


def test_a_log_is_behind_for_as_long_as_it_is_seen_to_be_whatever_the_clocks_say(table: TableContext) -> None:
    write(Writer(table, None), [(1, "a")])
    entry = Path(table.path) / "_changes" / "_delta_log" / f"{1:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] += 365 * 86_400_000
    entry.write_text("\n".join(map(json.dumps, actions)))
    with Service(lambda: [table.path], schedule=Schedule(poll=0.05, grace=1_000.0)) as service:
        until(lambda: service.states and state_of(service).behind.seconds > 0.2)


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


def test_no_page_waits_for_pandas() -> None:
    script = (
        "import sys; from tablestore.service.service import Service; before = 'pandas' in sys.modules\n"
        "with Service(list): print(before, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
