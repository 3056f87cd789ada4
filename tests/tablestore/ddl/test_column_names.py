"""Names of columns: those that no table can have are refused by `create`, and all others work on every path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapshot.errors import InvalidInputError
from tablestore import create_local, when_matched, when_not_matched

INT = pa.int64()
REFUSED = {
    "empty": ([("id", INT), ("", INT)], r"schema: columns: expected names of one letter or more, got ''"),
    "twice": ([("id", INT), ("ID", INT)], r"schema: columns: 'id' and 'ID' differ in case only, or not at all"),
    "reserved": ([("id", INT), ("_Kind", INT)], r"column name '_Kind' is reserved"),
    "empty field": ([("id", INT), ("s", pa.list_(pa.struct([("", INT)])))], r"fields of column 's\.element': .*got ''"),
    "field twice": ([("id", INT), ("s", pa.struct([("a", INT), ("A", INT)]))], r"fields of column 's': 'a' and 'A'"),
}
DEEP = 40


def nested(levels: int) -> pa.DataType:
    return INT if not levels else pa.struct([("f", nested(levels - 1))]) if levels % 2 else pa.list_(nested(levels - 1))


ODD = ["a b", "a.b", "a`b", 'a"b', "a'b", "\U0001f600", "select", "__x", "x" * 255, "a\nb\t", " a ", "%41", "*", "\u200b", "source"]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("case", REFUSED)
def test_names_that_no_table_can_have_are_refused(tmp_path: Path, case: str) -> None:
    columns, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message):
        create_local(tmp_path / "t", pa.schema(columns), primary_key=["id"])
    assert not (tmp_path / "t").exists()


def test_types_nested_deeper_than_can_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"column 'x': expected .* at most 40 levels deep, got 41"):
        create_local(tmp_path / "t", pa.schema([("id", INT), ("x", nested(DEEP + 1))]))
    value: object = 1
    for level in range(1, DEEP + 1):
        value = {"f": value} if level % 2 else [value]
    with create_local(tmp_path / "t", pa.schema([("id", INT), ("x", nested(DEEP))]), primary_key=["id"]) as table:
        table.write([{"id": 1, "x": value}, {"id": 2, "x": value}])
        table.write([{"id": 2, "x": None}])
        table.compact()
        assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 1, "x": value}, {"id": 2, "x": None}]


@pytest.mark.parametrize("form", ["json", "arrow", "debezium-json"])
def test_odd_names_work_on_every_path(kafka: Any, tmp_path: Path, topic: Callable[[], str], form: str) -> None:
    keys, schema = ODD[:4], pa.schema([*((name, pa.string()) for name in ODD), ("v", INT)])
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "log.format": form}

    def row(number: int, v: int = 0) -> dict[str, object]:
        return {**{name: f"{number}{name}" for name in ODD}, "v": v}

    with create_local(tmp_path / "t", schema, primary_key=keys, log_system="kafka", options=options) as table:
        table.write([row(n) for n in range(6)])
        for name in ODD:
            quoted = '"' + name.replace('"', '""') + '"'
            text = f"3{name}".replace("'", "''")
            assert table.count(f"{quoted} = '{text}'") == 1
            if name not in keys:
                table.update(f"{quoted} = '{text}'", {"v": "v + 1"})
        one = {name: f"3{name}" for name in keys}
        assert table.get(one) == row(3, len(ODD) - len(keys))
        clauses = [when_matched().update({"v": "source.v"}), when_not_matched().insert()]
        table.merge([row(0, 9), row(7, 9)], on=keys, when=clauses)
        table.delete([{name: f"1{name}" for name in keys}])
        table.compact()
        for name in set(ODD) - set(keys):
            table.alter.rename_column(name, f"{name}`new")
            table.alter.rename_column(f"{name}`new", name)
        table.write([row(8)])
        assert table.verify().differences == ()
        assert sorted(each["a b"][0] for each in table.to_arrow().to_pylist()) == list("0234578")
        assert table.count("v = 9") == 2
