"""Any sequence of writes, schema changes and compactions gives the rows that a model of plain dicts gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.evolution import AddColumn, DropColumn, MoveColumn, RenameColumn, WidenColumn
from tests.harness.altered_table import Altered
from tests.harness.log_audit import verify

SCHEMA = StructType().add("id", "long", False).add("a", "integer").add("b", "string")
NAMES = ["a", "b", "c", "d"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 99)), min_size=1, max_size=4)
        ),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("add"), st.tuples(st.sampled_from(NAMES), st.sampled_from(["int", "string"]), st.booleans())),
        st.tuples(st.just("drop"), st.sampled_from(NAMES)),
        st.tuples(st.just("rename"), st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))),
        st.tuples(st.just("widen"), st.sampled_from(NAMES)),
        st.tuples(st.just("move"), st.sampled_from(NAMES)),
    ),
    min_size=3,
    max_size=12,
)


SCRIPT: list[tuple[str, Any]] = [
    ("write", [(0, 1), (1, 2)]),
    ("rename", ("a", "c")),
    ("add", ("a", "string", True)),
    ("write", [(1, 3), (2, 4)]),
    ("compact", None),
    ("drop", "b"),
    ("widen", "c"),
    ("add", ("b", "int", False)),
    ("write", [(2, 5), (3, 6), (0, -1)]),
    ("rename", ("c", "d")),
    ("move", "d"),
    ("write", [(3, 7)]),
]
"""Names that change hands, which random steps seldom make."""


def value_of(kind: Any, number: int) -> Any:
    return f"v{number}" if isinstance(kind, StringType) else number << 32 if isinstance(kind, LongType) else number


def step(table: Altered, verb: str, what: Any) -> None:
    """Do what makes sense to the table as it is; the rest must be refused and change nothing."""
    kinds = {f.name: f.dataType for f in table.columns.fields}
    if verb == "write":
        rows = [{name: value_of(kind, n) if name != "id" else key for name, kind in kinds.items()} for key, n in what]
        if table.key:
            rows = [r | {CHANGE_TYPE: "delete" if n < 0 else "insert"} for r, (_, n) in zip(rows, what, strict=True)]
        table.write(rows)
    elif verb == "compact":
        table.compact()
    elif verb == "add":
        name, kind, first = what
        if name not in kinds:
            table.alter(AddColumn(name, IntegerType() if kind == "int" else StringType(), first=first))
    elif verb == "drop" and what in kinds and len(kinds) > 2:
        table.alter(DropColumn(what))
    elif verb == "rename" and what[0] in kinds and what[1] not in kinds:
        table.alter(RenameColumn(*what))
    elif verb == "widen" and isinstance(kinds.get(what), IntegerType):
        table.alter(WidenColumn(what, LongType()))
    elif verb == "move" and what in kinds:
        table.alter(MoveColumn(what, after="id"))


@settings(max_examples=10)
@example(steps=SCRIPT, key=True)
@example(steps=SCRIPT, key=False)
@given(steps=STEPS, key=st.booleans())
def test_any_sequence_without_a_log(tmp_path_factory: pytest.TempPathFactory, steps: Any, key: bool) -> None:
    table = Altered(tmp_path_factory.mktemp("t") / "t", SCHEMA, key=key)
    for verb, what in steps:
        step(table, verb, what)
    table.check_all()


@settings(max_examples=4)
@example(steps=SCRIPT, key=True, log_format="json")
@example(steps=SCRIPT, key=False, log_format="arrow")
@given(steps=STEPS, key=st.booleans(), log_format=st.sampled_from(["json", "arrow", "debezium-json"]))
def test_any_sequence_with_a_log(
    kafka: Any,
    topic: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
    steps: Any,
    key: bool,
    log_format: str,
) -> None:
    log = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "log.format": log_format}
    path: Path = tmp_path_factory.mktemp("t") / "t"
    table = Altered(path, SCHEMA, log=log, key=key)
    for verb, what in steps:
        step(table, verb, what)
    table.check_all()
    report = verify(table.table)
    assert report.ok, report
    assert report.pending == ()
    table.close()
