"""Messages of the changelog formats, as the tools write them."""

from __future__ import annotations

from typing import Any

OP = {
    "debezium-json": ("op", {"+I": "c", "+U": "u", "-D": "d"}),
    "canal-json": ("type", {"+I": "INSERT", "+U": "UPDATE", "-D": "DELETE"}),
    "maxwell-json": ("type", {"+I": "insert", "+U": "update", "-D": "delete"}),
    "ogg-json": ("op_type", {"+I": "I", "+U": "U", "-D": "D"}),
}


def message_of(name: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    """Return the message of a change from one row to another, None being no row."""
    field, ops = OP[name]
    op = {field: ops["+I" if before is None else "-D" if after is None else "+U"]}
    if name in ("debezium-json", "ogg-json"):
        return {"before": before, "after": after, **op}
    row, old = after or before, None
    if before is not None and after is not None:
        old = {key: value for key, value in before.items() if after[key] != value}
    if name == "canal-json":
        return {"data": [row], "old": None if old is None else [old], **op}
    return {"data": row, "old": old, **op}
