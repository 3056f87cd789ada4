"""Parses the statements that change rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tablestore.dml.merge_clauses import Action, Match
from tablestore.sql.parser.ddl_statements import DdlReader
from tablestore.sql.parser.statements import (
    Assignments,
    Delete,
    DropPartitions,
    Expression,
    Merge,
    MergeClause,
    Overwrite,
    Place,
    Query,
    Statement,
    Truncate,
    Update,
)

_AFTER_NAME: Final = ("WHERE", "SET", "USING", "ON")


class VerbReader(DdlReader):
    """Parser for the statements that change rows: ``DELETE``, ``ALTER TABLE ... DROP PARTITION`` and others."""

    def _verb(self) -> Statement | None:
        """Parse a statement that changes a table, or return None if none starts here."""
        if self._take("INSERT", "OVERWRITE"):
            return self._overwrite()
        if self._take("DELETE"):
            return self._delete()
        if self._take("UPDATE"):
            return self._update()
        if self._take("TRUNCATE"):
            return self._truncate()
        return self._merge() if self._take("MERGE") else None

    def _delete(self) -> Delete:
        self._need("FROM")
        name, alias, place = self._target()
        return Delete(name, self._where(), alias, place)

    def _update(self) -> Update:
        name, alias, place = self._target()
        self._need("SET")
        assignments = self._assignments()
        return Update(name, assignments, self._where(), alias, place)

    def _dropped(self, name: str, if_exists: bool) -> Statement:
        if not self._is_word("PARTITION", "(") and not self._is_word("IF", "EXISTS"):
            return super()._dropped(name, if_exists)
        is_if_there = self._take("IF", "EXISTS")
        partitions: list[Assignments] = []
        while not partitions or self._take(","):
            self._need("PARTITION")
            partitions.append(self._list_of(self._dropped_value))
        return DropPartitions(name, tuple(partitions), if_exists, is_if_there)

    def _dropped_value(self) -> tuple[str, Expression]:
        name = self._name("the name of a partition column")
        self._need("=")
        return name, self._value(f"the value of '{name}'")

    def _truncate(self) -> Truncate:
        self._need("TABLE")
        start = self._curr
        return Truncate(self._object_name("the name of the table"), self._place(start))

    def _overwrite(self) -> Overwrite:
        self._take("INTO")
        self._take("TABLE")
        start = self._curr
        target = self._object_name("the name of the table")
        place = self._place(start)
        hint = self.hints.pop(self._prev.end, None)
        partition = self._in_partition()
        names = self._column_names() if self._names_follow() else ()
        return Overwrite(target, self._query(), names, partition, () if hint is None else hint.options, place)

    def _merge(self) -> Merge:
        self._need("INTO")
        name, alias, place = self._target()
        self._need("USING")
        source = self._source_rows()
        source_alias = self._alias() or (source if isinstance(source, str) else "")
        self._need("ON")
        condition = self._value("a condition")
        clauses = []
        while self._take("WHEN"):
            clauses.append(self._clause())
        if not clauses:
            self._expected("WHEN MATCHED or WHEN NOT MATCHED")
        return Merge(name, source, condition, tuple(clauses), alias, source_alias, place)

    def _target(self) -> tuple[str, str, Place]:
        start = self._curr
        name = self._object_name("the name of the table")
        return name, self._alias(), self._place(start)

    def _alias(self) -> str:
        """Parse the alias of a table, with or without AS; "" if there is none."""
        if self._take("AS"):
            return self._name("another name for the table")
        is_end = self._at_end() or any(map(self._is_word, _AFTER_NAME))
        return "" if is_end else self._name("another name for the table")

    def _place(self, start: Token) -> Place:
        return Place(self.sql, start.start, self._prev.end + 1)

    def _where(self) -> Expression | None:
        return self._value("a condition") if self._take("WHERE") else None

    def _assignments(self) -> Assignments:
        assignments = [self._assignment()]
        while self._take(","):
            assignments.append(self._assignment())
        return tuple(assignments)

    def _assignment(self) -> tuple[str, Expression]:
        start = self._curr
        name = self._name("the name of a column")
        if not self._at_end() and self._curr.token_type == TokenType.DOT:
            self.raise_error("set a column by its name alone; a field of a row cannot be set by itself", start)
        self._need("=")
        return name, self._value(f"what column '{name}' is set to")

    def _source_rows(self) -> str | Query:
        """Parse the source of MERGE: the name of a table or view, or a query in parentheses."""
        if not self._take("("):
            return self._object_name("the name of a table or view, or a query in brackets")
        start = self._curr
        tree = self._parse_statement()
        if not isinstance(tree, exp.Query | exp.Values):
            self.raise_error("expected a query: SELECT, VALUES or WITH", start)
        text = self._query_text(start)
        self._check_tree(tree, start)
        self._need(")")
        return Query(text, tree)

    def _clause(self) -> MergeClause:
        match = Match.MATCHED
        if self._take("NOT", "MATCHED"):
            match = Match.NOT_MATCHED
            if self._take("BY", "SOURCE"):
                match = Match.NOT_MATCHED_BY_SOURCE
            else:
                self._take("BY", "TARGET")
        else:
            self._need("MATCHED")
        condition = self._value("a condition") if self._take("AND") else None
        self._need("THEN")
        if match is Match.NOT_MATCHED:
            self._need("INSERT")
            return self._inserted(condition)
        action, assignments = self._done(match)
        return MergeClause(match, action, condition, assignments)

    def _done(self, match: Match) -> tuple[Action, Assignments]:
        if self._take("DELETE"):
            return Action.DELETE, ()
        if not self._take("UPDATE"):
            self._expected("UPDATE SET or DELETE")
        self._need("SET")
        if match is Match.MATCHED and self._take("*"):
            return Action.UPDATE, ()
        return Action.UPDATE, self._assignments()

    def _inserted(self, condition: Expression | None) -> MergeClause:
        clause = MergeClause(Match.NOT_MATCHED, Action.INSERT, condition)
        if self._take("*"):
            return clause
        names = () if self._is_word("VALUES") else self._column_names()
        self._need("VALUES")
        start = self._curr
        values = self._list_of(lambda: self._value("a value"))
        if not names:
            return replace(clause, values=values)
        if len(names) != len(values):
            self.raise_error(f"{len(names)} columns are named, but {len(values)} values given", start)
        return replace(clause, assignments=tuple(zip(names, values, strict=True)))
