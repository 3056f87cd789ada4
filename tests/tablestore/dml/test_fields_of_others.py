"""Fields that other Delta writers have added within columns: not read, not published, kept in rewritten files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore import LocalTable, TableStore, create_local, open_local, when_matched, when_not_matched
from tablestore.context import TableContext
from tablestore.read import base_table_columns

Table = LocalTable | TableStore
Seen = dict[int, dict[str, Any]]
COLUMNS = (
    "id bigint, v string, "
    "s struct<a: int, deep: struct<x: int>>, l array<struct<a: int>>, m map<string, struct<a: int>>"
)
_PART = pa.struct([("b", pa.string()), ("a", pa.int32())])
THEIRS = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.string()),
        ("s", pa.struct([("deep", pa.struct([("y", pa.string()), ("x", pa.int32())])), *_PART])),
        ("l", pa.list_(_PART)),
        ("m", pa.map_(pa.string(), _PART)),
    ]
)


def row(number: int, text: str, *, v: str | None = None) -> dict[str, Any]:
    """Return a row with values of others' fields."""
    return {
        "v": v or text,
        "s": {"a": number, "b": text, "deep": {"x": number, "y": text}},
        "l": [{"a": 1, "b": text}, None, {"a": 2, "b": text}],
        "m": [(text, {"a": 1, "b": text})],
    }


def own(number: int, text: str) -> dict[str, Any]:
    """Return a row of the table."""
    return {
        "v": text,
        "s": {"a": number, "deep": {"x": number}},
        "l": [{"a": number}],
        "m": [(text, {"a": number})],
    }


def bare(values: Any) -> Any:
    """Return values without others' fields, or a row with NULL there."""
    if isinstance(values, dict):
        return {name: bare(value) for name, value in values.items() if name not in ("b", "y")}
    return [bare(each) for each in values] if isinstance(values, list) else _entry(values)


def _entry(value: Any) -> Any:
    return (value[0], bare(value[1])) if isinstance(value, tuple) else value


