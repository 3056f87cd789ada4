"""The commands that read and keep one table, as a user runs them; none of them needs Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import tablestore
from log_system.local_kafka.owned import LocalKafka
from snapshot import messages
from tablestore import create_local
from tablestore.cli import app, console
from tablestore.context import TableContext
from tablestore.streaming.consumers import Consumers
from tablestore.write.writer import Writer
from tests.harness.local_writes import make_table, publisher_of, rows_of, write
from tests.harness.waiting import PATIENCE_SECONDS

RUN = CliRunner(env={"COLUMNS": "160"})
MAIN = [sys.executable, "-m", "tablestore"]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}


def run(*words: str, code: int = 0) -> Result:
    done = RUN.invoke(app, list(words))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done


def told(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]


def test_versions_are_shown_for_bug_reports() -> None:
    first, packages = run("--version").stdout.splitlines()
    assert first == f"tablestore {tablestore.__version__}"
    assert f"pyarrow {pa.__version__}" in packages
    assert tablestore.__version__ == metadata.version("tablestore")


def test_files_without_the_metadata_of_a_package_have_no_known_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(messages, "version", missing)
    assert tablestore.__version__ == "unknown"
    assert run("--version").stdout.startswith("tablestore unknown\npyspark unknown, ")


def test_a_table_is_described_read_followed_compacted_and_dropped(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, name = f"file://{tmp_path / 't'}", topic()
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, name, compaction__auto="false")
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    write(writer, [(n, f"v{n}") for n in range(5)])
    write(writer, [(1, None), (2, "new"), (7, None)])

    (facts,) = told("describe", path)
    assert facts["columns"] == [
        {"name": "id", "type": "bigint", "null": False, "key": True},
        {"name": "v", "type": "string", "null": True, "key": False},
    ]
    assert (facts["snapshot"], facts["primary_key"], facts["options"]["kafka.topic"]) == (2, ["id"], name)
    shown = run("describe", path).stdout
    assert all(word in shown for word in ("bigint", "primary key", "kafka.topic", name))

    assert sorted(each["id"] for each in told("read", path)) == [0, 2, 3, 4]
    assert told("read", path, "--where", "id = 2", "-c", "v") == [{"v": "new"}]
    assert told("read", path, "--count", "--snapshot", "1") == [{"rows": 5}]
    assert len(told("read", path, "--limit", "3")) == 3
    assert "new" in run("read", path).stdout
    assert "there is no column 'nothing'" in run("read", path, "--where", "nothing = 1", code=1).output

    second = told("changes", path, "--from", "1", "--to", "2")
    assert {(c["id"], c["_change_type"], c["_commit_version"]) for c in second} == {
        (1, "delete", 2), (2, "update_postimage", 2), (7, "delete", 2),
    }  # fmt: skip
    assert len(told("changes", path)) == len(told("tail", path, "--from", "earliest", "--no-follow")) == 8
    assert len(told("tail", path, "--from", "full", "--no-follow")) == 4
    assert told("tail", path, "--no-follow") == []
    assert len(told("tail", path, "--from", table.files.snapshot(2).time.isoformat(), "--no-follow")) == 3
    assert "update_postimage" in run("tail", path, "--from", "2", "--no-follow").stdout

    named = told("tag", path, "second", "--snapshot", "1", "--retained", "1 d")
    assert named == [{"tag": "second", "snapshot": 1}]
    assert table.files.tags.get("second").retained_ms == 86_400_000
    assert told("tail", path, "--from", "second", "--no-follow") == second
    publisher.discard()


def test_the_log_s_lag_is_shown_and_a_table_is_kept(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, name = str(tmp_path / "t"), topic()
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, name, compaction__auto="false")
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    write(writer, [(n, f"v{n}") for n in range(5)])
    write(writer, [(1, None), (2, "new"), (7, None)])
    publisher.discard()

    write(Writer(table, None), [(9, "late")])
    *snapshots, summary = told("log", path)
    assert [(each["snapshot"], each["published"]) for each in snapshots] == [
        (3, False),
        (2, True),
        (1, True),
        (0, True),
    ]
    assert summary["lag"]["snapshots"] == summary["lag"]["rows"] == 1
    assert summary["topic"] == name
    assert sum(part["end"] - part["first"] for part in summary["partitions"]) >= 8
    assert "1 snapshot, 1 change," in run("log", path).stdout
    assert told("recover", path) == [{"published": [{"snapshot": 3, "rows": 1}], "newest": 3}]
    assert [each["published"] for each in told("snapshots", path)] == [True] * 4
    assert "contains every snapshot up to 3" in run("log", path).stdout
    assert told("verify", path)[-1]["ok"] is True
    assert told("repair", path)[-1]["actions"] == []

    before = rows_of(table)
    assert told("compact", path) == [{"compacted": True, "snapshot": table.files.latest()}]
    assert "nothing to compact" in run("compact", path).stdout
    assert rows_of(table) == before
    assert told("read", path, "--count") == [{"rows": len(before)}]

    run("drop", path, "--json", code=1)
    assert "To remove it, pass --yes" in RUN.invoke(app, ["drop", path], input="n\n").output
    assert told("drop", path, "--yes") == [{"dropped": str(tmp_path / "t"), "deleted_topic": name}]
    assert "there is no table" in run("describe", path, code=1).output


def test_a_table_that_does_not_exist_is_told_before_a_question_or_spark(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    asked = RUN.invoke(app, ["drop", path], input="y\n").output
    assert "there is no table" in asked
    assert "Remove table" not in asked
    command, env = [*MAIN, "expire-partitions", path], ENV | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert "there is no table" in done.stderr


def test_tail_shows_what_is_written_until_ctrl_c(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> None:
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic())
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    write(writer, [(1, "a")])
    with subprocess.Popen([*MAIN, "tail", table.path, "--from", "earliest", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True) as process:  # fmt: skip  # noqa: E501
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["v"] == "a"
        write(writer, [(2, "b")])
        assert json.loads(process.stdout.readline())["_commit_version"] == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    publisher.discard()


def test_a_warehouse_s_tables_are_listed(tmp_path: Path) -> None:
    folder = str(tmp_path / "w")
    text = "CREATE TABLE a (x INT, PRIMARY KEY (x) NOT ENFORCED); CREATE VIEW b AS SELECT x FROM a"
    run("sql", "-w", folder, "-e", text)
    assert told("tables", "-w", folder) == [
        {"name": "a", "kind": "store table", "path": f"{folder}/a", "snapshot": 0},
        {"name": "b", "kind": "view", "path": "", "snapshot": None},
    ]
    assert "store table" in run("tables", "-w", folder).stdout
    assert told("tables", "-w", str(tmp_path / "none")) == []
    assert run("tables", "-w", str(tmp_path / "none")).stdout == (
        f"There are no tables or views in warehouse {tmp_path / 'none'}.\n"
    )


def test_errors_are_one_line_unless_debug_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = str(tmp_path / "none")
    assert run("log", nowhere, code=1).output.count("\n") == 1
    assert "Traceback" in RUN.invoke(app, ["--debug", "log", nowhere]).output
    assert run("log", nowhere, code=1).output.count("\n") == 1
    assert "No such command" in run("lgo", nowhere, code=2).output

    def wrong(*_: object) -> None:
        msg = "first\nsecond"
        raise RuntimeError(msg)

    monkeypatch.setattr("tablestore.cli.log.TableContext.open", wrong)
    output = run("log", nowhere, code=console.MISTAKE).output
    assert "RuntimeError: first (a bug in this program" in output


def test_commands_start_without_what_they_do_not_need(tmp_path: Path) -> None:
    """PySpark is not loaded where it is not used, and no Java is looked for to answer SELECT 1."""
    show = "import sys; from typer.testing import CliRunner; from tablestore.cli import app; done = CliRunner().invoke(app, sys.argv[1:]); print(done.output, done.exit_code, 'pyspark' in sys.modules)"  # noqa: E501
    env = ENV | {"JAVA_HOME": str(tmp_path)}
    started = time.monotonic()

    def output(*words: str) -> str:
        ran = subprocess.run([sys.executable, "-c", show, *words], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)  # fmt: skip  # noqa: E501
        return ran.stdout.strip()

    helped = output("--help")
    assert helped.endswith("0 False")
    assert all(word in helped for word in ("sql", "tail", "log", "describe", "verify"))
    assert output("tail", str(tmp_path / "none")).endswith("1 False")
    constants = output("sql", "-w", str(tmp_path), "--json", "-e", "SELECT 1; SELECT 'it''s' AS b, -7, NULL, TRUE c")
    assert '{"1": 1}\n{"b": "it\'s", "-7": -7, "NULL": null, "c": true}' in constants
    assert "Java 17" in output("sql", "-w", str(tmp_path), "-e", "SELECT 1 + 1")
    assert time.monotonic() - started < 100


def test_nothing_is_cut_in_a_narrow_terminal_and_a_row_in_a_pipe_is_one_line(tmp_path: Path) -> None:
    path, text = str(tmp_path / "t"), "x" * 300
    create_local(path, "id bigint, text string", primary_key="id").write([{"id": 1, "text": text}])

    def shown(*words: str, columns: int | None) -> str:
        env = {name: value for name, value in ENV.items() if name != "COLUMNS"}
        env |= {} if columns is None else {"COLUMNS": str(columns)}
        return subprocess.run(
            [*MAIN, *words], env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        ).stdout

    assert text in shown("read", path, columns=None)
    for command in ("snapshots", "describe", "read"):
        narrow = shown(command, path, columns=40)
        assert "…" not in narrow
        assert max(map(len, narrow.splitlines())) <= 40
    assert shown("read", path, columns=40).count("x") == len(text) + 1
    assert shown("tags", path, columns=40).startswith("No rows. Columns: tag, snapshot_id,")
    assert [line.split()[1:4:2] for line in shown("snapshots", path, columns=40).splitlines() if "kind" in line] == [
        ["kind", "upsert"],
        ["kind", "create"],
    ]


def test_a_question_that_nobody_answers_says_what_to_pass(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_local(path, "id bigint")
    asked = subprocess.run(
        [*MAIN, "drop", path], env=ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (asked.returncode, asked.stderr) == (
        1,
        f"Error: table '{path}' was not removed. To remove it, pass --yes.\n",
    )


def test_ctrl_c_at_a_question_or_during_the_imports_shows_no_traceback(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_local(path, "id bigint")
    with subprocess.Popen(
        [*MAIN, "drop", path], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asked:
        assert asked.stdout is not None
        assert asked.stdout.read(6) == b"Remove"
        asked.send_signal(signal.SIGINT)
        assert asked.communicate(timeout=PATIENCE_SECONDS)[1] == b""
    assert asked.returncode == console.INTERRUPTED
    assert told("describe", path)[0]["snapshot"] == 0

    interrupt = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tablestore.cli.audit': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "import tablestore.cli"
    )
    early = subprocess.run(
        [sys.executable, "-c", interrupt], env=ENV, capture_output=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (early.returncode, early.stderr) == (console.INTERRUPTED, b"")


def test_rows_of_several_files_are_one_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = create_local(path, "id bigint, text string", primary_key="id")
    table.write([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    table.compact()
    table.write([{"id": 2, "text": "a longer text"}])
    for command in ("read", "changes"):
        shown = run(command, path).stdout
        assert (shown.count("┏"), shown.count("┌")) == (1, 0), shown
    assert run("read", path, "--limit", "1").stdout.count("│ a") == 1


@pytest.mark.parametrize("words", [("describe", "t", "-o", "kafka.sasl.password:geheim"), ("sql", "-s", "=1")])
def test_a_value_without_a_name_says_what_is_expected(words: tuple[str, ...]) -> None:
    output = run(*words, code=1).output
    assert output.startswith(f"Error: {'--set' if words[0] == 'sql' else '--option'}: expected NAME=VALUE, got ")
    assert "geheim" not in output


def test_the_help_of_reset_consumer_says_that_it_deletes_and_its_answer_may_be_json(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = create_local(path, "id bigint")
    table.write([{"id": 1}])
    opened = TableContext.open(path)
    Consumers(opened.files.storage).put("reader", 0, table=opened.spec.table_id)
    assert "Default: delete the consumer" in run("reset-consumer", "--help").stdout
    assert told("reset-consumer", path, "reader", "-s", "1") == [{"consumer": "reader", "snapshot": "1"}]
    assert told("reset-consumer", path, "reader") == [{"consumer": "reader", "snapshot": None}]


def test_a_drop_without_a_broker_says_how_to_drop_the_table_alone(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    make_table(tmp_path / "t", kafka.bootstrap_servers, topic())
    output = run("drop", str(tmp_path / "t"), "--yes", "-o", "kafka.bootstrap.servers=127.0.0.1:9", code=1).output
    assert output.endswith("To drop the table alone, without the broker, pass --keep-topic.\n")
