"""Columns that another process changes while a local statement runs: no value is lost, and no error is raw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore import LocalTable, when_matched, when_not_matched
from tests.harness.beside import beside

BEFORE = [{"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "b", "n": 2}]
MERGE = [when_matched().update({"n": "target.n + source.n"}), when_not_matched().insert({"id": "id", "n": "n"})]
NAMES_V: dict[str, Callable[[LocalTable], Any]] = {
    "write": lambda t: t.write([{"id": 3, "v": "new", "n": 3}]),
    "overwrite": lambda t: t.overwrite([{"id": 3, "v": "new", "n": 3}]),
    "overwrite where": lambda t: t.overwrite([{"id": 2, "v": "b", "n": 3}], "v = 'b'"),
    "update": lambda t: t.update("v = 'b'", {"n": "n + 1"}),
    "delete": lambda t: t.delete("v = 'b'"),
}
"""Statements that need a column ``v`` of text."""
OTHERS: dict[str, tuple[Callable[[LocalTable], Any], dict[int, int | None]]] = {
    "update": (lambda t: t.update("id = 2", {"n": "n + 1"}), {1: 1, 2: 3}),
    "delete": (lambda t: t.delete("id = 2"), {1: 1}),
    "merge": (lambda t: t.merge([{"id": 2, "n": 5}, {"id": 3, "n": 5}], "id", MERGE), {1: 1, 2: 7, 3: 5}),
    "truncate": (lambda t: t.truncate(), {}),
}
KEYS: dict[str, dict[str, Any]] = {"key": {"primary_key": ["id"]}, "no key": {}}


def renamed(table: LocalTable) -> None:
    table.alter.rename_column("v", "w")


def renamed_and_moved(table: LocalTable) -> None:
    table.alter.rename_column("v", "w")
    table.alter.move_column("n", first=True)


def of_another_type(table: LocalTable) -> None:
    table.alter.drop_column("v")
    table.alter.add_column("v", "int")


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("verb", NAMES_V)
def test_a_statement_whose_column_is_renamed_or_replaced_is_refused(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    for alter, message in ((renamed, r"'v'"), (of_another_type, "int32|INT32")):
        table = make("id bigint, v string, n int", **KEYS[kind])
        table.write(BEFORE)
        beside(monkeypatch, table, alter)
        with pytest.raises(InvalidInputError, match=message):
            NAMES_V[verb](table)
        newest = table.snapshots(1)[0]
        assert newest.operation == "alter"
        assert sorted(row["n"] for row in table.to_arrow().to_pylist()) == [1, 2]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("verb", OTHERS)
def test_a_statement_that_names_other_columns_is_made(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    table = make("id bigint, v string, n int", **KEYS[kind])
    table.write(BEFORE)
    beside(
        monkeypatch,
        table,
        lambda other: (other.alter.rename_column("v", "w"), other.alter.move_column("n", first=True)),
    )
    call, expected = OTHERS[verb]
    call(table)
    assert table.schema.names == ["n", "id", "w"]
    assert {row["id"]: row["n"] for row in table.to_arrow().to_pylist()} == expected


def test_deletes_by_key_and_wider_columns(make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("id bigint, v string, n int", primary_key=["id"])
    table.write(BEFORE)
    beside(monkeypatch, table, renamed)
    table.delete([{"id": 2}])
    beside(monkeypatch, table, lambda other: other.alter.widen_column("n", "bigint"))
    table.write([{"id": 3, "w": "c", "n": 3}])
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 1, "w": "a", "n": 1}, {"id": 3, "w": "c", "n": 3}]
