"""A merge gives what a dict of the rows by key would give, whatever the files look like."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNull, LessThan, Not

from snapshot.errors import CorruptedError, DataLostError, InvalidInputError, UnavailableError
from snapshot.merge.deduplicate import last_of_few
from snapshot.merge.duckdb_engine import spilling
from snapshot.merge.merge_reader import BaseFile, ChangeFile, MergeReader
from snapshot.merge.predicate import Condition, Predicate
from snapshot.merge.pushed_filters import split_filters
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ, SNAPSHOT

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("day", pa.string()), pa.field("file_index", pa.int32(), False)]
)
"""``file_index`` and ``rowid`` are also DuckDB's own names for what the engine uses inside."""

UTC = ZoneInfo("UTC")
NUMBERS = itertools.count()
Row = tuple[int, str | None, int]
KEYS = st.integers(0, 8)
DAYS = st.sampled_from([None, "mon", "tue"])
CHANGES = st.lists(
    st.tuples(KEYS, DAYS, st.integers(0, 3), st.sampled_from(list(RowKind)), st.integers(1, 4), st.integers(0, 2)),
    max_size=30,
)


def write(folder: Path, rows: Sequence[Sequence[Any]], schema: pa.Schema, name: str = "{} [x]*.parquet") -> str:
    """Write rows to a new Parquet file in small row groups."""
    path = folder / name.format(next(NUMBERS))
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(cells, each.type) for cells, each in zip(columns, schema, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, row_group_size=5)
    return str(path)


def change_schema(schema: pa.Schema) -> pa.Schema:
    """Add the columns of change files; all but the key may be NULL in a delete."""
    fields = [schema.field(0), *(each.with_nullable(True) for each in list(schema)[1:])]
    return pa.schema([*fields, pa.field(KIND, pa.int8()), pa.field(SEQ, pa.int64())])


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[tuple[Any, ...]]:
    """Collect rows, each batch being exactly of the schema."""
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        assert batch.schema.equals(schema), batch.schema
        batch.validate(full=True)
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@pytest.mark.parametrize("apart", [1, 1 << 40], ids=["by bits", "by a join"])
@given(base=st.dictionaries(KEYS, st.tuples(DAYS, st.integers(0, 3))), changes=CHANGES, data=st.data())
def test_merge_equals_a_dict(
    tmp_path: Path, apart: int, base: dict[int, tuple[str | None, int]], changes: list[Any], data: st.DataObject
) -> None:
    model: dict[int, Row] = {key * apart: (key * apart, *rest) for key, rest in base.items()}
    changes = [(key * apart, *rest) for key, *rest in changes]
    base_files = []
    for day in [None, "mon", "tue"]:
        part = [(row[0], row[2]) for row in model.values() if row[1] == day]
        cut = data.draw(st.integers(0, len(part)))
        for rows in (part[:cut], part[cut:]):
            stored = pa.schema([SCHEMA.field(0), SCHEMA.field(2)])
            base_files.append(BaseFile(write(tmp_path, rows, stored), {"day": day, "_bucket": 3}))

    stamped = [(snapshot, seq, part, row) for seq, (*row, snapshot, part) in enumerate(changes)]
    change_files = []
    for snapshot, part in sorted({(each[0], each[2]) for each in stamped}, reverse=True):
        rows = [(*row, seq) for s, seq, p, row in stamped if (s, p) == (snapshot, part)]
        rows = data.draw(st.permutations(rows))
        change_files.append(ChangeFile(write(tmp_path, rows, change_schema(SCHEMA)), snapshot * 10**12))
    ordered = sorted(stamped)
    for _, _, _, (key, day, number, kind) in ordered:
        if kind == RowKind.DELETE:
            model.pop(key, None)
        elif kind != RowKind.UPDATE_BEFORE:
            model[key] = (key, day, number)

    filters = data.draw(st.lists(st.sampled_from(
        [GreaterThan(("file_index",), 1), EqualTo(("day",), "mon"), IsNull(("day",)), Not(EqualTo(("id",), 3))]
    )))  # fmt: skip
    predicate, unsupported = split_filters(filters, SCHEMA)
    assert not unsupported
    columns = data.draw(st.none() | st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
    wanted = [each for each in SCHEMA if columns is None or each.name in columns]
    places = [SCHEMA.get_field_index(each.name) for each in wanted]
    expected = [tuple(row[i] for i in places) for row in model.values() if all(_keeps(each, row) for each in filters)]

    with MergeReader(SCHEMA, ["id"], temp_directory=str(tmp_path)) as engine:
        schema = pa.schema(wanted)
        whole = rows_of(engine.merged(base_files, change_files, columns=columns, predicate=predicate), schema)
        # The same base in parts, read side by side by one engine: the parts together are the whole.
        cut = data.draw(st.integers(0, len(base_files)))
        parts = [
            engine.merged(files, change_files, columns=columns, predicate=predicate, emit_changes=first)
            for files, first in ((base_files[:cut], True), (base_files[cut:], False))
        ]
        split = [row for part in parts for row in rows_of(part, schema)]
        change_log = rows_of(engine.changes_in_order(change_files), _change_log_schema())
    assert sorted(whole, key=repr) == sorted(expected, key=repr)
    assert sorted(split, key=repr) == sorted(expected, key=repr)
    assert change_log == [(*row, snapshot * 10**12) for snapshot, _, _, row in ordered]


def test_keys_may_be_dates_that_python_has_none_of(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("day", pa.date32(), nullable=False), pa.field("number", pa.int64())])
    early, late = -1_000_000, 3_000_000
    base = [BaseFile(write(tmp_path, [(early, 1), (early + 1, 2), (late, 3)], schema), {})]
    rows = [(early, None, int(RowKind.DELETE), 0), (late, 4, int(RowKind.UPDATE_AFTER), 1)]
    changes = [ChangeFile(write(tmp_path, rows, change_schema(schema)), 1)]
    with MergeReader(schema, ["day"], temp_directory=str(tmp_path)) as engine:
        merged = pa.Table.from_batches(engine.merged(base, changes))
    days = merged["day"].cast(pa.int32()).to_pylist()
    assert sorted(zip(days, merged["number"].to_pylist(), strict=True)) == [(early + 1, 2), (late, 4)]


