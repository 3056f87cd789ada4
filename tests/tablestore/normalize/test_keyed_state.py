"""The state of normalize is a function of the log: whatever the cuts, repeats and races, the changes are the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.physical_names import Columns
from snapshot.schema.row_equality import equal
from snapshot.schema.system_columns import COMMIT_TIMESTAMP
from snapshot.storage import Storage
from tablestore.normalize import keyed_state, operator, segments
from tablestore.normalize.keyed_state import KeyedState, StateSpec
from tablestore.normalize.operator import NormalizedRows, NormalizedSplit
from tablestore.normalize.state_upkeep import clean

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SECOND = 1_000_000
Record = tuple[int, str | None]
Given = tuple[int, Any, int]


@dataclass(frozen=True)
class Log:
    """A partition of a log, whose first records may be gone; a record's time is its offset, in seconds."""

    records: tuple[Record, ...]
    schema: pa.Schema = SCHEMA
    first: int = 0

    def between(self, start: int, end: int, /) -> Iterator[pa.RecordBatch]:
        if start < self.first:
            msg = f"offset {start} is gone"
            raise DataLostError(msg)
        last = {key: offset for offset, (key, _) in enumerate(self.records) if start <= offset < end}
        rows = [(offset, *self.records[offset]) for offset in sorted(last.values())]
        for number in range(0, len(rows), 7):
            yield self._batch(rows[number : number + 7])

    def _batch(self, rows: Sequence[tuple[int, int, str | None]]) -> pa.RecordBatch:
        kinds = [int(RowKind.DELETE if value is None else RowKind.UPDATE_AFTER) for _, _, value in rows]
        values: dict[str, Any] = {"id": [key for _, key, _ in rows], "v": [value for *_, value in rows]}
        columns = [pa.array(values.get(f.name, [None] * len(rows)), f.type) for f in self.schema]
        times = pa.array([offset * SECOND for offset, *_ in rows]).cast(pa.timestamp("us", "UTC"))
        names = [*self.schema.names, KIND, COMMIT_TIMESTAMP]
        return pa.RecordBatch.from_arrays([*columns, pa.array(kinds, pa.int8()), times], names=names)


@dataclass(frozen=True)
class Rows:
    """The rows of a snapshot."""

    rows: dict[int, str]

    def read(self) -> Iterator[pa.RecordBatch]:
        yield from Log(tuple(self.rows.items())).between(0, len(self.rows))


def spec_in(
    folder: Path | Storage, schema: pa.Schema = SCHEMA, ttl: int | None = None, stored: pa.Schema | None = None
) -> Any:
    """Give the state of a query; ``stored`` are the columns by physical name."""
    columns = Columns(schema, schema if stored is None else stored)
    storage = folder if isinstance(folder, Storage) else Storage.at(folder)
    return StateSpec(storage, columns, ("id",), None if ttl is None else ttl * SECOND)


def split(spec: StateSpec, log: Log, start: int, end: int) -> NormalizedSplit:
    return NormalizedSplit(log, spec, "0", start, end, 0)


def changes(batches: Iterator[pa.RecordBatch]) -> list[Given]:
    """Give the changes as (key, value, kind)."""
    return [(row["id"], row["v"], row[KIND]) for batch in batches for row in batch.to_pylist()]


def expected(rows: dict[int, str], records: Sequence[Record]) -> list[Given]:
    """Say what a micro-batch has to emit, and change the rows."""
    found: list[Given] = []
    for key, value in dict(reversed({key: (key, value) for key, value in records}.items())).values():
        old = rows.get(key)
        if value is None and old is not None:
            found.append((key, old, int(RowKind.DELETE)))
        elif value is not None and old is None:
            found.append((key, value, int(RowKind.INSERT)))
        elif value is not None and old != value:
            found += [(key, old, int(RowKind.UPDATE_BEFORE)), (key, value, int(RowKind.UPDATE_AFTER))]
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
    return sorted(found)


def records_of(dice: random.Random, count: int, keys: int) -> tuple[Record, ...]:
    return tuple((dice.randrange(keys), None if dice.random() < 0.3 else dice.choice("abc")) for _ in range(count))


