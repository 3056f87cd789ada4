"""Parses queries and expressions with sqlglot, rejects what is not supported, and parses ``INSERT INTO``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeVar

from sqlglot import exp
from sqlglot.parsers.hive import HiveParser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.parser.functions.arithmetic import is_of_periods
from tablestore.sql.parser.functions.calls import called
from tablestore.sql.parser.functions.json_functions import PARSERS, JsonAggregate, JsonReader
from tablestore.sql.parser.functions.templates import NAMES
from tablestore.sql.parser.functions.time_functions import WITHOUT_BRACKETS
from tablestore.sql.parser.hints import Hint, attach, attach_lookups, mark
from tablestore.sql.parser.statements import Expression, Insert, Query
from tablestore.sql.parser.window_types import ARGUMENTS, WindowKind, Windows, microseconds, modern

STARTS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.L_PAREN)
"""How a query may begin."""
_LISTS: Final = frozenset({TokenType.ORDER_BY, TokenType.PARTITION_BY, TokenType.GROUP_BY})
_SUBQUERY: Final = "a query in a condition or value is not supported here: MERGE INTO ... USING (SELECT ...)"
_WINDOWS: Final = frozenset(WindowKind)
_SIZED: Final = frozenset({exp.DType.DECIMAL, exp.DType.VARCHAR, exp.DType.VARBINARY, exp.DType.TIMESTAMPLTZ})
"""Types whose brackets sqlglot accepts without a number."""
_MARK: Final = re.compile(r"""[^0-9A-Fa-f\s+'"]""")
"""What may start an escape in a text of Unicode."""
_NO_FUNCTIONS: Final = {
    "COLLECT": "there is no type MULTISET; use ARRAY_AGG",
    "CURRENT_WATERMARK": (
        "Spark tells rows no watermark. Leave a condition on late rows out: windows ignore those that come too late"
    ),
}
"""Functions of Flink that are not supported, with the reason and what to do instead."""
_STATEMENTS: Final = (exp.Command, exp.DDL, exp.DML, exp.Drop, exp.Set, exp.Use)
T = TypeVar("T")


class QueryReader(JsonReader):
    """Parser for queries, expressions and ``INSERT INTO``."""

    FUNCTIONS: ClassVar = {name: made for name, made in SparkParser.FUNCTIONS.items() if name not in NAMES}
    FUNCTION_PARSERS: ClassVar = {
        **{name: made for name, made in SparkParser.FUNCTION_PARSERS.items() if name not in NAMES},
        "CEILING": SparkParser.FUNCTION_PARSERS["CEIL"],
        **PARSERS,
    }
    PRIMARY_PARSERS: ClassVar = {
        **SparkParser.PRIMARY_PARSERS,
        TokenType.UNICODE_STRING: lambda self, token: self._unicode_string(token),
    }
    ADD_JOIN_ON_TRUE = False
    hints: dict[int, Hint]
    """The hints of the text that are not attached to a table or a query yet."""

    def _query(self) -> Query:
        start = self._curr
        if self._at_end() or start.token_type not in STARTS:
            self._expected("SELECT, VALUES or WITH")
        tree = self._parse_statement()
        if not isinstance(tree, exp.Query | exp.Values):
            self.raise_error("expected a query: SELECT, VALUES or WITH", start)
        if not self._at_end() and not self._is_word("END"):
            self._expected("the end of the statement")
        text = self._query_text(start)
        self._check_tree(tree, start)
        try:
            modern(tree)
        except RefusedError as error:
            self.raise_error(error.reason, start)
        return Query(text, tree, self.sql)

    def _query_text(self, start: Token) -> str:
        """Return the text from a token to the last consumed one, with the hint after that."""
        hint = self.hints.get(self._prev.end)
        return self._source(start) if hint is None else self.sql[start.start : hint.end]

    def _expression(self, what: str) -> tuple[str, exp.Expr]:
        start = self._curr
        tree = None if self._at_end() else self._parse_disjunction()
        if tree is None or self._curr == start:
            self._expected(what)
        self._check_tree(tree, start)
        return self._source(start), tree

    def _unicode_string(self, token: Token) -> exp.Literal:
        """Return ``U&'...'`` as a text, with characters for the escapes: the escape character and four hex digits."""
        mark = "\\"
        if self._take("UESCAPE"):
            mark = self._text("the escape character")
            if not _MARK.fullmatch(mark):
                what = "expected one character other than a hex digit, blank, plus sign or quote"
                self.raise_error(f"UESCAPE: {what}, got '{mark}'", self._prev)
        pattern = f"{re.escape(mark)}(?:({re.escape(mark)})|([0-9A-Fa-f]{{4}})|(.?))"
        for found in re.finditer(pattern, token.text, re.DOTALL):
            if found[1] is None and found[2] is None:
                what = f"'{mark}' starts an escape of four hex digits; write '{mark}{mark}' for the character itself"
                self.raise_error(f"U&'{token.text}': {what}", token)
        text = re.sub(pattern, lambda found: found[1] or chr(int(found[2], 16)), token.text, flags=re.DOTALL)
        # Two escapes may be one character.
        return exp.Literal.string(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _parse_case(self) -> exp.Expr | None:
        """Parse CASE, where ``WHEN 1, 2 THEN`` stands for one WHEN for each of the values."""
        if self._is_word("."):
            return super()._parse_case()
        value = None if self._is_word("WHEN") else self._parse_disjunction()
        branches: list[exp.If] = []
        while self._take("WHEN"):
            values = [self._parse_disjunction()]
            while value is not None and self._take(","):
                values.append(self._parse_disjunction())
            self._need("THEN")
            result = self._parse_disjunction()
            branches += [exp.If(this=each, true=result and result.copy()) for each in values]
        default = self._parse_disjunction() if self._take("ELSE") else None
        self._need("END")
        return self.expression(exp.Case(this=value, ifs=branches, default=default))

    def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
        """Parse GROUP BY, where ``()`` is a grouping set, as Spark has it."""
        group = super()._parse_group(skip_group_by_token)
        for each in list(group.expressions) if group is not None else []:
            if isinstance(each, exp.Tuple) and not each.expressions:
                each.replace(exp.GroupingSets(expressions=[each.copy()]))
        return group

    def _parse_hint(self) -> exp.Hint | None:
        """Parse the hint after SELECT, which sqlglot does not see."""
        return mark(self.hints, self._prev.end)

    def _parse_csv(self, parse_method: Callable[[], T | None], sep: TokenType = TokenType.COMMA) -> list[T]:
        """Parse a list, and raise an error where an item is missing, which sqlglot leaves out."""
        before = self._prev

        def item() -> T | None:
            found = parse_method()
            if found is None:
                is_first = self._prev is before
                is_missing = before.token_type in _LISTS if is_first else self._prev.token_type == sep
                if is_missing or (self._curr and self._curr.token_type == sep):
                    self._expected("an expression")
            return found

        return super()._parse_csv(item, sep)

    def _parse_join(self, *args: Any, **named: Any) -> exp.Join | None:
        """Parse a join, and raise an error if no table follows a comma."""
        is_comma = bool(self._curr) and self._curr.token_type == TokenType.COMMA
        join = super()._parse_join(*args, **named)
        if is_comma and join is None:
            self._expected("a table")
        return join

    def _parse_types(self, *args: object, **named: object) -> exp.Expr | None:
        """Parse a type with its length, which Spark's dialect leaves out, and without NOT NULL of a nested type."""
        kind = super(HiveParser, self)._parse_types(*args, **named)  # type: ignore[arg-type]  # as they come
        if isinstance(kind, exp.DataType) and kind.this in _SIZED and self._prev.text == ")":
            is_empty = self._tokens[self._index - 2].token_type == TokenType.L_PAREN
            if is_empty:
                self.raise_error(f"type {kind.this.value}: expected a number in brackets", self._prev)
        if self._is_word("NOT", "NULL", ">") or self._is_word("NOT", "NULL", ","):
            self._take("NOT", "NULL")
        return kind

    def _parse_function_call(self, *args: object, **named: object) -> exp.Expr | None:
        """Parse functions that are called without brackets and that sqlglot takes for columns."""
        token = self._curr
        is_word = bool(token) and token.token_type not in self.INVALID_FUNC_NAME_TOKENS
        is_called = bool(self._next) and self._next.token_type in {TokenType.L_PAREN, TokenType.DOT}
        if is_word and not is_called and token.text.upper() in WITHOUT_BRACKETS and self._prev.text != ".":
            self._advance()
            return exp.Anonymous(this=token.text.upper()).update_positions(token)
        return super()._parse_function_call(*args, **named)  # type: ignore[arg-type]  # handed through as they come

    def _check_tree(self, tree: exp.Expr, start: Token) -> None:
        """Raise an error for invalid SQL that sqlglot accepts, and for SQL that is not supported here."""
        for node in tree.walk():
            if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
                attach(node, self.hints)
            if isinstance(node, exp.Select):
                attach_lookups(node, self.hints)
            if (missing := _missing(node)) is not None:
                self.raise_error(missing, start)
            if isinstance(node, _STATEMENTS) and not isinstance(node, exp.Query):
                self.raise_error("expected a query and nothing else in it", start)
            if isinstance(node, exp.Placeholder | exp.Parameter):
                self.raise_error("parameters are not supported: write the value", start)
            if (reason := _refused(node)) is not None:
                self.raise_error(reason, start)

    def _parse_table_alias(self, *args: object, **named: object) -> exp.TableAlias | None:
        word, after = self._curr, self._next
        if word and word.text.upper() == "MATCH_RECOGNIZE" and after and after.token_type is TokenType.L_PAREN:
            self.raise_error("MATCH_RECOGNIZE is not supported: Spark does not support it", word)
        return super()._parse_table_alias(*args, **named)  # type: ignore[arg-type]  # handed through as they come

    def _parse_table(self, *args: object, **named: object) -> exp.Expr | None:
        """Parse window table functions, which sqlglot does not know, and leave other tables to sqlglot."""
        index = self._index
        is_wrapped = self._take("TABLE", "(")
        word = self._curr.text.upper() if self._curr else ""
        if word in _WINDOWS and self._next and self._next.token_type == TokenType.L_PAREN:
            return self._window_table(WindowKind(word), is_wrapped=is_wrapped)
        self._retreat(index)
        return super()._parse_table(*args, **named)  # type: ignore[arg-type]  # handed through as they come

    def _window_table(self, kind: WindowKind, *, is_wrapped: bool) -> exp.Table:
        """Parse ``TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL ...)``, with named or positional arguments."""
        self._advance()
        self._need("(")
        given: dict[str, int] = {}
        table, column = "", ""
        partition: tuple[str, ...] = ()
        start = self._curr
        while not self._take(")"):
            name = self._argument_name()
            if self._take("TABLE"):
                start, table = self._curr, self._object_name("the name of a table")
                # sqlglot tokenizes PARTITION BY as one word.
                partition = self._partition() if self._take("PARTITION BY") else ()
            elif self._take("DESCRIPTOR"):
                (column,) = self._column_names()
            else:
                wanted = [each for each in ARGUMENTS[kind] if each not in given]
                at = self._curr
                interval = self._parse_disjunction()
                if not wanted or (name and name not in wanted) or interval is None:
                    self.raise_error(f"{kind} takes TABLE t, DESCRIPTOR(column), {', '.join(ARGUMENTS[kind])}", at)
                given[name or wanted[0]] = self._microseconds(interval, at)
            if not self._is_word(")"):
                self._need(",")
                if self._is_word(")"):
                    self._expected("an argument")
        required = [each for each in ARGUMENTS[kind] if each != "OFFSET" and each not in given]
        if not table or not column or required:
            missing = ["TABLE t"] * (not table) + ["DESCRIPTOR(column)"] * (not column) + required
            self.raise_error(f"{kind}: {', '.join(missing)} is missing", self._prev)
        if is_wrapped:
            self._need(")")
        made = exp.Table(this=exp.to_identifier(table, quoted=True).update_positions(start))
        at, alias = self._curr, self._parse_table_alias()
        if alias is not None:
            if alias.columns:
                self.raise_error("names for the columns of a window table are not supported: name them in SELECT", at)
            made.set("alias", alias)
        return self._windows(kind, column, given, partition, start).put(made)

    def _windows(
        self, kind: WindowKind, column: str, given: Mapping[str, int], partition: tuple[str, ...], at: Token
    ) -> Windows:
        size = given.get("SIZE", given.get("GAP", 0))
        step = given.get("SLIDE", given.get("STEP", size))
        if size <= 0 or step <= 0 or (kind in {WindowKind.HOP, WindowKind.CUMULATE} and step > size):
            self.raise_error(f"{kind}: expected times above zero, and no step longer than the window", at)
        if kind is WindowKind.CUMULATE and size % step:
            self.raise_error("CUMULATE: the window has to be a multiple of its step", at)
        return Windows(kind, column, size, step, given.get("OFFSET", 0), partition)

    def _argument_name(self) -> str:
        if not (self._next and self._next.text == "=>"):
            return ""
        name = self._name("the name of an argument").upper()
        self._need("=>")
        return name

    def _partition(self) -> tuple[str, ...]:
        if self._is_word("("):
            return self._column_names()
        names = [self._name("the name of a column")]
        while self._is_word(",") and self._next and self._next.text.upper() != "DESCRIPTOR" and self._index + 2 < len(self._tokens) and self._tokens[self._index + 2].text != "=>":  # fmt: skip  # noqa: E501
            self._need(",")
            names.append(self._name("the name of a column"))
        return tuple(names)

    def _microseconds(self, interval: exp.Expr, at: Token) -> int:
        try:
            return microseconds(interval)
        except RefusedError as error:
            self.raise_error(error.reason, at)

    def _insert(self) -> Insert:
        if self._is_word("OVERWRITE"):
            self.raise_error("INSERT OVERWRITE is not supported in EXPLAIN or in a STATEMENT SET")
        self._need("INTO")
        target = self._object_name("the name of the table")
        hint = self.hints.pop(self._prev.end, None)
        partition = self._in_partition()
        names = self._column_names() if self._names_follow() else ()
        return Insert(target, self._query(), names, () if hint is None else hint.options, partition)

    def _in_partition(self) -> tuple[tuple[str, Expression | None], ...]:
        """Parse ``PARTITION (column = value, column)``, if it follows."""
        return self._list_of(self._partition_value) if self._take("PARTITION") else ()

    def _partition_value(self) -> tuple[str, Expression | None]:
        name = self._name("the name of a partition column")
        return name, self._value(f"the value of '{name}'") if self._take("=") else None

    def _value(self, what: str) -> Expression:
        start = self._curr
        text, tree = self._expression(what)
        if tree.find(exp.Query, exp.Subquery):
            self.raise_error(_SUBQUERY, start)
        return Expression(text, tree)

    def _names_follow(self) -> bool:
        """Return whether a parenthesis opens a list of column names, not a query."""
        is_open = bool(self._curr) and self._curr.token_type == TokenType.L_PAREN
        return is_open and not (self._next and self._next.token_type in STARTS)


def _refused(node: exp.Expr) -> str | None:
    """Return why a part of a query is not supported, or None if it is."""
    if isinstance(node, exp.DataType) and node.this == exp.DType.TIMESTAMPTZ:
        return f"type {node.this.value} is not supported: use TIMESTAMP or TIMESTAMP_LTZ"
    if isinstance(node, exp.ArrayAgg) and isinstance(node.this, exp.Order):
        return "ARRAY_AGG(... ORDER BY ...) is not supported: use ARRAY_SORT(ARRAY_AGG(...))"
    if why := _NO_FUNCTIONS.get(called(node)):
        return f"{called(node)} is not supported: {why}"
    if isinstance(node, exp.Any | exp.All) and isinstance(node.this, exp.Query):
        return "ANY, SOME and ALL of a query are not supported: use IN, or its MIN or MAX"
    if isinstance(node, exp.Overlaps) and not is_of_periods(node):
        return "OVERLAPS: expected (start, end or interval) OVERLAPS (start, end or interval)"
    if isinstance(node, exp.Window) and isinstance(node.this, JsonAggregate):
        return f"{node.this.sql_name()} OVER (...) is not supported: use GROUP BY"
    return None


def _missing(node: exp.Expr) -> str | None:
    """Return what a part of a query must have and does not, or None; sqlglot accepts empty lists."""
    is_group = isinstance(node.parent, exp.Group | exp.GroupingSets)
    if isinstance(node, exp.Select) and not node.expressions:
        return "a SELECT without columns: name them, or use *"
    if isinstance(node, exp.Group) and not any(node.args.values()):
        return "GROUP BY without columns"
    if isinstance(node, exp.Rollup | exp.Cube) and is_group and not node.expressions:
        return f"{node.key.upper()} without columns"
    if isinstance(node, exp.Tuple) and not node.expressions and not is_group:
        return "() without a value"
    if isinstance(node, exp.In) and not any(value for name, value in node.args.items() if name != "this"):
        return "IN () without a value"
    if isinstance(node, exp.Distinct) and isinstance(node.parent, exp.AggFunc) and not node.expressions:
        return f"{node.parent.key.upper()}(DISTINCT) without a value"
    if isinstance(node, exp.Values) and (alias := node.args.get("alias")) is not None and not alias.this:
        return "VALUES: a comma is missing between two rows"
    if isinstance(node, exp.Join) and not any(map(node.args.get, ("on", "using", "method"))):
        is_free = node.kind == "CROSS" or isinstance(node.this, exp.Lateral)
        return None if is_free else "a JOIN without a condition: add ON, or use CROSS JOIN"
    return None
