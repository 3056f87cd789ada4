"""Splits hold every bucket once, whatever the numbers of buckets and tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tablestore import create_local
from tablestore.context import TableContext
from tablestore.read import split_planner
from tablestore.read.split_planner import snapshot_splits

ROWS = 500


def _table(path: Path, buckets: int) -> TableContext:
    columns = "id bigint, text string"
    table = create_local(str(path), columns, primary_key="id", options={"bucket": buckets, "compaction.auto": "false"})
    table.write(pa.table({"id": range(ROWS), "text": ["old"] * ROWS}))
    table.compact()
    table.write(pa.table({"id": range(0, ROWS, 5), "text": ["new"] * (ROWS // 5)}))
    return TableContext.open(str(path))


@pytest.mark.parametrize("buckets", [1, 3, 40])
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("whole_buckets", [False, True])
def test_splits_hold_each_row_once_and_buckets_whole(
    tmp_path: Path, buckets: int, tasks: int, whole_buckets: bool
) -> None:
    table = _table(tmp_path / "t", buckets)
    parts = snapshot_splits(table.files, table.files.latest(), tasks=tasks, whole_buckets=whole_buckets)

    assert len(parts) == (min(buckets, tasks) if whole_buckets or buckets >= tasks else buckets)
    rows = [row for part in parts for batch in part.read() for row in batch.to_pylist()]
    assert Counter(row["id"] for row in rows) == Counter(range(ROWS))
    assert all((row["text"] == "new") == (row["id"] % 5 == 0) for row in rows)


def test_a_split_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path / "t", 40)
    layout = table.files.layout(table.files.latest())
    size = sum(file.size for file in [*layout.base, *layout.changes])
    monkeypatch.setattr(split_planner, "_SPLIT_BYTES_MAX", size // 7)
    assert 7 <= len(snapshot_splits(table.files, table.files.latest(), tasks=2)) <= 9


def test_a_bucket_of_much_data_is_read_by_several_tasks_unless_it_must_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_local(str(tmp_path / "t"), "id bigint", primary_key="id", options={"bucket": 1})
    for first in range(0, 30, 10):
        table.write(pa.table({"id": range(first, first + 10)}))
        table.compact()
    context = TableContext.open(str(tmp_path / "t"))
    monkeypatch.setattr(split_planner, "_SPLIT_BYTES_MIN", 1)
    newest = context.files.latest()
    files = len(context.files.layout(newest).base)
    assert len(snapshot_splits(context.files, newest, tasks=4)) == files
    assert len(snapshot_splits(context.files, newest, tasks=4, whole_buckets=True)) == 1
