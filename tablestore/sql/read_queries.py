"""``SELECT``, ``VALUES`` and expressions, which sqlglot reads; and what of them is refused."""

from __future__ import annotations

from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tablestore.sql.reader import Reader
from tablestore.sql.statements import Insert, Query

_STARTS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.L_PAREN)
_WINDOWS: Final = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
_STATEMENTS: Final = (exp.Command, exp.DDL, exp.DML, exp.Drop, exp.Set, exp.Use)


class QueryReader(Reader):
    """Reads queries and what writes them."""

    def _query(self) -> Query:
        start = self._curr
        if self._at_end() or start.token_type not in _STARTS:
            self._expected("SELECT, VALUES or WITH")
        tree = self._parse_statement()
        if not isinstance(tree, exp.Query | exp.Values):
            self.raise_error("expected a query: SELECT, VALUES or WITH", start)
        if not self._at_end() and not self._is_word("END"):
            self._expected("the end of the statement")
        self._check_tree(tree, start)
        return Query(self._source(start), tree)

    def _expression(self, what: str) -> tuple[str, exp.Expr]:
        start = self._curr
        tree = None if self._at_end() else self._parse_disjunction()
        if tree is None or self._curr == start:
            self._expected(what)
        self._check_tree(tree, start)
        return self._source(start), tree

    def _check_tree(self, tree: exp.Expr, start: Token) -> None:
        """Refuse what sqlglot lets pass, and what is not done here."""
        for node in tree.walk():
            if isinstance(node, exp.Select) and not node.expressions:
                self.raise_error("a SELECT without columns: name them, or say *", start)
            if isinstance(node, _STATEMENTS) and not isinstance(node, exp.Query):
                self.raise_error("expected a query and nothing else in it", start)
            if isinstance(node, exp.Version):
                self.raise_error(
                    "FOR SYSTEM_TIME AS OF is not supported yet: read the table with catalog.table(name) and join in "
                    "Spark",
                    start,
                )
            if isinstance(node, exp.Placeholder | exp.Parameter):
                self.raise_error("parameters are not supported: write the value", start)
            if isinstance(node, exp.DataType) and node.this in {exp.DType.TIMESTAMPTZ, exp.DType.TIME}:
                self.raise_error(f"type {node.this.value} is not supported: use TIMESTAMP or TIMESTAMP_LTZ", start)
            if isinstance(node, exp.MatchRecognize):
                self.raise_error("MATCH_RECOGNIZE is not supported: Spark has nothing like it", start)

    def _parse_table(self, *args: object, **named: object) -> exp.Expr | None:
        """Refuse table functions over time windows, by name."""
        index = self._index
        self._take("TABLE", "(") or self._take("LATERAL", "TABLE", "(")
        word = self._curr.text.upper() if self._curr else ""
        if word in _WINDOWS and self._next and self._next.token_type == TokenType.L_PAREN:
            self.raise_error(
                f"{word} windows are not supported yet: group by Spark's window(time, '10 minutes') in a query of "
                "catalog.table(name)"
            )
        self._retreat(index)
        return super()._parse_table(*args, **named)  # type: ignore[arg-type]  # handed through as they come

    def _insert(self) -> Insert:
        if self._is_word("OVERWRITE"):
            self.raise_error("INSERT OVERWRITE stands by itself: it cannot be explained or be one of a set")
        self._need("INTO")
        target = self._object_name("the name of the table")
        if self._is_word("PARTITION"):
            self.raise_error("PARTITION (...) is not supported: give the partition columns as columns")
        names = self._list_of(lambda: self._name("the name of a column")) if self._names_follow() else ()
        return Insert(target, self._query(), names)

    def _names_follow(self) -> bool:
        """Tell whether a bracket begins names of columns; it may begin a query."""
        is_open = bool(self._curr) and self._curr.token_type == TokenType.L_PAREN
        return is_open and not (self._next and self._next.token_type in _STARTS)
