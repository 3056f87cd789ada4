"""Continuous queries on the command line: the result as it is now, and how the query does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from log_system.local_kafka.owned import LocalKafka
from tablestore.cli import app
from tablestore.cli.query_progress import lag_of, progress_text
from tablestore.cli.statement_runner import Runner, statements_of
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire

ONCE = "SET 'tablestore.trigger' = 'available-now'"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_live_result_is_shown_as_it_is_at_the_end(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    wire = Wire(kafka.bootstrap_servers)
    name = wire.make(topic())
    wire.send(name, [json.dumps({"n": n, "s": "ab"[n % 2]}).encode() for n in range(5)])
    folder = str(tmp_path / "w")
    made = (
        f"CREATE TABLE s (n BIGINT, s STRING) WITH ('connector' = 'kafka', 'topic' = '{name}', 'format' = 'json', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'scan.startup.mode' = 'earliest-offset', "
        f"'maxRowsPerTrigger' = '3'); {ONCE}"
    )

    def live(text: str) -> str:
        done = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["sql", "-w", folder, "--live", "-e", text])
        assert done.exit_code == 0, done.output
        return done.output

    shown = live(f"{made}; SELECT s, COUNT(*) AS c FROM s GROUP BY s")
    assert [line.split()[1::2] for line in shown.splitlines() if line.startswith("│")] == [["a", "3"], ["b", "2"]]
    assert shown.count("┏") == 1
    assert "exclude each other" in CliRunner().invoke(app, ["sql", "--live", "--json", "-e", "SELECT 1"]).output


@pytest.mark.slow
def test_queries_tell_their_lag_and_state(spark: SparkSession, tmp_path: Path) -> None:
    """Over a store table, of which one snapshot is read at a time."""
    catalog = Catalog(spark, tmp_path / "w")
    catalog.sql("CREATE TABLE t (a INT, b STRING); CREATE TABLE u (a INT, b STRING)")
    for number in range(3):
        catalog.sql(f"INSERT INTO t VALUES ({number}, 'x')")
    shown = io.StringIO()
    runner = Runner(catalog, Console(file=shown, width=120), as_json=False, live=False)
    try:
        for statement in statements_of([f"{ONCE}; INSERT INTO u SELECT DISTINCT a, b FROM t"]):
            runner.run(statement)
        runner.wait(runner.queries)
        progress = runner.queries[0].lastProgress
        assert lag_of(progress) == {"snapshots": 0}
        assert progress_text(progress).endswith("3 rows in state")
        assert "a query was started" in shown.getvalue()
    finally:
        runner.stop()