def _keeps(each: Any, row: Row) -> bool:
    if isinstance(each, GreaterThan):
        return row[2] > 1
    if isinstance(each, IsNull):
        return row[1] is None
    return row[0] != 3 if isinstance(each, Not) else row[1] == "mon"


def _change_log_schema() -> pa.Schema:
    return pa.schema([*list(change_schema(SCHEMA))[:-1], pa.field(SNAPSHOT, pa.int64())])


@given(rows=st.lists(st.tuples(KEYS, DAYS), max_size=40), data=st.data())
def test_last_per_key_equals_a_dict(rows: list[tuple[int, str | None]], data: st.DataObject) -> None:
    stamped = [(key, day, key, 0, seq) for seq, (key, day) in enumerate(rows)]
    if data.draw(st.booleans()):
        stamped = data.draw(st.permutations(stamped))
    cut = data.draw(st.integers(0, len(stamped)))
    schema = change_schema(SCHEMA)
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in stamped], schema=schema)
    batches = [*table.slice(0, cut).to_batches(), *table.slice(cut).to_batches()]
    last = {row[0]: row for row in sorted(stamped, key=lambda row: row[4])}
    expected = sorted(last.values(), key=lambda row: row[4])
    with MergeReader(SCHEMA, ["id"]) as engine:
        assert rows_of(engine.last_per_key(batches), schema) == expected
    assert rows_of(last_of_few(["id"], pa.Table.from_batches(batches, schema)).to_batches(), schema) == expected


