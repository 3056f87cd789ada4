"""``tablestore snapshots`` and ``tablestore recover`` as a user runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from log_system.kafka.local import LocalKafka
from tablestore.cli import app
from tablestore.write import Writer
from tests.parts import drain, make_table, publisher_of, write

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
    assert "1 snapshots with 1 changes were published" in done.stdout
    assert drain(kafka.bootstrap_servers, name, 1) == [[(1, "a"), (2, "b")]]
    assert "nothing was missing" in RUN.invoke(app, ["recover", str(tmp_path / "t")]).stdout
    assert "not yet" not in RUN.invoke(app, ["snapshots", str(tmp_path / "t")]).stdout


def test_a_path_without_a_table_is_one_red_line(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["recover", str(tmp_path / "nothing")])
    assert result.exit_code == 1
    assert "there is no table of the store here" in result.output
    assert "Traceback" not in result.output
