"""The store's promises on a Spark cluster whose workers have an empty Python environment each, and are killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import latest_offsets
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.write.writer import Writer
from tests.cluster import steps
from tests.cluster.driver import Driver
from tests.cluster.standalone import WORKERS, StandaloneCluster
from tests.crash.processes.ledger import Ledger
from tests.harness.local_writes import drain, make_table, publisher_of, recover_at, rows_of, run_here, settle, write
from tests.harness.plain_topics import make_topic
from tests.harness.table_audit import assert_index_is_true, assert_log_is_prefix, audit
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds executors in /proc"),
]

PARTITIONS = 2
MANY, COMPACTED = 8, 2_000
"""Buckets and rows of a table that is compacted by several tasks."""
LARGE = 60_000
BY_TASKS = {"publish__driver_rows_max": 1_000, "publish__transaction_rows_max": 3_000}
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.01


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Yield a running cluster; nothing of it may be left when it has stopped."""
    root = tmp_path_factory.mktemp("cluster")
    with StandaloneCluster(root) as running:
        yield running
    assert running.leftovers() == []
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    """Yield a driver that all tests share; it repeats slow tasks on the other executor while they run."""
    slow = {"speculation": "true", "speculation__interval": "50ms", "speculation__multiplier": "1.1"}
    with Driver(cluster.url, **slow, speculation__quantile="0.5") as running:
        yield running


