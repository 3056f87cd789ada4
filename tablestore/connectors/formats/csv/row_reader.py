"""Decodes one CSV payload at a time: the reference for bulk decoding, and the fallback for payloads it leaves out.

It follows Flink's CSV (Jackson's): a quote is special only at the start of a field, blanks after a closing quote are
dropped, blanks in other fields are kept, and one delimiter may follow the last field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.options import CHARACTER, FormatOptions
from tablestore.connectors.formats.values import UnfitError, shown, value_reader
from tablestore.options.declaration import option, optional
from tablestore.options.value_types import BOOLEAN, VERBATIM

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


@dataclass(frozen=True, kw_only=True)
class CsvOptions(FormatOptions):
    """The options of the ``csv`` format."""

    format = "csv"
    delimiter: str = option("field-delimiter", CHARACTER, ",")
    unquoted: bool = option("disable-quote-character", BOOLEAN, "false")
    quote_character: str | None = optional("quote-character", CHARACTER, "By default a double quote.")
    escape: str | None = optional("escape-character", CHARACTER)
    element_delimiter: str = option("array-element-delimiter", VERBATIM, ";", "Between elements, or a struct's fields.")
    null: str | None = optional("null-literal", VERBATIM, "The text of NULL; by default an empty field.")
    comments: bool = option("allow-comments", BOOLEAN, "false", "Whether payloads that start with `#` are comments.")
    ignore_parse_errors: bool = option(
        "ignore-parse-errors",
        BOOLEAN,
        "false",
        "Whether an invalid field becomes NULL, and an invalid payload is skipped.",
    )
    scientific: bool = option("write-bigdecimal-in-scientific-notation", BOOLEAN, "true")

    def __post_init__(self) -> None:
        """Check that the options do not exclude each other.

        Raises:
            InvalidInputError: they do.
        """
        before, msg = self.option_prefix, ""
        if self.unquoted and self.quote_character is not None:
            msg = (
                f"{before}quote-character cannot be set while {before}disable-quote-character is true: a format cannot "
                "define a quote character and disable it at the same time"
            )
        elif len(set(self.specials)) < len(self.specials):
            msg = (
                f"{before}field-delimiter, {before}quote-character and {before}escape-character must be different "
                f"characters, got {self.delimiter!r}, {self.quote!r}, {self.escape!r}"
            )
        elif not self.element_delimiter:
            msg = f"{before}array-element-delimiter must not be empty"
        if msg:
            raise InvalidInputError(msg)

    @property
    def quote(self) -> str | None:
        """The quote character; None if quoting is disabled."""
        return None if self.unquoted else self.quote_character or '"'

    @property
    def specials(self) -> list[str]:
        """The special characters: delimiter, quote and escape."""
        return [character for character in (self.delimiter, self.quote, self.escape) if character is not None]

    @property
    def quote_or_delimiter(self) -> str:
        """The higher code point of delimiter and quote; a text with any character up to it is quoted."""
        return max(self.delimiter, self.quote or "")


class CsvRowReader:
    """Decodes payloads one at a time."""

    def __init__(self, schema: pa.Schema, options: CsvOptions) -> None:
        """Prepare the reader for a schema."""
        self._options = options
        self._columns = [(field, self._column(field)) for field in schema]

    def read(self, payload: bytes) -> dict[str, Any] | None:
        """Decode one payload; return None if it produces no row.

        Raises:
            UnfitError: the payload is invalid, and parse errors are not ignored.
        """
        try:
            return self._row(payload)
        except UnfitError:
            if self._options.ignore_parse_errors:
                return None
            raise

    def _row(self, payload: bytes) -> dict[str, Any]:
        try:
            line = payload.decode("utf-8")
        except UnicodeDecodeError as error:
            msg = f"not UTF-8: {shown(payload)}"
            raise UnfitError(msg) from error
        if self._options.comments and line.startswith("#"):
            msg = f"a comment and no row: {shown(line)}"
            raise UnfitError(msg)
        wanted = len(self._columns)
        fields = _Line(line, self._options).fields() if line or wanted else []
        if len(fields) == wanted + 1 and wanted and fields[-1] == "":
            fields.pop()
        if len(fields) > wanted or (len(fields) < wanted and not self._options.ignore_parse_errors):
            msg = f"Row length mismatch. {wanted} fields expected but was {len(fields)}: {shown(line)}"
            raise UnfitError(msg)
        row = {}
        for number, (field, read) in enumerate(self._columns):
            try:
                row[field.name] = self._value(field, read, fields[number] if number < len(fields) else None)
            except UnfitError as error:
                raise UnfitError(error.reason, field.name) from error
        return row

    def _value(self, field: pa.Field, read: Callable[[str], Any], text: str | None) -> Any:
        value = None
        if text is not None and not self._says_null(text, field.type):
            try:
                value = read(text)
            except UnfitError:
                if not self._options.ignore_parse_errors:
                    raise
        if value is None and not field.nullable:
            msg = f"{field.name!r} must not be NULL, got {shown(text or '')}"
            raise UnfitError(msg)
        return value

    def _says_null(self, text: str, data_type: pa.DataType) -> bool:
        if text == self._options.null:
            return True
        # Without a null literal, NULL is written as an empty field. For types that cannot be parsed from an empty
        # text, an empty field is NULL.
        return text == "" and not (pt.is_string(data_type) or pt.is_binary(data_type) or pt.is_list(data_type))

    def _column(self, field: pa.Field) -> Callable[[str], Any]:
        data_type = field.type
        if pt.is_list(data_type):
            element = self._column(data_type.value_field)
            return lambda text: [self._value(data_type.value_field, element, part) for part in self._parts(text)]
        if pt.is_struct(data_type):
            inner = [(f, self._column(f)) for f in data_type]
            return lambda text: self._struct(inner, self._parts(text))
        if pt.is_binary(data_type):
            return _bytes
        read = value_reader(data_type, separator=" ")
        return (lambda text: read(text.strip())) if pt.is_timestamp(data_type) else read

    def _parts(self, text: str) -> list[str]:
        return text.split(self._options.element_delimiter) if text else []

    def _struct(self, fields: list[tuple[pa.Field, Callable[[str], Any]]], parts: list[str]) -> dict[str, Any]:
        if len(parts) != len(fields):
            msg = f"{len(fields)} fields expected but was {len(parts)}"
            raise UnfitError(msg)
        return {f.name: self._value(f, read, part) for (f, read), part in zip(fields, parts, strict=True)}


class _Line:
    """Splits a line into fields."""

    def __init__(self, line: str, options: CsvOptions) -> None:
        self._line, self._options = line, options
        self._at = 0

    def fields(self) -> list[str]:
        """Return the texts of all fields."""
        line, options = self._line, self._options
        fields = []
        while True:
            quoted = options.quote is not None and line.startswith(options.quote, self._at)
            fields.append(self._quoted(options.quote or "") if quoted else self._plain())
            if self._at < len(line) and line[self._at] == options.delimiter:
                self._at += 1
                continue
            if line[self._at :] not in ("", "\n", "\r", "\r\n"):
                msg = f"more than one line, or text behind a closing quote: {shown(line[self._at :])}"
                raise UnfitError(msg)
            return fields

    def _plain(self) -> str:
        text: list[str] = []
        while self._at < len(self._line):
            letter = self._line[self._at]
            if letter == self._options.delimiter or letter in "\r\n":
                break
            text.append(self._letter(letter))
        return "".join(text)

    def _quoted(self, quote: str) -> str:
        text: list[str] = []
        self._at += 1
        while self._at < len(self._line):
            letter = self._line[self._at]
            if letter == quote:
                self._at += 1
                if not self._line.startswith(quote, self._at):
                    while self._at < len(self._line) and self._line[self._at] in " \t" and not self._ends():
                        self._at += 1
                    return "".join(text)
                text.append(quote)
                self._at += 1
                continue
            text.append(self._letter(letter))
        msg = f"a closing quote is missing: {shown(self._line)}"
        raise UnfitError(msg)

    def _ends(self) -> bool:
        return self._line[self._at] == self._options.delimiter

    def _letter(self, letter: str) -> str:
        """Consume and return one character, resolving an escape."""
        self._at += 1
        if letter != self._options.escape:
            return letter
        if self._at == len(self._line):
            msg = f"nothing follows the escape character at the end of {shown(self._line)}"
            raise UnfitError(msg)
        self._at += 1
        escaped = self._line[self._at - 1]
        return _ESCAPES.get(escaped, escaped)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        msg = f"expected base64, got {shown(text)}"
        raise UnfitError(msg) from error
