"""What of changes counts, as bits: against the changes applied one after the other to a dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshot.delta.log import DataFile
from snapshot.errors import CorruptedError, DataLostError
from snapshot.merge.change_bitmap import change_bitmap
from snapshot.merge.key_bitmap import KeyBitmap
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ, SNAPSHOT
from snapshot.storage import Storage

SCHEMA = pa.schema([("k", pa.int32()), (KIND, pa.int8()), (SEQ, pa.int64())])
Change = tuple[int, int]
KINDS = st.sampled_from(list(map(int, RowKind)))
SNAPSHOTS = st.lists(st.lists(st.tuples(st.integers(-5, 60), KINDS), max_size=12), min_size=1, max_size=4)


def write(folder: Path, snapshot: int, changes: list[Change], *, bucket: int = 0, step: int = 1) -> DataFile:
    """Write a change file whose ``_seq`` go up by ``step``."""
    name = f"{bucket}-{snapshot}.parquet"
    columns = [*zip(*changes, strict=True)] or [(), ()]
    table = pa.table([*columns, np.arange(len(changes)) * step], schema=SCHEMA)
    pq.write_table(table, folder / name)
    size = (folder / name).stat().st_size
    return DataFile(name, size, len(changes), {SNAPSHOT: str(snapshot)})


def held(bits: KeyBitmap | None, numbers: range) -> list[bool]:
    """Ask for numbers one by one."""
    assert bits is not None
    return [not lacking for lacking in bits.lacks(pa.array(numbers, pa.int64())).to_pylist()]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(snapshots=SNAPSHOTS, dice=st.randoms(), step=st.sampled_from([1, 1 << 33]))
def test_it_finds_what_applying_them_leaves(
    tmp_path: Path, snapshots: list[list[Change]], dice: object, step: int
) -> None:
    last: dict[int, tuple[int, int]] = {}
    for number, changes in enumerate(snapshots):
        for place, (key, kind) in enumerate(changes):
            if kind != RowKind.UPDATE_BEFORE:
                last[key] = (number, place) if kind != RowKind.DELETE else (-1, -1)
    files = [write(tmp_path, n, changes, step=step) for n, changes in enumerate(snapshots)]
    order = list(range(len(files)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    bits = change_bitmap(Storage.at(tmp_path), [files[n] for n in order], "k", threads=2)
    assert bits is not None
    named = {key for changes in snapshots for key, kind in changes if kind != RowKind.UPDATE_BEFORE}
    assert held(bits.keys, range(-6, 62)) == [key in named for key in range(-6, 62)]
    assert len(bits.keys) == len(named)
    standing = [last.get(key) == (n, place) for n in order for place, (key, _) in enumerate(snapshots[n])]
    kinds = [kind for n in order for _, kind in snapshots[n]]
    assert (bits.rows is None) == (len(named) == sum(kind != RowKind.UPDATE_BEFORE for kind in kinds))
    if bits.rows is None:
        assert standing == [kind in (RowKind.INSERT, RowKind.UPDATE_AFTER) for kind in kinds]
    else:
        assert held(bits.rows, range(len(standing))) == standing


def test_keys_that_lie_too_far_apart_have_no_bits(tmp_path: Path) -> None:
    file = write(tmp_path, 1, [(-(1 << 31), 0), ((1 << 31) - 1, 0)])
    assert change_bitmap(Storage.at(tmp_path), [file], "k", threads=1) is None


def test_a_file_that_is_gone_or_holds_something_else_is_named(tmp_path: Path) -> None:
    storage, file = Storage.at(tmp_path), write(tmp_path, 1, [(1, 0)])
    (tmp_path / "other.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"k": [1]}), tmp_path / "short.parquet")
    with pytest.raises(DataLostError, match=r"gone\.parquet.*has expired"):
        change_bitmap(storage, [file, DataFile("gone.parquet", 1, 1)], "k", threads=2)
    for name in ("other.parquet", "short.parquet"):
        with pytest.raises(CorruptedError, match=name):
            change_bitmap(storage, [DataFile(name, 1, 1)], "k", threads=1)
