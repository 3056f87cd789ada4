"""Rows that verbs and rollbacks have set: writes merge with them as with any other row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tablestore import LocalTable, create_local, when_not_matched

COLUMNS = "id bigint, at int, x int"
KEPT = {"id": 1, "at": 3, "x": 1}
PARTIAL = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
SUMS = {
    "changelog-producer": "lookup",
    "merge-engine": "aggregation",
    "fields.x.aggregate-function": "sum",
    "aggregation.remove-record-on-delete": "true",
}


def overwrite(table: LocalTable) -> None:
    table.overwrite([KEPT])


def merge(table: LocalTable) -> None:
    table.merge([KEPT], "id", [when_not_matched().insert()])


def roll_back(table: LocalTable) -> None:
    table.maintenance.rollback(1)


@pytest.mark.parametrize("set_again", [overwrite, merge, roll_back])
@pytest.mark.parametrize(("options", "x"), [({}, 2), (PARTIAL, 2), (SUMS, 3)])
def test_a_row_older_than_a_delete_stays_and_is_merged(
    tmp_path: Path, options: dict[str, str], x: int, set_again: Callable[[LocalTable], None]
) -> None:
    with table_with(tmp_path, options) as table:
        table.write([KEPT])
        table.write([{"id": 1, "at": 5, "x": 7, "_change_type": "delete"}])
        set_again(table)
        assert rows(table) == [KEPT]
        assert table.write([{"id": 1, "at": 2, "x": 9}, {"id": 1, "at": 4, "x": 9}]) is None, "older than the delete"
        table.compact()
        assert table.write([{"id": 1, "at": 4, "x": None, "_change_type": "delete"}]) is None, "a late delete"
        assert rows(table) == [KEPT]
        table.write([{"id": 1, "at": 5, "x": 2}])
        assert rows(table) == [{"id": 1, "at": 5, "x": x}]
        table.write([{"id": 1, "at": 6, "x": 2, "_change_type": "delete"}])
        assert rows(table) == []


def test_a_row_older_than_a_delete_where_the_smallest_is_the_newest(tmp_path: Path) -> None:
    with table_with(tmp_path, {"sequence.field.sort-order": "descending"}) as table:
        table.write([KEPT])
        table.write([{"id": 1, "at": 1, "x": 7, "_change_type": "delete"}])
        roll_back(table)
        assert table.write([{"id": 1, "at": 2, "x": 9}, {"id": 1, "at": None, "x": 9}]) is None
        assert rows(table) == [KEPT]
        table.write([{"id": 1, "at": 1, "x": 2}])
        assert rows(table) == [{"id": 1, "at": 1, "x": 2}]


@pytest.mark.parametrize(
    ("options", "later"),
    [
        ({"fields.at.sequence-group": "x"}, 2),
        ({"fields.at,n.sequence-group": "x", "fields.x.aggregate-function": "first_value"}, 1),
        ({"fields.at.sequence-group": "x", "fields.x.aggregate-function": "sum"}, 3),
    ],
)
def test_a_value_that_was_set_in_a_group_without_a_sequence_stays(
    tmp_path: Path, options: dict[str, str], later: int
) -> None:
    options |= {"merge-engine": "partial-update"}
    with create_local(tmp_path / "t", f"{COLUMNS}, n int, other int", primary_key="id", options=options) as table:
        table.write([{"id": 1, "at": None, "x": None, "n": None, "other": 1}])
        table.update("id = 1", {"x": 1})
        table.write([{"id": 1, "at": None, "x": None, "n": None, "other": 2}])
        assert rows(table) == [{"id": 1, "at": None, "x": 1, "n": None, "other": 2}]
        table.write([{"id": 1, "at": 1, "x": 2, "n": None, "other": None}])
        assert rows(table) == [{"id": 1, "at": 1, "x": later, "n": None, "other": 2}]


def table_with(folder: Path, options: dict[str, str]) -> LocalTable:
    return create_local(folder / "t", COLUMNS, primary_key="id", options=options | {"sequence.field": "at"})


def rows(table: LocalTable) -> list[dict[str, Any]]:
    return table.to_arrow().to_pylist()
