"""The interactive prompt of ``tablestore sql``: multi-line statements, history and completion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from pyspark.sql.streaming.query import StreamingQuery
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from log_system.kafka.client.secrets import MASK, holds_secret
from snapshot.errors import NotFoundError
from tablestore.cli.console import show_error
from tablestore.cli.output import show_rows
from tablestore.cli.query_progress import progress_text
from tablestore.cli.statement_runner import Runner, statements_of
from tablestore.sql.parser.dialect import Flink
from tablestore.sql.session import Catalog

KEYWORDS: Final = tuple(
    word
    for line in (
        "ADD ALTER AND AS BETWEEN BIGINT BOOLEAN BY CASE CAST COUNT CREATE DATE DECIMAL DELETE DESCRIBE DISTINCT",
        "DOUBLE DROP ELSE END EXECUTE EXISTS EXPLAIN FROM FULL GROUP HAVING IF IN INNER INSERT INT INTERVAL INTO IS",
        "JOIN KEY LEFT LIKE LIMIT METADATA NOT NULL ON OR ORDER PRIMARY RENAME RESET SELECT SET SHOW STATEMENT STRING",
        "SUM TABLE TABLES TEMPORARY THEN TIMESTAMP TO UNION UPDATE VALUES VIEW VIEWS WATERMARK WHEN WHERE WITH",
    )
    for word in line.split()
)
_HELP: Final = (
    ("SELECT ...;", "show rows; a continuous query runs until Ctrl-C"),
    ("INSERT INTO ...;", "start a query that keeps running in the background"),
    ("jobs", "show the state of the background queries"),
    ("stop N", "stop a background query"),
    ("quit", "stop all queries and exit; same as Ctrl-D"),
)
_STOP: Final = re.compile(r"stop\s+(\d+)", re.IGNORECASE)
_WORD: Final = re.compile(r"[\w`]+$")
_TABLE_COMES: Final = re.compile(r"\b(?:from|join|into|table|view|describe|desc|like)\s+[\w`]*$", re.IGNORECASE)
_PAIR: Final = re.compile(r"'([^']*)'(\s*=\s*)'((?:[^']|'')*)'")


def converse(runner: Runner, source: Input | None = None, sink: Output | None = None) -> None:
    """Read and run statements until the user quits.

    Keys come from ``source``, and the prompt is drawn on ``sink``; both are the terminal by default.
    """
    session = prompt_session(runner.catalog, source, sink)
    runner.console.print("Statements end with ';'. Type 'help' for help, Ctrl-D to exit.", style="dim")
    try:
        while True:
            try:
                text = session.prompt("sql> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text.strip().rstrip(";").strip().lower() in {"quit", "exit"}:
                return
            _obey(runner, text)
    finally:
        runner.stop()


def prompt_session(catalog: Catalog, source: Input | None, sink: Output | None) -> PromptSession[str]:
    """Return a prompt that completes the names of a catalog's tables and columns."""
    return PromptSession(
        history=_history(),
        completer=SqlCompleter(catalog),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="...> ",
        input=source,
        output=sink,
    )


