"""Functions of maps and of arrays of rows: the table of a plain model, in any batching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType

from snapshot.errors import InvalidInputError
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tests.harness.local_writes import run_here
from tests.model.merge_rules import DELETE, PREIMAGE, UPSERT, Case, Model, Row
from tests.tablestore.merge_engines.test_merge_engines import EXAMPLES, Change, rows_of, write

ELEMENT = StructType().add("v", "integer").add("k", "string")
SCHEMA = (
    StructType().add("id", "long").add("s", "integer").add("m", MapType(StringType(), IntegerType()))
    .add("n", ArrayType(ELEMENT)).add("o", ArrayType(ELEMENT))
)  # fmt: skip
FUNCTIONS = {"m": "merge_map", "n": "nested_update", "o": "nested_update k"}
OPTIONS = {f"fields.{name}.aggregate-function": function.split()[0] for name, function in FUNCTIONS.items()}
OPTIONS |= {"fields.o.nested-key": "k"}
CASES = {
    "aggregation": Case(
        {**OPTIONS, "merge-engine": "aggregation"}, {"s": "last_non_null_value", **FUNCTIONS}, retracts=True
    ),
    "group": Case(
        {**OPTIONS, "merge-engine": "partial-update", "fields.s.sequence-group": "m,n,o"},
        {"s": "last_value", **FUNCTIONS},
        groups={("s",): ("m", "n", "o")},
        retracts=True,
    ),
    "ignored": Case(
        {**OPTIONS, "merge-engine": "aggregation"} | {f"fields.{name}.ignore-retract": "true" for name in FUNCTIONS},
        {"s": "last_non_null_value", **FUNCTIONS},
        retracts=True,
        ignores=frozenset(FUNCTIONS),
    ),
}
KEYS = st.none() | st.sampled_from("ab")
MAPS = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 3)).map(lambda each: list(each.items()))
ELEMENTS = st.lists(st.none() | st.fixed_dictionaries({"v": st.integers(0, 2), "k": KEYS}), max_size=3)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 1),
        "s": st.none() | st.integers(0, 4),
        "m": st.none()
        | st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 3)).map(dict.items).map(list),
        "n": st.none() | ELEMENTS,
        "o": st.none() | ELEMENTS,
    }
)
CHANGES = st.tuples(st.sampled_from([UPSERT, UPSERT, UPSERT, DELETE, PREIMAGE]), ROWS)
BATCHES = st.lists(st.lists(CHANGES, min_size=2, max_size=8) | st.none(), min_size=2, max_size=4)


def make(path: object, options: dict[str, str]) -> TableContext:
    return create_drop.create(TableDefinition(str(path), SCHEMA, primary_key=["id"], options=options))


@pytest.mark.parametrize("name", CASES)
@hypothesis_settings(max_examples=EXAMPLES)
@given(batches=BATCHES)
def test_maps_and_rows_in_any_batches_make_the_table_of_the_model(
    tmp_path_factory: pytest.TempPathFactory, name: str, batches: list[list[Change] | None]
) -> None:
    """None in place of a batch is a compaction."""
    case = CASES[name]
    table, model = make(tmp_path_factory.mktemp("t") / "t", dict(case.options)), Model(case)
    for batch in batches:
        if batch is None:
            compact(TableContext.open(table.path), run_here)
            continue
        write(table, batch)
        for kind, row in batch:
            model.apply(kind, row)
        assert rows_of(table) == model.rows()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fields.m.aggregate-function": "nested_update"}, "'nested_update' needs an ARRAY of rows"),
        ({"fields.n.aggregate-function": "merge_map"}, "'merge_map' needs a MAP"),
        ({**OPTIONS, "fields.o.nested-key": "x"}, "there is no field 'x'; the rows have"),
        ({"fields.m.nested-key": "k"}, "is for aggregate-function 'nested_update' only"),
        ({"fields.m.aggregate-function": "theta_sketch"}, "'theta_sketch' needs BINARY"),
        ({"fields.m.aggregate-function": "rbm32"}, "'rbm32' needs BINARY"),
        ({"fields.default-aggregate-function": "RBM64"}, "'rbm64' is not supported: the bytes .* use 'rbm32'"),
        ({"partial-update.remove-record-on-sequence-group": "s"}, "needs merge-engine='partial-update'"),
        (
            {"merge-engine": "partial-update", "partial-update.remove-record-on-sequence-group": "s"},
            "'s' orders no sequence group",
        ),
    ],
)
def test_functions_that_do_not_fit_are_refused(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        make(tmp_path_factory.mktemp("t") / "t", {"merge-engine": "aggregation", **options})


def row(key: int, **values: object) -> Row:
    return {**dict.fromkeys(("s", "m", "n", "o")), "id": key, **values}


def test_as_paimon_has_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    table = make(tmp_path_factory.mktemp("t") / "t", dict(CASES["aggregation"].options))
    write(table, [(UPSERT, row(1, m=[("a", 1), ("b", 2)], o=[{"k": "a", "v": 1}, {"k": "b", "v": 2}]))])
    write(table, [(UPSERT, row(1, m=[("b", 3), ("c", 4)], o=[{"k": "a", "v": 9}]))])
    assert rows_of(table)[1]["m"] == [("a", 1), ("b", 3), ("c", 4)]
    assert rows_of(table)[1]["o"] == [{"v": 2, "k": "b"}, {"v": 9, "k": "a"}]
    write(table, [(DELETE, row(1, m=[("b", None)], o=[{"k": "b", "v": 0}]))])
    assert rows_of(table)[1] == row(1, m=[("a", 1), ("c", 4)], o=[{"v": 9, "k": "a"}])
