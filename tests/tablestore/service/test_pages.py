"""The pages: what they show, who may see them, and how much they read."""

from __future__ import annotations

import json
import logging
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import InvalidInputError, UnavailableError
from snapshot.storage import Storage
from tablestore import LocalTable, create_local, open_local
from tablestore.context import TableContext
from tablestore.service.attempts import Schedule
from tablestore.service.metrics import ServiceMetrics
from tablestore.service.service import Service
from tablestore.service.web import http_server
from tablestore.streaming.consumers import Consumers
from tablestore.write.writer import Writer
from tests.harness.damage import Damaged
from tests.harness.local_writes import write
from tests.harness.waiting import until
from tests.tablestore.service.serving import Served, served, state_of

QUICK = Schedule(poll=0.05, grace=0.2, maintain=60, verify=0.1, retry=0.1)
IDLE = Schedule(poll=0.05, grace=1e9, maintain=1e9, verify=0.1, retry=0.1)


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> LocalTable:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "bucket": 2}
    return create_local(tmp_path / "t", "id int, v string", primary_key="id", log_system="kafka", options=options)


@contextmanager
def shown(path: str, schedule: Schedule = QUICK, token: str | None = None) -> Iterator[tuple[Service, Served]]:
    with Service(lambda: [path], schedule=schedule) as service, served(service, token) as web:
        until(lambda: service.states and state_of(service).newest == TableContext.open(path).files.latest())
        yield service, web


def test_all_pages_need_the_token_and_none_shows_it(table: LocalTable, caplog: pytest.LogCaptureFixture) -> None:
    table.write([{"id": 1, "v": "a"}])
    secret = "a secret, with = and ;"
    encoded = urllib.request.quote(secret, safe="")
    caplog.set_level(logging.DEBUG, "tablestore")
    with shown(table.path, token=secret) as (_, web):
        pages = ("/", "/metrics", "/healthz", f"/table?path={table.path}", f"/log?path={table.path}")
        for path in pages:
            joined = f"{path}{'&' if '?' in path else '?'}token="
            assert web.get(path).status == 401
            assert web.get(path, Authorization="Bearer wrong").status == 401
            assert web.get(path, Authorization="Bearer ").status == 401
            assert web.get(f"{joined}wrong").status == 401
            assert web.get(path, Cookie="tablestore-token=wrong").status == 401
            answer = web.get(path, Authorization=f"Bearer {secret}")
            assert answer.status == 200
            assert secret not in answer.text
            assert encoded not in answer.text
        assert web.get(f"/metrics?token={encoded}").status == 200
        # A browser gives it once and keeps it in a cookie.
        kept = web.get(f"/table?path={table.path}&token={encoded}")
        assert kept.status == 303
        assert "token=" not in kept.headers["Location"]
        assert {"HttpOnly", "SameSite=Strict"} <= set(kept.headers["Set-Cookie"].split("; "))
        cookie = kept.headers["Set-Cookie"].split(";")[0]
        assert web.get(kept.headers["Location"], Cookie=cookie).status == 200
    assert "GET /table" in caplog.text
    assert secret not in caplog.text
    assert encoded not in caplog.text


