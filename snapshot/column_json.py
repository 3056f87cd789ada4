"""Columns as JSON, in which Spark and Delta write them: compares them, and adds what other Delta writers have added."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Json = str | Mapping[str, Any]
"""A type: its name or, if it is nested, an object. A schema is a struct."""
Path = tuple[str, ...]
"""The names of the columns and fields around a field and its own, with ``element``, ``key`` and ``value`` between."""
VOID = "void"
"""The type of a column or field of which only NULLs are known. Files do not have it."""
_EXTENDED = ("elementType", "valueType")
"""The types in arrays and maps that may have further fields; those of keys may not."""


def parts(kind: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield the paths and types of all columns of a schema, and of everything nested in them."""
    for name, inner in _inside(kind):
        yield (*path, name), inner
        yield from parts(inner, (*path, name))


def paths(schema: Json) -> set[Path]:
    """Return the paths of all columns and fields, in lower case."""
    return {tuple(name.lower() for name in path) for path, _ in parts(schema)}


def lacking(there: str, schema: str) -> list[str]:
    """Return the names of those columns of a schema that another one, both as text, lacks or has with another type.

    A type may have further nullable fields within it, except in the keys of maps.
    """
    found = {each["name"]: each["type"] for each in json.loads(there)["fields"]}
    asked = json.loads(schema)["fields"]
    return [each["name"] for each in asked if not extends(found.get(each["name"]), each["type"])]


def with_others(schema: Json, there: Json, is_left_out: Callable[[Path, Json], bool], path: Path = ()) -> Json:
    """Return a schema, or a type, with the columns and fields that only another one has, each after those around it.

    Args:
        schema: the schema.
        there: the other one.
        is_left_out: whether not to take a column or field, by its path in lower case and its type.
        path: the path of the type, in lower case.
    """
    if isinstance(schema, str) or isinstance(there, str) or schema["type"] != there["type"]:
        return schema
    result = dict(schema)
    if schema["type"] == "struct":
        own = {each["name"].lower() for each in schema["fields"]}
        found = {each["name"].lower(): each for each in there["fields"]}
        result["fields"] = [
            {**each, "type": with_others(each["type"], found[name]["type"], is_left_out, (*path, name))}
            if (name := each["name"].lower()) in found
            else each
            for each in schema["fields"]
        ] + [each for name, each in found.items() if name not in own and not is_left_out((*path, name), each["type"])]
        return result
    for key in _EXTENDED:
        if key in schema:
            step = key.removesuffix("Type")
            result[key] = with_others(schema[key], there[key], is_left_out, (*path, step))
    return result


def _inside(kind: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        yield from ((each["name"], each["type"]) for each in kind["fields"])
    else:
        yield from ((key.removesuffix("Type"), kind[key]) for key in ("keyType", *_EXTENDED) if key in kind)


def extends(there: Json | None, kind: Json) -> bool:
    """Return whether a type is the given one, or has further nullable fields within it."""
    if there is None or isinstance(there, str) or isinstance(kind, str) or there["type"] != kind["type"]:
        return there == kind
    if kind["type"] == "struct":
        found = {each["name"]: each for each in there["fields"]}
        own = [(found.pop(each["name"], None), each) for each in kind["fields"]]
        return all(each["nullable"] for each in found.values()) and all(
            held is not None and held["nullable"] == each["nullable"] and extends(held["type"], each["type"])
            for held, each in own
        )
    return all(extends(there[key], inner) if key in _EXTENDED else there[key] == inner for key, inner in kind.items())
