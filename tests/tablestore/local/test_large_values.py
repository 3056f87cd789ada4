"""Large values: DuckDB cannot spill them, so rows that are looked up, merged or compared are taken in parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from snapshot.errors import UnavailableError
from snapshot.merge import key_parts
from tablestore import LocalTable, when_matched
from tablestore.local import merge

IMAGES = pa.schema([("id", pa.int64()), ("b", pa.binary())])
LOOKUP = {"changelog-producer": "lookup"}
ROWS = pa.schema(
    [
        ("id", pa.int32()),
        ("a", pa.list_(pa.string())),
        ("s", pa.string()),
        ("n", pa.int32()),
        ("_change_type", pa.string()),
    ]
)
ENGINES: dict[str, dict[str, str]] = {
    "lookup": LOOKUP,
    "sequence": {**LOOKUP, "sequence.field": "n"},
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.n.aggregate-function": "sum",
        "fields.a.aggregate-function": "collect",
        "fields.s.aggregate-function": "listagg",
    },
    "partial-update": {"merge-engine": "partial-update", "fields.n.sequence-group": "s", "ignore-delete": "true"},
    "first-row": {"merge-engine": "first-row", "ignore-delete": "true"},
}
MB = 1 << 20


def images(ids: range, size: int, value: int) -> Iterator[pa.RecordBatch]:
    """Rows with values of a size, which differ."""
    for start in range(0, len(ids), 50):
        some = ids[start : start + 50]
        values = [bytes([value]) * (size - 8) + key.to_bytes(8) for key in some]
        yield pa.record_batch([pa.array(some, pa.int64()), pa.array(values, pa.binary())], schema=IMAGES)


def sums(table: LocalTable) -> dict[int, tuple[int, int]]:
    """The first byte and the length of each row's value."""
    return {
        key: (b[0], len(b)) for batch in table.scan() for key, b in zip(*map(pa.Array.to_pylist, batch), strict=True)
    }


def changes(table: LocalTable, after: int, through: int | None = None) -> list[dict[str, Any]]:
    batches = table.changes(after, through)
    return [row for batch in batches for row in batch.drop_columns("_commit_timestamp").to_pylist()]


def test_more_large_values_than_fit_into_memory_are_looked_up_and_rolled_back(make: Callable[..., LocalTable]) -> None:
    size = MB // 10
    count = 120 * MB // size
    table = make(IMAGES, primary_key=["id"], bucket=1, **LOOKUP)
    table.write(images(range(count), size, 1))
    table.write(images(range(count + 10), size, 2))
    assert sums(table) == dict.fromkeys(range(count + 10), (2, size))
    kinds = [kind for batch in table.changes(1) for kind in batch.column("_change_type").to_pylist()]
    assert kinds == ["update_preimage", "update_postimage"] * count + ["insert"] * 10
    table.maintenance.rollback(1)
    assert sums(table) == dict.fromkeys(range(count), (1, size))


def test_more_large_values_than_fit_into_memory_are_deleted_by_another_writer(make: Callable[..., LocalTable]) -> None:
    table = make(IMAGES, bucket=1)
    table.write(images(range(3000), MB // 10, 1))
    DeltaTable(table.path).delete("id % 2 = 0")
    table.recover()
    changes = [row for batch in table.changes(1) for row in batch.select(["id", "_change_type"]).to_pylist()]
    assert sorted(row["id"] for row in changes) == list(range(0, 3000, 2))
    assert {row["_change_type"] for row in changes} == {"delete"}


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_change_nothing(make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Some rows are written and rolled back at once and by parts, of which most are empty or have one key."""
    chosen = random.Random(engine)

    def rows(deletes: bool) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    "id": chosen.randrange(40),
                    "a": chosen.choice([None, [], ["x" * chosen.randrange(9), None]]),
                    "s": chosen.choice([None, "", f"text {chosen.random()}"]),
                    "n": chosen.choice([None, 1, 2, 3]),
                    "_change_type": chosen.choice(["insert", "insert", "delete"] if deletes else ["insert"]),
                }
                for _ in range(chosen.randrange(1, 60))
            ],
            schema=ROWS,
        )

    written = [rows(engine in ("lookup", "sequence")) for _ in range(4)]
    results: list[Any] = []
    for part_bytes in (key_parts._PART_BYTES, 64):
        monkeypatch.setattr(key_parts, "_PART_BYTES", part_bytes)
        monkeypatch.setattr(key_parts, "_LONG", 3)
        table = make(pa.schema(list(ROWS)[:-1]), primary_key=["id"], bucket=2, **ENGINES[engine])
        for each in written:
            table.write(each)
        table.maintenance.rollback(2)
        results.append([*changes(table, 0, len(written)), *sorted(changes(table, len(written)), key=str)])
    assert results[0] == results[1]
    assert results[0]


def test_a_merge_with_too_many_large_values_says_so(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MEMORY", "20MB")
    table = make(IMAGES, primary_key=["id"], bucket=1)
    table.write(images(range(200), MB // 10, 1))
    source = pa.Table.from_batches(images(range(200), MB // 10, 2))
    with pytest.raises(UnavailableError, match=r"^merge: the rows do not fit .*: take fewer of them at a time"):
        table.merge(source, "id", [when_matched().update({"b": "source.b"})])
    assert sums(table) == dict.fromkeys(range(200), (1, MB // 10))
