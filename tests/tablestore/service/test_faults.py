"""Faults under a running service: a full disk, an absent broker, a table that is replaced, a kill. It goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from tablestore import create_local, open_local
from tablestore.cli.warehouse import _lister
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.service.attempts import Schedule
from tablestore.service.service import Service
from tablestore.write.writer import Writer
from tests.harness.local_writes import make_table, write
from tests.harness.table_audit import audit
from tests.harness.waiting import PATIENCE_SECONDS, until
from tests.tablestore.service.serving import served, state_of

QUICK = Schedule(poll=0.05, grace=0.2, maintain=0.2, verify=0.1, retry=0.1)
PARTITIONS = 2


def metric(text: str, name: str) -> float | None:
    """Return the value of a metric of a single table."""
    found = re.search(rf"^tablestore_{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def agrees(service: Service, snapshot: int) -> bool:
    """Return whether log and table were compared up to a snapshot and no difference is known any more."""
    verify = state_of(service).verify
    return verify.snapshot == snapshot and not verify.error and verify.count == 0


class Disk:
    """A folder whose disk can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_full = False

    def fill(self) -> None:
        """Leave no space; what is written from now on fails."""
        self.is_full = True

    def free(self) -> None:
        """Make space."""
        self.is_full = False


class SmallDisk(Disk):
    """A file system in memory."""

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture(params=["refused", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Yield a disk to fill: a real one where this process may mount one, and one that refuses what is written."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "tmpfs":
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False)
        if mounted.returncode:
            pytest.skip("this process may not mount a file system")
        yield SmallDisk(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)
        return
    disk, real = Disk(folder), os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if disk.is_full and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    yield disk


def test_a_full_disk_is_shown_and_nothing_is_doubled(kafka: LocalKafka, topic: Callable[[], str], disk: Disk) -> None:
    path = disk.folder / "t"
    table = make_table(path, kafka.bootstrap_servers, name := topic())
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as web:
        until(lambda: service.states and state_of(service).verify.snapshot == 0)
        with open_local(table.path) as local:
            local.write([{"id": 0, "v": "published"}])
        until(lambda: state_of(service).verify.snapshot == 1)
        write(Writer(table, None), [(n, "left") for n in range(20)])
        # The index cannot be written, so what is published is not visible to readers.
        disk.fill()
        until(lambda: "No space left" in state_of(service).error)
        for _ in range(20):
            # It is said all the time, not only when it is tried again.
            assert "No space left" in state_of(service).error
            time.sleep(QUICK.grace / 4)
        assert state_of(service).published == 1
        until(lambda: "No space left" in state_of(service).verify.error)
        text = web.get("/metrics").text
        assert (metric(text, "up"), metric(text, "publish_lag_snapshots")) == (0, 1)
        assert metric(text, "errors_total") > 0
        for page in (web.get("/").text, web.table(table.path).text, web.get("/healthz").text):
            assert "No space left" in page
        disk.free()
        until(lambda: state_of(service).published == 2 and not state_of(service).error)
        until(lambda: agrees(service, 2))
        assert web.get("/healthz").status == 200
    audit(path, kafka.bootstrap_servers, name, PARTITIONS)


def test_without_the_broker_pages_answer_and_verify_says_so(tmp_path: Path, topic: Callable[[], str]) -> None:
    data = tmp_path / "kafka"
    with LocalKafka(data) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        table = make_table(tmp_path / "t", broker.bootstrap_servers, topic(), log__request_timeout="5 s")
        with open_local(table.path) as local:
            local.write([{"id": n, "v": "a"} for n in range(20)])
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as web:
        until(lambda: service.states and state_of(service).verify.error)
        began = time.monotonic()
        for answer in (web.get("/"), web.table(table.path), web.get("/metrics")):
            assert answer.status == 200
        assert time.monotonic() - began < 5.0, "none of them waits for the broker"
        assert "Log and table are not compared" in web.table(table.path).text
        assert web.get("/healthz").status == 503
        with LocalKafka(data, port):
            until(lambda: agrees(service, 1))


def test_a_table_that_is_dropped_and_created_is_compared_from_its_beginning(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablestore.service.watcher._LOOK_SECONDS", 0.05)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "bucket": 2}

    def create() -> str:
        made = create_local(tmp_path / "t", "id int", primary_key="id", log_system="kafka", options=options)
        return made.path

    path = create()
    with Service(lambda: [path], schedule=QUICK) as service, served(service) as web:
        with open_local(path) as local:
            for n in range(5):
                local.write([{"id": n}])
        until(lambda: state_of(service).verify.snapshot == 5)
        create_drop.drop(TableContext.open(path))
        until(lambda: state_of(service).error and state_of(service).verify.error)
        assert web.table(path).status == 503
        create()
        with open_local(path) as local:
            local.write([{"id": 1}])
        until(lambda: not state_of(service).error and state_of(service).newest == 1)
        until(lambda: agrees(service, 1))
        assert "snapshot 5" not in web.table(path).text


def test_a_definition_that_cannot_be_read_is_shown_and_the_other_tables_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablestore.service.service._LIST_SECONDS", 0.05)
    warehouse, ddl = tmp_path / "warehouse", "CREATE TABLE {} (id INT NOT NULL, PRIMARY KEY (id) NOT ENFORCED)"
    for name in ("a", "broken", "z"):
        create_local(warehouse / name, "id int", primary_key="id")
        (folder := warehouse / "_catalog" / name).mkdir(parents=True)
        definition = {"format": 1, "ddl": ddl.format(name), "path": name}
        (folder / "00000001.json").write_text(json.dumps(definition))
    damaged = warehouse / "_catalog" / "broken" / "00000001.json"
    text = damaged.read_bytes()
    damaged.write_bytes(text[:20])
    with Service(_lister([], str(warehouse)), schedule=QUICK) as service, served(service) as web:

        def names() -> list[str]:
            return [Path(state.path).name for state in service.states]

        until(lambda: names() == ["a", "z"] and service.unlisted)
        for page in (web.get("/"), web.get("/healthz")):
            assert "this is not a definition of a table" in page.text
        assert web.get("/healthz").status == 503
        damaged.write_bytes(text)
        until(lambda: names() == ["a", "broken", "z"] and web.get("/healthz").status == 200)
        # Tables that were watched stay while the list is not complete.
        damaged.write_bytes(b"")
        until(lambda: service.unlisted)
        assert names() == ["a", "broken", "z"]


def test_maintenance_that_fails_is_shown_until_it_succeeds(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id int", primary_key="id", options={"compaction.auto": False})
    for n in range(3):
        table.write([{"id": n}])
    table.alter.set_options({"compaction.auto": True, "compaction.commits": 2})
    lost = next(file for file in (tmp_path / "t" / "_changes").rglob("*.parquet"))
    lost.rename(tmp_path / "kept")
    with Service(lambda: [table.path], schedule=QUICK) as service, served(service) as web:
        until(lambda: service.states and lost.name in state_of(service).error)
        failed = state_of(service).errors["data-lost"]
        until(lambda: state_of(service).errors["data-lost"] > failed + 2)
        assert web.get("/healthz").status == 503, "it is not forgotten between two attempts"
        (tmp_path / "kept").rename(lost)
        until(lambda: web.get("/healthz").status == 200 and state_of(service).merged == state_of(service).newest)
    assert {row["id"] for row in table.to_arrow().to_pylist()} == {0, 1, 2}


@contextmanager
def serving(
    out: Path, *arguments: str, before: Sequence[str] = (), **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the command, and yield its process and address."""
    command = [*before, sys.executable, "-m", "tablestore", "serve", *arguments, "--port", "0"]
    given = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | environment
    with out.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=given) as process:
        try:
            address = until(lambda: re.search(r"http://\S+/", out.read_text()))[0]
            yield process, address
        finally:
            process.kill()


def read(address: str, name: str) -> float | None:
    """Return a metric of a running service."""
    with urllib.request.urlopen(f"{address}metrics", timeout=10) as answer:
        return metric(answer.read().decode(), name)


def test_it_may_open_more_files_than_a_shell_allows_by_default(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id int")
    few = ("sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh")
    with serving(tmp_path / "out", table.path, before=few) as (process, _):
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65_536)


def test_killed_it_goes_on_with_publishing_and_comparing(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, name := topic())
    arguments = (table.path, "--verify-every", "0.2")
    with serving(tmp_path / "first", *arguments) as (process, address):
        write(Writer(TableContext.open(table.path), None), [(1, "a")])
        until(lambda: read(address, "published_snapshot") == 1)
        until(lambda: read(address, "verified_snapshot") == 1)
        process.kill()
        process.wait()
    write(Writer(TableContext.open(table.path), None), [(2, "b")])
    with serving(
        tmp_path / "second", *arguments, "--otel", OTEL_TRACES_EXPORTER="console", OTEL_BSP_SCHEDULE_DELAY="100"
    ) as (process, address):
        until(lambda: read(address, "published_snapshot") == 2)
        until(lambda: read(address, "verified_snapshot") == 2)
        assert read(address, "verify_records_total") == 1, "the first record was compared before the kill"
        assert read(address, "verify_differences") == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert '"name": "tablestore publish"' in (tmp_path / "second").read_text()
    audit(Path(table.path), kafka.bootstrap_servers, name, PARTITIONS)