def history_file() -> Path:
    """Return the path of the history file; create it and its folder, readable by this user only."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    folder = home / "tablestore"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "sql_history"
    file.touch(mode=0o600, exist_ok=True)
    return file


def is_whole(text: str) -> bool:
    """Return whether the text is complete, so that Enter runs it instead of starting a new line."""
    words = text.strip().lower()
    if not words or words in {"help", "jobs", "quit", "exit"} or _STOP.fullmatch(words):
        return True
    try:
        tokens = Flink().tokenize(text)
    except TokenError:
        # A quote or a comment is not closed.
        return False
    if not tokens or tokens[-1].token_type is not TokenType.SEMICOLON:
        return False
    found = [token.text.upper() for token in tokens if token.token_type is not TokenType.SEMICOLON]
    begun = [n for n in range(1, len(found)) if found[n - 1 : n + 1] == ["STATEMENT", "SET"]]
    return not begun or found[-1] == "END"


def without_credentials(text: str) -> str:
    """Return the text with the values of credential options masked."""

    def masked(pair: re.Match[str]) -> str:
        return f"'{pair[1]}'{pair[2]}'{MASK}'" if holds_secret(pair[1], pair[3]) else pair[0]

    return _PAIR.sub(masked, text)


class SafeHistory(FileHistory):
    """A history file whose entries have their credentials masked."""

    def store_string(self, string: str) -> None:
        """Append a text to the file, with its credentials masked."""
        super().store_string(without_credentials(string))


def _history() -> History:
    try:
        return SafeHistory(history_file())
    except OSError:
        # Without a writable home directory the prompt works, but its history is lost on exit.
        return InMemoryHistory()


class SqlCompleter(Completer):
    """Completes keywords, table names, and the columns of tables named in the text."""

    def __init__(self, catalog: Catalog) -> None:
        """Create a completer for the tables of ``catalog``."""
        self._catalog = catalog

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions for the word at the cursor."""
        before = document.text_before_cursor
        found = _WORD.search(before)
        begun = found[0] if found else ""
        tables = self._catalog.tables()
        if _TABLE_COMES.search(before):
            yield from _matching(begun, tables, "table")
            return
        named = [name for name in tables if re.search(rf"\b{re.escape(name)}\b", document.text)]
        columns = sorted({each for name in named for each in self._catalog.columns(name)})
        yield from _matching(begun, columns, "column")
        yield from _matching(begun, tables, "table")
        if begun:
            yield from _matching(begun, KEYWORDS, "")


def _matching(begun: str, words: Iterable[str], what: str) -> Iterator[Completion]:
    for word in words:
        if word.lower().startswith(begun.strip("`").lower()):
            yield Completion(word, start_position=-len(begun), display_meta=what)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_whole(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    return keys


def _obey(runner: Runner, text: str) -> None:
    """Run the text of one prompt; print an error instead of raising it."""
    word = text.strip().rstrip(";").strip().lower()
    commands: dict[str, Callable[[], None]] = {"help": lambda: _help(runner), "jobs": lambda: _jobs(runner)}
    try:
        if word in commands:
            commands[word]()
        elif stop := _STOP.fullmatch(word):
            _stop(runner, int(stop[1]))
        else:
            for statement in statements_of([text]):
                followed = runner.run(statement)
                if followed is not None:
                    _follow(runner, followed)
    except KeyboardInterrupt:
        runner.console.print("Stopped.", style="dim")
    except Exception as error:  # noqa: BLE001 - told in one line like any command's; the session goes on
        show_error(error)


def _follow(runner: Runner, query: StreamingQuery) -> None:
    """Print the rows of a continuous SELECT until Ctrl-C, then stop its query."""
    try:
        runner.wait([query])
    finally:
        runner.stop([query])
        runner.queries.remove(query)


def _help(runner: Runner) -> None:
    show_rows(runner.console, ("say", "to"), _HELP, as_json=False)


def _jobs(runner: Runner) -> None:
    rows = [
        (number, query.name or str(query.id), _state(query), progress_text(query.lastProgress))
        for number, query in enumerate(runner.queries, 1)
    ]
    show_rows(runner.console, ("job", "query", "state", "progress"), rows, as_json=False)


def _state(query: StreamingQuery) -> str:
    if query.isActive:
        return "runs"
    error = query.exception()
    return "has ended" if error is None else f"failed: {str(error).splitlines()[0]}"


def _stop(runner: Runner, number: int) -> None:
    if not 1 <= number <= len(runner.queries):
        jobs = f"expected a job from 1 to {len(runner.queries)}; 'jobs' lists them"
        msg = f"stop {number}: {jobs if runner.queries else 'there are no jobs: no INSERT was started here'}."
        raise NotFoundError(msg)
    runner.stop([runner.queries[number - 1]])
    runner.console.print(f"Job {number} is stopped. The same INSERT continues from its checkpoint.", style="dim")
