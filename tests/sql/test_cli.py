"""``tablestore sql`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tablestore.cli import app
from tests.harness.waiting import PATIENCE_SECONDS

RUN = CliRunner(env={"COLUMNS": "160"})
TABLE = "CREATE TABLE t (a INT) WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = '...', 'format' = 'json')"  # fmt: skip  # noqa: E501


def test_definitions_from_files_and_texts_need_no_spark(tmp_path: Path) -> None:
    file = tmp_path / "tables.sql"
    file.write_text(f"-- one table\n{TABLE};\n")
    warehouse = str(tmp_path / "w")
    done = RUN.invoke(
        app, ["sql", "-w", warehouse, "-f", str(file), "-e", "SHOW TABLES; DESCRIBE t; SHOW CREATE TABLE t"]
    )
    assert done.exit_code == 0, done.output
    assert "table 't' was created." in done.stdout
    assert "'topic' = 't'" in done.stdout
    told = RUN.invoke(app, ["sql", "-w", warehouse, "--json", "-e", "SHOW TABLES; DROP TABLE t"])
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"name": "t", "kind": "kafka"},
        {"message": "'t' was dropped"},
    ]
    assert RUN.invoke(app, ["sql", "-w", warehouse], input="SHOW TABLES").exit_code == 0


def test_a_mistake_is_told_with_its_place_before_anything_is_run(tmp_path: Path) -> None:
    done = RUN.invoke(app, ["sql", "-w", str(tmp_path / "w"), "-e", TABLE, "-e", "SHOW TABLES;\nSHOW TABLEX"])
    assert done.exit_code == 1
    assert "line 2, column 6" in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "w").exists()
    (tmp_path / "bad.sql").write_text("SELECT 1;\n\nSELECT FROM")
    told = RUN.invoke(app, ["sql", "-w", str(tmp_path / "w"), "-e", "SELECT 1", "-f", str(tmp_path / "bad.sql")])
    assert (told.exit_code, told.stdout) == (1, "")
    assert "bad.sql: line 3, column 12: unexpected end of statement" in told.stderr
    (tmp_path / "bad.sql").write_bytes(b"SELECT '\xff'")
    assert "expected UTF-8 text" in RUN.invoke(app, ["sql", "-f", str(tmp_path / "bad.sql")]).stderr
    piped = RUN.invoke(app, ["sql", "-w", str(tmp_path)], input=b"SELECT '\xff'")
    assert piped.stderr == "Error: standard input: expected UTF-8 text, got byte 0xff at 8.\n"
    assert RUN.invoke(app, ["sql", "-f", str(tmp_path / "none.sql")]).exit_code == 2


@pytest.mark.slow
def test_rows_are_shown_from_a_process_of_its_own(tmp_path: Path) -> None:
    text = "CREATE TABLE t (a INT, b STRING); INSERT INTO t VALUES (1, 'x'), (2, NULL); SET 'execution.runtime-mode' = 'batch'; SELECT a, b FROM t ORDER BY a; SELECT DATE '9999-12-31' + INTERVAL '1' DAY"  # fmt: skip  # noqa: E501
    command = [
        sys.executable,
        "-m",
        "tablestore",
        "sql",
        "--json",
        "-w",
        str(tmp_path / "w"),
        "-e",
        text,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 1
    assert "a date or timestamp of the result cannot be shown (year 10000 is out of range)" in done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines() if line][-2:] == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
    ]
