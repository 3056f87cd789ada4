"""Merge engines: table, changes and log hold what a plain model of the engine holds, in any batching."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType

from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from snapshot.records import Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.evolution import AddColumn, RenameColumn
from snapshot.schema.system_columns import SEQ
from snapshot.staging.parquet_writer import is_tombstones
from snapshot.staging.stage import StagedFile, Stager, change_file_schema
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.options.table_options import parse_options
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import run_here
from tests.model.merge_rules import DELETE, FILL, LAST, PREIMAGE, UPSERT, Case, Model, Row

SCHEMA = (
    StructType().add("id", "long").add("s", "integer").add("t", "integer").add("x", "long").add("y", "integer")
    .add("w", "string").add("f", "boolean").add("l", ArrayType(IntegerType()))
)  # fmt: skip
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
    options |= {f"fields.{name}.list-agg-delimiter": ";" for name, function in given.items() if "listagg" in function}
    return options | {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}


IGNORED = {"s", "t", "w", "f"}
IN_GROUPS = {"x": "sum", "w": FILL, "f": "first_value"}
CASES = {
    "deduplicate": Case({"sequence.field": "s"}, functions(), ("s",), removes=True, any_order=True),
    "deduplicate by two": Case({"sequence.field": "s,t"}, functions(), ("s", "t"), removes=True, any_order=True),
    "deduplicate, the smallest is the newest": Case(
        {"sequence.field": "s", "sequence.field.sort-order": "descending"},
        functions(),
        ("s",),
        removes=True,
        any_order=True,
        descending=True,
    ),
    "partial-update, the smallest two are the newest": Case(
        {
            "merge-engine": "partial-update",
            "sequence.field": "s,t",
            "sequence.field.sort-order": "descending",
            "partial-update.remove-record-on-delete": "true",
        },
        functions(default=FILL),
        ("s", "t"),
        removes=True,
        descending=True,
    ),
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
    "groups, removing": Case(
        {
            "merge-engine": "partial-update",
            "fields.s.sequence-group": "x,w",
            "fields.t,y.sequence-group": "f,l",
            "partial-update.remove-record-on-sequence-group": "t,s",
        },
        functions(),
        groups={("s",): ("x", "w"), ("t", "y"): ("f", "l")},
        retracts=True,
        removing=(("s",), ("t", "y")),
    ),
    "groups, one removing": Case(
        named({"x": "sum", "f": "first_value"}, merge_engine="partial-update")
        | {
            "fields.s.sequence-group": "x,w",
            "fields.t.sequence-group": "f,l",
            "fields.f.ignore-retract": "true",
            "partial-update.remove-record-on-sequence-group": "s",
        },
        functions(x="sum", f="first_value", y=FILL),
        groups={("s",): ("x", "w"), ("t",): ("f", "l")},
        retracts=True,
        ignores=frozenset("yf"),
        removing=(("s",),),
    ),
    "aggregation": Case(
        named(AGGREGATES, merge_engine="aggregation") | {f"fields.{name}.ignore-retract": "true" for name in IGNORED},
        AGGREGATES,
        retracts=True,
        ignores=frozenset(IGNORED),
    ),
    "aggregation, all taken back": Case(
        named({"x": "sum", "l": "collect"}, merge_engine="aggregation"),
        functions(x="sum", l="collect", default=FILL),
        retracts=True,
    ),
    "aggregation, others": Case(
        named({"x": "product", "y": "first_not_null_value", "w": "listagg distinct", "f": "bool_and"})
        | {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_value", "ignore-delete": "true"},
        functions(x="product", y="first_non_null_value", w="listagg distinct", f="bool_and"),
    ),
    "aggregation, late": Case(
        named({"x": "sum", "y": "count", "w": LAST, "f": LAST}, merge_engine="aggregation", sequence__field="s"),
        functions(x="sum", y="count", t=FILL, l=FILL),
        ("s",),
        retracts=True,
    ),
    "aggregation, late, the first": Case(
        named({"x": "first_value", "y": "first_non_null_value"}, merge_engine="aggregation", sequence__field="s")
        | {"ignore-delete": "true"},
        functions(x="first_value", y="first_non_null_value", default=FILL),
        ("s",),
    ),
    "aggregation, late, removing": Case(
        named({"x": "sum", "y": "max", "w": "min"}, merge_engine="aggregation", sequence__field="s")
        | {"aggregation.remove-record-on-delete": "true"}
        | {f"fields.{name}.ignore-retract": "true" for name in "yw"},
        functions(x="sum", y="max", w="min", default=FILL),
        ("s",),
        removes=True,
        retracts=True,
        ignores=frozenset("yw"),
    ),
    "aggregation, removing": Case(
        named({"x": "sum", "l": "collect"}, merge_engine="aggregation")
        | {"aggregation.remove-record-on-delete": "true"},
        functions(x="sum", l="collect", default=FILL),
        removes=True,
        retracts=True,
    ),
}


def make_table(path: Path, case: Case, *, buckets: int = 1, **more: str) -> TableContext:
    options = {"bucket": str(buckets), **case.options, **{n.replace("_", "-"): v for n, v in more.items()}}
    return create_drop.create(TableDefinition(str(path), SCHEMA, primary_key=["id"], options=options))


def staged(stager: Stager, changes: Sequence[Change]) -> list[StagedFile]:
    taken = [(kind, row) for kind, row in changes if kind != PREIMAGE or stager.rule.takes_preimages]
    rows = [{**row, KIND: int(KINDS[kind]), SEQ: number} for number, (kind, row) in enumerate(taken)]
    return stager.stage([pa.RecordBatch.from_pylist(rows, schema=change_file_schema(stager.spec))], 0)


def write(table: TableContext, changes: Sequence[Change]) -> Snapshot | None:
    return Writer(table, None).write(lambda stager: staged(stager, changes))


def rows_of(table: TableContext) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for part in snapshot_splits(table.files, table.files.latest(), tasks=1):
        for row in (row for batch in part.read() for row in batch.to_pylist()):
            assert row["id"] not in found
            found[row["id"]] = row
    return found


def fold(table: TableContext, snapshot: Snapshot | None, rows: dict[int, Row]) -> None:
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
        "w": st.none() | st.sampled_from(["a", "b", "c", "c;a;c", " ;b;"]),
        "f": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.integers(0, 2), max_size=2),
    }
)
CHANGES = st.tuples(st.sampled_from([UPSERT, UPSERT, UPSERT, DELETE, PREIMAGE]), ROWS)
BATCHES = st.lists(st.lists(CHANGES, min_size=5, max_size=14) | st.none(), min_size=3, max_size=5)
EXAMPLES = max(3, settings().max_examples // 16)
"""An example takes as long as the writes of real tables that it is made of."""


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=EXAMPLES)
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
            compact(TableContext.open(table.path), run_here)
            continue
        made = write(table, batch)
        for kind, row in batch:
            model.apply(kind, row)
        assert rows_of(table) == model.rows()
        fold(table, made, folded)
        assert folded == model.rows()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.any_order])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_the_order_of_arrival_does_not_matter_where_a_sequence_orders(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    case = CASES[name]
    places = data.draw(st.permutations(range(14)))
    drawn = data.draw(st.lists(CHANGES, min_size=4, max_size=14))
    changes = [
        (kind, {**row, "y": None, "s": place // 4 if "s,t" in str(case.options) else place, "t": place})
        for (kind, row), place in zip(drawn, places, strict=False)
        if kind != PREIMAGE
    ]
    tables: list[dict[int, Row]] = []
    for number in range(2):
        table = make_table(tmp_path_factory.mktemp("t") / "t", case)
        rest = list(data.draw(st.permutations(changes))) if number else changes
        while rest:
            size = data.draw(st.integers(1, 6))
            write(table, rest[:size])
            rest = rest[size:]
            if data.draw(st.booleans()):
                compact(TableContext.open(table.path), run_here)
        tables.append(rows_of(table))
    assert tables[0] == tables[1]


def row(key: int, at: int | None = None, **values: object) -> Row:
    return {**dict.fromkeys(VALUES), "id": key, "s": at, **values}


def tombstones(table: TableContext) -> list[str]:
    return [f.path for f in table.files.log.files() if is_tombstones(f.path)]


def test_a_deleted_row_stays_deleted_across_compactions_and_crashes(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", CASES["deduplicate"], changelog_producer="lookup")
    write(table, [(UPSERT, row(1, 3)), (UPSERT, row(2, 3))])
    write(table, [(DELETE, row(1, 5))])
    made = write(table, [(DELETE, row(9, 7)), (DELETE, row(2, 2))])
    assert made is not None
    assert (made.operation, made.rows) == ("delete", 0), (
        "the delete of a key that is not there is remembered, not published"
    )
    assert len(tombstones(table)) == 2
    with failing(DeltaLog, "commit", after=False, hits=range(2, 3)), pytest.raises(Crash):
        compact(TableContext.open(table.path), run_here)
    late = [(UPSERT, row(1, 4)), (UPSERT, row(9, 6)), (UPSERT, row(2, 3, x=1))]
    assert write(table, late) is not None
    assert rows_of(table) == {2: row(2, 3, x=1)}
    compact(TableContext.open(table.path), run_here)
    table = TableContext.open(table.path)
    assert len(tombstones(table)) == 1
    write(table, [(UPSERT, row(7, 1))])
    compact(TableContext.open(table.path), run_here)
    assert write(table, late) is None, "late rows, and one that is there already, change nothing"
    assert sorted(rows_of(table)) == [2, 7]
    write(table, [(UPSERT, row(1, 5)), (UPSERT, row(9, 8))])
    assert sorted(rows_of(table)) == [1, 2, 7, 9], "as new as the delete, and later"


def test_the_newest_delete_is_remembered_also_if_its_sequence_is_the_smallest(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", CASES["deduplicate, the smallest is the newest"])
    for at in (5, 3):
        write(table, [(DELETE, row(1, at)), (UPSERT, row(7, at))])
    compact(TableContext.open(table.path), run_here)
    table = TableContext.open(table.path)
    assert len(tombstones(table)) == 1
    assert write(table, [(UPSERT, row(1, 4)), (UPSERT, row(1))]) is None
    write(table, [(UPSERT, row(1, 2)), (UPSERT, row(1, 3))])
    assert rows_of(table)[1] == row(1, 2)


def test_deletes_are_forgotten_after_their_retention(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", CASES["deduplicate"], **{"sequence.delete-retention": "1 ms"})
    for key in (1, 2):
        write(table, [(UPSERT, row(key, 3)), (DELETE, row(key, 5))])
    write(table, [(UPSERT, row(3, 3))])
    assert len(tombstones(table)) == 2
    compact(TableContext.open(table.path), run_here)
    assert tombstones(table) == []
    write(table, [(UPSERT, row(1, 4))])
    assert sorted(rows_of(table)) == [1, 3]


def test_a_large_batch_is_merged_too(tmp_path: Path) -> None:
    case = Case({"merge-engine": "aggregation", "fields.x.aggregate-function": "sum", "ignore-delete": "true"}, {})
    table = make_table(tmp_path / "t", case, buckets=3)
    for _ in range(2):
        write(table, [(UPSERT, row(number % 7_000, x=number)) for number in range(30_000)])
    sums = {key: 2 * sum(range(key, 30_000, 7_000)) for key in range(7_000)}
    assert {key: each["x"] for key, each in rows_of(table).items()} == sums


SUMS = {"merge-engine": "aggregation", "fields.x.aggregate-function": "sum", "fields.y.aggregate-function": "product"}


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"merge-engine": "first-row"}, [(DELETE, row(1))], "does not accept deletes; set ignore-delete=true"),
        ({"merge-engine": "partial-update"}, [(DELETE, row(1))], "does not accept deletes; set ignore-delete=true"),
        ({**SUMS, "fields.w.aggregate-function": "max"}, [(PREIMAGE, row(1))], "fields.w.ignore-retract=true"),
        (SUMS, [(UPSERT, row(1, x=2**63 - 1)), (UPSERT, row(1, x=1))], "out of range"),
        (SUMS, [(UPSERT, row(1, y=6)), (DELETE, row(1, y=4))], "not a factor of the product"),
        (SUMS, [(UPSERT, row(1, y=6)), (DELETE, row(1, y=0))], "not a factor of the product"),
        (SUMS, [(UPSERT, row(1, y=2**30)), (UPSERT, row(1, y=4))], "out of range"),
    ],
)
def test_rows_that_cannot_be_merged_are_refused_and_change_nothing(
    tmp_path: Path, options: dict[str, str], changes: list[Change], message: str
) -> None:
    table = make_table(tmp_path / "t", Case(options, {}))
    write(table, [(UPSERT, row(1, x=1, y=1))])
    before = sorted((tmp_path / "t").rglob("*"))
    with pytest.raises(InvalidInputError, match=message):
        write(table, changes)
    assert sorted((tmp_path / "t").rglob("*")) == before


def test_a_product_is_exact_and_can_be_taken_back(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", Case(SUMS, {}))
    write(table, [(UPSERT, row(1, y=6)), (UPSERT, row(1, y=7)), (DELETE, row(1, y=3))])
    write(table, [(PREIMAGE, row(1, y=7)), (UPSERT, row(1, y=5))])
    assert rows_of(table)[1]["y"] == 10


NO = {"merge-engine": "aggregation"}
PARTIAL = {"merge-engine": "partial-update"}
EMPTY = named({"w": "listagg distinct"}) | {"fields.w.list-agg-delimiter": ""}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engine": "newest"}, "expected 'deduplicate' or 'first-row'"),
        ({"sequence.field": "nope"}, "no column 'nope'"),
        ({"sequence.field": "s,"}, "names of columns separated by commas"),
        ({"sequence.field.sort-order": "descending"}, "needs option 'sequence.field'"),
        ({"sequence.field": "s", "sequence.field.sort-order": "down"}, "expected 'ascending' or 'descending'"),
        ({"sequence.field": "s,s"}, "twice"),
        ({"sequence.field": "id"}, "is in the primary key"),
        ({"sequence.field": "l"}, "expected a number, string, date or timestamp"),
        ({"merge-engine": "first-row", "sequence.field": "s"}, "this table has 'first-row'"),
        ({"fields.x.aggregate-function": "sum"}, "this table has 'deduplicate'"),
        ({"fields.default-aggregate-function": "sum"}, "this table has 'deduplicate'"),
        ({**NO, "fields.s.sequence-group": "x"}, "needs merge-engine='partial-update'"),
        ({**NO, "fields.x.aggregate-function": "median"}, "'sum' or 'product' or"),
        ({**NO, "fields.w.aggregate-function": "sum"}, "needs a number; its type is string"),
        ({**NO, "fields.default-aggregate-function": "sum"}, "column 'w'.*needs a number"),
        ({**NO, "fields.l.aggregate-function": "listagg"}, "needs STRING"),
        ({**NO, "fields.x.aggregate-function": "collect"}, "needs an ARRAY"),
        ({**NO, "fields.x.aggregate-function": "bool_or"}, "needs BOOLEAN"),
        ({**NO, "fields.f.aggregate-function": "count"}, "needs INT or BIGINT"),
        ({**NO, "fields.id.aggregate-function": "sum"}, "is in the primary key"),
        ({**NO, "fields.x.distinct": "true"}, "for aggregate-function 'collect' and 'listagg' only"),
        ({**NO, "fields.x.distinct": "yes"}, "expected 'true' or 'false'"),
        ({**NO, "fields.w.list-agg-delimiter": ";"}, "for aggregate-function 'listagg' only"),
        ({**NO, **EMPTY}, "'fields.w.list-agg-delimiter': expected a text that divides distinct texts, got an empty"),
        ({**NO, "fields.x.count-limit": "a"}, "unknown option 'fields.x.count-limit'"),
        ({**NO, "sequence.field": "s", "fields.s.aggregate-function": "max"}, "cannot have an aggregate-function"),
        ({**NO, "partial-update.remove-record-on-delete": "true"}, "needs merge-engine='partial-update'"),
        ({**PARTIAL, "fields.x.aggregate-function": "sum"}, "in a sequence group only"),
        ({**PARTIAL, "fields.s.sequence-group": "x,zz"}, "no column 'zz'"),
        ({**PARTIAL, "fields.s.sequence-group": "x", "fields.t.sequence-group": "x"}, "in a sequence group already"),
        ({**PARTIAL, "fields.s.sequence-group": "s"}, "in a sequence group already"),
        ({**PARTIAL, "fields.s.sequence-group": "x", "sequence.field": "t"}, "does not go with sequence groups"),
        ({"partial-update.ignore-delete": "true"}, "use ignore-delete"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_is_made(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_table(tmp_path / "t", Case(options, {}))
    assert not (tmp_path / "t").exists()


def test_a_table_without_a_key_merges_nothing() -> None:
    with pytest.raises(InvalidInputError, match="'merge-engine' needs a primary key"):
        parse_options(NO, primary_key=[])


def test_options_are_kept_with_the_table(tmp_path: Path) -> None:
    case = CASES["group by two, with functions"]
    table = make_table(tmp_path / "t", case)
    kept = TableContext.open(table.path)
    assert kept.options.merge == table.options.merge
    assert {name: kept.spec.properties[name] for name in case.options} == case.options


@pytest.mark.parametrize("kind", ["hll", "theta"])
def test_sketches_are_united_whatever_the_order(tmp_path: Path, kind: str) -> None:
    sketches = pytest.importorskip("datasketches")
    is_hll = kind == "hll"
    read = sketches.hll_sketch.deserialize if is_hll else sketches.compact_theta_sketch.deserialize

    def sketch(numbers: range, size: int = 12) -> bytes:
        made = sketches.hll_sketch(size) if is_hll else sketches.update_theta_sketch(size)
        for number in numbers:
            made.update(number)
        return bytes(made.serialize_updatable() if is_hll else made.compact().serialize())

    schema = StructType().add("id", "long").add("u", "binary")
    options = {"merge-engine": "aggregation", "fields.u.aggregate-function": f"{kind}_sketch"}
    parts = [sketch(range(900)), sketch(range(500, 2000)), sketch(range(10)), sketch(range(5)), None]
    estimates: list[list[float]] = []
    for batches in ([parts], [parts[3:], parts[1:3], parts[:1]]):
        path = tmp_path / str(len(batches))
        table = create_drop.create(TableDefinition(str(path), schema, primary_key=["id"], options=options))
        for batch in batches:
            write(table, [(UPSERT, {"id": key, "u": u}) for u in batch for key in (1, 2) if key == 1 or u in parts[2:]])
        held = [rows_of(table)[key]["u"] for key in (1, 2)]
        estimates.append([read(each).get_estimate() for each in held])
        with pytest.raises(InvalidInputError, match=rf"{kind}_sketch: .* is not an? (HLL|theta) sketch"):
            write(table, [(UPSERT, {"id": 3, "u": b"abc"})])
    assert estimates[0] == pytest.approx(estimates[1])
    assert estimates[0] == pytest.approx([2000, 10], rel=0.03)


def test_bitmaps_are_united_whatever_the_order(tmp_path: Path) -> None:
    """The bytes are those of the format's specification: arrays, and runs where they are smaller."""
    bitmaps = pytest.importorskip("pyroaring")

    def array(*values: int) -> bytes:
        head = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16)
        return head + struct.pack(f"<{len(values)}H", *values)

    run = struct.pack("<HHBHHHHH", 12347, 0, 1, 0, 99, 1, 0, 99)
    far = bitmaps.BitMap([7, 1 << 20, (1 << 32) - 1]).serialize()
    schema = StructType().add("id", "long").add("u", "binary")
    options = {"merge-engine": "aggregation", "fields.u.aggregate-function": "rbm32"}
    parts = {1: [array(1), array(2), None], 2: [array(2, 5), array(5)], 3: [array(*range(60)), array(*range(40, 100))],
             4: [array(3), far], 5: [None, None]}  # fmt: skip
    expected = {1: array(1, 2), 2: array(2, 5), 3: run, 5: None}
    expected[4] = bitmaps.BitMap([3, 7, 1 << 20, (1 << 32) - 1]).serialize()
    for turn in (1, -1):
        table = create_drop.create(
            TableDefinition(str(tmp_path / str(turn)), schema, primary_key=["id"], options=options)
        )
        for number in range(3)[::turn]:
            write(table, [(UPSERT, {"id": key, "u": us[number]}) for key, us in parts.items() if number < len(us)])
        assert {key: row["u"] for key, row in rows_of(table).items()} == expected
        for wrong in (b"", b"abc", bitmaps.BitMap64([1]).serialize()):
            with pytest.raises(InvalidInputError, match=r"rbm32: .* is not a Roaring bitmap of 32 bits"):
                write(table, [(UPSERT, {"id": 6, "u": wrong})])