def wait_until(holds: Callable[[], bool], step: Future[Any]) -> None:
    """Wait until something holds while a step runs."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert not step.done(), f"the step ended before it could be disturbed: {step.exception() or step.result()}"
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(LOOK_SECONDS)


def written(servers: str, topic: str) -> int:
    """Return how many offsets of a topic are in use, of open transactions too."""
    return sum(latest_offsets(KafkaClient({"bootstrap.servers": servers}), topic, read_committed=False).values())


def expect_audited(
    driver: Driver, path: Path, servers: str, topic: str, expected: dict[int, str], partitions: int = PARTITIONS
) -> None:
    """0 lost, 0 doubled, 0 early, by outside readers and by ``verify()``; the rows are the expected ones."""
    audit(path, servers, topic, partitions)
    assert_index_is_true(path, partitions)
    agrees, report, found = driver.run(steps.verified, str(path))
    assert agrees, report
    assert found == expected


@contextmanager
def half_compacted(cluster: StandaloneCluster, driver: Driver, path: Path) -> Iterator[Future[Any]]:
    """Yield a compaction that has written files and cannot end, since one of the two executors is stopped till then."""
    end = time.monotonic() + WAIT_SECONDS
    while len({place["host_home"] for place in driver.run(steps.sources)}) < WORKERS:
        assert time.monotonic() < end, "only one executor works"
    before, stopped = base_files(path), cluster.executors(1)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        step = driver.start(steps.compact, str(path))
        wait_until(lambda: base_files(path) > before, step)
        yield step
    finally:
        os.kill(stopped, signal.SIGCONT)


def base_files(path: Path) -> set[Path]:
    """Return the files of compacted buckets, committed or not."""
    return set(path.rglob("part-*.parquet"))


def is_compacted(path: Path, times: int) -> bool:
    return DeltaTable(path).version() >= times


def test_an_executor_without_the_package_says_how_to_ship_it(
    cluster: StandaloneCluster, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, arrow = tmp_path / "t", tmp_path / "arrow"
    make_table(path, kafka.bootstrap_servers, topic())
    write(Writer(TableContext.open(str(path)), None), [(n, "v") for n in range(10)])
    arrow.mkdir()
    for package in Path(pa.__file__).parent.parent.glob("[pn][yu][am][rp]*"):
        (arrow / package.name).symlink_to(package)
    with Driver(cluster.url, steps.bare_session) as bare:
        errors = bare.run(steps.without_packages, str(path), str(arrow))
    for error in errors:
        assert "venv/bin/python" in error
        assert "cannot import" in error
        assert "tablestore pack" in error


def test_executors_import_what_the_session_shipped(cluster: StandaloneCluster, driver: Driver) -> None:
    found = driver.run(steps.sources)
    homes = {place["host_home"] for place in found}
    assert homes == {str(cluster.root / f"worker-{n}" / "home") for n in range(2)}
    for place in found:
        worker = Path(place["host_home"]).parent
        assert Path(place["prefix"]) == worker / "venv"
        assert Path(place["interpreter"]).parent == worker / "venv" / "bin"
        assert worker / "work" in Path(place["path"]).parents
        assert place["daemon"] == "tablestore.python_daemon"


def test_key_tables(driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    path, name = tmp_path / "t", topic()
    found = driver.run(steps.key_table, str(path), str(tmp_path / "checkpoint"), kafka.bootstrap_servers, name)
    expected = {n: f"a{n}" for n in range(100, 500)} | {n: f"b{n}" for n in range(500, 1500)}
    expected |= dict.fromkeys(range(1400, 1500), "u") | dict.fromkeys(range(90, 110), "m")
    assert found["before"] == sorted(expected.items())
    expected |= {1: "new", 1400: "new"}
    assert found["rows"] == found["format"] == found["fold"] == sorted(expected.items())
    assert found["ok"], found["report"]
    assert found["vacuum"] == 0


def test_append_tables(driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    path = tmp_path / "t"
    found = driver.run(steps.append_table, str(path), str(tmp_path / "checkpoint"), kafka.bootstrap_servers, topic())
    assert found["rows"] == [(10, "u"), *((n, "s") for n in range(11, 100))]
    assert found["ok"], found["report"]


def test_merge_engines_connectors_and_sql(driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    assert driver.run(steps.merge_engine, str(tmp_path / "t")) == [(2, 100)]
    name = topic()
    make_topic(kafka.bootstrap_servers, name, PARTITIONS)
    found = driver.run(steps.connector_and_sql, str(tmp_path / "warehouse"), kafka.bootstrap_servers, name)
    assert found == {"rows": 100, "sql": [("k", 100, 99)]}


@pytest.mark.crash
def test_an_executor_killed_while_it_stages(
    cluster: StandaloneCluster, driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, servers, name, begun = tmp_path / "t", kafka.bootstrap_servers, topic(), tmp_path / "begun"
    begun.mkdir()
    driver.run(steps.make_table, str(path), servers, name, {})
    driver.run(steps.write_range, str(path), 0, 1000, "a")
    step = driver.start(steps.write_slowly, str(path), LARGE, "b", str(begun))
    wait_until(lambda: len(list(begun.iterdir())) >= 3, step)
    cluster.kill_executor()
    step.result(timeout=WAIT_SECONDS)
    expect_audited(driver, path, servers, name, {n: f"b{n}" for n in range(LARGE)})


@pytest.mark.crash
def test_executor_and_worker_lost_in_large_publishes_while_slow_tasks_run_twice(
    cluster: StandaloneCluster, driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, servers, name = tmp_path / "t", kafka.bootstrap_servers, topic()
    driver.run(steps.make_table, str(path), servers, name, BY_TASKS)
    for value, kill in (("a", cluster.kill_executor), ("b", cluster.kill_worker)):
        before = written(servers, name)
        step = driver.start(steps.write_range, str(path), 0, LARGE, value)
        wait_until(lambda before=before: written(servers, name) > before + LARGE // 4, step)
        kill(0)
        # Spark repeats the tasks; the writer may leave the rest to recover(), which it says.
        step.exception(timeout=WAIT_SECONDS)
        assert_log_is_prefix(path, servers, name, PARTITIONS)
        driver.run(steps.recover, str(path))
    expect_audited(driver, path, servers, name, {n: f"b{n}" for n in range(LARGE)})
    cluster.restore()


@pytest.mark.crash
def test_an_executor_killed_in_a_normalize_batch(
    cluster: StandaloneCluster, driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, servers, name = tmp_path / "t", kafka.bootstrap_servers, topic()
    driver.run(steps.make_table, str(path), servers, name, {"log__consistency": "eventual"})
    for value in ("a", "b"):
        driver.run(steps.write_range, str(path), 0, LARGE, value)
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "ledger"
    step = driver.start(steps.normalize, str(path), str(checkpoint), str(folder))
    wait_until(lambda: (checkpoint / "offsets" / "0").exists() and bool(cluster.executors()), step)
    cluster.kill_executor()
    step.result(timeout=WAIT_SECONDS)
    settle(servers, name)
    given, illegal = Ledger(folder).replay()
    log = {key: value for partition in drain(servers, name, PARTITIONS) for key, value in partition}
    agrees, report, table = driver.run(steps.verified, str(path))
    assert agrees, report
    assert illegal == 0
    assert given == log == table == {n: f"b{n}" for n in range(LARGE)}


@pytest.mark.crash
def test_a_driver_killed_in_a_large_publish_loses_and_doubles_nothing(
    driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Its driver is the one that the tests before share."""
    path, servers, name = tmp_path / "t", kafka.bootstrap_servers, topic()
    driver.run(steps.make_table, str(path), servers, name, BY_TASKS)
    step = driver.start(steps.write_range, str(path), 0, LARGE, "a")
    wait_until(lambda: written(servers, name) > LARGE // 4, step)
    driver.kill()
    with pytest.raises(BrokenProcessPool):
        step.result(timeout=PATIENCE_SECONDS)
    assert_log_is_prefix(path, servers, name, PARTITIONS)
    recover_at(path, PARTITIONS)
    audit(path, servers, name, PARTITIONS)
    assert_index_is_true(path, PARTITIONS)


@pytest.mark.crash
def test_executors_that_dynamic_allocation_removes(
    cluster: StandaloneCluster, driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Nothing that an executor holds is needed later: neither producers, nor readers, nor the state of a query.

    The driver here gets the cores of the one that the tests above share. One executor after another has all there is.
    """
    driver.kill()
    path, servers = tmp_path / "t", kafka.bootstrap_servers
    dynamic = {f"dynamicAllocation__{name}": "10s" for name in ("executorIdleTimeout", "shuffleTracking__timeout")}
    dynamic |= {f"dynamicAllocation__{name}": "true" for name in ("enabled", "shuffleTracking__enabled")}
    dynamic["dynamicAllocation__maxExecutors"] = "1"
    with Driver(cluster.url, **dynamic) as other:
        other.run(steps.make_table, str(path), servers, topic(), {"log__consistency": "eventual"})
        checkpoint, folder = tmp_path / "checkpoint", tmp_path / "ledger"
        for value in ("a", "b"):
            other.run(steps.write_range, str(path), 0, 1_000, value)
            other.run(steps.normalize, str(path), str(checkpoint), str(folder))
            end = time.monotonic() + WAIT_SECONDS
            while value == "a" and cluster.executors():
                assert time.monotonic() < end, "idle executors are still there"
                time.sleep(0.25)
        given, illegal = Ledger(folder).replay()
        agrees, report, table = other.run(steps.verified, str(path))
    assert agrees, report
    assert illegal == 0
    assert given == table == {n: f"b{n}" for n in range(1_000)}


@pytest.mark.crash
def test_compactions_in_which_an_executor_and_the_driver_are_killed(
    cluster: StandaloneCluster, driver: Driver, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """The driver here repeats no slow tasks, and gets the cores of the one that the tests above share."""
    driver.kill()
    path, servers, name = tmp_path / "t", kafka.bootstrap_servers, topic()
    table = make_table(path, servers, name, bucket=MANY, compaction__auto=False)
    writer = Writer(table, publisher_of(table))
    write(writer, [(n, "a") for n in range(COMPACTED)])
    with Driver(cluster.url) as other:
        with half_compacted(cluster, other, path) as step:
            cluster.kill_executor(0)
            assert not is_compacted(path, 1)
        step.result(timeout=WAIT_SECONDS)
        assert is_compacted(path, 1)
        write(writer, [(n, "b") for n in range(COMPACTED // 2, COMPACTED)])
        expected = {n: "a" if n < COMPACTED // 2 else "b" for n in range(COMPACTED)}
        expect_audited(other, path, servers, name, expected, MANY)
        with half_compacted(cluster, other, path) as step:
            other.kill()
            with pytest.raises(BrokenProcessPool):
                step.result(timeout=PATIENCE_SECONDS)
    assert not is_compacted(path, 2)
    recover_at(path, MANY)
    assert rows_of(table) == expected
    # What the killed driver has left is in nobody's way.
    assert compact(table, run_here) is not None
    write(writer, [(0, "after")])
    audit(path, servers, name, MANY)
    assert_index_is_true(path, MANY)
    assert table.log.verify().ok
    assert rows_of(table) == expected | {0: "after"}
