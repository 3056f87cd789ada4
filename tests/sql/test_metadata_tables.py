"""The metadata tables of SQL have the columns that Paimon documents, beside their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import NotFoundError
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.query_rows import rows


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse", settings={"execution.runtime-mode": "batch"})
    made.sql("CREATE TABLE t (k INT, p INT, v VARCHAR(9) COMMENT 'text', PRIMARY KEY (k, p) NOT ENFORCED) COMMENT 'all' PARTITIONED BY (p) WITH ('bucket' = '1', 'compaction.auto' = 'false')")  # fmt: skip  # noqa: E501
    made.sql("INSERT INTO t VALUES (1, 2, 'a'), (4, 5, 'b'); CALL sys.compact('t'); INSERT INTO t VALUES (7, 8, 'c')")
    made.sql("ALTER TABLE t ADD w BIGINT; INSERT OVERWRITE t VALUES (7, 8, 'd', 1)")
    return made


def test_snapshots_name_their_schema_and_what_made_them(catalog: Catalog) -> None:
    text = "SELECT snapshot_id, schema_id, commit_kind, delta_record_count FROM t$snapshots ORDER BY snapshot_id"
    assert rows(catalog, text) == [
        (0, 0, None, 0),
        (1, 0, "APPEND", 2),
        (2, 0, "COMPACT", 0),
        (3, 0, "APPEND", 1),
        (4, 1, None, 0),
        (5, 1, "OVERWRITE", 1),
    ]
    same = "commit_time = committed_at AND commit_id IN (commit_user, commit_user || ':' || commit_identifier)"
    assert rows(catalog, f"SELECT COUNT(*) FROM t$snapshots WHERE {same} OR commit_id = ''") == [(6,)]
    joined = "SELECT s.snapshot_id, c.fields FROM t$snapshots s JOIN t$schemas c ON s.schema_id = c.schema_id"
    ((_, fields),) = rows(catalog, f"{joined} WHERE s.snapshot_id = 5")
    assert [field["name"] for field in json.loads(fields)] == ["k", "p", "v", "w"]


def test_schemas_are_one_row_each(catalog: Catalog) -> None:
    catalog.sql("ALTER TABLE t RENAME v TO x")
    old = '[{"id":0,"name":"k","type":"INT NOT NULL"},{"id":1,"name":"p","type":"INT NOT NULL"},'
    text = "SELECT schema_id, fields, partition_keys, primary_keys, comment, since, until FROM t$schemas ORDER BY 1"
    first, _, last = rows(catalog, text)
    assert first == (0, old + '{"id":2,"name":"v","type":"STRING"}]', '["p"]', '["k","p"]', None, 0, 3)  # fmt: skip
    renamed = '{"id":2,"name":"x","type":"VARCHAR(9)","description":"text"},{"id":3,"name":"w","type":"BIGINT"}]'
    assert last == (2, old + renamed, '["p"]', '["k","p"]', "all", 6, None)
    ((options,),) = rows(catalog, "SELECT options FROM t$schemas WHERE schema_id = 2")
    assert json.loads(options) == {"bucket": "1", "compaction.auto": "false"}
    ((same,),) = rows(catalog, "SELECT c.update_time = s.commit_time FROM t$schemas c JOIN t$snapshots s ON s.snapshot_id = c.since WHERE c.schema_id = 2")  # fmt: skip  # noqa: E501
    assert same


def test_files_partitions_and_buckets_count_records(catalog: Catalog) -> None:
    files = "SELECT `partition`, bucket, file_format, level, record_count FROM t$files ORDER BY 1, 4"
    assert rows(catalog, files) == [
        ("", 0, "parquet", 0, 1),
        ("", 0, "parquet", 0, 1),
        ("p=2", 0, "parquet", 5, 1),
        ("p=5", 0, "parquet", 5, 1),
    ]
    sizes = "SELECT file_path, file_size_in_bytes FROM t$files"
    assert all(Path(path).stat().st_size == size for path, size in rows(catalog, sizes))
    assert rows(catalog, "SELECT `partition`, record_count, file_count FROM t$partitions ORDER BY 1") == [
        ("p=2", 1, 1),
        ("p=5", 1, 1),
    ]
    assert rows(catalog, "SELECT bucket, record_count, file_count FROM t$buckets") == [(0, 4, 4)]
    total = "SELECT SUM(file_size_in_bytes) FROM"
    assert rows(catalog, f"{total} t$buckets") == rows(catalog, f"{total} t$files")
    catalog.sql("CREATE TABLE a (v INT); INSERT INTO a VALUES (1)")
    assert rows(catalog, "SELECT level, record_count FROM a$files") == [(0, 1)]


def test_metadata_tables_are_described(catalog: Catalog) -> None:
    described = catalog.sql("DESC t$audit_log").rows
    assert [row[:2] for row in described] == [("rowkind", "STRING"), ("k", "INT"), ("p", "INT"), ("v", "STRING"), ("w", "BIGINT")]  # fmt: skip  # noqa: E501
    assert ("delta_record_count", "BIGINT", "TRUE", "", "", "") in catalog.sql("DESCRIBE t$snapshots").rows
    ((statement,),) = catalog.sql("SHOW CREATE TABLE t$schemas").rows
    assert statement.startswith(("CREATE TABLE `t$schemas` (", "CREATE TABLE t$schemas ("))
    with pytest.raises(NotFoundError, match="'t\\$manifests'"):
        catalog.sql("DESC t$manifests")


def test_options_tags_and_consumers(catalog: Catalog) -> None:
    assert rows(catalog, "SELECT key, `value` FROM t$options WHERE given ORDER BY key") == [
        ("bucket", "1"),
        ("compaction.auto", "false"),
    ]
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    table.tags.create("one", 1)
    table.tags.create("last")
    assert rows(catalog, "SELECT tag_name, snapshot_id, schema_id, record_count FROM t$tags ORDER BY 1 DESC") == [
        ("one", 1, 0, 2),
        ("last", 5, 1, 4),
    ]
    assert rows(catalog, "SELECT COUNT(*) FROM t$tags WHERE create_time >= commit_time") == [(2,)]
    catalog.sql("CREATE TABLE a (v INT); INSERT INTO a VALUES (1); SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")  # fmt: skip  # noqa: E501
    hint = "OPTIONS('consumer-id' = 'mine', 'consumer.expiration-time' = '3 h')"
    query = catalog.follow(catalog.sql(f"SELECT * FROM a /*+ {hint} */"), lambda *_: None)
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    assert rows(catalog, "SELECT * FROM a$consumers")[0][:2] == ("mine", 2)