def test_what_the_staged_batches_raise_is_raised() -> None:
    class RefusedError(Exception):
        pass

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 1, "file_index": 1, KIND: 0, SEQ: 0}], schema=change_schema(SCHEMA))
        raise RefusedError

    with MergeReader(SCHEMA, ["id"]) as engine, pytest.raises(RefusedError):
        list(engine.last_per_key(batches()))


NESTED = pa.struct([pa.field("x y", pa.int32()), pa.field("l", pa.list_(pa.field("element", pa.string(), False)))])
ALL_TYPES = pa.schema(
    [
        pa.field("k", pa.binary(), False),
        pa.field("b", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64(), False),
        pa.field("small", pa.decimal128(9, 2)),
        pa.field("big", pa.decimal128(38, 18)),
        pa.field("date", pa.date32()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("ntz", pa.timestamp("us")),
        pa.field('it\'s "nested"', pa.list_(pa.field("element", NESTED, False))),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.decimal128(38, 0)))))),
    ]
)
WIDE = Context(prec=38)
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
NESTED_VALUES = st.fixed_dictionaries(
    {"x y": st.none() | st.integers(-9, 9), "l": st.none() | st.lists(st.text(max_size=3))}
)
ALL_VALUES = st.tuples(
    st.none() | st.booleans(),
    st.none() | st.integers(-128, 127),
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | st.floats(width=32),
    st.floats(),
    st.none() | st.decimals(-9999999, 9999999, places=2),
    st.none() | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-18, WIDE)),
    st.none() | st.dates(dt.date(1, 1, 2)),
    st.none() | MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    st.none() | MOMENTS,
    st.none() | st.lists(NESTED_VALUES, max_size=3),
    st.none() | st.dictionaries(st.text(max_size=2), st.none() | st.lists(st.just(Decimal(10**38 - 1)), max_size=2))
    .map(lambda mapping: list(mapping.items())),
)  # fmt: skip


@given(
    base=st.dictionaries(st.binary(max_size=3), ALL_VALUES, max_size=6),
    changed=st.dictionaries(st.binary(max_size=3), ALL_VALUES, max_size=6),
)
@settings(max_examples=25)
def test_every_type_comes_back_as_it_was(tmp_path: Path, base: dict[bytes, Any], changed: dict[bytes, Any]) -> None:
    base_file = BaseFile(write(tmp_path, [(key, *rest) for key, rest in base.items()], ALL_TYPES))
    rows = [(key, *rest, int(RowKind.INSERT), seq) for seq, (key, rest) in enumerate(changed.items())]
    change_file = ChangeFile(write(tmp_path, rows, change_schema(ALL_TYPES)), 7)
    expected = {
        **{key: (key, *rest) for key, rest in base.items()},
        **{key: (key, *rest) for key, rest in changed.items()},
    }
    with MergeReader(ALL_TYPES, ["k"]) as engine:
        merged = rows_of(engine.merged([base_file], [change_file]), ALL_TYPES)
        staged = pq.read_table(change_file.path).cast(change_schema(ALL_TYPES))
        kept = rows_of(engine.last_per_key(staged.to_batches()), change_schema(ALL_TYPES))
        few = rows_of(last_of_few(["k"], staged).to_batches(), change_schema(ALL_TYPES))
    assert list(map(repr, few)) == list(map(repr, kept))
    assert sorted(map(repr, merged)) == sorted(_canonical(list(expected.values()), ALL_TYPES))
    assert list(map(repr, kept)) == _canonical(rows, change_schema(ALL_TYPES))


