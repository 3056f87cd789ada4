"""Merges, updates of keys and overwrites of partitions without Spark: the same rows, changes and errors as with it."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from snapshot.errors import ConflictError, InvalidInputError
from tablestore import LocalTable, TableStore, open_local, when_matched, when_not_matched, when_not_matched_by_source
from tablestore.dml.merge_clauses import Action, Clause, Match
from tablestore.local import repeatable
from tablestore.write.writer import Writer
from tests.tablestore.local.local_tables import COLUMNS, Row, rows_of, table_of

NAMES = ["id", "v", "n", "part"]
KINDS: dict[str, dict[str, Any]] = {
    "a key": {"primary_key": ["id"]},
    "a key, partitions and lookup": {
        "primary_key": ["id", "part"],
        "partition_by": ["part"],
        "changelog-producer": "lookup",
    },
    "no key, partitions": {"partition_by": ["part"]},
}
Pair = Callable[[Row | None, Row | None], Any]


@dataclass(frozen=True)
class Means:
    """A clause, and in Python the rows that it applies to and what it makes of each."""

    clause: Clause
    fits: Pair
    makes: Callable[[Row, Row], Row] = lambda target, source: source


def over(least: int) -> Callable[[Row | None], bool]:
    return lambda row: row is not None and row[2] is not None and row[2] > least


MATCHED = [
    Means(when_matched("target.n > 5").delete(), lambda t, s: over(5)(t)),
    Means(
        when_matched("source.n > 3").update({"V": "source.v", "n": "coalesce(target.n, 0) + 1"}),
        lambda t, s: over(3)(s),
        lambda t, s: (t[0], s[1], (t[2] or 0) + 1, t[3]),
    ),
    Means(
        when_matched("source.n = 3").update({"id": "source.id + 17", "n": None}),
        lambda t, s: s is not None and s[2] == 3,
        lambda t, s: (s[0] + 17, t[1], None, t[3]),
    ),
    Means(when_matched().update(), lambda t, s: True),
    Means(when_matched().delete(), lambda t, s: True),
]
NOT_MATCHED = [
    Means(
        when_not_matched("source.n > 6").insert({"id": "source.id", "part": "source.part"}),
        lambda t, s: over(6)(s),
        lambda t, s: (s[0], None, None, s[3]),
    ),
    Means(when_not_matched().insert(), lambda t, s: True),
]
BY_SOURCE = [
    Means(when_not_matched_by_source("target.n > 7").delete(), lambda t, s: over(7)(t)),
    Means(
        when_not_matched_by_source("target.id = 4").update({"id": "target.id + 25"}),
        lambda t, s: t is not None and t[0] == 4,
        lambda t, s: (t[0] + 25, *t[1:]),
    ),
    Means(
        when_not_matched_by_source("target.v IS NULL").update({"v": "'found'"}),
        lambda t, s: t is not None and t[1] is None,
        lambda t, s: (t[0], "found", t[2], t[3]),
    ),
]
JOINS: list[tuple[str | list[str], Callable[[Row, Row], bool]]] = [
    ("id", lambda t, s: t[0] == s[0]),
    (["Id", "part"], lambda t, s: (t[0], t[3]) == (s[0], s[3])),
    ("target.id = source.id AND target.part = 'a'", lambda t, s: t[0] == s[0] and t[3] == "a"),
    ("target.n = source.n", lambda t, s: t[2] is not None and t[2] == s[2]),
]


class RefusedError(Exception):
    """The model refuses a statement."""


def merged(
    rows: Sequence[Row], source: Sequence[Row], on: Callable[[Row, Row], bool], means: Sequence[Means]
) -> list[Row]:
    def first(match: Match, target: Row | None, other: Row | None) -> Means | None:
        return next((m for m in means if m.clause.match is match and m.fits(target, other)), None)

    left: list[Row] = []
    for row in rows:
        found = [other for other in source if on(row, other)]
        pairs = [(first(Match.MATCHED, row, s), s) for s in found]
        pairs = pairs or [(first(Match.NOT_MATCHED_BY_SOURCE, row, None), row)]
        updates = [(m, s) for m, s in pairs if m is not None and m.clause.action is Action.UPDATE]
        is_deleted = any(m is not None and m.clause.action is Action.DELETE for m, _ in pairs)
        if len(updates) + is_deleted > 1:
            raise RefusedError
        if not is_deleted:
            left += [m.makes(row, s) for m, s in updates] or [row]
    for other in source:
        if not any(on(row, other) for row in rows) and (m := first(Match.NOT_MATCHED, None, other)) is not None:
            left.append(m.makes(other, other))
    return left


@dataclass(frozen=True)
class Statement:
    """A statement on either table, and what it makes of rows."""

    text: str
    run: Callable[[Any], Any]
    result: Callable[[list[Row]], list[Row]]


def statement(dice: random.Random, number: int, key: tuple[int, ...], *, partitioned: bool) -> Statement:
    source: list[Row] = [
        (dice.randrange(14), dice.choice([None, f"s{number}"]), dice.choice([None, *range(10)]), dice.choice("ab"))
        for _ in range(dice.randrange(1, 6))
    ]
    what = dice.choice(["merge"] * 4 + ["write", "key", "keys", "dynamic"])
    if what == "merge":
        text, on = dice.choice(JOINS)
        chosen = [dice.choice(MATCHED), *NOT_MATCHED[dice.randrange(3) :]]
        chosen += dice.sample(BY_SOURCE, dice.randrange(3))
        if dice.random() < 0.5:
            chosen.insert(0, MATCHED[1])
        used = list({id(each): each for each in chosen}.values())
        data = table_of(source)
        return Statement(
            f"merge {source} on {text}: {[str(m.clause) for m in used]}",
            lambda table: table.merge(data, text, [m.clause for m in used]),
            lambda rows: merged(rows, source, on, used),
        )
    if what == "key":
        return Statement(
            "id = 2 becomes n",
            lambda table: table.update("id = 2 OR n = 9", {"id": "coalesce(n, 0) + 3", "v": "'moved'"}),
            lambda rows: [((r[2] or 0) + 3, "moved", r[2], r[3]) if r[0] == 2 or r[2] == 9 else r for r in rows],
        )
    if what == "keys":
        return Statement(
            "all keys move on by one",
            lambda table: table.update("id >= 0", {"id": "id + 1"}),
            lambda rows: [(r[0] + 1, *r[1:]) for r in rows],
        )
    if what == "dynamic" and partitioned:
        inside = [row for row in source if row[3] == source[0][3]]
        unique = list({tuple(row[i] for i in key) or n: row for n, row in enumerate(inside)}.values())
        return Statement(
            f"dynamic overwrite by {unique}",
            lambda table: table.overwrite(table_of(unique), dynamic=True),
            lambda rows: [*(r for r in rows if r[3] != unique[0][3]), *unique],
        )
    unique = list({tuple(row[i] for i in key) or n: row for n, row in enumerate(source)}.values())
    keys = {tuple(row[i] for i in key) for row in unique}
    return Statement(
        f"write {unique}",
        lambda table: table.write(table_of(unique)),
        lambda rows: [*(r for r in rows if not key or tuple(r[i] for i in key) not in keys), *unique],
    )


def expected(done: Statement, rows: list[Row], key: tuple[int, ...]) -> list[Row] | None:
    """Return the rows after a statement; None if it is refused."""
    try:
        after = done.result(rows)
    except RefusedError:
        return None
    keys = [tuple(row[i] for i in key) for row in after]
    return None if key and len(set(keys)) < len(keys) else after


def positions(table: LocalTable) -> tuple[int, ...]:
    return tuple(NAMES.index(name) for name in table.primary_key)


@pytest.mark.parametrize("kind", KINDS)
def test_statements_do_what_a_list_of_rows_does(make: Callable[..., LocalTable], kind: str) -> None:
    table = make(**KINDS[kind])
    key, partitioned, dice, refused, rows = positions(table), bool(table.partition_by), random.Random(kind), 0, []
    for number in range(40):
        done = statement(dice, number, key, partitioned=partitioned)
        wanted = expected(done, rows, key)
        before, files = table.snapshots(1)[0].id, set(Path(table.path).rglob("*.parquet"))
        if wanted is None:
            refused += 1
            with pytest.raises(InvalidInputError, match=r"would have the same primary key|result is ambiguous"):
                done.run(table)
            assert table.snapshots(1)[0].id == before
            assert set(Path(table.path).rglob("*.parquet")) == files
        else:
            done.run(table)
            rows = wanted
        assert rows_of(table) == Counter(rows), (number, done.text)
        if number % 20 == 19:
            table.compact()
    assert 0 < refused < 30
    assert table.verify().ok
    # The changes add up to the rows.
    by_key: dict[tuple[Any, ...], Row] = {}
    folded: Counter[Row] = Counter()
    for row in (row for batch in table.changes(0) for row in batch.to_pylist()):
        values: Row = (row["id"], row["v"], row["n"], row["part"])
        if row["_change_type"] in ("insert", "update_postimage"):
            by_key[tuple(values[i] for i in key)] = values
            folded[values] += 1
        elif row["_change_type"] == "delete" or not key:
            by_key.pop(tuple(values[i] for i in key), None)
            folded[values] -= 1
    assert (Counter(by_key.values()) if key else +folded) == Counter(rows)


def changes_of(path: str, after: int) -> Counter[tuple[Any, ...]]:
    """Return the changes since a snapshot: their rows and types."""
    rows = (row for batch in open_local(path).changes(after) for row in batch.to_pylist())
    return Counter((*(row[name] for name in NAMES), row["_change_type"]) for row in rows)


def outcome(run: Callable[[Any], Any], table: Any) -> str:
    """Return the operation of the snapshot that a statement makes, or its error without numbers."""
    try:
        made = run(table)
    except InvalidInputError as error:
        return re.sub(r"\d+", "#", str(error))
    return "nothing" if made is None else str(made.operation)


@pytest.mark.parametrize("kind", KINDS)
def test_statements_do_what_they_do_in_spark(
    make: Callable[..., LocalTable], spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    local, given = make(**KINDS[kind]), dict(KINDS[kind])
    keys: Mapping[str, Any] = {name: given.pop(name) for name in ("primary_key", "partition_by") if name in given}
    beside = TableStore.create(spark, tmp_path / "spark", COLUMNS, options={"bucket": 2, **given}, **keys)
    first: list[Row] = [(n, f"v{n}", n, "ab"[n % 2]) for n in range(10)]
    for table in (local, beside):
        table.write(table_of(first))
    dice, seen = random.Random(f"spark {kind}"), set()
    for number in range(8):
        done = statement(dice, number, positions(local), partitioned=bool(local.partition_by))
        ids = [open_local(path).snapshots(1)[0].id for path in (local.path, beside.path)]
        found = outcome(done.run, local)
        assert found == outcome(done.run, beside), done.text
        assert rows_of(local) == rows_of(open_local(beside.path)), done.text
        assert changes_of(local.path, ids[0]) == changes_of(beside.path, ids[1]), done.text
        seen.add(found)
    assert "merge" in seen


@pytest.mark.parametrize("kind", ["a key", "no key, partitions"])
def test_a_merge_is_computed_again_when_another_writer_was_first(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = make(**KINDS[kind])
    table.write(table_of([(1, "a", 1, "a"), (2, "b", 2, "b")]))
    other, attempts = open_local(table.path), []
    name = "write_staged" if table.primary_key else "replace"

    def late(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(writer: Writer, *args: Any, **kwargs: Any) -> Any:
            if writer is table._handle.writer and not attempts:
                attempts.append(1)
                other.update("id = 1", {"n": 50})
            return real(writer, *args, **kwargs)

        return called

    monkeypatch.setattr(Writer, name, late(getattr(Writer, name)))
    table.merge([{"id": 1}, {"id": 3}], "id", [
        when_matched().update({"n": "target.n + 1"}),
        when_not_matched().insert({"id": "source.id", "part": "'c'"}),
    ])  # fmt: skip
    assert attempts
    assert rows_of(table) == Counter([(1, "a", 51, "a"), (2, "b", 2, "b"), (3, None, None, "c")])


@pytest.mark.parametrize(
    ("on", "when", "message"),
    [
        ("id", [], r"merge: when expects clauses"),
        ("id", [when_matched().delete(), when_matched().update()], "is never reached: the clause 'when matched then d"),
        (["id", "x"], [when_matched().delete()], r"merge: on expects columns of both .*got \['id', 'x'\]"),
        ("target.id = source.x", [when_matched().delete()], "merge: on .*column 'source.x' cannot be read here"),
        ("n = 1", [when_matched().delete()], "column 'n' is in both; write target. or source. before it"),
        ("target.id + source.id", [when_matched().delete()], "expected a condition, got an expression of type"),
        ("target.id = 'x'", [when_matched().delete()], "merge: on \"target.id = 'x'\": DuckDB rejects it"),
        ("target.id = (SELECT 1)", [when_matched().delete()], "a query cannot stand in an expression"),
        ("id", [when_matched("source.n >").delete()], "merge: when matched 'source.n >': expected a condition in Duck"),
        ("id", [when_not_matched("target.n = 1").insert()], "column 'target.n' cannot be read here; the source has"),
        ("id", [when_not_matched_by_source("source.n = 1").delete()], "column 'source.n' cannot be read here; the tab"),
        ("id", [when_matched().update({"x": 1})], "when matched then update: 'x' is not a column"),
        ("id", [when_matched().update({"n": 1, "N": 2})], "'N' is set twice"),
        ("id", [when_matched().update({})], "expected a mapping of columns to new values"),
        ("id", [when_matched().update({"n": "source.v"})], "column 'n': expected int32, got string"),
        ("id", [when_matched().update({"n": 1 << 40})], "column 'n': expected int32, got a value that does not fit"),
        ("id", [when_matched().update({"n": "source.n + 2147483640"})], "DuckDB cannot evaluate an expression"),
        ("id", [when_matched().update({"id": "target.id + 1"})], "two rows would have the same primary key"),
        ("id", [when_not_matched().insert({"id": 2, "part": "'c'"})], "two rows would have the same primary key"),
        ("id", [when_matched().update({"n": "CAST(target.v AS INT)"})], "evaluate an expression: .*'a'.* Nothing"),
    ],
)  # fmt: skip
def test_a_merge_that_is_refused_changes_nothing(
    make: Callable[..., LocalTable], on: Any, when: list[Clause], message: str
) -> None:
    table = make(primary_key=["id"])
    table.write(table_of([(1, "a", 10, "a"), (2, "b", None, "a")]))
    rows, files = rows_of(table), set(Path(table.path).rglob("*.parquet"))
    with pytest.raises(InvalidInputError, match=message):
        table.merge(table_of([(1, "new", 10, "a"), (7, "new", 10, "a")]), on, when)
    with pytest.raises(InvalidInputError, match=r"sets all columns, but the source lacks \['v', 'n', 'part'\]"):
        table.merge([{"id": 1}], "id", [when_matched().update()])
    with pytest.raises(InvalidInputError, match="column 'v' is string, the source's is int64; cast it"):
        table.merge(pa.table({"id": [1], "v": [2], "n": [3], "part": ["a"]}), "id", [when_matched().update()])
    with pytest.raises(InvalidInputError, match="where and dynamic=True exclude each other"):
        table.overwrite(table_of([]), "n = 1", dynamic=True)
    with pytest.raises(InvalidInputError, match="dynamic=True replaces the partitions of the rows, and this table has"):
        table.overwrite(table_of([]), dynamic=True)
    with pytest.raises(InvalidInputError, match="primary key column 'id' must not contain NULL"):
        table.update("id = 1", {"id": None})
    assert rows_of(table) == rows
    assert set(Path(table.path).rglob("*.parquet")) == files


@pytest.mark.parametrize("call", ["merge", "delete"])
def test_a_source_may_be_larger_than_memory(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(repeatable, "_MEMORY_BYTES", 1 << 20)
    table, before = make(primary_key=["id"]), pa.total_allocated_bytes()
    table.write(table_of([(-1, "stays", 0, "a"), (1, "old", 0, "a")]))
    held: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 200_000, 5_000):
            held.append(pa.total_allocated_bytes() - before)
            # The last number does not fit the table's column, so the whole column keeps its own type.
            n = pa.array([1 if k < 199_999 else 1 << 40 for k in range(first, first + 5_000)])
            yield pa.record_batch({"ID": range(first, first + 5_000), "n": n, "text": ["x" * 200] * 5_000})

    source = pa.RecordBatchReader.from_batches(
        pa.schema([("ID", "int64"), ("n", "int64"), ("text", "string")]), batches()
    )
    if call == "delete":
        table.delete(source)
        assert rows_of(table) == Counter([(-1, "stays", 0, "a")])
    else:
        insert = {"id": "source.id", "v": "source.n::text", "part": "'b'"}
        table.merge(
            source, "id", [when_matched().update({"v": "substr(text, 1, 2)"}), when_not_matched().insert(insert)]
        )
        assert (table.count(), table.get(1)["v"], table.get(199_999)["v"]) == (200_001, "xx", str(1 << 40))
    assert max(held) < 8 << 20


def test_a_merge_of_all_types_and_of_columns_with_odd_names(make: Callable[..., LocalTable]) -> None:
    table = make(
        "`target` int, `a.b` string, s struct<x: int, y: array<string>>, m map<string, int>, at timestamp, "
        "d decimal(10,2), f float, `source` date",
        primary_key=["target"],
    )
    row = {"target": 1, "a.b": "q", "s": {"x": 1, "y": ["p"]}, "m": [("k", 1)], "f": 1.5}
    row |= {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "d": Decimal("1.50"), "source": dt.date(2026, 1, 1)}
    table.merge([row], ["target"], [when_not_matched().insert()])
    table.merge([{**row, "target": 2}], "target.target = source.target", [when_not_matched().insert()])
    clause = when_matched('target.s.x = 1 AND source."a.b" = target."a.b"')
    table.merge([row], "target", [clause.update({"d": "target.d * 2", "f": "target.f * 2", "s": "source.s"})])
    found = {each["target"]: each for each in table.to_arrow().to_pylist()}
    assert found == {1: {**row, "d": Decimal("3.00"), "f": 3.0}, 2: {**row, "target": 2}}


def test_many_partitions_are_replaced_at_once(make: Callable[..., LocalTable]) -> None:
    for key in (["id", "part"], []):
        table = make(primary_key=key, partition_by=["part"], bucket=1)
        table.write(table_of([(n, "old", n, f"p{n % 150}") for n in range(300)]))
        table.overwrite(table_of([(1, "new", n, f"p{n}") for n in range(120)]), dynamic=True)
        assert Counter(row[1] for row in rows_of(table).elements()) == {"old": 60, "new": 120}


def test_a_conflict_that_does_not_end_is_said(make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.write.optimistic_retry.RETRIES_MAX", 2)
    table = make(primary_key=["id"])
    table.write(table_of([(1, "a", 1, "a")]))
    other, real = open_local(table.path), Writer.write_staged

    def late(writer: Writer, *args: Any, **kwargs: Any) -> Any:
        if writer is table._handle.writer:
            other.write(table_of([(2, "b", 1, "a")]))
        return real(writer, *args, **kwargs)

    monkeypatch.setattr(Writer, "write_staged", late)
    with pytest.raises(ConflictError, match="other writers committed 2 times"):
        table.merge([{"id": 1}], "id", [when_matched().delete()])
    assert rows_of(table)[1, "a", 1, "a"] == 1
