"""Other Delta writers on a table, as docs/internals/guarantees.md has it: nothing is silently wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.entries import entry_of
from snapshot.errors import CorruptedError, DataLostError, InvalidInputError, TableStoreError
from snapshot.row_kind import CHANGE_TYPE
from tablestore import LocalTable, create_local, open_local
from tablestore.cli import app
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.write.foreign_commits import adopt
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, make_table, publisher_of, recover_at, run_here, write
from tests.harness.log_audit import verify

FIRST = [(n, f"a{n}") for n in range(6)]
SECOND = [(n, f"b{n}") for n in range(4, 8)]
ROWS = pa.table({"id": pa.array([4, 100]), "v": ["foreign", "new"]})


def make(path: Path, *, key: bool) -> TableContext:
    """Make a table of two snapshots, without a log; one with a key is compacted after the first."""
    keys = ["id"] if key else []
    options = {"bucket": 1, "compaction.auto": False}
    table = create_drop.create(TableDefinition(str(path), SCHEMA, primary_key=keys, options=options))
    write(Writer(table, None), FIRST)
    if key:
        compact(table, run_here)
    write(Writer(table, None), SECOND)
    return table


def delete(table: DeltaTable) -> None:
    table.delete("id in (1, 4)")


def update(table: DeltaTable) -> None:
    table.update(predicate="id = 4", updates={"v": "'updated'"})


def merge(table: DeltaTable) -> None:
    """Upsert two rows."""
    (
        table.merge(source(table), "s.id = t.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def overwrite(table: DeltaTable) -> None:
    write_deltalake(table.table_uri, source(table), mode="overwrite")


def replace(table: DeltaTable) -> None:
    write_deltalake(table.table_uri, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")


def append(table: DeltaTable) -> None:
    write_deltalake(table.table_uri, source(table), mode="append")


def restore(table: DeltaTable) -> None:
    table.restore(table.version() - 1)


def delete_and_restore(table: DeltaTable) -> None:
    before = table.version()
    delete(table)
    table.restore(before)


def optimize(table: DeltaTable) -> None:
    assert table.optimize.compact()["numFilesAdded"] <= 1


def vacuum(table: DeltaTable) -> None:
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)


def add_column(table: DeltaTable) -> None:
    table.alter.add_columns([pa_field("more")])


def set_properties(table: DeltaTable) -> None:
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 90 days"})


def pa_field(name: str) -> Any:
    from deltalake import Field  # noqa: PLC0415
    from deltalake.schema import PrimitiveType  # noqa: PLC0415

    return Field(name, PrimitiveType("integer"))


def source(table: DeltaTable) -> pa.Table:
    """Make rows with the columns of a Delta table, which may be the root or the changes of a key table."""
    rows = ROWS
    for name, kind in (("_kind", pa.int8()), ("_seq", pa.int64()), ("_snapshot", pa.int64()), ("_bucket", pa.int32())):
        if name in {field.name for field in table.schema().fields}:
            rows = rows.append_column(name, pa.array([{"_kind": 2, "_snapshot": 99}.get(name, 0)] * 2, kind))
    return rows


def encoded(rows: pa.Table) -> pa.Table:
    """Return rows with dictionaries and large lists."""
    word = pa.dictionary(pa.int32(), pa.large_string())
    for name, kind in (("v", word), ("parts", pa.large_list(word))):
        number, array = rows.schema.get_field_index(name), rows.column(name).combine_chunks()
        if pa.types.is_large_list(kind):
            words = array.values.cast(pa.large_string()).dictionary_encode()
            array = pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), words)
        rows = rows.set_column(number, name, array.cast(kind))
    return rows


def held(path: Path) -> Counter[tuple[Any, ...]]:
    """Read the rows of a table."""
    return Counter((row["id"], row["v"]) for row in open_local(path).to_arrow().to_pylist())


def folded(path: Path) -> Counter[tuple[Any, ...]]:
    """Add up the changes of all snapshots."""
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in open_local(path).changes(0):
        for row in batch.to_pylist():
            found[row["id"], row["v"]] += -1 if row[CHANGE_TYPE] in ("delete", "update_preimage") else 1
    return Counter({row: times for row, times in found.items() if times})


def by_key(path: Path) -> Counter[tuple[Any, ...]]:
    """Fold the changes of all snapshots by their keys."""
    found: dict[int, str] = {}
    for batch in open_local(path).changes(0):
        for row in batch.to_pylist():
            found |= {row["id"]: row["v"]}
    return Counter(found.items())


def by_delta_rs(path: Path) -> Counter[tuple[Any, ...]]:
    """Read what another tool sees."""
    return Counter((row["id"], row["v"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def append_and_optimize(table: DeltaTable) -> None:
    append(table)
    table.update_incremental()
    assert table.optimize.compact()["numFilesRemoved"] == 2


def restore_behind_optimize(table: DeltaTable) -> None:
    """Add the same files twice: by an update, and again after another commit has replaced them."""
    table.update(predicate="id = 7", updates={"v": "'updated'"})
    before = table.version()
    optimize(table)
    table.restore(before)


HARMLESS = (optimize, vacuum, add_column, set_properties)
CHANGES_ROWS = (delete, update, merge, overwrite, restore, delete_and_restore)


@pytest.mark.parametrize("command", [append, *HARMLESS], ids=lambda each: each.__name__)
def test_without_a_key_appends_are_changes_and_maintenance_is_none(
    tmp_path: Path, command: Callable[[DeltaTable], None]
) -> None:
    table = make(tmp_path / "t", key=False)
    before = held(tmp_path / "t")
    command(DeltaTable(tmp_path / "t"))
    expected = before + Counter([(4, "foreign"), (100, "new")]) if command is append else before
    assert held(tmp_path / "t") == folded(tmp_path / "t") == by_delta_rs(tmp_path / "t") == expected
    assert adopt(table) is None
    write(Writer(table, None), [(50, "after")])
    assert held(tmp_path / "t") == folded(tmp_path / "t") == expected + Counter([(50, "after")])


@pytest.mark.parametrize("command", [*CHANGES_ROWS, restore_behind_optimize], ids=lambda each: each.__name__)
def test_without_a_key_changed_rows_are_adopted(tmp_path: Path, command: Callable[[DeltaTable], None]) -> None:
    """Rows that a tool has only moved to another file are no changes."""
    table = make(tmp_path / "t", key=False)
    before = held(tmp_path / "t")
    command(DeltaTable(tmp_path / "t"))
    write(Writer(table, None), [(50, "after")])
    now = held(tmp_path / "t")
    assert now == by_delta_rs(tmp_path / "t")
    with pytest.raises(CorruptedError, match=r"version 3 .*recover\(\) publishes them"):
        folded(tmp_path / "t")
    adopted = adopt(table)
    assert adopted is not None
    assert adopted.rows == sum((before - now).values()) + sum((now - before).values()) - 1
    assert held(tmp_path / "t") == folded(tmp_path / "t") == now
    assert adopt(TableContext.open(str(tmp_path / "t"))) is None


def test_timestamps_as_spark_writes_them_are_changes(tmp_path: Path) -> None:
    """Spark's own Delta writes INT96 unless it is told otherwise, which holds times that nanoseconds do not."""
    columns = StructType().add("id", "long").add("at", "timestamp").add("s", StructType().add("at", "timestamp"))
    key = {"primary_key": [], "partition_by": []}
    table = create_drop.create(TableDefinition(str(tmp_path / "t"), columns, **key))
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None]
    rows = [{"id": n, "at": at, "s": {"at": at}} for n, at in enumerate(times)]
    foreign = pa.Table.from_pylist(rows, table.files.spec.arrow)
    pq.write_table(foreign, tmp_path / "t" / "foreign.parquet", use_deprecated_int96_timestamps=True)
    size = (tmp_path / "t" / "foreign.parquet").stat().st_size
    action = {"path": "foreign.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    (tmp_path / "t" / entry_of(1)).write_text(json.dumps({"add": action}))
    assert open_local(tmp_path / "t").to_arrow().to_pylist() == rows
    feed = pa.Table.from_batches(open_local(tmp_path / "t").changes(0))
    assert feed.select(["id", "at", "s"]).to_pylist() == rows


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        (lambda table: table.delete("id = 1"), [2]),
        (lambda table: table.update("id = 1", {"id": 3}), [2, 3]),
        (lambda table: table.overwrite([{"id": 4, "p": "ä"}], "p = 'ä'"), [4]),
        (lambda table: table.compact(), [1, 2]),
    ],
    ids=["delete", "update", "overwrite", "compact"],
)
@pytest.mark.parametrize("checkpoint", [False, True], ids=["", "from a checkpoint"])
def test_a_file_whose_path_spark_has_encoded_is_removed_for_all_readers(
    tmp_path: Path, verb: Callable[[LocalTable], object], expected: list[int], checkpoint: bool
) -> None:
    """In a path, Spark leaves letters beyond ASCII as they are, and a file is removed by the text that added it."""
    path = tmp_path / "t"
    table = create_local(path, "id bigint, p string", partition_by=["p"])
    (path / "p=ä").mkdir()
    for version in (1, 2):
        name = f"p=ä/{version}.parquet"
        pq.write_table(pa.table({"id": pa.array([version])}), path / name)
        action = {"path": name, "partitionValues": {"p": "ä"}, "modificationTime": 1, "dataChange": True}
        text = json.dumps({"add": {**action, "size": (path / name).stat().st_size}}, ensure_ascii=False)
        (path / entry_of(version)).write_text(text)
    if checkpoint:
        DeltaTable(path).create_checkpoint()
    table.tags.create("before")
    verb(table)
    for read in (table.to_arrow, open_local(path).to_arrow, DeltaTable(path).to_pyarrow_table):
        assert sorted(read().column("id").to_pylist()) == expected
    DeltaTable(path).create_checkpoint()
    assert sorted(open_local(path).to_arrow().column("id").to_pylist()) == expected
    assert sorted(open_local(path).to_arrow(tag="before").column("id").to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    "make_rows", [lambda rows: polars.from_arrow(rows).to_arrow(), encoded], ids=["as polars writes them", "encoded"]
)
def test_other_arrow_types_of_the_same_values_are_read_everywhere(
    tmp_path: Path, make_rows: Callable[[pa.Table], pa.Table]
) -> None:
    """Parquet files keep the Arrow types of who wrote them."""
    table = create_local(tmp_path / "t", "id bigint, v string, parts array<string>, s struct<v: string, n: array<int>>")
    rows = [{"id": 1, "v": "a", "parts": ["p", None], "s": {"v": "b", "n": [1]}}, {"id": 2, "v": None, "parts": []}]
    foreign = pa.Table.from_pylist(rows, table.schema)
    rows = foreign.to_pylist()
    pq.write_table(make_rows(foreign), tmp_path / "t" / "foreign.parquet")
    size = (tmp_path / "t" / "foreign.parquet").stat().st_size
    action = {"path": "foreign.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    (tmp_path / "t" / entry_of(1)).write_text(json.dumps({"add": action}))
    feed = pa.Table.from_batches(table.changes(0))
    assert feed.select(table.schema.names).to_pylist() == table.to_arrow().to_pylist() == rows
    table.delete("v IS NULL")
    assert table.to_arrow().to_pylist() == rows[:1]


def test_a_column_of_another_writer_is_no_column_of_the_store(tmp_path: Path) -> None:
    """One of the same name that is added later has none of its values; for other tools both are there."""
    make(tmp_path / "t", key=False)
    more = ROWS.append_column("more", pa.array([1, 2], pa.int32()))
    write_deltalake(tmp_path / "t", more, mode="append", schema_mode="merge")
    expected = held(tmp_path / "t")
    for name in ("other", "more"):
        open_local(tmp_path / "t").alter.add_column(name, "string")
    open_local(tmp_path / "t").write([{"id": 50, "v": "after", "more": "own"}])
    assert held(tmp_path / "t") == folded(tmp_path / "t") == expected + Counter([(50, "after")])
    own = Counter({None: expected.total(), "own": 1})
    assert Counter(open_local(tmp_path / "t").to_arrow().column("more").to_pylist()) == own
    assert Counter(row["more"] for batch in open_local(tmp_path / "t").changes(0) for row in batch.to_pylist()) == own
    seen = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert Counter((row["more"], row["more_2"]) for row in seen) == Counter(
        {(None, None): expected.total() - 2, (1, None): 1, (2, None): 1, (None, "own"): 1}
    )


def test_a_version_is_skipped_on_demand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its files may be gone: then it cannot be published."""
    table = make(tmp_path / "t", key=False)
    whole = held(tmp_path / "t")
    delete(DeltaTable(tmp_path / "t"))
    vacuum(DeltaTable(tmp_path / "t"))
    with pytest.raises(DataLostError, match=r"version 3 .*gone.*skip_foreign=\[3\]"):
        adopt(table)
    with pytest.raises(InvalidInputError, match=r"wait to be published, some of \[3\]; got \[1\]"):
        adopt(table, [1])
    adopted = adopt(table, [3])
    assert adopted is not None
    assert (adopted.published, adopted.rows) == ((), 0)
    assert "version 3 (DELETE) took 2 files of 10 rows out" in caplog.text
    assert sum(held(tmp_path / "t").values()) == 7
    assert sum((Counter(batch.num_rows for batch in open_local(tmp_path / "t").changes(2))).values()) == 0
    assert whole != held(tmp_path / "t")


def test_the_command_line_adopts_and_skips(tmp_path: Path) -> None:
    make(tmp_path / "t", key=False)
    run = CliRunner(env={"COLUMNS": "160"})
    delete(DeltaTable(tmp_path / "t"))
    done = run.invoke(app, ["recover", str(tmp_path / "t")])
    assert "snapshot 4 contains the changes of other Delta writers in versions 3, 3 changes" in done.stdout
    overwrite(DeltaTable(tmp_path / "t"))
    restore(DeltaTable(tmp_path / "t"))
    done = run.invoke(app, ["recover", str(tmp_path / "t"), "--skip-version", "6", "--json"])
    told = json.loads(done.stdout)["adopted"]
    assert told["published"] == [5]
    assert told["skipped"][0].startswith("version 6 (RESTORE) took ")
    assert "nothing to recover" in run.invoke(app, ["recover", str(tmp_path / "t")]).stdout


def test_files_that_came_and_went_need_not_be_there(tmp_path: Path) -> None:
    table = make(tmp_path / "t", key=False)
    before = held(tmp_path / "t")
    delete_and_restore(DeltaTable(tmp_path / "t"))
    vacuum(DeltaTable(tmp_path / "t"))
    adopted = adopt(table)
    assert adopted is not None
    assert (len(adopted.published), adopted.rows) == (2, 0)
    assert held(tmp_path / "t") == folded(tmp_path / "t") == before


def test_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """Columns that are gone would read as NULL."""
    table = make(tmp_path / "t", key=False)
    before = held(tmp_path / "t")
    replace(DeltaTable(tmp_path / "t"))
    for each in (table, TableContext.open(str(tmp_path / "t"))):
        with pytest.raises(CorruptedError, match=r"another Delta writer has replaced the table.*RESTORE TABLE"):
            Writer(each, None).refresh()
    with pytest.raises(CorruptedError, match="replaced the table"):
        held(tmp_path / "t")
    DeltaTable(tmp_path / "t").restore(2)
    assert held(tmp_path / "t") == before


def test_vacuum_of_changes_takes_those_that_were_compacted(tmp_path: Path) -> None:
    """The newest rows stay, and streams from before the compaction are told which file is gone."""
    table = make(tmp_path / "t", key=True)
    before = held(tmp_path / "t")
    vacuum(DeltaTable(tmp_path / "t" / "_changes"))
    with pytest.raises(DataLostError, match=r"a file of snapshot 1 is missing.*VACUUM.*if the log lacks them"):
        by_key(tmp_path / "t")
    write(Writer(table, None), [(8, "d8")])
    compact(table, run_here)
    assert held(tmp_path / "t") == before + Counter([(8, "d8")])


@pytest.mark.parametrize("command", [append, append_and_optimize, *CHANGES_ROWS[:-1]], ids=lambda each: each.__name__)
def test_with_a_key_changed_rows_of_the_root_are_refused_until_undone(
    tmp_path: Path, command: Callable[[DeltaTable], None]
) -> None:
    table = make(tmp_path / "t", key=True)
    before, newest = held(tmp_path / "t"), DeltaTable(tmp_path / "t").version()
    if command is restore:
        # The version before has no rows.
        assert newest == 1
    command(DeltaTable(tmp_path / "t"))
    for use in (lambda: held(tmp_path / "t"), lambda: compact(table, run_here)):
        with pytest.raises(CorruptedError, match=r"version 2 .*another Delta writer.*RESTORE TABLE .* AS OF 1"):
            use()
    DeltaTable(tmp_path / "t").restore(newest)
    assert held(tmp_path / "t") == before
    assert compact(table, run_here) is not None
    assert held(tmp_path / "t") == by_delta_rs(tmp_path / "t") == before


@pytest.mark.parametrize(
    ("place", "command"),
    [
        *((place, command) for place in ("root", "_changes") for command in (optimize, add_column, set_properties)),
        ("root", delete_and_restore),
        ("root", vacuum),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_with_a_key_maintenance_of_others_changes_nothing(
    tmp_path: Path, place: str, command: Callable[[DeltaTable], None]
) -> None:
    table = make(tmp_path / "t", key=True)
    write(Writer(table, None), [(7, "c7")])
    before = held(tmp_path / "t")
    where = tmp_path / "t" if place == "root" else tmp_path / "t" / "_changes"
    command(DeltaTable(where))
    assert held(tmp_path / "t") == by_key(tmp_path / "t") == before
    write(Writer(table, None), [(8, "d8")])
    compact(table, run_here)
    assert held(tmp_path / "t") == by_key(tmp_path / "t") == before + Counter([(8, "d8")])


@pytest.mark.parametrize("command", [delete, update, merge, overwrite], ids=lambda each: each.__name__)
def test_changes_are_kept_from_others(tmp_path: Path, command: Callable[[DeltaTable], None]) -> None:
    """The tool itself refuses: the table of changes takes appends only."""
    make(tmp_path / "t", key=True)
    before = held(tmp_path / "t")
    with pytest.raises(DeltaError):
        command(DeltaTable(tmp_path / "t" / "_changes"))
    assert held(tmp_path / "t") == by_key(tmp_path / "t") == before


@pytest.mark.parametrize("command", [append, restore], ids=lambda each: each.__name__)
def test_changes_of_others_among_ours_are_refused_until_undone(
    tmp_path: Path, command: Callable[[DeltaTable], None]
) -> None:
    table = make(tmp_path / "t", key=True)
    before, newest = held(tmp_path / "t"), table.files.latest()
    command(DeltaTable(tmp_path / "t" / "_changes"))
    for each in (table, TableContext.open(str(tmp_path / "t"))):
        for use in (
            lambda: held(tmp_path / "t"), lambda: by_key(tmp_path / "t"), lambda each=each: compact(each, run_here),
            lambda each=each: adopt(each),
        ):  # fmt: skip
            with pytest.raises(CorruptedError, match="nobody but the store may change the rows"):
                use()
    DeltaTable(tmp_path / "t" / "_changes").restore(newest)
    assert adopt(table, [newest + 1, newest + 2]) is not None
    assert held(tmp_path / "t") == by_key(tmp_path / "t") == before
    assert compact(table, run_here) is not None
    assert by_delta_rs(tmp_path / "t") == before


@pytest.fixture(scope="module")
def log(kafka: LocalKafka) -> Callable[[Path, str], TableContext]:
    return lambda path, topic: make_table(path, kafka.bootstrap_servers, topic, key=False, log__format="arrow")


@pytest.mark.parametrize("command", [update, overwrite, delete_and_restore, optimize], ids=lambda each: each.__name__)
def test_a_log_goes_on_after_others_changed_rows(
    log: Callable[[Path, str], TableContext],
    topic: Callable[[], str],
    tmp_path: Path,
    command: Callable[[DeltaTable], None],
) -> None:
    """A writer under way says what to do; the next writer, or recovery, publishes the difference."""
    table = log(tmp_path / "t", topic())
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    write(writer, FIRST)
    command(DeltaTable(tmp_path / "t"))
    if command is optimize:
        write(writer, SECOND)
    else:
        with pytest.raises(TableStoreError, match=r"recover\(\) publishes them"):
            write(writer, SECOND)
    publisher.discard()
    write(Writer(table, again := publisher_of(table)), [(50, "after")])
    again.discard()
    recover_at(tmp_path / "t", 2)
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in open_local(tmp_path / "t").tail(scan_mode="earliest", follow=False):
        for row in batch.to_pylist():
            found[row["id"], row["v"]] += -1 if row[CHANGE_TYPE] in ("delete", "update_preimage") else 1
    assert Counter({row: n for row, n in found.items() if n}) == held(tmp_path / "t")
    assert verify(TableContext.open(str(tmp_path / "t"))).ok


def test_a_log_that_others_have_cut_is_named_with_the_property(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id bigint, v string", primary_key="id")
    table.write(ROWS)
    table.compact()
    other = DeltaTable(tmp_path / "t")
    other.alter.set_table_properties(
        {"delta.enableExpiredLogCleanup": "true", "delta.logRetentionDuration": "interval 0 days"}
    )
    table.write(ROWS)
    with pytest.raises(InvalidInputError, match=r"expected 'false'.*SET TBLPROPERTIES"):
        table.compact()
    other.create_checkpoint()
    other.cleanup_metadata()
    with pytest.raises(CorruptedError, match=r"enableExpiredLogCleanup\?\)\. Bring them back from a backup"):
        open_local(tmp_path / "t").to_arrow()