def _canonical(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> list[str]:
    """Show rows as Arrow gives them back; as text, since NaN differs from itself."""
    columns = [pa.array([row[i] for row in rows], each.type).to_pylist() for i, each in enumerate(schema)]
    return list(map(repr, zip(*columns, strict=True)))


def test_a_partition_value_of_every_type_becomes_a_column(tmp_path: Path) -> None:
    values = {
        "b": True, "i8": -1, "i16": None, "f": 1.5, "d": float("inf"), "small": Decimal("-1.10"),
        "big": Decimal("1e-18"),
        "date": dt.date(1, 1, 2), "ts": dt.datetime(1969, 1, 1, tzinfo=UTC), "ntz": dt.datetime(9999, 1, 1),
    }  # fmt: skip
    schema = pa.schema(list(ALL_TYPES)[:-2])
    others = {name: None if number % 2 else value for number, (name, value) in enumerate(values.items())}
    stored = pa.schema([ALL_TYPES.field("k")])
    files = [
        BaseFile(write(tmp_path, [(key,)], stored), each)
        for key, each in ((b"1", values), (b"2", others), (b"3", values))
    ]
    expected = [(b"1", *values.values()), (b"2", *others.values()), (b"3", *values.values())]
    with MergeReader(schema, ["k"]) as engine:
        assert sorted(rows_of(engine.merged(files, []), schema)) == expected


def test_a_thousand_partitions_are_one_scan(tmp_path: Path) -> None:
    schema = pa.schema([("part", pa.int32()), ("id", pa.int64()), ("value", pa.string())])
    stored = pa.schema(list(schema)[1:])
    base = [BaseFile(write(tmp_path, [(n, "old")], stored, "{}.parquet"), {"part": n}) for n in range(1000)]
    changes = [(3, 3, "new", 2, 0), (5, 5, None, 3, 1), (5, 6, "another key", 0, 2)]
    change = ChangeFile(write(tmp_path, changes, change_schema(schema)), 1)
    predicate, _ = split_filters([LessThan(("part",), 8), GreaterThan(("id",), 1)], schema)
    with MergeReader(schema, ["id", "part"]) as engine:
        batches = list(engine.merged(base, [change], emit_changes=False))
        some = rows_of(engine.merged(base, [change], predicate=predicate), schema)
    assert [batch.num_rows for batch in batches] == [998]
    assert all(part == key for part, key, _ in rows_of(batches, schema))
    expected = [(2, 2, "old"), (3, 3, "new"), (4, 4, "old"), (5, 6, "another key"), (6, 6, "old"), (7, 7, "old")]
    assert sorted(some) == expected


def test_files_of_an_older_schema_give_null_and_narrower_types_are_widened(tmp_path: Path) -> None:
    schema = pa.schema(
        [("k", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.string())])), ("new", pa.string())]
    )
    old = pa.schema([("gone", pa.string()), ("s", pa.struct([("a", pa.int32())])), ("k", pa.int32())])
    base = BaseFile(write(tmp_path, [("x", {"a": 1}, 1), ("y", None, 2)], old))
    old_change = ChangeFile(
        write(tmp_path, [(2, 0, 5)], pa.schema([("k", pa.int16()), (KIND, pa.int8()), (SEQ, pa.int64())])), 1
    )
    new_change = ChangeFile(write(tmp_path, [(3, None, "n", 0, 0)], change_schema(schema)), 2)
    predicate, _ = split_filters([IsNull(("new",))], schema)
    with MergeReader(schema, ["k"]) as engine:
        rows = rows_of(engine.merged([base], [old_change, new_change]), schema)
        without = rows_of(engine.merged([base], [old_change, new_change], predicate=predicate), schema)
    assert sorted(rows) == [(1, {"a": 1, "b": None}, None), (2, None, None), (3, None, "n")]
    assert sorted(without) == sorted(rows)[:2]


