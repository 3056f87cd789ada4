"""Parses ``CALL sys.procedure(...)``."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from snapshot.messages import did_you_mean
from tablestore.sql.parser.dml_statements import VerbReader
from tablestore.sql.parser.procedures import (
    DATABASE,
    PREFIX,
    PROCEDURES,
    REFUSED,
    TABLE,
    TYPES,
    Call,
    Constant,
    Parameter,
)
from tablestore.sql.parser.statements import Statement


class CallReader(VerbReader):
    """Parser for ``CALL``."""

    def _verb(self) -> Statement | None:
        return self._call() if self._take("CALL") else super()._verb()

    def _call(self) -> Call:
        start = self._curr
        name = self._name("the name of a procedure").lower()
        if self._curr.token_type == TokenType.DOT and name == DATABASE:
            self._advance()
            name = self._name("the name of a procedure").lower()
        if name not in PROCEDURES:
            known = f"there are {', '.join(PROCEDURES)}"
            why = REFUSED.get(name) or did_you_mean(name, PROCEDURES, otherwise=known)
            self.raise_error(f"procedure '{name}' is not supported: {why}", start)
        given: dict[str, Constant] = {}
        self._need("(")
        while not self._take(")"):
            if given and not self._take(","):
                self._expected("',' or ')'")
            at = self._curr
            parameter, value = self._argument(name, given)
            if parameter.name in given:
                self.raise_error(f"argument '{parameter.name}' is given twice", at)
            self._check(parameter, value, at)
            given[parameter.name] = value
        # Paimon takes an empty text for an argument that is not given.
        said = {key: value for key, value in given.items() if value not in (None, "")}
        missing = [each.name for each in PROCEDURES[name] if each.required and each.name not in said]
        if missing:
            self.raise_error(f"procedure '{name}' needs argument '{missing[0]}'", start)
        return Call(name, tuple(said.items()))

    def _argument(self, procedure: str, given: Collection[str]) -> tuple[Parameter, Constant]:
        """Parse ``name => value`` or a value, which is that of the next parameter that takes it."""
        parameters, at = PROCEDURES[procedure], self._curr
        if self._next and self._next.token_type == TokenType.FARROW:
            name = self._name("the name of an argument").lower()
            self._advance()
            named = [each for each in parameters if each.name == name]
            if not named:
                known = [each.name for each in parameters]
                otherwise = f"expected one of {', '.join(known)}"
                why = did_you_mean(name, known, otherwise=otherwise)
                self.raise_error(f"procedure '{procedure}' has no argument '{name}': {why}", at)
            return named[0], self._constant()
        value = self._constant()
        after = max((n + 1 for n, each in enumerate(parameters) if each.name in given), default=0)
        taking = [p for p in parameters[after:] if p.required or value in (None, "") or type(value) is p.type]
        if not taking:
            self.raise_error(f"procedure '{procedure}' takes no further argument", at)
        return taking[0], value

    def _constant(self) -> Constant:
        at = self._curr
        tree = self._value("a constant").tree
        negative = isinstance(tree, exp.Neg)
        while isinstance(tree, exp.Neg | exp.Cast | exp.Paren):
            tree = tree.this
        if isinstance(tree, exp.Boolean):
            return bool(tree.this)
        if tree.is_string:
            return str(tree.this)
        if tree.is_int:
            return -int(tree.this) if negative else int(tree.this)
        if not isinstance(tree, exp.Null):
            self.raise_error("expected a constant: a text, a whole number, TRUE, FALSE or NULL", at)
        return None

    def _check(self, parameter: Parameter, value: Constant, at: Token) -> None:
        """Check a value; an empty text and NULL stand for no value."""
        if value in (None, ""):
            return
        what = f"argument '{parameter.name}'"
        if parameter.refused:
            self.raise_error(f"{what} is not supported: {parameter.refused}", at)
        if type(value) is not parameter.type:
            self.raise_error(f"{what}: expected {TYPES[parameter.type]}", at)
        if parameter.choices and value not in parameter.choices:
            self.raise_error(f"{what}: expected {', '.join(map(repr, parameter.choices))}, got {value!r}", at)
        if parameter is TABLE and "." in str(value).removeprefix(PREFIX):
            self.raise_error("a warehouse is one database: give the name of the table alone", at)
