"""A topic is deleted only if it is proven to be the table's, and no two tables share one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import ListConsumerGroupsResult
from typer.testing import CliRunner

from log_system.kafka import topic_storage
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.shared_admin import SharedAdmin
from log_system.kafka.client.topic import delete_topic, topic_ids
from snapshot.delta.entries import entry_of
from snapshot.errors import AlreadyExistsError, CorruptedError, NotFoundError, TableReplacedError, UnavailableError
from snapshot.storage import Storage
from tablestore import open_local
from tablestore.cli import app
from tablestore.context import TableContext
from tablestore.datasource import TableStoreDataSource
from tablestore.ddl import create_drop
from tablestore.table.store import TableStore
from tablestore.write.writer import Writer
from tests.harness.admin_clients import use_admin
from tests.harness.faults import Crash, failing, preceded
from tests.harness.local_writes import SCHEMA, make_table, publisher_of, write
from tests.harness.plain_topics import make_topic

RUN = CliRunner(env={"COLUMNS": "200"})
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture
def name(topic: Callable[[], str]) -> str:
    return topic()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


class LateBroker(SharedAdmin):
    """An admin client whose first lists of consumer groups lack those of a broker that did not answer in time."""

    times = 1

    def list_consumer_groups(self, *given: Any, **named: Any) -> Any:
        LateBroker.times -= 1
        if self.times < 0:
            return super().list_consumer_groups(*given, **named)
        listed: Future[ListConsumerGroupsResult] = Future()
        # What the client of a real broker gives: an object that is no exception, whatever its documentation says.
        listed.set_result(ListConsumerGroupsResult([], [KafkaError(KafkaError._TIMED_OUT)]))
        return listed


def publish(table: TableContext) -> None:
    publisher = publisher_of(table)
    write(Writer(table, publisher), [(1, "a"), (2, "b")])
    publisher.discard()


def drop_half(table: TableContext) -> None:
    with failing(topic_storage, "delete_topic"), pytest.raises(Crash):
        create_drop.drop(table)


def id_of(client: KafkaClient, name: str) -> str | None:
    found = topic_ids(client, name)
    return None if found is None else found.topic_id


def test_a_clone_is_refused_and_the_topic_stays(servers: str, client: KafkaClient, name: str, path: Path) -> None:
    """Delta's SHALLOW CLONE and CREATE TABLE LIKE take the properties along, and with them the definition."""
    publish(make_table(path, servers, name, key=False, log__format="arrow"))
    actions = [json.loads(line) for line in (path / entry_of(0)).read_text().splitlines()]
    commit = {"commitInfo": {"timestamp": 1, "operation": "CLONE"}}
    clone = path.parent / "clone"
    (clone / "_delta_log").mkdir(parents=True)
    (clone / entry_of(0)).write_text(
        "\n".join(json.dumps(each) for each in (commit, *(each for each in actions if "commitInfo" not in each)))
    )
    uses: tuple[Callable[[str], object], ...] = (
        open_local,
        create_drop.drop_at,
        lambda at: TableStoreDataSource({"path": at}).writer(SCHEMA, overwrite=False),
    )
    for use in uses:
        with pytest.raises(CorruptedError, match=r"another tool made this Delta table \(CLONE\)"):
            use(str(clone))
    for command in ("recover", "repair"):
        shown = RUN.invoke(app, [command, str(clone)])
        assert shown.exit_code == 1
        assert "another tool made this Delta table (CLONE)" in shown.stderr
    assert id_of(client, name) == TableContext.open(str(path)).spec.topic_id
    assert (clone / entry_of(0)).exists()
    assert open_local(path).count() == 2


