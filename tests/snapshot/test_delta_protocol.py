"""What another Delta writer switches on is refused by name, for readers and writers, until it is switched off again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from snapshot.delta.entries import entry_of
from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.storage import Storage
from snapshot.store.garbage import entries_below
from tablestore import TableStore, open_local
from tests.harness.spark_tables import make

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


def a_log(path: Path) -> DeltaLog:
    log = DeltaLog.create(Storage.at(path), COLUMNS, partition_by=(), configuration={}, info={"kind": "create"})
    assert log.version() == 0
    return log


def another_writer(
    log: DeltaLog,
    *,
    reader: int = 1,
    writer: int = 2,
    readers: list[str] | None = None,
    writers: list[str] | None = None,
    properties: dict[str, str] | None = None,
    field: dict[str, Any] | None = None,
) -> None:
    """Commit a protocol and metadata as another Delta writer may."""
    root = log.storage.root
    newest = DeltaTable(root)
    before = newest.metadata()
    schema = json.loads(newest.schema().to_json())
    for number, each in enumerate(schema["fields"]):
        each["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    schema["fields"][1]["metadata"] |= field or {}
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    protocol |= {} if readers is None else {"readerFeatures": readers}
    protocol |= {} if writers is None else {"writerFeatures": writers}
    metadata = {
        "id": str(before.id), "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
        "partitionColumns": [], "configuration": {**before.configuration, **(properties or {})}, "createdTime": 1,
    }  # fmt: skip
    text = "\n".join(json.dumps(action) for action in ({"protocol": protocol}, {"metaData": metadata}))
    Path(root, entry_of(newest.version() + 1)).write_text(text)


FEATURES: dict[str, dict[str, Any]] = {
    "columnMapping": {"reader": 2, "writer": 5, "properties": {"delta.columnMapping.mode": "name"}},
    "deletionVectors": {"reader": 3, "writer": 7, "readers": ["deletionVectors"], "writers": ["deletionVectors"]},
    "typeWidening": {"reader": 3, "writer": 7, "readers": ["typeWidening"], "writers": ["typeWidening"]},
    "variantType": {"reader": 3, "writer": 7, "readers": ["variantType"], "writers": ["variantType"]},
    "ofTheFuture": {"reader": 3, "writer": 7, "readers": ["ofTheFuture"], "writers": ["ofTheFuture"]},
    "catalogManaged": {"reader": 3, "writer": 7, "readers": ["catalogManaged"], "writers": ["catalogManaged"]},
}
WRITER_FEATURES: dict[str, dict[str, Any]] = {
    "rowTracking": {"reader": 1, "writer": 7, "writers": ["rowTracking"]},
    "allowColumnDefaults": {"writer": 7, "writers": ["allowColumnDefaults"], "field": {"CURRENT_DEFAULT": "'x'"}},
    "checkConstraints": {"writer": 3, "properties": {"delta.constraints.positive": "id > 0"}},
    "changeDataFeed": {"writer": 4, "properties": {"delta.enableChangeDataFeed": "true"}},
    "generatedColumns": {"writer": 4, "field": {"delta.generationExpression": "CAST(id AS STRING)"}},
    "identityColumns": {"writer": 6, "field": {"delta.identity.start": 1}},
    "invariants": {"field": {"delta.invariants": '{"expression": {"expression": "v <> \'x\'"}}'}},
    "writer version 8": {"writer": 8},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_readers_refuse_a_feature_by_name(tmp_path: Path, feature: str) -> None:
    """Also a handle that has read the table before."""
    log = a_log(tmp_path / "t")
    another_writer(log, **FEATURES[feature])
    for each in (log, DeltaLog(log.storage)):
        for use in (each.version, each.files, lambda log=each: log.commit(2, add=[], info={})):
            with pytest.raises(InvalidInputError, match=rf"{feature}, which another Delta writer has .*DROP"):
                use()


@pytest.mark.parametrize("feature", WRITER_FEATURES)
def test_writers_refuse_a_feature_by_name(tmp_path: Path, feature: str) -> None:
    log = a_log(tmp_path / "t")
    another_writer(log, **WRITER_FEATURES[feature])
    for each in (log, DeltaLog(log.storage)):
        if feature != "writer version 8":
            assert (each.version(), each.files()) == (1, [])
        with pytest.raises(TableStoreError, match=feature):
            each.commit(2, add=[], info={})


@pytest.mark.parametrize(
    "harmless",
    [
        {"reader": 2, "writer": 6},
        {
            "reader": 3, "writer": 7,
            "readers": ["timestampNtz", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"],
            "writers": ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns",
                        "columnMapping", "identityColumns", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
                        "allowColumnDefaults"],
            "properties": {"delta.columnMapping.mode": "none", "delta.enableChangeDataFeed": "false"},
        },
    ],
    ids=["versions", "features"],
)  # fmt: skip
def test_features_that_are_not_in_use_are_no_hindrance(tmp_path: Path, harmless: dict[str, Any]) -> None:
    log = a_log(tmp_path / "t")
    another_writer(log, **harmless)
    log.commit(2, add=[], info={})
    assert log.version() == 2


@pytest.mark.parametrize(
    ("feature", "remedy"),
    [
        (
            "rowTracking",
            r"by ALTER TABLE \S+ DROP FEATURE rowTracking; ALTER TABLE \S+ DROP FEATURE domainMetadata; then",
        ),
        ("clustering", r"changed. Delta cannot drop clustering: write the rows to a new table of the store\.$"),
    ],
    ids=["rowTracking", "clustering"],
)
def test_what_the_message_says_to_do_is_what_delta_can_do(tmp_path: Path, feature: str, remedy: str) -> None:
    """Delta drops no feature that another one needs, and some not at all."""
    log = a_log(tmp_path / "t")
    another_writer(log, writer=7, writers=[feature, "domainMetadata"])
    with pytest.raises(InvalidInputError, match=remedy):
        log.commit(2, add=[], info={})


def test_an_append_only_table_takes_appends(tmp_path: Path) -> None:
    log = a_log(tmp_path / "t")
    DeltaTable(log.storage.root).alter.set_table_properties({"delta.appendOnly": "true"})
    file = DataFile("a.parquet", 1, 1)
    log.storage.put(file.path, b"")
    assert log.version() == 1
    log.commit(2, add=[file], info={})
    with pytest.raises(InvalidInputError, match="appendOnly"):
        log.commit(3, add=[], remove=[file], info={})
    log.commit(3, add=[], remove=[file], info={}, data_change=False)


def test_a_log_that_others_clean_up_is_not_written(tmp_path: Path) -> None:
    log, cleanup = a_log(tmp_path / "t"), "delta.enableExpiredLogCleanup"
    another_writer(log, properties={cleanup: "true"})
    with pytest.raises(InvalidInputError, match=rf"{cleanup}: expected 'false'.*\('{cleanup}' = 'false'\)"):
        log.commit(2, add=[], info={})
    another_writer(log, properties={cleanup: "false"})
    log.commit(3, add=[], info={})


def test_the_log_of_a_table_with_protected_checkpoints_is_cut_behind_them(tmp_path: Path) -> None:
    log = DeltaLog.create(
        Storage.at(tmp_path / "t"), COLUMNS, partition_by=(), configuration={"delta.checkpointInterval": "5"}, info={}
    )
    protected = {"delta.requireCheckpointProtectionBeforeVersion": "8"}
    another_writer(log, writer=7, writers=["checkpointProtection"], properties=protected)
    for version in range(2, 14):
        log.commit(version, add=[], info={})
    assert entries_below(log, 7) == []
    assert len(entries_below(log, 12)) == 11


def test_a_table_with_deletion_vectors_is_refused_on_every_path_until_they_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows that Spark has deleted do not come back, and are not doubled by a compaction."""
    table = make(spark, tmp_path / "t", key=False)
    rows = [(n, f"v{n}") for n in range(20)]
    for part in (rows[:10], rows[10:]):
        table.write(spark.createDataFrame(part, "id bigint, v string").coalesce(1))
    local, name = open_local(tmp_path / "t"), f"delta.`{tmp_path}/t`"
    assert local.count() == 20
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 13)")
    newest = DeltaTable(tmp_path / "t").version()
    uses = {
        "read": lambda t: t.read().collect(),
        "stream": lambda t: t.read_stream(),
        "changes": lambda t: t.changes(0).collect(),
        "write": lambda t: t.write(spark.createDataFrame([(99, "x")], "id bigint, v string")),
        "delete": lambda t: t.delete("id = 1"),
        "compact": lambda t: t.compact(),
        "expire": lambda t: t.maintenance.expire(),
        "rollback": lambda t: t.maintenance.rollback(1),
        "verify": lambda t: t.verify(),
        "recover": lambda t: t.recover(),
        "alter": lambda t: t.alter.add_column("more", "int"),
    }
    for handle in (table, TableStore.open(spark, tmp_path / "t")):
        for word, use in uses.items():
            with pytest.raises(InvalidInputError, match=r"deletionVectors.*REORG TABLE"):
                pytest.fail(f"{word}: {use(handle)}")
    for use in (local.count, local.to_arrow, lambda: list(local.changes(0)), lambda: list(local.tail(follow=False))):
        with pytest.raises(InvalidInputError, match="deletionVectors"):
            use()
    assert DeltaTable(tmp_path / "t").version() == newest
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    spark.sql(f"REORG TABLE {name} APPLY (PURGE)")
    spark.sql(f"ALTER TABLE {name} DROP FEATURE deletionVectors")
    assert table.read().count() == local.count() == 18
    table.write(spark.createDataFrame([(99, "x")], "id bigint, v string"))
    assert open_local(tmp_path / "t").count() == 19