def test_a_thousand_change_files_and_several_in_one_snapshot(tmp_path: Path) -> None:
    files = [
        ChangeFile(write(tmp_path, [(n % 10, "d", n, 0, n % 3)], change_schema(SCHEMA), "{}.parquet"), snapshot=n // 3)
        for n in range(1000)
    ]
    expected = sorted((key, "d", max(n for n in range(1000) if n % 10 == key)) for key in range(10))
    with MergeReader(SCHEMA, ["id"]) as engine:
        assert sorted(rows_of(engine.merged([], files[::-1]), SCHEMA)) == expected
        assert [row[2] for row in rows_of(engine.changes_in_order(files[::-1]), _change_log_schema())] == list(
            range(1000)
        )


def test_files_on_another_file_system(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    rows = write(tmp_path, [(1, "mon", 1), (2, "mon", 2)], SCHEMA)
    change = write(tmp_path, [(1, None, None, 3, 0)], change_schema(SCHEMA))
    memory.pipe_file("/lake/a b=1/base.parquet", Path(rows).read_bytes())
    memory.pipe_file("/lake/[q]*?.parquet", Path(change).read_bytes())
    with MergeReader(SCHEMA, ["id"], filesystem=memory) as engine:
        for scheme, is_size_known in itertools.product(("", "memory://"), (False, True)):
            sizes = [Path(each).stat().st_size * is_size_known for each in (rows, change)]
            base = BaseFile(f"{scheme}/lake/a b=1/base.parquet", {}, sizes[0])
            files = [base], [ChangeFile(f"{scheme}/lake/[q]*?.parquet", 1, sizes[1])]
            assert rows_of(engine.merged(*files), SCHEMA) == [(2, "mon", 2)]


class Failing(MemoryFileSystem):
    """A file system that finds files and then fails to open them."""

    cachable = False
    error: Exception | None = None

    def _open(self, path: str, *args: Any, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super()._open(path, *args, **options)


@pytest.mark.parametrize(
    ("error", "mapped", "match"),
    [
        (
            ConnectionResetError("reset by peer"),
            UnavailableError,
            r"merge: a file .*ConnectionResetError: reset by peer\. Check",
        ),
        (
            FileNotFoundError("base.parquet"),
            DataLostError,
            r"merge: FileNotFoundError: base\.parquet\. A file of the sna",
        ),
    ],
)
def test_an_object_store_that_fails_while_duckdb_reads_gives_one_message(
    tmp_path: Path, error: Exception, mapped: type[Exception], match: str
) -> None:
    store = Failing()
    store.pipe_file("/lake/base.parquet", Path(write(tmp_path, [(1, "mon", 1)], SCHEMA)).read_bytes())
    # Its size is not known, so it is not read before DuckDB opens it.
    base = [BaseFile("/lake/base.parquet")]
    with MergeReader(SCHEMA, ["id"], filesystem=store) as engine:
        assert rows_of(engine.merged(base, []), SCHEMA) == [(1, "mon", 1)]
    store.error = error
    with pytest.raises(mapped, match=match), MergeReader(SCHEMA, ["id"], filesystem=store) as engine:
        list(engine.merged(base, []))


def test_small_files_of_an_object_store_are_read_at_once_and_missed_before_duckdb_reads(tmp_path: Path) -> None:
    store = Failing()
    rows = Path(write(tmp_path, [(1, "mon", 1)], SCHEMA)).read_bytes()
    store.pipe_file("/lake/base.parquet", rows)
    base = [BaseFile("/lake/base.parquet", {}, len(rows))]
    with MergeReader(SCHEMA, ["id"], filesystem=store) as engine:
        assert rows_of(engine.merged(base, []), SCHEMA) == [(1, "mon", 1)]
        store.error = AssertionError("opened again")
        assert rows_of(engine.merged(base, []), SCHEMA) == [(1, "mon", 1)]
        with pytest.raises(DataLostError, match=r"/lake/gone\.parquet"):
            list(engine.merged([BaseFile("/lake/gone.parquet", {}, 5)], []))
    store.rm_file("/lake/base.parquet")
    with pytest.raises(DataLostError), MergeReader(SCHEMA, ["id"], filesystem=store) as engine:
        list(engine.merged(base, []))


def test_the_hash_table_holds_the_changes_and_the_base_is_filtered_in_its_scan(tmp_path: Path) -> None:
    base = [BaseFile(write(tmp_path, [(n, "mon", n) for n in range(50)], SCHEMA))]
    changes = [ChangeFile(write(tmp_path, [(n, "mon", n, 0, n) for n in range(400)], change_schema(SCHEMA)), 1)]
    predicate, _ = split_filters([GreaterThan(("file_index",), 7)], SCHEMA)
    with MergeReader(SCHEMA, ["id"]) as engine, engine._cursor() as cursor:
        engine._find_winners(cursor, changes, Predicate(), rows=True)
        sql, parameters = engine._base_query(base, SCHEMA, predicate, changed=True)
        plan = str(cursor.sql(f"EXPLAIN {sql}", params=parameters).fetchall()[0][1])
    assert "Join Type: ANTI" in plan
    assert "Filters: c2 > 7" in plan


def test_a_lost_file_and_a_broken_file_are_told_apart(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"this is not Parquet")
    with MergeReader(SCHEMA, ["id"]) as engine:
        with pytest.raises(DataLostError, match="is missing"):
            list(engine.merged([BaseFile(str(tmp_path / "missing.parquet"))], []))
        with pytest.raises(CorruptedError):
            list(engine.merged([BaseFile(str(broken))], []))


def test_wrong_columns_and_a_missing_key_are_refused() -> None:
    with MergeReader(SCHEMA, []) as engine:
        with pytest.raises(InvalidInputError, match="columns"):
            engine.merged([], [], columns=["nope"])
        with pytest.raises(InvalidInputError, match="primary_key"):
            engine.merged([], [ChangeFile("x", 1)])


def test_the_spill_folder_is_removed(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), (SEQ, pa.int64())])
    rows = range(400_000)
    batch = pa.record_batch(
        [pa.array(rows), pa.array([f"a text of some length {n}" for n in rows]), pa.array(rows)], schema
    )
    with MergeReader(schema, ["id"], memory_limit="24MB", temp_directory=str(tmp_path)) as engine:
        kept = engine.last_per_key(batch.slice(first, 20_000) for first in range(0, len(rows), 20_000))
        assert sum(map(len, kept)) == len(rows)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("apart", [1, 1 << 40], ids=["by bits", "by a join"])
def test_values_that_duckdb_cannot_spill_are_merged(tmp_path: Path, apart: int) -> None:
    """DuckDB holds values of 128 KB and more in memory; those of a bucket take several times its limit."""
    schema, size = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.binary())]), 1 << 19

    def value(number: int) -> bytes:
        return number.to_bytes(8) * (size // 8)

    def many(numbers: range) -> list[tuple[Any, ...]]:
        return [(n % 100 * apart, value(n), 0, n) for n in numbers]

    files = [write(tmp_path, many(range(start, start + 40)), change_schema(schema)) for start in range(0, 160, 40)]
    changes = [ChangeFile(path, snapshot, Path(path).stat().st_size, 40) for snapshot, path in enumerate(files)]
    base = [BaseFile(write(tmp_path, [(n * apart, value(n)) for n in range(98, 190)], schema), {}, 92 * size, 92)]
    last = {n % 100 * apart: value(n) for n in range(160)}
    with MergeReader(schema, ["id"], memory_limit="24MB") as engine:
        merged = dict(rows_of(engine.merged(base, changes), schema))
        assert merged == {n * apart: value(n) for n in range(98, 190)} | last
        folded = rows_of(engine.last_changes(changes), change_schema(schema))
        assert {key: found for key, found, _, _ in folded} == last
        for number in (5, 99, 150):
            condition = Predicate((Condition("id", "", " = ?", (number * apart,)),))
            found = engine.row_of(base, changes, condition)
            assert found is not None
            assert found.to_pylist() == [{"id": number * apart, "v": merged[number * apart]}]
        for order in (1, -1):
            numbered = [(key, kept, kind, order * seq) for key, kept, kind, seq in many(range(160))]
            batches = [
                pa.RecordBatch.from_pylist(
                    [dict(zip(change_schema(schema).names, row, strict=True)) for row in numbered[start : start + 20]],
                    schema=change_schema(schema),
                )
                for start in range(0, 160, 20)
            ]
            kept = rows_of(engine.last_per_key(batches), change_schema(schema))
            newest = last if order == 1 else {n * apart: value(n) for n in range(100)}
            assert {key: found for key, found, _, _ in kept} == newest
            assert [seq for _, _, _, seq in kept] == sorted(seq for _, _, _, seq in kept)


def test_a_database_serves_the_next_session_unless_one_failed() -> None:
    def tables() -> set[str]:
        with spilling(memory_limit="33MB") as session:
            return {name for (name,) in session.execute("SELECT table_name FROM duckdb_tables()").fetchall()}

    with spilling(memory_limit="33MB") as session:
        # A table that is not temporary shows which database a session has; the store only makes temporary ones.
        session.execute("CREATE TABLE of_the_database AS SELECT 1")
        session.execute("CREATE TEMP TABLE of_the_session AS SELECT 1")
    assert tables() == {"of_the_database"}
    with pytest.raises(duckdb.ConversionException), spilling(memory_limit="33MB") as session:
        session.execute("SELECT CAST('x' AS INTEGER)").fetchall()
    assert tables() == set()


def test_sessions_at_once_have_databases_of_their_own() -> None:
    with spilling(memory_limit="33MB") as one, spilling(memory_limit="33MB") as other:
        one.execute("CREATE TABLE of_one AS SELECT 1")
        assert other.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]


