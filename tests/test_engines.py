"""Merge engines: table, changes and log hold what a plain model of the engine holds, in any batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from snapshot.records import Snapshot
from snapshot.rowkind import KIND, RowKind
from snapshot.schema import SEQ
from snapshot.stage import StagedFile, Stager, change_file_schema
from tablestore import lifecycle
from tablestore.compact import compact
from tablestore.opened import OpenedTable
from tablestore.plan import snapshot_parts
from tablestore.write import Writer
from tests.engine_model import DELETE, FILL, LAST, PREIMAGE, UPSERT, Case, Model, Row
from tests.parts import run_here

DDL = "id bigint, s int, t int, x bigint, y int, w string, f boolean, l array<int>"
VALUES = ("s", "t", "x", "y", "w", "f", "l")
INSERT, BEFORE, AFTER, GONE = RowKind
KINDS = {UPSERT: AFTER, DELETE: GONE, PREIMAGE: BEFORE}
Change = tuple[str, Row]
AGGREGATES = {
    "s": "min", "t": "max", "x": "sum", "y": "count", "w": "listagg", "f": "bool_or", "l": "collect distinct",
}  # fmt: skip


def functions(**more: str) -> dict[str, str]:
    return {name: more.get(name, more.get("default", LAST)) for name in VALUES}


def named(given: dict[str, str], **more: str) -> dict[str, str]:
    """Options that give columns their functions."""
    options = {f"fields.{name}.aggregate-function": function.split()[0] for name, function in given.items()}
    options |= {f"fields.{name}.distinct": "true" for name, function in given.items() if " " in function}
    options |= {f"fields.{name}.list-agg-delimiter": ";" for name, function in given.items() if function == "listagg"}
    return options | {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}


IGNORED = {"s", "t", "w", "f", "l"}
IN_GROUPS = {"x": "sum", "w": FILL, "f": "first_value"}
CASES = {
    "deduplicate": Case({"sequence.field": "s"}, functions(), ("s",), removes=True, any_order=True),
    "deduplicate by two": Case({"sequence.field": "s,t"}, functions(), ("s", "t"), removes=True, any_order=True),
    "deduplicate, no deletes": Case({"sequence.field": "s", "ignore-delete": "true"}, functions(), ("s",)),
    "first-row": Case({"merge-engine": "first-row", "ignore-delete": "true"}, functions(default="first_value")),
    "partial-update": Case({"merge-engine": "partial-update", "ignore-delete": "true"}, functions(default=FILL)),
    "partial-update, late": Case(
        {
            "merge-engine": "partial-update",
            "sequence.field": "s,t",
            "partial-update.remove-record-on-delete": "true",
        },
        functions(default=FILL),
        ("s", "t"),
        removes=True,
    ),
    "partial-update, removing": Case(
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
        functions(default=FILL),
        removes=True,
    ),
    "groups": Case(
        {"merge-engine": "partial-update", "fields.s.sequence-group": "x,w", "fields.t.sequence-group": "f,l"},
        functions(y=FILL),
        groups={("s",): ("x", "w"), ("t",): ("f", "l")},
        retracts=True,
        ignores=frozenset("y"),
        any_order=True,
    ),
    "group by two, with functions": Case(
        named(IN_GROUPS, merge_engine="partial-update")
        | {"fields.s,t.sequence-group": "x,w,f", "fields.f.ignore-retract": "true"},
        functions(y=FILL, l=FILL) | IN_GROUPS,
        groups={("s", "t"): ("x", "w", "f")},
        retracts=True,
        ignores=frozenset("ylf"),
    ),
    "aggregation": Case(
        named(AGGREGATES, merge_engine="aggregation") | {f"fields.{name}.ignore-retract": "true" for name in IGNORED},
        AGGREGATES,
        retracts=True,
        ignores=frozenset(IGNORED),
    ),
    "aggregation, others": Case(
        named({"x": "product", "y": "first_non_null_value", "w": "max", "f": "bool_and", "l": "collect"})
        | {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_value", "ignore-delete": "true"},
        functions(x="product", y="first_non_null_value", w="max", f="bool_and", l="collect"),
    ),
    "aggregation, late": Case(
        named({"x": "sum", "y": "count", "w": LAST, "f": LAST}, merge_engine="aggregation", sequence__field="s"),
        functions(x="sum", y="count", t=FILL, l=FILL),
        ("s",),
        retracts=True,
    ),
    "aggregation, late, removing": Case(
        named({"x": "sum", "y": "max", "w": "min"}, merge_engine="aggregation", sequence__field="s")
        | {"aggregation.remove-record-on-delete": "true"},
        functions(x="sum", y="max", w="min", default=FILL),
        ("s",),
        removes=True,
    ),
}


def make_table(path: Path, case: Case, *, buckets: int = 1, **more: str) -> OpenedTable:
    options = {"bucket": str(buckets), **case.options, **{n.replace("_", "-"): v for n, v in more.items()}}
    return lifecycle.create(
        str(path), StructType.fromDDL(DDL), primary_key=["id"], partition_by=[], log_system=None, options=options
    )


def staged(stager: Stager, changes: Sequence[Change]) -> list[StagedFile]:
    taken = [(kind, row) for kind, row in changes if kind != PREIMAGE or stager.rule.takes_preimages]
    rows = [{**row, KIND: int(KINDS[kind]), SEQ: number} for number, (kind, row) in enumerate(taken)]
    return stager.stage([pa.RecordBatch.from_pylist(rows, schema=change_file_schema(stager.spec))], 0)


def write(table: OpenedTable, changes: Sequence[Change]) -> Snapshot | None:
    return Writer(table, None).write_by(lambda stager: staged(stager, changes))


def rows_of(table: OpenedTable) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for part in snapshot_parts(table.files, table.files.latest(), tasks=1):
        for row in (row for batch in part.read() for row in batch.to_pylist()):
            assert row["id"] not in found
            found[row["id"]] = row
    return found


def fold(table: OpenedTable, snapshot: Snapshot | None, rows: dict[int, Row]) -> None:
    """Apply the changes of a snapshot: each fits the rows that it meets and changes something."""
    if snapshot is None:
        return
    held = table.files.changes(snapshot.id, table.options.buckets)
    for bucket in range(table.options.buckets):
        for row in (row for batch in held.batches(bucket) for row in batch.to_pylist()):
            kind = RowKind(row.pop(KIND))
            before = rows.pop(row["id"], None)
            if table.options.looks_up:
                assert before == (row if kind in (BEFORE, GONE) else None)
            else:
                assert before != row if kind is AFTER else (kind, before) != (GONE, None)
            if kind in (INSERT, AFTER):
                rows[row["id"]] = row


ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2),
        "s": st.none() | st.integers(0, 6),
        "t": st.none() | st.integers(0, 3),
        "x": st.none() | st.integers(-3, 9),
        "y": st.none() | st.integers(0, 3),
        "w": st.none() | st.sampled_from("abc"),
        "f": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.integers(0, 2), max_size=2),
    }
)
CHANGES = st.tuples(st.sampled_from([UPSERT, UPSERT, UPSERT, DELETE, PREIMAGE]), ROWS)
BATCHES = st.lists(st.lists(CHANGES, max_size=8) | st.none(), min_size=1, max_size=5)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12)
@given(batches=BATCHES, changelog=st.booleans())
def test_any_rows_in_any_batches_make_the_table_of_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    batches: list[list[Change] | None],
    changelog: bool,
) -> None:
    """None in place of a batch is a compaction."""
    case = CASES[name]
    producer = {"changelog-producer": "lookup"} if changelog else {}
    table = make_table(tmp_path_factory.mktemp("t") / "t", replace(case, options={**case.options, **producer}))
    model, folded = Model(case), dict[int, Row]()
    for batch in batches:
        if batch is None:
            compact(OpenedTable.open(table.path), run_here)
            continue
        made = write(table, batch)
        for kind, row in batch:
            model.apply(kind, row)
        assert rows_of(table) == model.rows()
        fold(table, made, folded)
        assert folded == model.rows()
