"""The prompt of ``tablestore sql``: what ends a statement, what is offered, what is kept, and what comes back."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from snapshot.errors import InvalidInputError
from tablestore.cli.live_result import LiveTable
from tablestore.cli.prompt import SqlCompleter, converse, history_file, is_whole, without_credentials
from tablestore.cli.query_progress import lag_of, progress_text
from tablestore.cli.statement_runner import Runner
from tablestore.sql.session import Catalog


def no_spark() -> None:
    msg = "Spark was started"
    raise AssertionError(msg)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = Catalog(no_spark, tmp_path / "w")
    made.sql("CREATE TABLE orders (order_id BIGINT, price DOUBLE, twice AS price * 2); CREATE TABLE other (x INT); CREATE VIEW v AS SELECT x FROM other")  # fmt: skip  # noqa: E501
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT ';", False),
        ("SELECT ';'", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1 /* ;", False),
        ("SELECT `a;\n", False),
        ("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;", False),
        ("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END;", True),
        ("BEGIN STATEMENT SET;", False),
        ("BEGIN STATEMENT SET; INSERT INTO a SELECT 1; END;", True),
        ("quit", True),
        ("Jobs", True),
        ("stop 3", True),
    ],
)
def test_enter_ends_what_is_whole(text: str, expected: bool) -> None:
    assert is_whole(text) is expected


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("SELECT * FROM o", ["orders", "other"]),
        ("DESCRIBE ", ["orders", "other", "v"]),
        ("sel", ["SELECT"]),
        ("SELECT pri|FROM orders", ["price", "PRIMARY"]),
        ("SELECT tw|FROM orders", ["twice"]),
        ("SELECT x|FROM v", []),
        ("SELECT x|FROM other", ["x"]),
        ("INSERT INTO oth", ["other"]),
    ],
)
def test_completion_knows_tables_and_columns(catalog: Catalog, text: str, first: list[str]) -> None:
    before = text.partition("|")[0]
    document = Document(text.replace("|", " "), len(before))
    assert [each.text for each in SqlCompleter(catalog).get_completions(document, CompleteEvent())] == first


def test_a_session_without_spark(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "properties.sasl.password"
    typed = [
        "SHOW TABLES;", "SELECT 1 AS\n one;", "SHOW TABLEX;", "SELECT * FROM nothing", ";", "jobs", "stop 1", "help",
        f"CREATE TEMPORARY TABLE k (a INT) WITH ('connector' = 'kafka', '{secret}' = 'swordfish', 'format' = 'json', 'topic' = 't', 'properties.bootstrap.servers' = 'h:1');",  # noqa: E501
        "SHOW CREATE TABLE k;", "quit;", "SELECT 2;",
    ]  # fmt: skip
    shown = io.StringIO()
    runner = Runner(catalog, Console(file=shown, width=120), as_json=False, live=False)
    with create_pipe_input() as keys:
        keys.send_text("".join(text.replace("\n", "\r") + "\r" for text in typed))
        converse(runner, keys, DummyOutput())
    told = shown.getvalue()
    assert all(word in told for word in ("orders", "one", "stop N", "table 'k' was created"))
    assert "stop 1: there are no jobs" in capsys.readouterr().err
    assert "2" not in told.split("SHOW CREATE")[-1].split("***")[-1]
    assert "swordfish" not in told
    kept = history_file().read_text()
    assert "SHOW TABLEX" in kept
    assert "'***'" in kept
    assert "swordfish" not in kept
    assert oct(history_file().stat().st_mode)[-3:] == "600"


def test_credentials_are_masked_and_nothing_else() -> None:
    text = "SET 'a' = 'b'; x ('kafka.sasl.password'='it''s', 'sasl.password' = 'env:NAME', 'u' = 'http://me:pw@h')"
    assert without_credentials(text) == "SET 'a' = 'b'; x ('kafka.sasl.password'='***', 'sasl.password' = 'env:NAME', 'u' = '***')"  # fmt: skip  # noqa: E501


def test_a_live_table_follows_its_changes() -> None:
    appended = LiveTable(["n"], has_changes=False)
    appended.apply(("+I", n) for n in range(50))
    assert appended.view(16).row_count == 10
    assert appended.view(16).caption == "and 40 rows before"
    changes = LiveTable(["k", "n"], has_changes=True)
    changes.apply([("-D", "a", 1), ("+I", "a", 1), ("+I", "a", 1), ("-U", "a", 1), ("+U", "a", 2)])
    changes.apply([("+I", "b", None), ("+I", "a", 10)])
    assert changes.rows() == [("a", 2), ("a", 10), ("b", None)]
    with pytest.raises(InvalidInputError, match="retracts a row"):
        changes.apply([("-D", "z", 1)])


def test_progress_says_rate_lag_and_state() -> None:
    store = {"endOffset": "{'snapshot': 3, 'table': 'x'}", "latestOffset": '{"snapshot": 5, "table": "x"}'}
    kafka = {"endOffset": {"at": {"t": {"0": 5, "1": 7}}}, "latestOffset": {"at": {"t": {"0": 9, "1": 7}}}}
    eventual = {"endOffset": "{'snapshot': 3, 'offsets': [1, 2]}", "latestOffset": "{'snapshot': 9, 'offsets': [2, 4]}"}
    other = {"endOffset": "soon", "latestOffset": None}
    assert lag_of({"sources": [store, kafka, eventual, other]}) == {"snapshots": 2, "records": 7}
    progress = {
        "batchId": 4,
        "processedRowsPerSecond": 1234.5,
        "sources": [kafka],
        "stateOperators": [{"numRowsTotal": 12_000}],
    }
    assert progress_text(progress) == "micro-batch 4 · 1,234 rows/s · 4 records behind · 12,000 rows in state"
    assert progress_text(None) == "starting"
