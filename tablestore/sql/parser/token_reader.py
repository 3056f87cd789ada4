"""Parses what all statements are made of: names, strings, numbers, lists and options; and locates syntax errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from sqlglot.errors import ParseError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.subscripts import SubscriptParser
from tablestore.sql.parser.errors import masked

T = TypeVar("T")

_WORD: Final = re.compile(r"[^\W\d][\w$]*")
_BARE_KEY: Final = re.compile(r"[\w.\-]+")
#: The repr of a token, which sqlglot puts into its error messages.
_INTERNAL: Final = re.compile(r"(?: but got)? ?<Token token_type.*", re.DOTALL)
#: What sqlglot says where a part is missing: the name of the attribute and class that would hold it.
_INCOMPLETE: Final = re.compile("Required keyword: ")
ELLIPSIS: Final = "..."
LEFT_OUT: Final = "'...' is a placeholder; replace it"


class SyntaxFaultError(ParseError):
    """A syntax error at a position in the text; `parse` turns it into an `SqlError`.

    Attributes:
        reason: what was expected.
        start: offset where the error starts.
        end: offset after its end.
    """

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.reason, self.start, self.end = reason, start, end


class Reader(SubscriptParser, SparkParser):
    """sqlglot's parser, extended with the basic elements of Flink's statements."""

    def begin(self, tokens: list[Token], text: str) -> None:
        """Start to parse the tokens of a text."""
        self.reset()
        self.sql, self._tokens, self._tokens_size, self._index = text, tokens, len(tokens), -1
        self._advance()

    def _warn_unsupported(self) -> None:
        """Suppress sqlglot's warning: a statement that it parses as a mere command is refused with an error."""

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise a syntax error with its offsets; sqlglot calls this for its own errors too."""
        raise self._fault(message, token)

    def _fault(self, message: str, token: Token | None = None) -> SyntaxFaultError:
        message = "expected an expression" if _INCOMPLETE.match(message) else _INTERNAL.sub("", message)
        at = token or self._curr
        if at and self.sql[at.start : at.start + 3] == ELLIPSIS:
            return SyntaxFaultError(LEFT_OUT, at.start, at.start + 3)
        if token is None and self._at_end():
            end = self._prev.end + 1 if self._prev else 0
            start = self._curr.start if self._curr else max(end, len(self.sql.rstrip()))
            reason = f"unexpected end of statement: {message[0].lower()}{message[1:]}"
            return SyntaxFaultError(reason, start, start + 1)
        return SyntaxFaultError(message, at.start, at.end + 1)

    def _unexpected(self, what: str) -> SyntaxFaultError:
        """Return the error that something else was expected at the current token."""
        given = "" if self._at_end() else f", got {self._shown(self._curr)}"
        return self._fault(f"expected {what}{given}")

    def _expected(self, what: str) -> NoReturn:
        raise self._unexpected(what)

    def _shown(self, token: Token) -> str:
        text = masked(self.sql)[token.start : token.end + 1]
        return text if text.startswith("'") else f"'{text}'"

    def _at_end(self) -> bool:
        return not self._curr or self._curr.token_type == TokenType.SEMICOLON

    def _is_word(self, *words: str) -> bool:
        """Return whether these words are the next tokens, without consuming them; quoted tokens never match."""
        index = self._index
        for offset, word in enumerate(words):
            token = self._tokens[index + offset] if index + offset < len(self._tokens) else None
            if token is None or token.token_type in {TokenType.STRING, TokenType.IDENTIFIER}:
                return False
            if token.text.upper() != word:
                return False
        return True

    def _take(self, *words: str) -> bool:
        """Consume these words if they are the next tokens, and return whether they were."""
        if not self._is_word(*words):
            return False
        self._advance(len(words))
        return True

    def _need(self, *words: str) -> None:
        """Consume these words, or raise a syntax error if they are not the next tokens."""
        for word in words:
            if not self._take(word):
                self._expected(f"'{word}'")

    def _name(self, what: str) -> str:
        """Parse a name: any text in backquotes, else a word. No word is reserved where a name is required."""
        token = self._curr
        is_quoted = bool(token) and token.token_type == TokenType.IDENTIFIER
        is_word = bool(token) and token.token_type != TokenType.STRING and _WORD.fullmatch(token.text)
        if self._at_end() or not (is_quoted or is_word):
            self._expected(what)
        if is_quoted and not token.text:
            self.raise_error(f"expected {what}, got an empty name")
        self._advance()
        return str(token.text)

    def _object_name(self, what: str) -> str:
        """Parse the name of a table or view; a qualified name is an error."""
        start, name = self._curr, self._name(what)
        if self._curr.token_type == TokenType.DOT:
            self.raise_error(f"a warehouse is one database: give {what} without the names before it", start)
        return name

    def _text(self, what: str) -> str:
        """Parse a string literal."""
        token = self._curr
        if self._at_end() or token.token_type != TokenType.STRING:
            self._expected(f"{what} in single quotes")
        self._advance()
        return str(token.text)

    def _number(self) -> int:
        """Parse an integer of up to four digits."""
        token = self._curr
        if self._at_end() or token.token_type != TokenType.NUMBER or not re.fullmatch(r"[0-9]{1,4}", token.text):
            self._expected("a number")
        self._advance()
        return int(token.text)

    def _list_of(self, item: Callable[[], T]) -> tuple[T, ...]:
        """Parse ``(item, ...)`` with at least one item."""
        self._need("(")
        items = [item()]
        while self._take(","):
            items.append(item())
        if not self._take(")"):
            self._expected("',' or ')'")
        return tuple(items)

    def _column_names(self) -> tuple[str, ...]:
        return self._list_of(lambda: self._name("the name of a column"))

    def _key(self) -> str:
        """Parse an option's name: in quotes, or bare as in Flink's documentation (``scan.startup.mode``)."""
        token = self._curr
        if self._at_end():
            self._expected("an option's name in single quotes")
        if token.token_type == TokenType.STRING:
            if not token.text.strip():
                self.raise_error("expected an option's name, got an empty text")
            self._advance()
            return str(token.text)
        while not self._at_end() and _BARE_KEY.fullmatch(self._curr.text):
            self._advance()
            if not self._is_connected():
                break
        key = self.sql[token.start : self._prev.end + 1] if self._prev and self._index else ""
        if self._curr == token or not _BARE_KEY.fullmatch(key) or not key[0].isalpha():
            self.raise_error(f"expected an option's name in single quotes, got {self._shown(token)}", token)
        return key

    def _option(self) -> tuple[str, str]:
        key = self._key()
        self._need("=")
        return key, self._text(f"the value of option '{key}'")

    def _options(self) -> tuple[tuple[str, ClientValue], ...]:
        """Parse ``('key' = 'value', ...)``; a repeated key is an error."""
        seen: set[str] = set()

        def one() -> tuple[str, str]:
            token = self._curr
            pair = self._option()
            if pair[0] in seen:
                self.raise_error(f"option '{pair[0]}' is given twice", token)
            seen.add(pair[0])
            return pair

        return tuple(wrap(dict(self._list_of(one))).items())

    def _source(self, start: Token) -> str:
        """Return the text from a token up to and including the last consumed one."""
        return self.sql[start.start : self._prev.end + 1]
