"""Decodes one JSON payload at a time: the reference for bulk decoding, and the fallback for payloads it leaves out.

It follows Flink (``JsonToRowDataConverters``): unknown fields are ignored, missing fields are NULL or an error, strings
are converted to numbers and numbers to strings. There are two differences: a value that Flink would silently change is
an error (see ``values``), and so is text after the object.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as pt

from tablestore.connectors.formats.json.text_splitter import SPACE
from tablestore.connectors.formats.values import UnfitError, shown, value_reader, whole

Convert = Callable[[Any], Any]


class Number(str):
    """A JSON number as its original text, so that no digit is lost before the column's type is applied."""

    __slots__ = ()


class JsonRowReader:
    """Decodes payloads one at a time."""

    def __init__(
        self, schema: pa.Schema, *, separator: str, fail_on_missing_field: bool, ignore_parse_errors: bool
    ) -> None:
        """Prepare the reader for a schema.

        Args:
            schema: the columns.
            separator: the separator of date and time.
            fail_on_missing_field: whether a missing field is an error instead of NULL.
            ignore_parse_errors: whether an invalid field becomes NULL, and a payload that is not an object is skipped.
        """
        self._separator = separator
        self._fail_on_missing_field = fail_on_missing_field
        self._ignore = ignore_parse_errors
        self._columns = [(field, self._nullable(field)) for field in schema]

    def read(self, payload: bytes) -> dict[str, Any] | None:
        """Decode one payload; return None if it produces no row.

        Raises:
            UnfitError: the payload is invalid, and parse errors are not ignored.
        """
        try:
            value = parse_object(payload)
            return None if value is None else self.convert(value)
        except UnfitError:
            if self._ignore:
                return None
            raise

    def convert(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a parsed object.

        Raises:
            UnfitError: a field is invalid; if parse errors are ignored, only a NULL that is not allowed.
        """
        row = {}
        for field, convert in self._columns:
            try:
                if field.name not in value and self._fail_on_missing_field:
                    msg = f"field {field.name!r} is missing"
                    raise UnfitError(msg)
                row[field.name] = convert(value.get(field.name))
            except UnfitError as error:
                raise UnfitError(error.reason, field.name) from error
        return row

    def _nullable(self, field: pa.Field) -> Convert:
        """Return the converter of a field.

        If parse errors are ignored, the converter returns None for an invalid value. It raises if the result is None
        and the field is not nullable.
        """
        convert = self._converter(field.type)

        def run(value: Any) -> Any:
            result = None
            if value is not None:
                try:
                    result = convert(value)
                except UnfitError:
                    if not self._ignore:
                        raise
            if result is None and not field.nullable:
                msg = f"{field.name!r} must not be NULL, got {_text_of(value) if value is not None else 'null'}"
                raise UnfitError(msg)
            return result

        return run

    def _converter(self, data_type: pa.DataType) -> Convert:
        if pt.is_struct(data_type):
            fields = [(field, self._nullable(field)) for field in data_type]
            return lambda value: self._struct(value, fields)
        if pt.is_list(data_type):
            element = self._nullable(data_type.value_field)
            return lambda value: [element(item) for item in of_type(list, value, "array")]
        if pt.is_map(data_type):
            item = self._nullable(data_type.item_field)
            return lambda value: [(_clean(name), item(inner)) for name, inner in of_type(dict, value, "object").items()]
        if pt.is_string(data_type):
            return lambda value: _clean(_text_of(value))
        if pt.is_binary(data_type):
            return _bytes
        read = value_reader(data_type, separator=self._separator)
        if pt.is_integer(data_type):
            return lambda value: read(whole(value) if isinstance(value, Number) else _scalar(value))
        return lambda value: read(_scalar(value))

    def _struct(self, value: Any, fields: list[tuple[pa.Field, Convert]]) -> dict[str, Any]:
        given = of_type(dict, value, "object")
        result = {}
        for field, convert in fields:
            if field.name not in given and self._fail_on_missing_field:
                msg = f"field {field.name!r} is missing"
                raise UnfitError(msg)
            result[field.name] = convert(given.get(field.name))
        return result


def parse_object(payload: bytes) -> dict[str, Any] | None:
    """Parse a JSON object, whose numbers stay text; return None for an empty payload and for ``null``.

    Raises:
        UnfitError: the payload is not a JSON object.
    """
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = f"not UTF-8: {shown(payload)}"
        raise UnfitError(msg) from error
    if text.strip(SPACE) in ("", "null"):
        return None
    try:
        # strict=False accepts control characters within strings, as Flink does.
        value = json.loads(
            text, strict=False, parse_int=_integer_token, parse_float=Number, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        msg = f"not valid JSON ({shown(str(error))}): {shown(text)}"
        raise UnfitError(msg) from error
    if not isinstance(value, dict):
        msg = f"expected a JSON object, got {shown(text)}"
        raise UnfitError(msg)
    return value


def _integer_token(text: str) -> Number:
    """Return an integer token; ``-0`` becomes ``0``, because Java's integers have no negative zero."""
    return Number("0" if text == "-0" else text)


def _no_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def of_type(wanted: type, value: Any, name: str) -> Any:
    """Return a parsed value; raise UnfitError if it is not of the wanted type, which has this name in JSON."""
    if not isinstance(value, wanted):
        msg = f"expected a JSON {name}, got {shown(_text_of(value))}"
        raise UnfitError(msg)
    return value


def _scalar(value: Any) -> str:
    if isinstance(value, (dict, list)):
        msg = f"expected a single value, got {shown(_text_of(value))}"
        raise UnfitError(msg)
    return _text_of(value)


def _clean(text: str) -> str:
    """Return the text; raise if it contains an unpaired surrogate, which UTF-8 cannot encode."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            msg = f"half of a surrogate pair in {shown(ascii(text))}"
            raise UnfitError(msg) from error
    return text


def _bytes(value: Any) -> bytes:
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass  # raise the error below
    msg = f"expected a string in base64, got {shown(_text_of(value))}"
    raise UnfitError(msg)


def _text_of(value: Any) -> str:
    """Return a value's text: strings and numbers unchanged, all other values as JSON without whitespace."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(name)}:{_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return {True: "true", False: "false", None: "null"}[value]


def _json(value: Any) -> str:
    return _quote(value) if type(value) is str else _text_of(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