@pytest.fixture
def _hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let many keys have one hash."""
    monkeypatch.setattr(operator, "key_hashes", lambda rows, _: (rows.column("id").to_numpy() % 5).astype(np.uint64))


@pytest.fixture
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write every segment at once, in batches of a few rows, and look up a few rows at a time."""
    monkeypatch.setattr(segments, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(keyed_state, "_BATCH_ROWS", 3)
    monkeypatch.setattr(operator, "_CHUNK_ROWS", 5)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("given", ["", "_hashes_collide", "_small_files", "_hashes_collide _small_files"])
def test_changes_are_those_of_a_dictionary(tmp_path: Path, request: Any, seed: int, given: str) -> None:
    for name in given.split():
        request.getfixturevalue(name)
    dice = random.Random(seed)
    log = Log(records_of(dice, 400, dice.choice([3, 30, 200])))
    spec, rows, at = spec_in(tmp_path), dict[int, str](), 0
    while at < 400:
        end = min(400, at + dice.randint(1, 60))
        wanted = expected(rows, log.records[at:end])
        for _ in range(dice.randint(1, 2)):
            assert sorted(changes(split(spec, log, at, end).read())) == wanted, "repeated or not"
        if dice.random() < 0.5:
            clean(spec.folder.child("0"), at)
        at = end
    files = [name for name in spec.folder.child("0").names() if name.endswith(".arrow")]
    clean(spec.folder.child("0"), at)
    state, _ = KeyedState.open(spec, "0", at, at)
    held = sorted(key for segment in state._segments for b in segment.batches for key in b.column("id").to_pylist())
    assert set(held) >= rows.keys()
    assert len(held) <= 3 * max(len(rows), 20), "deleted keys stay in the state"
    assert len(state._segments) <= 10 >= len(files) - 20


def test_a_state_without_live_keys_is_empty(tmp_path: Path) -> None:
    log = Log((*((key, "a") for key in range(50)), *((key, None) for key in range(50))))
    spec = spec_in(tmp_path)
    assert len(changes(split(spec, log, 0, 50).read())) == 50
    assert len(changes(split(spec, log, 50, 100).read())) == 50
    assert '"segments": []' in (tmp_path / "0" / "100.json").read_text()


def test_a_micro_batch_that_was_not_read_is_made_up_for(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "a"), (1, "b"), (3, "c"), (2, None), (1, "z")))
    spec = spec_in(tmp_path)
    next(iter(split(spec, log, 0, 2).read()))  # The reader takes one batch, and no more.
    assert spec.versions("0") == [2], "the state is saved before the last batch is handed over"
    # Nobody reads what is between 2 and 4.
    assert sorted(changes(split(spec, log, 4, 6).read())) == [(1, "b", 1), (1, "z", 2), (2, "a", 3)]
    assert sorted(changes(split(spec, log, 4, 6).read())) == [(1, "b", 1), (1, "z", 2), (2, "a", 3)]


def test_a_state_that_is_gone_is_made_again_from_the_log_or_refused(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "a"), (1, "b"), (2, None)))
    spec = spec_in(tmp_path)
    changes(split(spec, log, 0, 2).read())
    for file in (tmp_path / "0").iterdir():
        file.unlink()
    assert sorted(changes(split(spec, log, 2, 4).read())) == [(1, "a", 1), (1, "b", 2), (2, "a", 3)]
    for file in (tmp_path / "0").iterdir():
        file.unlink()
    with pytest.raises(DataLostError, match=r"state at offset 2 is gone.*from offset 0 on.*Start a new query"):
        changes(split(spec, replace(log, first=1), 2, 4).read())


def test_rows_of_a_snapshot_are_the_first_state_even_if_they_were_not_read(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "b"), (3, None)))
    rows = Rows({1: "a", 2: "a", 3: "a"})
    assert [kind for *_, kind in changes(NormalizedRows(rows, spec_in(tmp_path / "x"), "0", 0).read())] == [2, 2, 2]
    assert sorted(changes(split(spec_in(tmp_path / "x"), log, 0, 3).read())) == [(2, "a", 1), (2, "b", 2), (3, "a", 3)]
    unread = replace(split(spec_in(tmp_path / "y"), log, 0, 3), rows=rows)
    assert sorted(changes(unread.read())) == [(2, "a", 1), (2, "b", 2), (3, "a", 3)]