def test_columns_are_added_where_they_fit_the_engine(tmp_path: Path) -> None:
    options = {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum", "sequence.field": "at"}
    schema = StructType().add("id", "long").add("n", "integer").add("at", "integer")
    table = create_drop.create(TableDefinition(str(tmp_path / "t"), schema, primary_key=["id"], options=options))
    for at in (1, 2):
        write(table, [(UPSERT, {"id": 1, "n": at, "at": at})])
    with pytest.raises(InvalidInputError, match=r"column 'w'.*'sum' needs a number"):
        alter(table, [AddColumn("w", StringType())], publish=lambda _: None)
    with pytest.raises(InvalidInputError, match=r"'sequence\.field' names it; create a new table"):
        alter(table, [RenameColumn("at", "when")], publish=lambda _: None)
    with pytest.raises(InvalidInputError, match=r"option 'fields\.n\.aggregate-function' cannot change after create"):
        alter(table, set_options={"fields.n.aggregate-function": "max"}, publish=lambda _: None)
    alter(table, [AddColumn("m", LongType())], publish=lambda _: None)
    table = table.refreshed()
    for _ in range(2):
        write(table, [(UPSERT, {"id": 1, "n": 4, "at": 1, "m": 5})])
    assert rows_of(table) == {1: {"id": 1, "n": 11, "at": 2, "m": 10}}