def test_a_forked_process_opens_its_own_database() -> None:
    with spilling(memory_limit="33MB") as session:
        session.execute("CREATE TABLE of_the_parent AS SELECT 1")
    child = os.fork()
    if not child:
        with spilling(memory_limit="33MB") as session:
            (found,) = session.execute("SELECT count(*) FROM duckdb_tables()").fetchall()
        os._exit(found[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


STAGING = """
import sys
import numpy as np, pyarrow as pa
from snapshot.merge.merge_reader import MergeReader
schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("_kind", pa.int8()), ("_seq", pa.int64())])
def batches(rows, size=20_000):
    for start in range(0, rows, size):
        seq = np.arange(start, start + size)
        keys = seq * 7919 % (rows // 2)
        texts = pa.array(np.char.add("a text of some length ", keys.astype(str)))
        yield pa.record_batch([keys, texts, np.zeros(size, np.int8), seq], schema=schema)
with MergeReader(schema, ["k"], temp_directory=sys.argv[1]) as engine:
    kept = sum(len(batch) for batch in engine.last_per_key(batches(int(sys.argv[2]))))
peak_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(kept, int(peak_kb) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
def test_staging_ten_million_rows_spills_instead_of_growing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STAGING, str(tmp_path), "10_000_000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    kept, rss_mb = map(int, done.stdout.split())
    assert kept == 5_000_000
    assert rss_mb < 600


def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path) -> None:
    def full_after_a_megabyte() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [sys.executable, "-c", STAGING, str(tmp_path), "100_000"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=full_after_a_megabyte)
    assert "UnavailableError: staged rows: no room for temporary files in" in done.stderr
    assert not list(tmp_path.iterdir())


def test_duckdb_downloads_nothing() -> None:
    with MergeReader(SCHEMA, ["id"]) as engine, engine._cursor() as cursor:
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            assert cursor.execute(f"SELECT current_setting('{setting}')").fetchone() == (False,)
        with pytest.raises(duckdb.Error):
            cursor.execute("SELECT * FROM read_parquet('s3://nowhere/x.parquet')")


def test_rows_are_counted_where_only_partition_values_are_wanted(tmp_path: Path) -> None:
    base = BaseFile(write(tmp_path, [(n,) for n in range(3)], pa.schema([("id", pa.int64())])), {"day": "mon"})
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    with MergeReader(schema, []) as engine:
        assert [b.to_pylist() for b in engine.merged([base], [], columns=["day"])] == [[{"day": "mon"}] * 3]
