"""``tablestore snapshots`` and ``tablestore recover`` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from log_system.local_kafka.owned import LocalKafka
from tablestore.cli import app
from tablestore.write.writer import Writer
from tests.harness.local_writes import drain, make_table, publisher_of, write

RUN = CliRunner(env={"COLUMNS": "160"})


def test_recover_publishes_what_a_writer_left_behind(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name = topic()
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, name, bucket=1)
    publisher = publisher_of(table)
    write(Writer(table, publisher), [(1, "a")])
    publisher.discard()
    write(Writer(table, None), [(2, "b")])

    before = RUN.invoke(app, ["snapshots", str(tmp_path / "t")])
    assert before.exit_code == 0
    assert [word in before.stdout for word in ("not yet", "0: 0-1", "upsert", "create")] == [True] * 4

    done = RUN.invoke(app, ["recover", str(tmp_path / "t")])
    assert "published 1 snapshot with 1 change." in done.stdout
    assert drain(kafka.bootstrap_servers, name, 1) == [[(1, "a"), (2, "b")]]
    assert "nothing was missing" in RUN.invoke(app, ["recover", str(tmp_path / "t")]).stdout
    assert "not yet" not in RUN.invoke(app, ["snapshots", str(tmp_path / "t")]).stdout


@pytest.mark.parametrize("name", ["nothing", "file", "file/below", "folder", "commits", "log"])
def test_a_path_without_a_table_is_one_red_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    for folder in ("folder", "commits/_changes", "log/_delta_log"):
        (tmp_path / folder).mkdir(parents=True)
    result = RUN.invoke(app, ["recover", str(tmp_path / name)])
    assert result.exit_code == 1
    assert "there is no table of the store" in result.output
    assert "Traceback" not in result.output


def test_tags_expiry_and_what_is_inside(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> None:
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), bucket=1)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    for number in range(5):
        write(writer, [(1, str(number))])
    publisher.discard()

    def run(*words: str, code: int = 0) -> str:
        result = RUN.invoke(app, [words[0], str(tmp_path / "t"), *words[1:]])
        assert result.exit_code == code, result.output
        return result.stdout

    assert run("tag", "kept", "--snapshot", "2") == "Tag kept is snapshot 2.\n"
    plan = json.loads(run("expire", "--keep-last", "2", "--older-than", "0 s", "--dry-run", "--json"))
    assert (plan["before"], plan["oldest"], plan["dry_run"]) == (0, 4, True)
    assert "would expire 4 snapshots (the oldest is now 4)" in run(
        "expire", "--keep-last", "2", "--older-than", "0 s", "--dry-run"
    )
    assert "expired 4 snapshots" in run("expire", "--keep-last", "2", "--older-than", "0 s")
    kept = [json.loads(line)["snapshot_id"] for line in run("inspect", "snapshots", "--json").splitlines()]
    assert kept == [6, 5, 4]
    assert [json.loads(line)["tag"] for line in run("tags", "--json").splitlines()] == ["kept"]
    assert "change_rows" in run("inspect", "buckets")
    assert "Deleted tag kept (snapshot 2)." in run("delete-tag", "kept")
    run("delete-tag", "kept", code=1)
    run("reset-consumer", "nobody", code=1)
    assert run("consumers", "--json") == ""