def test_the_token_is_compared_in_constant_time(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    digest = __import__("hmac").compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return bool(digest(one, other))

    monkeypatch.setattr("tablestore.service.web.hmac.compare_digest", counted)
    with shown(table.path, token="secret") as (_, web):
        assert web.get("/?token=secreT", Authorization="Bearer secre").status == 401
    assert [given for given, _ in compared] == [b"secre", b"secreT", b""], "header, address and cookie"
    assert {expected for _, expected in compared} == {b"secret"}


def test_only_loopback_needs_no_token_and_only_by_its_own_name(table: LocalTable) -> None:
    with shown(table.path) as (service, web):
        for host in ("localhost", "127.0.0.1", f"localhost:{web.port}", "[::1]:80"):
            assert web.get("/", Host=host).status == 200
        for host in ("attacker.example", "127.0.0.1.attacker.example", ""):
            answer = web.get("/metrics", Host=host)
            assert (answer.status, table.path in answer.text) == (403, False)
        with pytest.raises(InvalidInputError, match=r"host: expected a loopback address .*got '0\.0\.0\.0'"):
            http_server(service, "0.0.0.0", 0, None)
        with pytest.raises(InvalidInputError, match="host: expected a loopback"):
            http_server(service, "0.0.0.0", 0, "")
        with (
            http_server(service, "127.0.0.1", 0, None) as taken,
            pytest.raises(InvalidInputError, match="Choose another"),
        ):
            http_server(service, "127.0.0.1", taken.server_port, None)


def test_the_page_of_a_table_shows_all_of_it(table: LocalTable) -> None:
    for n in range(5):
        table.write([{"id": n, "v": "<b>"}])
    Consumers(TableContext.open(table.path).files.storage).put("dashboards", 1)
    with shown(table.path) as (service, web):
        until(lambda: state_of(service).verify.snapshot == 5 and state_of(service).consumers)
        text = web.table(table.path).text
        for part in ("Kafka topic", "snapshot 5", "committed: 5", "in the log: 5", ">dashboards<", "primary key"):
            assert part in text, part
        assert text.count(">upsert<") == 5
        assert text.count('class="committed"') == 3, "two pictures, wide and narrow, and the legend"
        assert "not yet" not in text
        assert "4 snapshots" in text, "the consumer is behind"
        assert "up to 5" in web.get("/").text
        assert "frame-ancestors 'none'" in web.get("/").headers["Content-Security-Policy"]
        assert web.get("/page.js").text.startswith("//")
        assert web.get("/none").status == 404
        assert web.table("/none").status == 404
        for wrong in ("&before=x", "&before=-1", "&before=" + 30 * "9", "&before=٣"):
            answer = web.table(table.path, more=urllib.request.quote(wrong, safe="&="))
            assert answer.status == 400, wrong
            assert "expected a whole number" in answer.text


def test_what_the_log_lacks_is_shown(table: LocalTable) -> None:
    table.write([{"id": 1, "v": "a"}])
    with shown(table.path, IDLE) as (service, web):
        write(Writer(TableContext.open(table.path), None), [(2, "unpublished")])
        until(lambda: state_of(service).behind.snapshots == 1)
        text = web.table(table.path).text
        assert "committed: 2" in text
        assert "in the log: 1" in text
        assert text.count('class="gap"') == 2
        assert ">not yet<" in text
        assert "unpublished" not in web.table(table.path, "log").text, "it is not in the log"


def test_the_log_is_shown_by_key_and_by_pages(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        table.write([{"id": n % 3, "v": f"v{n}"}, {"id": 100 + n, "v": "<script>"}])
    table.delete("id = 1")
    with shown(table.path) as (_, web):
        text = web.table(table.path, "log").text
        assert text.index(">delete<") < text.index("v5") < text.index("v4") < text.index("v0")
        assert "&lt;script&gt;" in text
        of_key = web.table(table.path, "log", "&key=2").text
        assert [f"v{n}" in of_key for n in range(6)] == [False, False, True, False, False, True]
        assert "No changes here" in web.table(table.path, "log", "&key=nobody").text
        assert web.table(table.path, "log", "&rows=1").text.count('class="badge') == 1
        monkeypatch.setattr("tablestore.service.log_tail._SEARCHED_SNAPSHOTS", 2)
        newest = web.table(table.path, "log").text
        assert "snapshots 6 to 7" in newest
        assert "&amp;before=6" in newest
        older = web.table(table.path, "log", "&before=6").text
        assert "snapshots 4 to 5" in older
        assert ("v4" in older, "v5" in older) == (True, False)
        last = web.table(table.path, "log", "&before=3").text
        assert ("v0" in last, ">older<" in last) == (True, False)


def test_a_large_snapshot_is_shown_in_part(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.service.log_tail._SEARCHED_ROWS", 1_000)
    table.write([{"id": n, "v": "a"} for n in range(50_000)])
    with shown(table.path) as (service, web):
        until(lambda: state_of(service).published == 1)
        text = web.table(table.path, "log").text
        assert "Snapshot 1 was read in part: its first " in text
        assert len(text) < 100_000


def test_keys_of_several_columns_and_of_other_types(tmp_path: Path) -> None:
    local = create_local(tmp_path / "t", "a int, b string, v double", primary_key=["a", "b"])
    local.write([{"a": 1, "b": "x,y", "v": 0.5}, {"a": 2, "b": "é", "v": 1.5}])
    with shown(local.path) as (_, web):
        assert "key=1%2Cx%2Cy" in web.table(local.path, "log").text
        text = web.table(local.path, "log", "&key=2%2C%C3%A9").text
        assert ("1.5" in text, "0.5" in text) == (True, False)


def test_differences_are_shown_with_what_to_do(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> None:
    table = Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t")
    table.send(0, b"<i>no change of the table", b"<key>")
    with shown(str(table.path)) as (service, web):
        until(lambda: state_of(service).verify.count)
        text = web.table(str(table.path)).text
        assert "Differences between log and table" in text
        assert f"tablestore repair {table.path}" in text
        assert "a record in Kafka cannot be changed" in text
        assert "<i>" not in text
        assert "1 difference<" in web.get("/").text
        assert web.get("/healthz").status == 503


def test_nothing_from_a_table_is_taken_for_html(tmp_path: Path) -> None:
    local = create_local(tmp_path / "<i>t", "id int, `<script>` string", primary_key="id")
    local.write([{"id": 1, "<script>": "<u>"}])
    local.write([{"id": 2, "<script>": "<u>"}])
    with shown(local.path) as (_, web):
        for answer in (web.get("/"), web.table(local.path), web.table(local.path, "log")):
            assert answer.status == 200
            assert "&lt;i&gt;t" in answer.text
            assert not [tag for tag in ("<script>", "<i>", "<u>") if tag in answer.text]


def test_a_table_without_a_log_has_none_on_its_pages(tmp_path: Path) -> None:
    local = create_local(tmp_path / "t", "id int", primary_key="id")
    local.write([{"id": 1}])
    with shown(local.path) as (_, web):
        for answer in (web.table(local.path), web.table(local.path, "log")):
            assert answer.status == 200
            assert "Changes" in answer.text
            assert not [text for text in ("Log tail", "in the log", "not yet") if text in answer.text]


def test_the_guide_and_the_dashboard_name_the_metrics_that_there_are() -> None:
    root = Path(__file__).parents[3]
    lines = ServiceMetrics(list).text().decode().splitlines()
    there = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    dashboard = json.loads((root / "examples" / "grafana.json").read_text())
    shown = {
        name.removesuffix("_bucket")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"tablestore_\w+", target["expr"])
    }
    assert shown <= there
    assert there - shown <= {
        "tablestore_publish_lag_snapshots", "tablestore_compacted_snapshot", "tablestore_consumer_lag_seconds",
        "tablestore_compaction_lag_snapshots", "tablestore_verified_snapshot",
    }  # fmt: skip
    guide = (root / "docs" / "guide" / "serve.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `tablestore_")]
    told = set[str]()
    for row in rows:
        names = re.findall(r"`(\w+)`", row.split("|")[1])
        told |= {name if name.startswith("t") else names[-2].rpartition("_")[0] + name for name in names}
    assert {name for name in there if not name.endswith("_created")} == told


class Reads:
    """Counts the files that answers read or list; watchers read, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("read", "names", "files"):
            monkeypatch.setattr(Storage, name, self._counted(getattr(Storage, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def read(*given: Any) -> Any:
            self.count += not threading.current_thread().name.startswith("tablestore-")
            return real(*given)

        return read


def test_a_page_reads_as_much_of_many_snapshots_as_of_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many files a page reads does not depend on how many snapshots there are."""
    local = create_local(tmp_path / "t", "id int", options={"snapshot.expire-auto": False})
    counts: dict[tuple[str, int], int] = {}
    for snapshots in (250, 500):
        while local.snapshots(1)[0].id < snapshots:
            local.write([{"id": 1}])
        with shown(local.path, IDLE) as (_, web):
            reads = Reads(monkeypatch)
            for page, more in (("table", ""), ("table", "&range=all"), ("table", "&before=120"), ("log", "")):
                before = reads.count
                answer = web.table(local.path, page, more)
                assert answer.status == 200
                counts[page + more, snapshots] = reads.count - before
        monkeypatch.undo()
    for (page, snapshots), count in counts.items():
        assert count <= (450 if page.startswith("log") else 200), (page, snapshots, count)
        assert count <= counts[page, 250] + 20, (page, snapshots, count)
    with shown(local.path, IDLE) as (_, web):
        text = web.table(local.path, more="&before=120").text
        assert ">119<" in text
        assert ">120<" not in text
        assert "before=70" in text


def test_a_page_that_cannot_be_read_says_why(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write([{"id": 1, "v": "a"}])

    def away(*_: object, **__: object) -> None:
        message = "the broker <is> away"
        raise UnavailableError(message)

    with shown(table.path, IDLE) as (_, web):
        monkeypatch.setattr("tablestore.service.web.log_tail", away)
        answer = web.table(table.path, "log")
        assert answer.status == 503
        assert "the broker &lt;is&gt; away" in answer.text
        assert web.table(table.path).status == 200, "the page of the table does not ask the broker"
    with open_local(table.path) as again:
        assert again.count() == 1