def test_the_ids_of_topic_and_cluster_are_kept_in_the_table(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    make_table(path, servers, name)
    spec, ids = TableContext.open(str(path)).spec, topic_ids(client, name)
    assert ids is not None
    assert (spec.topic_id, spec.cluster_id) == (ids.topic_id, ids.cluster_id)
    assert spec.topic_id
    assert spec.cluster_id


def test_a_topic_made_anew_since_a_drop_died_is_not_deleted_by_the_next_create(
    servers: str, client: KafkaClient, name: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drop_half(make_table(path, servers, name))
    delete_topic(client, name)
    make_topic(servers, name, 2)
    theirs = id_of(client, name)
    assert not make_table(path, servers, name).spec.owns_topic
    assert id_of(client, name) == theirs
    assert f"topic '{name}' stays" in caplog.text


def test_a_topic_of_that_name_on_another_cluster_is_not_deleted(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    drop_half(make_table(path, servers, name))
    intent = path / "_log" / "_intent"
    intent.write_text(json.dumps(json.loads(intent.read_text()) | {"cluster_id": "another"}))
    theirs = id_of(client, name)
    create_drop.drop_at(str(path))
    assert id_of(client, name) == theirs
    assert not path.exists()


def test_a_topic_made_anew_under_a_table_is_not_deleted_by_its_drop(
    servers: str, client: KafkaClient, name: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(path, servers, name)
    delete_topic(client, name)
    make_topic(servers, name, 2)
    theirs = id_of(client, name)
    assert create_drop.drop(table) is None
    assert id_of(client, name) == theirs
    assert not path.exists()
    assert f"topic '{name}' stays" in caplog.text


def test_a_drop_without_a_broker_changes_nothing_and_can_be_done_again(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    make_table(path, servers, name)
    before = sorted(path.rglob("*"))
    with pytest.raises(UnavailableError):
        create_drop.drop(TableContext.open(str(path), NOBODY))
    assert sorted(path.rglob("*")) == before
    publish(TableContext.open(str(path)))
    assert create_drop.drop(TableContext.open(str(path))) == name
    assert describe_topic(client, name) is None


def test_keep_topic_needs_no_broker_and_leaves_the_topic(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    make_table(path, servers, name)
    assert create_drop.drop(TableContext.open(str(path), NOBODY), keep_topic=True) is None
    assert not path.exists()
    assert describe_topic(client, name) is not None


@pytest.mark.parametrize("keep", [False, True], ids=["delete", "keep"])
def test_a_drop_that_died_is_finished_by_another(
    servers: str, client: KafkaClient, name: str, path: Path, keep: bool
) -> None:
    drop_half(make_table(path, servers, name))
    flags = ["--keep-topic"] if keep else []
    found = RUN.invoke(app, ["drop", str(path), "--yes", *flags])
    assert found.exit_code == 0, found.output
    assert (describe_topic(client, name) is not None) is keep
    assert not path.exists()
    with pytest.raises(NotFoundError):
        TableStore.drop_at(path)


def test_a_create_over_a_half_dropped_table_finishes_the_drop_on_the_old_cluster_or_says_how(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    drop_half(make_table(path, servers, name))
    intent = path / "_log" / "_intent"
    kept = intent.read_text()
    intent.write_text(kept.replace(servers, "127.0.0.1:1"))
    with pytest.raises(UnavailableError, match="tablestore drop --keep-topic"):
        make_table(path, servers, f"{name}-2")
    intent.write_text(kept)
    make_table(path, servers, f"{name}-2")
    assert describe_topic(client, name) is None


@pytest.mark.parametrize("written", [False, True], ids=["empty", "written"])
def test_a_table_from_before_the_ids_proves_its_topic_by_its_register(
    servers: str, client: KafkaClient, name: str, path: Path, caplog: pytest.LogCaptureFixture, written: bool
) -> None:
    table = make_table(path, servers, name)
    table.files.alter(replace(table.spec, topic_id="", cluster_id=""), 1, "before")
    table = TableContext.open(str(path))
    if written:
        publish(table)
    assert create_drop.drop(table) == (name if written else None)
    assert (describe_topic(client, name) is None) is written
    assert ("stays" in caplog.text) is not written


def test_a_drop_by_an_old_handle_leaves_the_table_made_anew_alone(servers: str, name: str, path: Path) -> None:
    old = make_table(path, servers, name)
    create_drop.drop(old)
    made = make_table(path, servers, name)
    with pytest.raises(TableReplacedError, match="created again"):
        create_drop.drop(old)
    assert TableContext.open(str(path)).spec.table_id == made.spec.table_id


def test_a_second_table_on_a_topic_is_refused_before_either_has_a_record(
    servers: str, client: KafkaClient, name: str, tmp_path: Path
) -> None:
    first = make_table(tmp_path / "one", servers, name)
    with pytest.raises(AlreadyExistsError, match=f"log of another table.*{first.spec.table_id}"):
        make_table(tmp_path / "two", servers, name)
    assert not (tmp_path / "two").exists()
    publish(first)
    create_drop.drop(first)
    create_drop.drop(make_table(tmp_path / "two", servers, name))
    assert describe_topic(client, name) is None


def test_a_topic_is_free_again_after_its_table_was_dropped(
    servers: str, client: KafkaClient, name: str, tmp_path: Path
) -> None:
    make_topic(servers, name, 2)
    for folder in ("one", "two"):
        create_drop.drop(make_table(tmp_path / folder, servers, name))
        assert not (tmp_path / folder).exists()
        assert describe_topic(client, name) is not None, "the topic is not the table's own"


def test_of_two_creates_at_once_on_one_topic_at_most_one_succeeds(servers: str, name: str, tmp_path: Path) -> None:
    start = Barrier(3)

    def create(number: int) -> str | None:
        start.wait()
        try:
            return make_table(tmp_path / str(number) / "t", servers, name).spec.table_id
        except (AlreadyExistsError, NotFoundError):
            return None

    with ThreadPoolExecutor(3) as pool:
        made = [each for each in pool.map(create, range(3)) if each is not None]
    assert len(made) <= 1


def test_a_create_that_fails_leaves_the_topic_that_another_made_in_between(
    servers: str, client: KafkaClient, name: str, tmp_path: Path
) -> None:
    def other() -> None:
        publish(make_table(tmp_path / "elsewhere" / "other", servers, name))

    with preceded(topic_storage, "ensure_topic", other), pytest.raises(AlreadyExistsError):
        make_table(tmp_path / "t", servers, name)
    assert describe_topic(client, name) is not None
    publish(TableContext.open(str(tmp_path / "elsewhere" / "other")))


def test_a_create_that_fails_leaves_the_topic_that_it_made_and_another_claimed(
    servers: str, client: KafkaClient, name: str, tmp_path: Path
) -> None:
    with (
        preceded(topic_storage, "claim", lambda: make_table(tmp_path / "elsewhere" / "other", servers, name)),
        pytest.raises(AlreadyExistsError, match="another table"),
    ):
        make_table(tmp_path / "t", servers, name)
    publish(TableContext.open(str(tmp_path / "elsewhere" / "other")))
    assert describe_topic(client, name) is not None


def test_a_topic_whose_creation_got_no_answer_is_used_by_the_next_create_and_never_deleted(
    servers: str, client: KafkaClient, name: str, path: Path
) -> None:
    lost = UnavailableError("no answer")
    with failing(topic_storage, "ensure_topic", lost, after=True), pytest.raises(UnavailableError, match="no answer"):
        make_table(path, servers, name)
    assert not path.exists()
    table = make_table(path, servers, name)
    assert not table.spec.owns_topic
    create_drop.drop(table)
    assert describe_topic(client, name) is not None


def test_an_intent_of_an_older_program_deletes_no_topic(
    servers: str, client: KafkaClient, name: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(servers, name, 2)
    Storage.at(str(path)).put("_log/_intent", json.dumps({"verb": "drop", "topic": name, "owns_topic": True}).encode())
    theirs = id_of(client, name)
    with caplog.at_level(logging.WARNING):
        make_table(path, servers, name)
    assert id_of(client, name) == theirs
    assert f"topic '{name}' is kept" in caplog.text


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_a_broker_that_lists_its_groups_too_late_is_asked_again(
    path: Path, name: str, servers: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    use_admin(monkeypatch, LateBroker)
    monkeypatch.setattr(LateBroker, "times", times)
    late = pytest.raises(UnavailableError, match="look for other tables on topic")
    with nullcontext() if times == 1 else late:
        make_table(path, servers, name, log__request_timeout="2 s")
    assert LateBroker.times < times - 1
