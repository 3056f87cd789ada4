"""Parses a text into statements, or raises an error with its position."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tablestore.sql.parser.call_statements import CallReader
from tablestore.sql.parser.dialect import Flink
from tablestore.sql.parser.errors import SqlError, error_at
from tablestore.sql.parser.hints import misplaced, read_hints
from tablestore.sql.parser.procedures import PROCEDURES
from tablestore.sql.parser.query_statements import STARTS
from tablestore.sql.parser.statements import (
    Describe,
    Explain,
    Insert,
    Query,
    ResetOption,
    Select,
    SetOption,
    ShowCreate,
    ShowPartitions,
    ShowTables,
    Statement,
    StatementSet,
)
from tablestore.sql.parser.token_reader import SyntaxFaultError

#: The longest start of a text that leaves no quote or comment open.
_CLOSED: Final = re.compile(r"(?:--[^\n]*+|/\*.*?\*/|'(?:[^']|'')*+'|`(?:[^`]|``)*+`|(?!--|/\*)[^'`])*+", re.DOTALL)
_DOUBLE_QUOTE: Final = "double quotes are not supported: put strings in single quotes, names in backquotes"
_STATEMENTS: Final = (
    "CREATE, DROP, ALTER, SHOW, DESCRIBE, INSERT, DELETE, UPDATE, TRUNCATE, MERGE, EXECUTE STATEMENT SET, SELECT, "
    "VALUES, WITH, EXPLAIN, CALL, SET, RESET"
)
_REFUSED: Final[Mapping[str, str]] = {
    "USE": "a warehouse is one catalog with one database, which is always in use",
    "ANALYZE": "there are no statistics to compute",
    "ADD": "Python packages are installed, not added",
    "LOAD": "there are no modules",
}
_NOT_SHOWN: Final[Mapping[str, str]] = {
    "COLUMNS": "use DESCRIBE and the name of the table",
    "JOBS": "'jobs' at the prompt lists the queries that it has started",
    "DATABASES": "a warehouse is one database",
    "CATALOGS": "a warehouse is one catalog",
    "CURRENT": "a warehouse is one catalog with one database, which is always in use",
    "PROCEDURES": f"there are {', '.join(PROCEDURES)}",
    "FUNCTIONS": "functions are Spark's",
    "MODULES": "there are no modules",
    "JARS": "there is nothing to load",
}
_NOT_DESCRIBED: Final[Mapping[str, str]] = {
    "EXTENDED": "use DESCRIBE, and SELECT * FROM t$options",
    "HISTORY": "use SELECT * FROM t$snapshots, or TableStore.history() in Python",
}
_DETAILS: Final = ("ESTIMATED_COST", "CHANGELOG_MODE", "JSON_EXECUTION_PLAN", "PLAN_ADVICE")
_DEFAULTS: Final = ["default_catalog", ".", "default_database", "."]
"""How names of tables may begin: with Flink's default catalog and database."""


