"""Flink's functions of JSON: their clauses, and their translation to Spark SQL.

Spark has no function that tells a path that is missing from a text that is not JSON. So the text is parsed to a
variant, whose type at the path says what is there, and ``GET_JSON_OBJECT`` returns it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final

from sqlglot import exp

from snapshot.quoting import text_literal
from tablestore.sql.parser.functions.calls import called
from tablestore.sql.parser.token_reader import Reader

_MODE: Final = re.compile(r"\s*(strict|lax)\s+(.+)", re.IGNORECASE | re.DOTALL)
_STEP: Final = re.compile(r"""\.([^.\[\]*'"?()@\s]+)|\.?\[(\d{1,9})\]|\.?\[\s*(?:'([^'?*\\]+)'|"([^'"?*\\]+)")\s*\]""")
_RETURNED: Final = {
    exp.DType.TEXT: "STRING",
    exp.DType.VARCHAR: "STRING",
    exp.DType.BOOLEAN: "BOOLEAN",
    exp.DType.INT: "INT",
    exp.DType.DOUBLE: "DOUBLE",
}
"""Spark's types of ``RETURNING``."""
_ARRAY: Final = "TO_JSON(ARRAY({0}), MAP('ignoreNullFields', 'false', 'timeZone', 'UTC'))"
AS_JSON: Final = f"IF({{0}} IS NULL, NULL, SUBSTRING({_ARRAY}, 2, LENGTH({_ARRAY}) - 2))"
"""A value of any type as JSON; Spark writes only rows, arrays and maps."""
_COMMA: Final = "','"
_WRAPPERS: Final = (
    ("WITHOUT", "WITHOUT"),
    ("WITH CONDITIONAL", "CONDITIONAL"),
    ("WITH UNCONDITIONAL", "UNCONDITIONAL"),
    ("WITH", "UNCONDITIONAL"),
)
_CONSTANTS: Final = {"EMPTY ARRAY": "'[]'", "EMPTY OBJECT": "'{}'", "TRUE": "TRUE", "FALSE": "FALSE", "UNKNOWN": "NULL"}


class JsonFunction(exp.Expression, exp.Func):
    """A call of one of the functions; ``empty`` and ``error`` are words such as ``NULL``, or the value of DEFAULT."""

    arg_types: ClassVar = {
        "this": True, "path": True, "returning": False, "wrapper": False, "empty": False, "error": False
    }  # fmt: skip


class JsonValue(JsonFunction):
    """``JSON_VALUE``."""

    _sql_names: ClassVar = ["JSON_VALUE"]


class JsonQuery(JsonFunction):
    """``JSON_QUERY``."""

    _sql_names: ClassVar = ["JSON_QUERY"]


class JsonExists(JsonFunction):
    """``JSON_EXISTS``."""

    _sql_names: ClassVar = ["JSON_EXISTS"]


class JsonArray(exp.Expression, exp.Func):
    """``JSON_ARRAY``; ``nulls`` is whether it has them."""

    _sql_names: ClassVar = ["JSON_ARRAY"]
    arg_types: ClassVar = {"expressions": False, "nulls": False}
    is_var_len_args = True


class JsonAggregate(exp.Expression, exp.AggFunc):
    """An aggregate; ``nulls`` is whether the result has NULLs among the values."""

    arg_types: ClassVar = {"this": True, "expression": False, "nulls": False}


class JsonArrayAgg(JsonAggregate):
    """``JSON_ARRAYAGG`` of the values ``this``."""

    _sql_names: ClassVar = ["JSON_ARRAYAGG"]


class JsonObjectAgg(JsonAggregate):
    """``JSON_OBJECTAGG`` of the keys ``this`` and the values ``expression``."""

    _sql_names: ClassVar = ["JSON_OBJECTAGG"]


class JsonReader(Reader):
    """Parser for the arguments of the functions, up to the closing bracket."""

    def _json_value(self) -> exp.Expr:
        text, path = self._text_and_path()
        returning = None
        if self._take("RETURNING"):
            returning = self._parse_types()
            if not isinstance(returning, exp.DataType) or returning.this not in _RETURNED:
                self.raise_error("JSON_VALUE: expected RETURNING STRING, BOOLEAN, INTEGER or DOUBLE", self._prev)
        empty, error = self._behaviours(("NULL", "ERROR", "DEFAULT"), ("EMPTY", "ERROR"))
        return JsonValue(this=text, path=path, returning=returning, empty=empty, error=error)

    def _json_query(self) -> exp.Expr:
        text, path = self._text_and_path()
        if self._take("RETURNING"):
            self.raise_error("JSON_QUERY: RETURNING is not supported: it returns STRING", self._prev)
        wrapper = self._wrapper()
        empty, error = self._behaviours(("NULL", "ERROR", "EMPTY ARRAY", "EMPTY OBJECT"), ("EMPTY", "ERROR"))
        return JsonQuery(this=text, path=path, wrapper=exp.var(wrapper), empty=empty, error=error)

    def _wrapper(self) -> str:
        """Parse the wrapper, such as ``WITH CONDITIONAL ARRAY WRAPPER``; it may be left out."""
        for words, kind in _WRAPPERS:
            if self._take(*words.split()):
                self._take("ARRAY")
                self._need("WRAPPER")
                return kind
        return "WITHOUT"

    def _json_exists(self) -> exp.Expr:
        text, path = self._text_and_path()
        _, error = self._behaviours(("TRUE", "FALSE", "UNKNOWN", "ERROR"), ("ERROR",))
        return JsonExists(this=text, path=path, error=error)

    def _json_array(self) -> exp.Expr:
        values = [] if self._is_word(")") else [self._parse_disjunction()]
        while values and self._take(","):
            values.append(self._parse_disjunction())
        return JsonArray(expressions=values, nulls=self._nulls(default=False))

    def _json_arrayagg(self) -> exp.Expr:
        return JsonArrayAgg(this=self._parse_disjunction(), nulls=self._nulls(default=False))

    def _json_objectagg(self) -> exp.Expr:
        if not self._is_word("KEY", "VALUE"):
            self._take("KEY")
        key = self._parse_disjunction()
        self._need("VALUE")
        return JsonObjectAgg(this=key, expression=self._parse_disjunction(), nulls=self._nulls(default=True))

    def _nulls(self, *, default: bool) -> bool:
        """Parse ``{NULL, ABSENT} ON NULL`` at the end of the arguments; it may be left out."""
        nulls = default
        if self._take("NULL", "ON", "NULL"):
            nulls = True
        elif self._take("ABSENT", "ON", "NULL"):
            nulls = False
        self._end_of_arguments()
        return nulls

    def _text_and_path(self) -> tuple[exp.Expr, exp.Expr]:
        text = self._parse_disjunction()
        if text is None or not self._take(","):
            self.raise_error("expected the JSON text, a comma and a path such as '$.name'")
        start = self._curr
        path = self._parse_primary()
        if path is None or not path.is_string:
            self.raise_error("expected a path in single quotes, such as '$.name' or 'lax $.list[0]'", start)
        try:
            _steps(path.name)
        except ValueError as error:
            self.raise_error(str(error), start)
        return text, path

    def _behaviours(self, words: tuple[str, ...], events: tuple[str, ...]) -> tuple[exp.Expr | None, exp.Expr | None]:
        """Parse ``NULL ON EMPTY DEFAULT 0 ON ERROR`` and the like; the default of each is None."""
        found: dict[str, exp.Expr | None] = {}
        while (word := next((each for each in words if self._take(*each.split())), None)) is not None:
            value = self._parse_bitwise() if word == "DEFAULT" else exp.var(word)
            event = next((each for each in events if self._take("ON", each)), None)
            if event is None or event in found:
                self._expected(" or ".join(f"ON {each}" for each in events if each not in found))
            found[event] = value
        self._end_of_arguments()
        return found.get("EMPTY"), found.get("ERROR")

    def _end_of_arguments(self) -> None:
        """Raise an error unless a closing bracket follows, which sqlglot consumes, and takes as optional."""
        if not self._is_word(")"):
            self._expected("')'")


PARSERS: Final = {
    "JSON_VALUE": JsonReader._json_value,  # noqa: SLF001 - of the class above
    "JSON_QUERY": JsonReader._json_query,  # noqa: SLF001
    "JSON_EXISTS": JsonReader._json_exists,  # noqa: SLF001
    "JSON_ARRAY": JsonReader._json_array,  # noqa: SLF001
    "JSON_ARRAYAGG": JsonReader._json_arrayagg,  # noqa: SLF001
    "JSON_OBJECTAGG": JsonReader._json_objectagg,  # noqa: SLF001
}
"""Parsers of the functions' arguments, by name."""


def json_in_spark(call: JsonFunction, text_of: Callable[[exp.Expr], str]) -> str:
    """Return JSON_VALUE, JSON_QUERY or JSON_EXISTS in Spark SQL; ``text_of`` returns an expression in it."""
    text = text_of(call.this)
    is_lax, path = _steps(call.args["path"].name)
    at = f"TRY_VARIANT_GET(TRY_PARSE_JSON({text}), {path}, 'variant')"
    kind, found = f"SCHEMA_OF_VARIANT({at})", f"GET_JSON_OBJECT({text}, {path})"
    name, returned = str(call.sql_name()), call.args.get("returning")
    type_name = _RETURNED[returned.this] if returned else "STRING"

    def on(event: str, message: str) -> str:
        behaviour = call.args.get(event)
        if behaviour is None or (isinstance(behaviour, exp.Var) and behaviour.name == "NULL"):
            return "NULL"
        if not isinstance(behaviour, exp.Var):
            return f"CAST({text_of(behaviour)} AS {type_name})"
        return _CONSTANTS.get(behaviour.name) or f"RAISE_ERROR({text_literal(message)})"

    empty = on("empty", f"{name}: there is no value at the path")
    error = on("error", f"{name}: the text is not JSON, or the path is not in it")
    missing = empty if is_lax else error
    if isinstance(call, JsonExists):
        missing = "FALSE" if is_lax or call.args.get("error") is None else error
    # The type is in the first condition, so that Spark evaluates it once.
    nothing = f"CASE WHEN {kind} IS NULL THEN IF({text} IS NULL, NULL, {missing})"
    if isinstance(call, JsonExists):
        return f"({nothing} ELSE {kind} <> 'VOID' END)"
    nothing += f" WHEN {kind} = 'VOID' THEN {empty}"
    is_nested = f"({kind} LIKE 'OBJECT<%' OR {kind} LIKE 'ARRAY<%')"
    if isinstance(call, JsonValue):
        value = found if returned is None else f"TRY_CAST({found} AS {type_name})"
        return f"({nothing} WHEN {is_nested} THEN {missing} WHEN {value} IS NULL THEN {error} ELSE {value} END)"
    wrapper = call.args["wrapper"].name
    if wrapper == "WITHOUT":
        return f"({nothing} WHEN {is_nested} THEN {found} ELSE {missing} END)"
    wrapped = f"CONCAT('[', IF({is_nested}, {found}, TO_JSON({at})), ']')"
    is_kept = f" WHEN {kind} LIKE 'ARRAY<%' THEN {found}" if wrapper == "CONDITIONAL" else ""
    return f"({nothing}{is_kept} ELSE {wrapped} END)"


def json_made(node: exp.JSONObject | JsonArray, text_of: Callable[[exp.Expr], str]) -> str:
    """Return ``JSON_OBJECT`` or ``JSON_ARRAY`` in Spark SQL; ``text_of`` returns an expression in it."""
    if isinstance(node, JsonArray):
        values = [_value(each, text_of) for each in node.expressions]
        found = [f"COALESCE({each}, 'null')" for each in values] if node.args["nulls"] else values
        return f"CONCAT('[', CONCAT_WS({', '.join([_COMMA, *found])}), ']')"
    pairs = [(AS_JSON.format(text_of(each.this)), _value(each.expression, text_of)) for each in node.expressions]
    if str(node.args.get("null_handling")).upper() != "ABSENT ON NULL":
        pairs = [(key, f"COALESCE({each}, 'null')") for key, each in pairs]
    found = [f"CONCAT({key}, ':', {each})" for key, each in pairs]
    return f"CONCAT('{{', CONCAT_WS({', '.join([_COMMA, *found])}), '}}')"


def json_aggregated(node: exp.Expr, text_of: Callable[[exp.Expr], str]) -> str:
    """Return ``JSON_OBJECTAGG`` or ``JSON_ARRAYAGG``, or ``FILTER`` around one, in Spark SQL."""
    call = node.this if isinstance(node, exp.Filter) else node
    is_array = isinstance(call, JsonArrayAgg)
    found = _value(call.this if is_array else call.expression, text_of)
    if call.args["nulls"]:
        found = f"COALESCE({found}, 'null')"
    if not is_array:
        key = AS_JSON.format(f"CAST({text_of(call.this)} AS STRING)")
        found = f"CONCAT(COALESCE({key}, RAISE_ERROR('JSON_OBJECTAGG: a name is NULL')), ':', {found})"
    if isinstance(node, exp.Filter):
        found = f"CASE WHEN {text_of(node.expression.this)} THEN {found} END"
    listed, start, end = f"COLLECT_LIST({found})", "[", "]"
    if not is_array:
        listed, start, end = f"SORT_ARRAY({listed})", "{", "}"
    return f"CONCAT('{start}', CONCAT_WS(',', {listed}), '{end}')"


def _value(node: exp.Expr, text_of: Callable[[exp.Expr], str]) -> str:
    """Return a value as JSON in Spark SQL; what is JSON already stays as it is."""
    if called(node) == "JSON" and len(node.expressions) == 1:
        return f"TO_JSON(PARSE_JSON({text_of(node.expressions[0])}))"
    is_made = isinstance(node, exp.JSONObject | JsonArray | JsonAggregate)
    return text_of(node) if is_made else AS_JSON.format(f"({text_of(node)})")


def is_json(text: str, kind: str) -> str:
    """Return ``IS JSON`` in Spark SQL.

    Args:
        text: the text in Spark SQL.
        kind: ``OBJECT``, ``ARRAY`` or ``SCALAR``; all else is any of them.
    """
    found = f"SCHEMA_OF_VARIANT(TRY_PARSE_JSON({text}))"
    if kind == "SCALAR":
        return f"COALESCE({found} NOT LIKE 'OBJECT<%' AND {found} NOT LIKE 'ARRAY<%', FALSE)"
    return f"COALESCE({found} LIKE '{kind}<%', FALSE)" if kind in {"OBJECT", "ARRAY"} else f"({found} IS NOT NULL)"


def _steps(path: str) -> tuple[bool, str]:
    """Return whether a path is ``lax``, and the path as a literal of Spark SQL.

    Raises:
        ValueError: it has more than names and positions.
    """
    mode = _MODE.fullmatch(path)
    steps = (mode[2] if mode else path).strip()
    if not steps.startswith("$") or _STEP.sub("", steps) != "$":
        msg = f"path '{path}' is not supported: expected '$' with names and positions, such as '$.list[0][''a b'']'"
        raise ValueError(msg)
    found = "".join(f"[{at}]" if at else f"['{name or one or two}']" for name, at, one, two in _STEP.findall(steps))
    literal = str(exp.Literal.string(f"${found}").sql(dialect="spark"))
    return mode is not None and mode[1].lower() == "lax", literal
