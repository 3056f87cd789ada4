"""Entries of other Delta writers that lack what the store needs: the time of a commit, the table's definition."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from snapshot.errors import CorruptedError, NotFoundError
from snapshot.schema.spec import SPEC_PROPERTY
from tablestore import LocalTable, create_local, open_local

HOUR = timedelta(hours=1)
QUIET = {"snapshot.expire-auto": False, "compaction.auto": False}


def make(path: Path, *, key: bool) -> LocalTable:
    return create_local(path, "id bigint, v string", primary_key=["id"] if key else [], options=QUIET)


def entry(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def date(path: Path, at: datetime) -> None:
    """Let an entry have been committed at another time, by ``commitInfo`` if it has that, and by its file."""
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
    path.write_text("\n".join(map(json.dumps, actions)))
    os.utime(path, (at.timestamp(), at.timestamp()))


def test_a_commit_without_a_time_has_that_of_its_file(tmp_path: Path) -> None:
    """With time 0, it would be the newest snapshot at any time before those that follow it."""
    path, now = tmp_path / "t", datetime.now(UTC).replace(microsecond=0)
    with make(path, key=False) as table:
        table.write([{"id": 1, "v": "a"}])
        write_deltalake(path, table.to_arrow(), mode="append")
        table.write([{"id": 3, "v": "c"}])
        kept = [line for line in entry(path, 2).read_text().splitlines() if "commitInfo" not in json.loads(line)]
        entry(path, 2).write_text("\n".join(kept))
        for version in range(4):
            date(entry(path, version), now - (4 - version) * HOUR)
    with open_local(path) as table:
        assert [each.time for each in table.snapshots()] == [now - hours * HOUR for hours in (1, 2, 3, 4)]
        for ago, ids in ((3.5, []), (2.5, [1]), (1.5, [1, 1]), (0.5, [1, 1, 3])):
            assert sorted(table.to_arrow(timestamp=now - ago * HOUR)["id"].to_pylist()) == ids
        with pytest.raises(NotFoundError, match="no snapshot at that time"):
            table.to_arrow(timestamp=now - 5 * HOUR)


@pytest.mark.parametrize("expired", [False, True], ids=["whole", "expired"])
@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_a_definition_that_another_writer_has_unset_is_named_and_restored(
    tmp_path: Path, *, key: bool, expired: bool
) -> None:
    root = tmp_path / "t"
    with make(root, key=key) as table:
        for n in range(23):
            table.write([{"id": n, "v": "a"}])
        if expired:
            time.sleep(0.01)
            table.maintenance.expire(older_than=timedelta(0), keep_last=2)
            assert not entry(root / "_changes" if key else root, 0).exists()
        rows = table.to_arrow().sort_by("id")
        log = DeltaTable(root / "_changes" if key else root)
        newest = log.version()
        unset(log)
        with pytest.raises(CorruptedError, match=rf"'{SPEC_PROPERTY}', is missing.*RESTORE TABLE"):
            table.write([{"id": 40, "v": "b"}])
    for use in (open_local, lambda path: create_local(path, "id bigint")):
        with pytest.raises(CorruptedError, match=rf"'{SPEC_PROPERTY}', is missing.*RESTORE TABLE"):
            use(root)
    DeltaTable(log.table_uri).restore(newest)
    with open_local(root) as table:
        assert table.to_arrow().sort_by("id") == rows
        table.write([{"id": 40, "v": "b"}])
        assert table.count() == rows.num_rows + 1


def unset(table: DeltaTable) -> None:
    """Commit what Spark's ``UNSET TBLPROPERTIES`` does, which delta-rs has no call for."""
    path, metadata = Path(table.table_uri.removeprefix("file://")), table.metadata()
    made = {
        "id": str(metadata.id), "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(), "partitionColumns": metadata.partition_columns,
        "configuration": {n: v for n, v in metadata.configuration.items() if n != SPEC_PROPERTY},
        "createdTime": metadata.created_time,
    }  # fmt: skip
    info = {"timestamp": int(time.time() * 1000), "operation": "UNSET TBLPROPERTIES"}
    actions = [{"commitInfo": info}, {"metaData": made}]
    entry(path, table.version() + 1).write_text("\n".join(map(json.dumps, actions)))
