"""Avro schemas that others have written, as parsed JSON, in which references to named types are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tablestore.connectors.formats.values import UnfitError

_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


@dataclass(eq=False)
class AvroType:
    """A type of an Avro schema.

    Attributes:
        kind: ``record``, ``union``, ``array``, ``map``, ``enum``, ``fixed`` or a primitive type.
        logical: its logical type, or empty.
        scale: the scale of a decimal.
        size: the number of bytes of a ``fixed``.
        names: the fields of a record, or the symbols of an enum.
        parts: the types of a record's fields, a union's branches, an array's items or a map's values.
    """

    kind: str
    logical: str = ""
    scale: int = 0
    size: int = 0
    names: tuple[str, ...] = ()
    parts: list[AvroType] = field(default_factory=list)

    def same_encoding(self, other: AvroType, depth: int = 0) -> bool:
        """Return whether values of both types have the same bytes with the same meaning."""
        # Recursive types, which tables do not have, end at some depth.
        mine, others = (_described(each) for each in (self, other))
        return (
            depth < _DEPTH_MAX
            and mine == others
            and all(one.same_encoding(two, depth + 1) for one, two in zip(self.parts, other.parts, strict=True))
        )


_DEPTH_MAX: Final = 50


def _described(kind: AvroType) -> tuple[object, ...]:
    return kind.kind, kind.logical, kind.scale, kind.size, kind.names, len(kind.parts)


def parse_schema(schema: Any, referred: Sequence[Any] = ()) -> AvroType:
    """Parse a schema; ``referred`` are the types that it refers to, each after those that it refers to itself.

    Raises:
        UnfitError: it is not a valid schema.
    """
    known: dict[str, AvroType] = {}
    try:
        for each in referred:
            _parsed(each, "", known)
        return _parsed(schema, "", known)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        msg = f"the schema is not one of Avro: {error!r}"
        raise UnfitError(msg) from error


def _parsed(schema: Any, namespace: str, known: dict[str, AvroType]) -> AvroType:
    if isinstance(schema, list):
        return AvroType("union", parts=[_parsed(each, namespace, known) for each in schema])
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return AvroType(schema)
        return known[_full(schema, namespace)]
    kind = schema["type"]
    if not isinstance(kind, str):
        return _parsed(kind, namespace, known)
    if kind in _NAMED:
        return _named(schema, kind, namespace, known)
    if kind == "array":
        return AvroType(kind, parts=[_parsed(schema["items"], namespace, known)])
    if kind == "map":
        return AvroType(kind, parts=[_parsed(schema["values"], namespace, known)])
    if kind not in _PRIMITIVE:
        return known[_full(kind, namespace)]
    return AvroType(kind, schema.get("logicalType", ""), int(schema.get("scale", 0)))


def _named(schema: dict[str, Any], kind: str, namespace: str, known: dict[str, AvroType]) -> AvroType:
    name = _full(schema["name"], schema.get("namespace", namespace))
    made = known[name] = AvroType(
        "record" if kind == "error" else kind,
        schema.get("logicalType", ""),
        int(schema.get("scale", 0)),
        int(schema.get("size", 0)),
        tuple(schema.get("symbols", ())),
    )
    if made.kind == "record":
        inner = name.rpartition(".")[0]
        made.names = tuple(each["name"] for each in schema["fields"])
        made.parts = [_parsed(each["type"], inner, known) for each in schema["fields"]]
    return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