def test_of_attempts_at_once_one_makes_the_version_and_no_file_is_left_over(tmp_path: Path) -> None:
    log = Log(records_of(random.Random(1), 60, 20))
    spec = spec_in(tmp_path)
    changes(split(spec, log, 0, 40).read())
    found: list[list[Given]] = []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        found.append(sorted(changes(split(spec, log, 40, 60).read())))

    attempts = [threading.Thread(target=run) for _ in range(4)]
    for each in attempts:
        each.start()
    for each in attempts:
        each.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    _assert_no_more_than_listed(spec)


def _assert_no_more_than_listed(spec: StateSpec) -> None:
    storage = spec.folder.child("0")
    listed = {name for each in spec.versions("0") for name in _files(spec, each)}
    assert {name for name in storage.names() if name.endswith(".arrow")} == listed


def _files(spec: StateSpec, version: int) -> list[str]:
    state, _ = KeyedState.open(spec, "0", version, version)
    return [segment.file for segment in state._segments]


def test_an_answer_that_is_lost_loses_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(((1, "a"), (1, "b")))
    spec, put = spec_in(tmp_path), Storage.put_new

    def lost(self: Storage, name: str, data: bytes) -> bool:
        put(self, name, data)
        return put(self, name, data)

    monkeypatch.setattr(Storage, "put_new", lost)
    changes(split(spec, log, 0, 1).read())
    assert changes(split(spec, log, 1, 2).read()) == [(1, "a", 1), (1, "b", 2)]

    def failed(self: Storage, name: str, data: bytes) -> bool:
        put(self, name, data)
        msg = "no answer"
        raise UnavailableError(msg)

    other = spec_in(tmp_path / "other")
    monkeypatch.setattr(Storage, "put_new", failed)
    with pytest.raises(UnavailableError):
        changes(split(other, log, 0, 1).read())
    monkeypatch.setattr(Storage, "put_new", put)
    assert changes(split(other, log, 1, 2).read()) == [(1, "a", 1), (1, "b", 2)], (
        "the version lists files that are gone"
    )


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MEMORY_BYTES", 0)
    spec = spec_in(tmp_path)
    log = Log(((1, "a"), (2, "b"), (1, "c")))
    changes(split(spec, log, 0, 2).read())
    before = spec.folder.child("0").names()

    def fail(self: KeyedState) -> None:
        raise UnavailableError

    monkeypatch.setattr(KeyedState, "save", fail)
    with pytest.raises(UnavailableError):
        changes(split(spec, log, 2, 3).read())
    assert spec.folder.child("0").names() == before


def test_cleaning_keeps_what_a_repeat_needs_and_what_an_attempt_is_writing(tmp_path: Path) -> None:
    log = Log(records_of(random.Random(3), 100, 20))
    spec, rows = spec_in(tmp_path), dict[int, str]()
    for at in range(0, 100, 10):
        expected(rows, log.records[at : at + 10])
        changes(split(spec, log, at, at + 10).read())
    (tmp_path / "0" / f"110-{'0' * 32}.arrow").touch()
    clean(spec.folder.child("0"), 90)
    assert spec.versions("0") == [70, 80, 90, 100]
    assert f"110-{'0' * 32}.arrow" in spec.folder.child("0").names(), "it may be about to be listed"
    before = rows.copy()
    for at in (70, 80, 90):
        changes(split(spec, log, at, at + 10).read())
    assert rows == before
    (tmp_path / "0" / f"110-{'0' * 32}.arrow").unlink()
    _assert_no_more_than_listed(spec)


def test_damage_is_told(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "b"), (1, "c"), (2, None)))
    spec = spec_in(tmp_path)
    changes(split(spec, log, 0, 2).read())
    (segment,) = (tmp_path / "0").glob("*.arrow")
    content = segment.read_bytes()
    for damaged, error, text in (
        (content[:-9], CorruptedError, "expected .* bytes, got"),
        (b"x" * len(content), CorruptedError, "is damaged"),
        (None, DataLostError, "is gone"),
    ):
        segments._OPEN.clear()
        segment.unlink(missing_ok=True)
        if damaged is not None:
            segment.write_bytes(damaged)
        with pytest.raises(error, match=rf"{text}.*Start a new query"):
            changes(split(spec, log, 2, 4).read())
    segment.write_bytes(content)
    (tmp_path / "0" / "2.json").write_text("{")
    with pytest.raises(CorruptedError, match="not a version of a state"):
        changes(split(spec, log, 2, 4).read())


