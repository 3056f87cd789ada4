"""A Delta log is followed entry by entry, and gives at every version what delta-rs reads from the whole of it."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from snapshot.delta.entries import partition_text
from snapshot.delta.log import DataFile, DeltaLog
from snapshot.delta.native_errors import delta_errors
from snapshot.errors import ConflictError, CorruptedError, InvalidInputError, NotFoundError
from snapshot.storage import Storage
from snapshot.store.garbage import entries_below
from tests.harness.faults import failing

COLUMNS = pa.schema(
    [
        ("id", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("n", pa.decimal128(12, 9)), ("b", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")), ("f", pa.float64()),
    ]
)  # fmt: skip
ODD = "".join(chr(code) for code in range(33, 127) if chr(code) != "/") + " ü%20→"


def make(path: Path, **configuration: str) -> DeltaLog:
    keeping = {"delta.checkpointInterval": "20", "delta.enableExpiredLogCleanup": "false"} | configuration
    return DeltaLog.create(
        Storage.at(path), COLUMNS, partition_by=COLUMNS.names[1:], configuration=keeping, info={"kind": "create"}
    )


def a_file(storage: Storage, number: int, dice: random.Random) -> DataFile:
    values: dict[str, Any] = {
        "s": dice.choice([None, "a/b", ODD]),
        "d": dice.choice([None, dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
        "n": dice.choice([None, Decimal("0.000000001"), Decimal("12.500000000")]),
        "b": dice.choice([None, True, False]),
        "at": dice.choice([None, dt.datetime(1900, 1, 1, 1, 2, 3, 999_999, dt.UTC)]),
        "f": dice.choice([None, -0.0, 1e300]),
    }
    name = f"s={ODD}/{number}.parquet"
    storage.put(name, b"")
    return DataFile(name, number, number, {k: partition_text(v) for k, v in values.items()})


def by_path(files: list[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: file.path)


def test_what_is_followed_is_what_delta_rs_reads(tmp_path: Path) -> None:
    """Two writers in turns, and one that always starts over: delta-rs alone."""
    dice = random.Random(7)
    writers = [make(tmp_path / "t"), DeltaLog(Storage.at(tmp_path / "t"))]
    held: list[DataFile] = []
    with failing(DeltaLog, "_load", hits=range(0)) as loads:
        for version in range(1, 131):
            log = dice.choice(writers)
            assert log.version() == version - 1
            gone = [held.pop(dice.randrange(len(held))) for _ in range(dice.choice([0, 0, 1, 5])) if held]
            come = [a_file(log.storage, version * 10 + number, dice) for number in range(dice.choice([0, 1, 3]))]
            named = [("first", version)] if version % 7 == 0 else [("second", -version)] if version % 3 == 0 else []
            rewrites = dice.random() < 0.3
            log.commit(
                version, add=come, remove=gone, info={"n": version}, transactions=named, data_change=not rewrites
            )
            held += come
            if version % 10 == 0:
                fresh = DeltaLog(Storage.at(tmp_path / "t"))
                for each in (*writers, fresh):
                    assert by_path(each.files()) == by_path(held)
                    assert each.transaction_version("first") == (version // 7 * 7 or None)
                    assert each.transaction_version("second") == fresh.transaction_version("second")
                    assert each.transaction_version("third") is None
                    assert each.configuration()["delta.checkpointInterval"] == "20"
                for older in {dice.randrange(version) for _ in range(3)}:
                    known = by_path(fresh.files(older))
                    assert [by_path(each.files(older)) for each in writers] == [known, known]
        # A checkpoint, and now and then a state for who only follows: nothing that each commit pays for.
        assert loads() <= 13 + 130 // 50 + 2 + 13
    with pytest.raises(ConflictError):
        writers[0].commit(130, add=[], info={})
    assert writers[1].version() == 130
    assert len(list((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))) == 6


def test_commits_of_other_tools_are_followed_too(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    log = make(tmp_path / "t")
    row = {"id": 1, "s": "it's (x)", "d": None, "n": None, "b": True, "at": None, "f": 1.5}
    table = pa.Table.from_pylist([row], schema=COLUMNS)
    assert log.version() == 0
    write_deltalake(path, table, mode="append")
    ours = by_path(log.files())
    assert [file.partition["s"] for file in ours] == ["it's (x)"]
    other = DeltaTable(path)
    partition = ours[0].partition
    odd = AddAction(f"{ODD}.parquet", 1, dict(partition), 1, data_change=True, stats='{"numRecords": 1}')
    other.create_write_transaction([odd], "append", other.schema(), COLUMNS.names[1:])
    # What another tool has listed can be taken out.
    log.commit(3, add=[], remove=log.files(), info={})
    assert (log.files(), DeltaTable(path).file_uris()) == ([], [])
    write_deltalake(path, table.append_column("more", pa.array([1])), mode="append", schema_mode="merge")
    assert not log.has_schema(COLUMNS)
    assert len(log.files()) == 1
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "6"})
    assert log.configuration()["delta.checkpointInterval"] == "6"
    assert log.seen(5) == (5, log.configuration())
    log.commit(6, add=[a_file(log.storage, 1, random.Random(1))], info={})
    assert (tmp_path / "t" / "_delta_log" / f"{6:020d}.checkpoint.parquet").exists()
    assert len(DeltaTable(path).file_uris()) == 2
    DeltaTable(path).alter.add_feature([TableFeatures.ChangeDataFeed], allow_protocol_versions_increase=True)
    log.commit(8, add=[], info={})
    DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(InvalidInputError, match=r"requires its writers to support changeDataFeed.*nothing was changed"):
        log.commit(10, add=[], info={})
    assert log.version() == 9


def test_a_log_that_was_cut_or_damaged_under_a_handle_is_not_taken_for_its_end(tmp_path: Path) -> None:
    ours, others = make(tmp_path / "t"), DeltaLog(Storage.at(tmp_path / "t"))
    assert ours.version() == 0
    assert ours.transaction_version("app") is None
    for version in range(1, 46):
        file = a_file(others.storage, version, random.Random(version))
        others.commit(version, add=[file], info={}, transactions=[("app", version)])
    others.storage.delete(*entries_below(others, 44))
    assert not (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").exists()
    assert ours.transaction_version("app", fresh=False) is None
    assert (ours.version(), len(ours.files()), ours.transaction_version("app")) == (45, 45, 45)
    (tmp_path / "t" / "_delta_log" / f"{46:020d}.json").write_text('{"add": {"path"')
    for log in (ours, DeltaLog(Storage.at(tmp_path / "t"))):
        with pytest.raises(CorruptedError, match="the Delta log cannot be read"):
            log.version()


def test_a_log_is_read_again_if_its_checkpoint_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry writes a checkpoint and removes the one before, which a reader may be about to read."""
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    DeltaTable(tmp_path / "t").create_checkpoint()
    [checkpoint] = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    away, reads = checkpoint.with_suffix(".away"), 0

    def read(root: str, version: int | None = None) -> DeltaTable:
        nonlocal reads
        reads += 1
        if reads > failures:
            return DeltaTable(root, version=version)
        checkpoint.rename(away)
        try:
            return DeltaTable(root, version=version)
        finally:
            away.rename(checkpoint)

    monkeypatch.setattr("snapshot.delta.state.DeltaTable", read)
    for version in (None, 0):
        reads, failures = 0, 1
        assert len(DeltaLog(Storage.at(tmp_path / "t")).files(version)) == 1
    reads, failures = 0, 100
    with pytest.raises(CorruptedError, match=r"the Delta log cannot be read: .*Restore it"):
        DeltaLog(Storage.at(tmp_path / "t")).version()
    assert reads == 2, "nobody wrote a checkpoint"


def test_a_folder_that_vanishes_while_delta_rs_looks_at_it_is_no_table() -> None:
    gone = 'Generic error: Failed to canonicalize path "/t": No such file or directory (os error 2)'
    with pytest.raises(NotFoundError, match="there is no Delta table"), delta_errors("/t"):
        raise DeltaError(gone)
