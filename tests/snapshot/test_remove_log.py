"""The Delta log of a table that is dropped from an object store while others write and read."""

from __future__ import annotations

from pathlib import Path
from threading import Timer

import pytest
import s3fs

from snapshot.delta.remove_log import remove_log
from snapshot.errors import CorruptedError
from snapshot.storage import Storage
from tablestore import create_local, open_local
from tests.harness.faults import preceded

ROWS = [{"id": 1}]
LATE = b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}'


def entry(path: str, version: int) -> str:
    return f"{path}/_delta_log/{version:020d}.json"


@pytest.mark.parametrize("call", ["put", "delete"])
def test_an_entry_that_lands_while_a_log_is_removed_is_removed_too(lake: str, call: str) -> None:
    """Nobody could read it, and no table could be created beside it."""
    path, store = f"{lake}/t", s3fs.S3FileSystem(use_listings_cache=False)
    create_local(path, "id bigint").write(ROWS)
    with preceded(Storage, call, lambda: store.pipe_file(entry(path, 2), LATE)):
        remove_log(Storage.at(path))
    assert store.find(f"{path}/_delta_log") == []


def test_a_reader_waits_for_an_entry_behind_a_gap_to_be_removed(lake: str) -> None:
    """The writer that put it after the table was dropped removes it."""
    path, store = f"{lake}/t", s3fs.S3FileSystem(use_listings_cache=False)
    create_local(path, "id bigint").write(ROWS)
    store.pipe_file(entry(path, 5), LATE)
    Timer(0.5, store.rm_file, (entry(path, 5),)).start()
    assert open_local(path).to_arrow().to_pylist() == ROWS
    store.pipe_file(entry(path, 5), LATE)
    with pytest.raises(CorruptedError, match=r"lacks version 2, but has version 5\. .* delete .*0{19}5\.json instead"):
        open_local(path)
    store.rm_file(entry(path, 5))
    assert open_local(path).to_arrow().to_pylist() == ROWS


def test_entries_before_a_checkpoint_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create_local(path, "id bigint", options={"compaction.auto": False})
    for _ in range(21):
        table.write(ROWS)
    for version in range(5):
        Path(entry(str(path), version)).unlink()
    Path(entry(str(path), 30)).write_bytes(LATE)
    with pytest.raises(CorruptedError, match=r"lacks version 22, but has version 30\."):
        open_local(path)