def test_a_key_is_forgotten_after_the_time_to_live(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "a"), (3, "a"), (2, "a"), (9, "x"), (1, "b"), (2, "b"), (3, None)))
    spec = spec_in(tmp_path, ttl=2)
    changes(split(spec, log, 0, 3).read())
    assert changes(split(spec, log, 3, 4).read()) == [], "a repeat is no change, but makes its key younger"
    changes(split(spec, log, 4, 5).read())
    # The newest record so far is of second 4: keys 1 and 3 are older than 2 s, key 2 has had a record since.
    assert sorted(changes(split(spec, log, 5, 8).read())) == [(1, "b", 0), (2, "a", 1), (2, "b", 2), (3, "a", 3)]


def test_expired_keys_leave_the_state(tmp_path: Path) -> None:
    log = Log(tuple((key, "a") for key in range(300)))
    spec = spec_in(tmp_path, ttl=10)
    for at in range(0, 300, 10):
        changes(split(spec, log, at, at + 10).read())
    state, _ = KeyedState.open(spec, "0", 300, 300)
    assert sum(segment.rows for segment in state._segments) < 100


def test_columns_may_be_added_renamed_dropped_and_widened(tmp_path: Path) -> None:
    log = Log(((1, "a"), (2, "a"), (1, "b"), (2, None), (3, "c")))
    changes(split(spec_in(tmp_path), log, 0, 2).read())
    named = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("v", pa.string())])
    stored = pa.schema([("id", pa.int64()), ("col-1", pa.int32()), ("v", pa.string())])
    wider = spec_in(tmp_path, named, stored=stored)
    wide = replace(log, schema=named)
    assert sorted(changes(split(wider, wide, 2, 3).read())) == [(1, "a", 1), (1, "b", 2)]
    widened = pa.schema([("id", pa.int64()), ("m", pa.int64()), ("v", pa.string())])
    last = spec_in(tmp_path, widened, stored=pa.schema([("id", pa.int64()), ("col-1", pa.int64()), ("v", pa.string())]))
    rest = changes(split(last, replace(log, schema=widened), 3, 5).read())
    assert sorted(rest) == [(2, "a", 3), (3, "c", 0)]
    dropped = spec_in(tmp_path, SCHEMA)
    assert changes(split(dropped, Log((*log.records, (3, "d"))), 5, 6).read()) == [(3, "c", 1), (3, "d", 2)]


@pytest.mark.parametrize("ttl", [None, 100])
def test_columns_may_have_the_names_of_the_states_own(tmp_path: Path, ttl: int | None) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("v", pa.string()), *((n, pa.int64()) for n in ("_time", "_hash", "_deleted"))]
    )
    log = Log(((1, "a"), (2, "a"), (1, "b"), (2, None)), schema)
    spec = spec_in(tmp_path, schema, ttl)
    changes(split(spec, log, 0, 2).read())
    assert sorted(changes(split(spec, log, 2, 4).read())) == [(1, "a", 1), (1, "b", 2), (2, "a", 3)]


def test_elements_of_any_type_are_compared_as_spark_does() -> None:
    nested = pa.struct([("x", pa.float64()), ("l", pa.list_(pa.map_(pa.int32(), pa.string())))])
    one = [{"x": float("nan"), "l": [[(1, "a")]]}, None, {"x": 1.0, "l": []}, {"x": 0.0, "l": [[], None]}, None]
    two = [{"x": float("nan"), "l": [[(1, "a")]]}, None, {"x": 1.0, "l": None}, {"x": -0.0, "l": [[], None]}, one[2]]
    left, right = pa.array(one, nested), pa.array(two, nested)
    assert equal(left, right).tolist() == [True, True, False, True, False]
    assert equal(left.slice(1), right.slice(1)).tolist() == [True, False, True, False]
    lists = [[[1], [2, None], [], None, [3, 4]], [[1], [2, 5], [], [], [3, 4, 5]]]
    given = (pa.array(each, pa.large_list(pa.int8())) for each in lists)
    assert equal(*given).tolist() == [True, False, True, False, False]
    assert equal(pa.nulls(2), pa.nulls(2)).tolist() == [True, True]
