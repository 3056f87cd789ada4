"""Parses ``CREATE``, ``DROP`` and ``ALTER``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from tablestore.sql.parser.query_statements import QueryReader
from tablestore.sql.parser.statements import (
    AlterAdd,
    AlterDrop,
    AlterModify,
    AlterRename,
    AlterRenameColumn,
    AlterReset,
    AlterSet,
    AlterWatermark,
    Column,
    ColumnPosition,
    ComputedColumn,
    CreateTable,
    CreateTableAs,
    CreateView,
    Drop,
    Like,
    MetadataColumn,
    PhysicalColumn,
    Statement,
    Strategy,
    Watermark,
)
from tablestore.sql.parser.types import TypeReader

_UNITS_MS: Final[Mapping[str, int]] = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 7 * 86_400_000,
    # A watermark has a fixed delay; the longest month and year are never too short.
    "MONTH": 31 * 86_400_000,
    "YEAR": 366 * 86_400_000,
}
_YEARS: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,2})")
PARTS: Final = ("ALL", "CONSTRAINTS", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS", "WATERMARKS")
"""The parts of a definition that ``LIKE`` can include and exclude."""
_NOT_MADE: Final[Mapping[str, str]] = {
    "CATALOG": "a warehouse is one catalog: name another by Catalog(spark, folder) or tablestore sql --warehouse",
    "DATABASE": "a warehouse is one database, whose tables CREATE TABLE makes",
    "FUNCTION": "functions are Spark's",
    "MODEL": "there are tables and views",
    "MATERIALIZED": "CREATE a TABLE, and INSERT INTO it by a continuous query",
}
_OVERWRITABLE: Final = ("ALL", "GENERATED", "METADATA", "OPTIONS", "WATERMARKS")


@dataclass
class _Body:
    """The definitions parsed so far between the parentheses of ``CREATE TABLE``."""

    columns: list[Column] = field(default_factory=list)
    primary_key: tuple[str, ...] = ()
    watermark: Watermark | None = None


class DdlReader(TypeReader, QueryReader):
    """Parser for statements that create, drop and alter tables and views."""

    def _create(self) -> Statement:
        temporary = self._take("TEMPORARY")
        if self._take("TABLE"):
            return self._create_table(temporary)
        if self._is_word("OR", "REPLACE") or self._is_word("OR", "ALTER"):
            self.raise_error("CREATE OR REPLACE is not supported: DROP it first")
        if not self._take("VIEW"):
            self._refuse_kind("CREATE")
        return self._create_view(temporary)

    def _refuse_kind(self, verb: str) -> NoReturn:
        word = "" if self._at_end() else self._curr.text.upper()
        if word in _NOT_MADE:
            self.raise_error(f"{verb} {word} is not supported: {_NOT_MADE[word]}")
        self._expected("TABLE or VIEW")

    def _create_table(self, temporary: bool) -> CreateTable | CreateTableAs:
        if_not_exists = self._take("IF", "NOT", "EXISTS")
        name = self._object_name("the name of the table")
        start = self._index
        names = self._names_alone() if self._is_word("(") else ()
        body = self._body() if self._is_word("(") else _Body()
        comment = self._comment()
        if self._is_word("DISTRIBUTED"):
            self.raise_error("DISTRIBUTED is not supported: set option 'bucket'")
        partitioned_by = self._column_names() if self._partitioned() else ()
        options = self._options() if self._take("WITH") and not self._take("(", ")") else ()
        like = self._like() if self._take("LIKE") else None
        is_of_query = self._is_word("AS")
        if names and not is_of_query:
            # The names of a query's columns need no types; all other columns do.
            self._retreat(start)
            self._body()
        if is_of_query and like is not None:
            self.raise_error("LIKE is not supported in CREATE TABLE AS, whose columns are those of the query")
        if not body.columns and like is None and not is_of_query:
            self._expected("columns in brackets")
        made = CreateTable(
            name,
            tuple(body.columns),
            body.primary_key,
            body.watermark,
            partitioned_by,
            options,
            comment,
            like,
            if_not_exists,
            temporary,
        )
        return CreateTableAs(made, self._query(), names) if self._take("AS") else made

    def _names_alone(self) -> tuple[str, ...]:
        """Parse names in brackets without types; if there is anything else, nothing is consumed."""
        at = self._index + 2
        while at < len(self._tokens) and self._tokens[at].text == ",":
            at += 2
        if at >= len(self._tokens) or self._tokens[at].text != ")":
            return ()
        return self._column_names()

    def _partitioned(self) -> bool:
        # sqlglot tokenizes PARTITIONED BY as one word.
        return self._take("PARTITIONED BY") or self._take("PARTITIONED", "BY")

    def _body(self) -> _Body:
        body = _Body()
        self._list_of(lambda: self._element(body))
        return body

    def _element(self, body: _Body) -> None:
        start = self._curr
        if self._is_word("WATERMARK", "FOR"):
            self._advance(2)
            if body.watermark is not None:
                self.raise_error("a table has one watermark at most", start)
            body.watermark = self._watermark()
        elif self._is_word("CONSTRAINT") or self._is_word("PRIMARY KEY"):
            if self._take("CONSTRAINT"):
                self._name("the name of the constraint")
            if self._is_word("UNIQUE"):
                self.raise_error("UNIQUE is not supported: a table has a PRIMARY KEY")
            self._need("PRIMARY KEY")
            self._set_key(body, self._column_names(), start)
            self._not_enforced(start)
        else:
            column, is_key = self._column()
            if any(column.name == other.name for other in body.columns):
                self.raise_error(f"column '{column.name}' is declared twice", start)
            body.columns.append(column)
            if is_key:
                self._set_key(body, (column.name,), start)

    def _set_key(self, body: _Body, names: tuple[str, ...], at: Token) -> None:
        if body.primary_key:
            self.raise_error("a table has one PRIMARY KEY at most", at)
        body.primary_key = names

    def _not_enforced(self, start: Token) -> None:
        if not self._take("NOT", "ENFORCED"):
            if self._at_end():
                self._expected("'NOT ENFORCED'")
            self.raise_error(
                "a PRIMARY KEY must be NOT ENFORCED: rows that other programs write are not checked", start
            )

    def _column(self) -> tuple[Column, bool]:
        name = self._name("the name of a column")
        if self._take("AS"):
            expression, _ = self._expression("an expression")
            return ComputedColumn(name, expression, self._comment()), False
        kind = self._type()
        if self._take("METADATA"):
            key = self._text("the metadata's name") if self._take("FROM") else name
            is_virtual = self._take("VIRTUAL")
            return MetadataColumn(name, kind, key, is_virtual, self._comment()), False
        start = self._curr
        is_key = self._take("PRIMARY KEY")
        if is_key:
            self._not_enforced(start)
        if self._is_word("DEFAULT"):
            self.raise_error("DEFAULT is not supported: columns that are left out are NULL")
        return PhysicalColumn(name, kind, self._comment()), is_key

    def _comment(self) -> str | None:
        return self._text("the comment") if self._take("COMMENT") else None

    def _watermark(self) -> Watermark:
        """Parse what follows ``WATERMARK FOR``."""
        column = self._name("the name of a column")
        self._need("AS")
        start = self._curr
        text, tree = self._expression(f"{column} - INTERVAL '5' SECOND")
        delay = _delay_ms(tree, column)
        if delay is None:
            self.raise_error(
                f"a watermark is the column itself or the column less an interval, such as {column} - INTERVAL '5' "
                f"SECOND; this is neither",
                start,
            )
        return Watermark(column, text, delay)

    def _like(self) -> Like:
        source = self._object_name("the name of the table to be like")
        if not self._is_word("("):
            return Like(source)
        self._need("(")
        options: list[tuple[str, Strategy]] = []
        while not self._take(")"):
            start = self._curr
            word = next((each for each in Strategy if self._take(each.value)), None)
            part = next((each for each in PARTS if word and self._take(each)), None)
            if word is None or part is None:
                self._expected("INCLUDING, EXCLUDING or OVERWRITING" if word is None else f"one of {', '.join(PARTS)}")
            if word is Strategy.OVERWRITING and part not in _OVERWRITABLE:
                self.raise_error(f"OVERWRITING goes with {', '.join(_OVERWRITABLE)}, not with {part}", start)
            options.append((part, word))
        return Like(source, tuple(options))

    def _create_view(self, temporary: bool) -> CreateView:
        if_not_exists = self._take("IF", "NOT", "EXISTS")
        name = self._object_name("the name of the view")
        columns = self._column_names() if self._is_word("(") else ()
        comment = self._comment()
        self._need("AS")
        return CreateView(name, self._query(), columns, comment, if_not_exists, temporary)

    def _drop(self) -> Drop:
        temporary = self._take("TEMPORARY")
        is_view = self._take("VIEW")
        if not is_view and not self._take("TABLE"):
            self._refuse_kind("DROP")
        if_exists = self._take("IF", "EXISTS")
        return Drop(self._object_name("the name of what to drop"), is_view, if_exists, temporary)

    def _alter(self) -> Statement:
        is_view = self._take("VIEW")
        if not is_view and not self._take("TABLE"):
            self._refuse_kind("ALTER")
        if_exists = self._take("IF", "EXISTS")
        name = self._object_name(f"the name of the {'view' if is_view else 'table'}")
        if self._take("RENAME", "TO"):
            return AlterRename(name, self._object_name("the new name"), is_view, if_exists)
        if is_view:
            self._expected("RENAME TO; other changes of a view are DROP VIEW and CREATE VIEW")
        if self._take("SET"):
            return AlterSet(name, self._options(), if_exists)
        if self._take("RESET"):
            return AlterReset(name, self._list_of(self._key), if_exists)
        if self._take("RENAME"):
            column = self._name("the name of a column")
            self._need("TO")
            return AlterRenameColumn(name, column, self._name("the new name"), if_exists)
        if any(self._is_word(word, "WATERMARK") for word in ("ADD", "MODIFY", "DROP")):
            return self._altered_watermark(name, if_exists)
        if self._take("ADD"):
            columns, places = self._placed("added to a table")
            return AlterAdd(name, columns, if_exists, places)
        if self._take("MODIFY"):
            columns, places = self._placed("changed")
            return AlterModify(name, columns, if_exists, places)
        if self._take("DROP"):
            return self._dropped(name, if_exists)
        what = "SET, RESET, RENAME, ADD, MODIFY or DROP"
        raise self._unexpected(what)

    def _altered_watermark(self, name: str, if_exists: bool) -> AlterWatermark:
        if self._take("DROP", "WATERMARK"):
            return AlterWatermark(name, None, if_exists=if_exists)
        is_new = self._take("ADD")
        self._advance(1 if is_new else 2)
        self._need("FOR")
        return AlterWatermark(name, self._watermark(), is_new, if_exists)

    def _placed(self, done: str) -> tuple[tuple[Column, ...], tuple[ColumnPosition | None, ...]]:
        """Parse columns and their positions; the positions are empty if no column has one."""
        self._take("COLUMN")
        start = self._curr
        columns = self._list_of(self._placed_column) if self._is_word("(") else (self._placed_column(),)
        if any(is_key for _, is_key, _ in columns):
            self.raise_error(f"a PRIMARY KEY cannot be {done}: create a new table LIKE this one", start)
        places = tuple(place for _, _, place in columns)
        return tuple(column for column, _, _ in columns), places if any(places) else ()

    def _placed_column(self) -> tuple[Column, bool, ColumnPosition | None]:
        if self._is_word("WATERMARK", "FOR"):
            self.raise_error("a WATERMARK needs a separate statement: ALTER TABLE t ADD WATERMARK FOR ...")
        self._refuse_key()
        if self._is_word("PARTITION", "("):
            self.raise_error("ALTER TABLE cannot add a PARTITION: rows that are inserted make theirs")
        column, is_key = self._column()
        if self._take("FIRST"):
            return column, is_key, ColumnPosition()
        if self._take("AFTER"):
            return column, is_key, ColumnPosition(self._name("the name of a column"))
        return column, is_key, None

    def _dropped(self, name: str, if_exists: bool) -> Statement:
        """Parse what follows DROP in ``ALTER TABLE``."""
        self._take("COLUMN")
        self._refuse_key()
        columns = self._column_names() if self._is_word("(") else (self._name("the name of a column"),)
        return AlterDrop(name, columns, if_exists)

    def _refuse_key(self) -> None:
        for word in ("PRIMARY KEY", "CONSTRAINT"):
            if self._is_word(word):
                self.raise_error(f"ALTER TABLE cannot change the {word}: create a new table LIKE this one")


def _delay_ms(tree: exp.Expr, column: str) -> int | None:
    """Return a watermark expression's delay in milliseconds, or None if the expression is not supported."""
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Column):
        return 0 if tree.name == column and not tree.table else None
    if not isinstance(tree, exp.Sub) or not isinstance(tree.expression, exp.Interval):
        return None
    if not isinstance(tree.this, exp.Column) or tree.this.name != column or tree.this.table:
        return None
    number, unit = tree.expression.this, tree.expression.args.get("unit")
    if not isinstance(number, exp.Literal) or unit is None:
        return None
    if isinstance(unit, exp.IntervalSpan):
        pair = _YEARS.fullmatch(number.name) if unit.sql().upper() == "YEAR TO MONTH" else None
        return None if pair is None else int(pair[1]) * _UNITS_MS["YEAR"] + int(pair[2]) * _UNITS_MS["MONTH"]
    scale = _UNITS_MS.get(unit.name.upper().removesuffix("S"))
    digits = number.name.strip()
    if scale is None or number.args.get("is_string") is not True or len(digits) > 12:
        return None
    whole, _, part = digits.partition(".")
    if not whole.isascii() or not whole.isdigit() or (part and not (part.isascii() and part.isdigit())):
        return None
    return round(float(digits) * scale)
