"""Merge engines in plain Python: one row after the other, as they arrive. What the SQL has to equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
UPSERT, DELETE, PREIMAGE = "+", "-", "~"
LAST, FILL = "last_value", "last_non_null_value"


@dataclass(frozen=True)
class Case:
    """An engine and what the model knows of it.

    Attributes:
        options: the table's options.
        functions: of each column that is not in the key.
        sequence: ``sequence.field``.
        groups: sequence columns, and the columns that they order.
        removes: a delete removes the row.
        removing: sequence columns of groups; a delete that is not late in one of them removes the row.
        retracts: a preimage takes values back, and so does a delete, unless it removes the row.
        ignores: columns from which nothing is taken back.
        descending: the smallest sequence is the newest.
        any_order: the table is the same in whatever order rows with distinct sequences arrive.
    """

    options: Mapping[str, str]
    functions: Mapping[str, str]
    sequence: tuple[str, ...] = ()
    groups: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    removes: bool = False
    removing: tuple[tuple[str, ...], ...] = ()
    retracts: bool = False
    ignores: frozenset[str] = frozenset()
    any_order: bool = False
    descending: bool = False


@dataclass
class _Known:
    """What is known of a key."""

    row: Row | None = None
    newest: tuple[Any, ...] | None = None
    deleted: tuple[Any, ...] | None = None


class Model:
    """A table as a dict."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._keys: dict[int, _Known] = {}

    def rows(self) -> dict[int, Row]:
        return {key: known.row for key, known in self._keys.items() if known.row is not None}

    def apply(self, kind: str, row: Row) -> None:
        known = self._keys.setdefault(row["id"], _Known())
        case = self.case
        if kind != UPSERT and not (case.removes or case.retracts):
            return
        if kind == PREIMAGE and not case.retracts:
            return
        if kind == DELETE and any(self._is_punctual(known.row, row, group) for group in case.removing):
            known.row = None
            return
        late = False
        if case.sequence:
            at = _at(row, case.sequence, descending=case.descending)
            assert at is not None
            if known.deleted is not None and at < known.deleted:
                return
            late = known.newest is not None and at < known.newest
            if not late:
                known.newest = at
            if kind == DELETE and case.removes:
                if not late:
                    known.row, known.deleted = None, at
                return
        elif kind == DELETE and case.removes:
            known.row = None
            return
        known.row = self._merged(kind, known.row, row, late=late)

    def _is_punctual(self, old: Row | None, new: Row, group: tuple[str, ...]) -> bool:
        if all(new[name] is None for name in group):
            return False
        return old is None or all(old[name] is None for name in group) or _at(new, group) >= _at(old, group)

    def _merged(self, kind: str, old: Row | None, new: Row, *, late: bool) -> Row:
        case, is_first = self.case, old is None
        before: Row = dict.fromkeys(new) if old is None else old
        merged: Row = {"id": new["id"]}
        for name, function in case.functions.items():
            group = next((fields for fields, members in case.groups.items() if name in (*fields, *members)), None)
            is_late, has_any = late, not is_first
            if group is not None:
                mine, held = _at(new, group), _at(before, group)
                if all(new[each] is None for each in group):
                    merged[name] = before[name]
                    continue
                has_any = any(before[each] is not None for each in group)
                is_late = has_any and mine < held
            if name in (group or case.sequence):
                merged[name] = before[name] if is_late else new[name]
            elif kind != UPSERT:
                empty = 0 if function == "count" else None
                kept = empty if before[name] is None else before[name]
                merged[name] = kept if name in case.ignores else _taken(function, before[name], new[name], late=is_late)
            else:
                merged[name] = _added(function, before[name], new[name], late=is_late, first=not has_any)
        return merged


def _at(row: Row, fields: Sequence[str], *, descending: bool = False) -> tuple[Any, ...]:
    """Compare NULL as the oldest."""
    values = [row[name] for name in fields]
    return tuple((value is not None, -value if descending and value is not None else value) for value in values)


def _added(function: str, old: Any, new: Any, *, late: bool, first: bool) -> Any:
    if function == LAST:
        return old if late else new
    if function == FILL:
        return old if new is None or (late and old is not None) else new
    if function == "first_value":
        return new if first or late else old
    if function == "count":
        return (old or 0) + (new is not None)
    if new is None or old is None:
        return _once(function, new) if old is None else old
    if function == "first_non_null_value":
        return new if late else old
    folds: dict[str, Any] = {
        "sum": lambda: old + new,
        "product": lambda: old * new,
        "max": lambda: max(old, new),
        "min": lambda: min(old, new),
        "bool_or": lambda: old or new,
        "bool_and": lambda: old and new,
        "listagg": lambda: f"{old};{new}",
        "collect": lambda: old + new,
        "merge_map": lambda: list({**dict(old), **dict(new)}.items()),
        "nested_update": lambda: [*old, *(each for each in new if each is not None)],
        "nested_update k": lambda: _by_key(old, new),
        "collect distinct": lambda: _once(function, old + new),
        "listagg distinct": lambda: _once(function, f"{old};{new}"),
    }
    return folds[function]()


def _once(function: str, value: Any) -> Any:
    if value is not None and function.startswith("nested_update"):
        return _by_key([], value) if function.endswith("k") else [each for each in value if each is not None]
    if value is not None and function == "listagg distinct":
        return ";".join(dict.fromkeys(text for text in value.split(";") if text.strip()))
    return list(dict.fromkeys(value)) if function == "collect distinct" and value is not None else value


def _by_key(old: list[Row], new: list[Row | None]) -> list[Row]:
    """The last element of a key wins, and stands where it arrived."""
    found = {each["k"]: each for each in old}
    for each in new:
        if each is not None:
            found.pop(each["k"], None)
            found[each["k"]] = each
    return list(found.values())


def _taken(function: str, old: Any, new: Any, *, late: bool) -> Any:
    if function == LAST:
        return old if late else None
    if function == "count":
        return (old or 0) - (new is not None)
    if new is None:
        return old
    if function == FILL:
        return old if late else None
    if function == "merge_map":
        return None if old is None else [pair for pair in old if pair[0] not in dict(new)]
    if function.startswith("nested_update"):
        by_key = function.endswith("k")
        gone = [each["k"] if by_key else each for each in new if each is not None]
        return None if old is None else [each for each in old if (each["k"] if by_key else each) not in gone]
    if function.startswith("collect"):
        if old is None:
            return None
        rest = list(old)
        for each in new:
            if each in rest:
                rest.remove(each)
        return rest
    assert function == "sum", function
    return (old or 0) - new