class FlinkParser(CallReader):
    """Parser for all statements of the dialect."""

    def statements(self, tokens: list[Token], text: str) -> tuple[Statement, ...]:
        """Parse all statements of a text."""
        self.begin(tokens, text)
        self.hints = read_hints(tokens, text)
        parsed: list[Statement] = []
        while self._curr:
            if self._take(";"):
                continue
            parsed.append(self._statement())
            if not self._at_end():
                self._expected("';' or the end of the text")
        for hint in self.hints.values():
            raise misplaced(hint)
        return tuple(parsed)

    def _statement(self) -> Statement:  # noqa: C901, PLR0911 - one line a statement reads best as a list
        if self._curr.token_type in STARTS:
            return Select(self._query())
        if self._take("CREATE"):
            return self._create()
        if self._take("DROP"):
            return self._drop()
        if self._take("ALTER"):
            return self._alter()
        if (verb := self._verb()) is not None:
            return verb
        if self._take("INSERT"):
            return self._insert()
        if self._take("SHOW"):
            return self._show()
        if self._take("DESCRIBE") or self._take("DESC"):
            return self._describe()
        if self._take("EXPLAIN"):
            return self._explain()
        if self._take("EXECUTE"):
            return self._statement_set() if self._is_word("STATEMENT") else self._insert_after_execute()
        if self._take("BEGIN", "STATEMENT", "SET"):
            self._need(";")
            return StatementSet(self._inserts())
        if self._take("SET"):
            return self._set()
        if self._take("RESET"):
            return ResetOption(None if self._at_end() else self._key())
        word = self._curr.text.upper()
        if word in _REFUSED and self._curr.token_type not in {TokenType.STRING, TokenType.IDENTIFIER}:
            self.raise_error(f"{word} is not supported: {_REFUSED[word]}")
        what = f"a statement ({_STATEMENTS})"
        raise self._unexpected(what)

    def _show(self) -> Statement:
        if (is_views := self._take("VIEWS")) or self._take("TABLES"):
            is_negated = self._take("NOT")
            if is_negated:
                self._need("LIKE")
            like = self._text("the pattern of LIKE") if is_negated or self._take("LIKE") else "%"
            return ShowTables(is_views, like, is_negated)
        if self._take("PARTITIONS"):
            name = self._object_name("the name of a table")
            return ShowPartitions(name, self._list_of(self._dropped_value) if self._take("PARTITION") else ())
        if not self._take("CREATE"):
            word = "" if self._at_end() else self._curr.text.upper()
            if word in _NOT_SHOWN:
                self.raise_error(f"SHOW {word} is not supported: {_NOT_SHOWN[word]}")
            self._expected("TABLES, VIEWS, PARTITIONS, CREATE TABLE or CREATE VIEW")
        is_view = self._take("VIEW")
        if not is_view and not self._take("TABLE"):
            self._expected("TABLE or VIEW")
        return ShowCreate(self._object_name(f"the name of a {'view' if is_view else 'table'}"), is_view)

    def _describe(self) -> Describe:
        self._take("TABLE")
        for word, instead in _NOT_DESCRIBED.items():
            if self._is_word(word) and self._next and self._next.token_type != TokenType.SEMICOLON:
                self.raise_error(f"{word} is not supported: {instead}")
        return Describe(self._object_name("the name of a table or view"))

    def _explain(self) -> Explain:
        if not self._take("PLAN", "FOR") and any(map(self._is_word, _DETAILS)):
            self.raise_error("details of EXPLAIN are not supported: use EXPLAIN and the statement")
        start = self._curr
        if self._is_word("STATEMENT", "SET", "BEGIN"):
            return Explain(self._statement_set())
        explained = None if self._at_end() else self._statement()
        if not isinstance(explained, Select | Insert | StatementSet):
            self.raise_error("EXPLAIN supports SELECT, INSERT INTO and STATEMENT SET", start or None)
        return Explain(explained)

    def _insert_after_execute(self) -> Statement:
        self._need("INSERT")
        return self._insert()

    def _statement_set(self) -> StatementSet:
        self._need("STATEMENT", "SET", "BEGIN")
        return StatementSet(self._inserts())

    def _inserts(self) -> tuple[Insert, ...]:
        inserts: list[Insert] = []
        while not self._take("END"):
            if self._take(";"):
                continue
            if not self._take("INSERT"):
                self._expected("INSERT INTO or END")
            inserts.append(self._insert())
        if not inserts:
            self.raise_error("a STATEMENT SET without an INSERT INTO", self._prev)
        return tuple(inserts)

    def _set(self) -> SetOption:
        if self._at_end():
            return SetOption()
        key = self._key()
        self._need("=")
        return SetOption(key, self._text(f"the value of '{key}'"))


Flink.Parser = FlinkParser


def parse(text: str) -> tuple[Statement, ...]:
    """Return the statements of a text, in order, which ``;`` separates; empty if there are only comments.

    Raises:
        SqlError: the text is not valid in this dialect, or a statement is not supported; the message has the position
            and what to do.
    """
    parser = FlinkParser(dialect=Flink())
    try:
        tokens = _tokens(text)
        return parser.statements(tokens, text)
    except SyntaxFaultError as fault:
        raise error_at(text, fault.start, fault.end, fault.reason) from None
    except RecursionError:
        raise error_at(text, *_reached(parser), "nested too deeply; write it in several views") from None
    except (ParseError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SqlError):
            raise
        # sqlglot is lenient, and some text that is not SQL at all makes it fail with other errors.
        raise error_at(text, *_reached(parser), "this is not valid SQL") from None


def parse_query(text: str) -> Query:
    """Parse a text that is a single query.

    Raises:
        SqlError: it is not a single query.
    """
    statements = parse(text)
    if len(statements) != 1 or not isinstance(statements[0], Select):
        raise error_at(text, 0, len(text), "expected one query")
    return statements[0].query


def _reached(parser: FlinkParser) -> tuple[int, int]:
    """Return the offsets of the token that a parser has come to."""
    token = parser._curr or parser._prev  # noqa: SLF001 - where it is is known to nobody else
    return (token.start, token.end + 1) if token else (0, 0)


def _tokens(text: str) -> list[Token]:
    try:
        tokens: list[Token] = Flink().tokenize(text)
    except TokenError as error:
        closed = _CLOSED.match(text)
        at = closed.end() if closed else 0
        raise error_at(
            text, at, at + 1, f"a {'comment' if text[at : at + 1] == '/' else 'quote'} is not closed"
        ) from error
    for token in tokens:
        if token.text == '"' and text[token.start] == '"':
            raise error_at(text, token.start, token.start + 1, _DOUBLE_QUOTE)
    # sqlglot knows hints after SELECT only; see ``hints.py``.
    return _without_defaults([token for token in tokens if token.token_type != TokenType.HINT])


def _without_defaults(tokens: list[Token]) -> list[Token]:
    """Leave out the names of Flink's default catalog and database before those of tables, as SHOW CREATE TABLE has."""
    kept: list[Token] = []
    for token in tokens:
        kept.append(token)
        names = [each.text for each in kept[-len(_DEFAULTS) :]]
        if names == _DEFAULTS and kept[-len(_DEFAULTS) - 1 :][0].token_type != TokenType.DOT:
            del kept[-len(_DEFAULTS) :]
    return kept
