"""Types as columns declare them."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from tablestore.sql.reader import Reader
from tablestore.sql.types import FlinkType, array_of, map_of, plain, row_of


class TypeReader(Reader):
    """Reads Flink's types."""

    def _type(self) -> FlinkType:
        """Take a type, with ``NOT NULL`` where it is there."""
        kind = self._with_nullability(self._type_alone())
        while self._take("ARRAY"):
            kind = self._with_nullability(array_of(kind))
        return kind

    def _with_nullability(self, kind: FlinkType) -> FlinkType:
        if self._take("NOT", "NULL"):
            return FlinkType(kind.text, kind.spark, False, kind.digits)
        self._take("NULL")
        return kind

    def _type_alone(self) -> FlinkType:
        token = self._curr
        if (
            self._at_end()
            or token.token_type in {TokenType.STRING, TokenType.IDENTIFIER}
            or not token.text[0].isalpha()
        ):
            self._expected("a type such as STRING, BIGINT or TIMESTAMP(3)")
        self._advance()
        # sqlglot reads DOUBLE PRECISION as one word.
        name = token.text.upper().split()[0]
        if name == "ARRAY":
            return array_of(*self._between(1))
        if name == "MAP":
            return map_of(*self._between(2))
        if name == "ROW":
            return row_of(self._fields())
        if name == "DOUBLE":
            self._take("PRECISION")
        sizes = self._list_of(lambda: self._number_of("a number")) if self._is_word("(") else ()
        if name == "TIMESTAMP" and self._take("WITH", "LOCAL", "TIME", "ZONE"):
            name = "TIMESTAMP_LTZ"
        elif name == "TIMESTAMP" and self._is_word("WITH", "TIME", "ZONE"):
            self.raise_error("TIMESTAMP WITH TIME ZONE is not supported: use TIMESTAMP_LTZ, an instant", token)
        elif name == "TIMESTAMP":
            self._take("WITHOUT", "TIME", "ZONE")
        try:
            return plain(name, sizes)
        except ValueError as error:
            self.raise_error(str(error), token)

    def _between(self, count: int) -> tuple[FlinkType, ...]:
        """Take ``<type, ...>``."""
        self._need("<")
        kinds = [self._type()]
        while len(kinds) < count:
            self._need(",")
            kinds.append(self._type())
        self._need(">")
        return tuple(kinds)

    def _fields(self) -> tuple[tuple[str, FlinkType], ...]:
        """Take ``<name type, ...>`` or the same in round brackets."""
        if self._is_word("("):
            return self._list_of(self._field_of_row)
        self._need("<")
        fields = [self._field_of_row()]
        while self._take(","):
            fields.append(self._field_of_row())
        self._need(">")
        return tuple(fields)

    def _field_of_row(self) -> tuple[str, FlinkType]:
        name, kind = self._name("the name of a field"), self._type()
        if self._curr and self._curr.token_type == TokenType.STRING:
            self._advance()
        return name, kind