def padded(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table as others see it."""
    return {
        "v": values["v"],
        "s": {"b": None, **values["s"], "deep": {"y": None, **values["s"]["deep"]}},
        "l": [{"b": None, **each} for each in values["l"]],
        "m": [(key, {"b": None, **each}) for key, each in values["m"]],
    }


SPARSE = {"v": "d", "s": {"a": None, "b": "d", "deep": None}, "l": [], "m": [("k", None)]}
EMPTY = {"v": "e", "s": None, "l": None, "m": None}
BEFORE: Seen = {1: padded(own(1, "a")), 2: padded(own(2, "b")), 3: row(3, "c"), 4: SPARSE, 5: EMPTY}
NEW = {2: own(20, "m2"), 4: own(40, "m4"), 6: own(60, "m6")}
MERGE = [
    when_matched("source.id = 2").delete(),
    when_matched("source.id = 4").update({"v": "source.v", "s": "source.s"}),
    when_not_matched().insert(),
]


def without(*numbers: int) -> Seen:
    return {number: each for number, each in BEFORE.items() if number not in numbers}


def new_rows(table: Table, numbers: list[int]) -> Any:
    rows = [{"id": number, **NEW[number], "m": dict(NEW[number]["m"])} for number in numbers]
    if isinstance(table, LocalTable):
        return rows
    return table._handle.spark.createDataFrame(rows, table.schema)


def set_struct(table: Table) -> Any:
    struct = "{'a': 7, 'deep': {'x': 8}}" if isinstance(table, LocalTable) else (
        "named_struct('a', 7, 'deep', named_struct('x', 8))"
    )  # fmt: skip
    return table.update("id in (3, 5)", {"s": struct})


STATEMENTS: dict[str, tuple[Callable[[Table], Any], Seen]] = {
    "delete": (lambda t: t.delete("id = 3"), without(3)),
    "delete by a field": (lambda t: t.delete("s.a = 3"), without(3)),
    "delete a file": (lambda t: t.delete("id > 2"), without(3, 4, 5)),
    "update": (
        lambda t: t.update("id in (1, 3)", {"v": "'new'"}),
        BEFORE | {1: {**BEFORE[1], "v": "new"}, 3: row(3, "c", v="new")},
    ),
    "update a struct": (
        set_struct,
        BEFORE
        | {
            3: {**BEFORE[3], "s": {"a": 7, "b": "c", "deep": {"x": 8, "y": "c"}}},
            5: {**EMPTY, "s": {"a": 7, "b": None, "deep": {"x": 8, "y": None}}},
        },
    ),
    "clear": (
        lambda t: t.update("id = 3", {"l": "NULL", "s": "NULL"}),
        BEFORE | {3: {**BEFORE[3], "l": None, "s": None}},
    ),
    "update other elements": (
        lambda t: t.update("id = 2", {"l": "NULL"}),
        BEFORE | {2: {**BEFORE[2], "l": None}},
    ),
    "overwrite": (lambda t: t.overwrite(new_rows(t, [4]), "id = 4"), BEFORE | {4: padded(NEW[4])}),
    "overwrite all": (
        lambda t: t.overwrite(new_rows(t, [2, 4])),
        {number: padded(NEW[number]) for number in (2, 4)},
    ),
    "merge": (
        lambda t: t.merge(new_rows(t, [2, 4, 6]), "id", MERGE),
        without(2)
        | {
            4: {**SPARSE, "v": "m4", "s": {"a": 40, "b": "d", "deep": {"x": 40, "y": None}}},
            6: padded(NEW[6]),
        },
    ),
    "compact": (lambda t: t.compact(), BEFORE),
    "write": (lambda t: t.write(new_rows(t, [6])), BEFORE | {6: padded(NEW[6])}),
}  # fmt: skip


def seen(path: Path | str) -> Seen:
    """Return rows as another tool reads them."""
    return by_id(DeltaTable(path).to_pyarrow_table())


def by_id(rows: pa.Table) -> Seen:
    found = {each.pop("id"): each for each in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def their_rows() -> pa.Table:
    return pa.Table.from_pylist([{"id": n, **BEFORE[n]} for n in (3, 4, 5)], THEIRS)


def append_by_delta_rs(path: Path) -> None:
    write_deltalake(path, their_rows(), mode="append", schema_mode="merge")


def append_by_spark(spark: SparkSession, path: Path) -> None:
    """Add some fields by ALTER TABLE and the others by an append that merges the schema."""
    added = "s.b string AFTER a, s.deep.y string FIRST, l.element.b string"
    for column in added.split(", "):
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN {column}")
    spark.createDataFrame(their_rows()).write.format("delta").mode("append").option("mergeSchema", "true").save(
        str(path)
    )


def newest(table: LocalTable) -> int:
    return TableContext.open(table.path).files.latest()


def make(path: Path, **options: Any) -> None:
    with create_local(path, COLUMNS, options=options) as table:
        table.write([{"id": number, **own(number, text)} for number, text in ((1, "a"), (2, "b"))])


@pytest.fixture(params=["local", "spark", "spark, large files"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Table]:
    """Return what lets another tool append to a table, and opens it."""
    if request.param == "local":

        def local(path: Path) -> Table:
            append_by_delta_rs(path)
            return open_local(path)

        return local
    spark: SparkSession = request.getfixturevalue("spark")
    if "large" in request.param:
        monkeypatch.setattr(base_table_columns, "_BYTES_MIN", 0)

    def opened(path: Path) -> Table:
        append_by_spark(spark, path)
        return TableStore.open(spark, path)

    return opened


@pytest.mark.parametrize("name", STATEMENTS)
def test_values_stay_for_others(tmp_path: Path, at: Callable[[Path], Table], name: str) -> None:
    path, (run, expected) = tmp_path / "t", STATEMENTS[name]
    make(path)
    table = at(path)
    assert seen(path) == BEFORE
    run(table)
    assert seen(path) == expected
    mine = {number: bare(each) for number, each in expected.items()}
    assert by_id(open_local(path).to_arrow()) == mine
    if isinstance(table, TableStore):
        assert by_id(table.read().toArrow()) == mine
        assert by_id(table._handle.spark.read.format("delta").load(str(path)).toArrow()) == expected
        assert table.read().where("get(l, 0).a = 1 and m['c'].a = 1 and s.deep.x = 3").count() == int(
            mine.get(3, {}).get("l") is not None and mine[3]["s"]["a"] == 3
        )
    changes = pa.Table.from_batches(open_local(path).changes(0)).to_pylist()
    folded: Seen = {}
    for each in changes:
        number, kind = each.pop("id"), each.pop("_change_type")
        folded = {n: r for n, r in folded.items() if n != number}
        if kind in ("insert", "update_postimage"):
            folded[number] = {column: each[column] for column in ("v", "s", "l", "m")}
    assert folded == mine


@pytest.mark.parametrize("name", ["l", "m"])
def test_an_array_or_map_whose_elements_have_such_values_is_not_set_to_another(
    tmp_path: Path, at: Callable[[Path], Table], name: str
) -> None:
    path = tmp_path / "t"
    make(path)
    table = at(path)
    # Nothing is lost here, and in rows whose value stays the same.
    table.update("id = 1", {"l": "NULL", "v": "'x'"})
    source = new_rows(table, [2, 4])
    table.merge(source, "id", [when_matched().update({name: f"source.{name}"})])
    expected = BEFORE | {1: {**BEFORE[1], "l": None, "v": "x"}}
    expected |= {n: {**BEFORE[n], name: padded(NEW[n])[name]} for n in (2, 4)}
    assert seen(path) == expected
    inside = "l.element.b" if name == "l" else "m.value.b"
    one = when_matched("target.id = 3").update({name: f"source.{name}"})
    with pytest.raises(
        InvalidInputError, match=rf"column '{name}' cannot be set .*'{inside}', of another Delta writer"
    ):
        table.merge(new_rows(table, [2]), "target.id = source.id + 1", [one])
    assert seen(path) == expected
    table.update("id = 3", {name: name})
    assert seen(path) == expected


def test_changes_by_others_of_their_fields_alone_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path)
    append_by_delta_rs(path)
    with open_local(path) as table:
        DeltaTable(path).update(
            predicate="id = 3", updates={"s": "named_struct('a', 3, 'deep', s['deep'], 'b', 'new')"}
        )
        before = newest(table)
        table.recover()
        assert newest(table) > before
        assert [batch.num_rows for batch in table.changes(before)] == []
        DeltaTable(path).delete("id = 3")
        table.recover()
        (change,) = pa.Table.from_batches(table.changes(before)).to_pylist()
        assert (change["id"], change["_change_type"], change["s"]) == (3, "delete", bare(BEFORE[3]["s"]))
        assert seen(path) == without(3)
