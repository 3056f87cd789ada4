"""Check, one record at a time, that rows say what a JSON text says. For records that another hand wrote.

The text is compared with the JSON of the row that was read from it. Both are parsed by Python, and whatever differs
in meaning is an error: a number rounded, a text read as a number, a value lost. What differs in spelling only is not:
white space, escapes, the order of fields, ``1.0`` for ``1.00``, fields missing (NULL) or unknown.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt


class RecordMismatchError(ValueError):
    """A record does not say what was read from it."""


def check_record(text: str | None, own: str, schema: pa.Schema, part: str) -> None:
    """Compare a record's text with the JSON of the row that was read from it.

    Args:
        text: what the record holds; None if it holds nothing.
        own: the JSON this program writes for the row.
        schema: the table's columns; those that ``own`` lacks are not compared.
        part: ``key`` or ``value``, for messages.

    Raises:
        RecordMismatchError: they differ in meaning, or the text is no JSON object.
    """
    if text is None:
        msg = f"the {part} is null"
        raise RecordMismatchError(msg)
    try:
        theirs = json.loads(
            text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_object_without_repeats
        )
    except (ValueError, RecursionError, InvalidOperation) as error:
        msg = f"the {part} is not valid JSON: {error}"
        raise RecordMismatchError(msg) from error
    if not isinstance(theirs, dict):
        msg = f"the {part} is not a JSON object"
        raise RecordMismatchError(msg)
    ours = json.loads(own, parse_float=Decimal)
    for name in ours:
        if not _same(theirs.get(name), ours[name], schema.field(name).type):
            shown = json.dumps(theirs.get(name), default=str)
            shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
            msg = f"the {part}'s column {name!r} of type {schema.field(name).type} cannot hold, or is not, {shown}"
            raise RecordMismatchError(msg)


def _no_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        msg = "a field is given twice"
        raise ValueError(msg)
    return result


def _same(theirs: Any, ours: Any, kind: pa.DataType) -> bool:
    """Compare two parsed values of one type; fields missing on their side count as null."""
    if theirs is None or ours is None:
        return theirs is None and ours is None
    if pt.is_struct(kind):
        return isinstance(theirs, dict) and all(_same(theirs.get(f.name), ours[f.name], f.type) for f in kind)
    if pt.is_map(kind):
        if pt.is_string(kind.key_type):
            return (
                isinstance(theirs, dict)
                and list(theirs) == list(ours)
                and all(_same(theirs[k], ours[k], kind.item_type) for k in ours)
            )
        pair = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _same(theirs, ours, pa.list_(pair))
    if pt.is_list(kind):
        return (
            isinstance(theirs, list)
            and len(theirs) == len(ours)
            and all(_same(a, b, kind.value_type) for a, b in zip(theirs, ours, strict=True))
        )
    if isinstance(theirs, str) or isinstance(ours, str) or isinstance(theirs, bool) or isinstance(ours, bool):
        return type(theirs) is type(ours) and bool(theirs == ours)
    if not isinstance(theirs, (int, Decimal)):
        return False
    if pt.is_floating(kind):
        width = np.float32 if pt.is_float32(kind) else np.float64
        with np.errstate(over="ignore"):
            return repr(width(str(theirs))) == repr(width(str(ours)))
    return bool(theirs == ours)
