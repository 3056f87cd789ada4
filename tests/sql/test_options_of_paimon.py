"""Options that definitions of Paimon bring along: those that change no rows are accepted, and the message says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snapshot.errors import InvalidInputError
from tablestore.context import TableContext
from tablestore.sql import Catalog
from tests.sql.test_catalog import no_spark

KAFKA = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'h:1', 'format' = 'json'"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(no_spark, tmp_path)


def test_options_that_change_no_rows_are_kept_in_the_definition_alone(catalog: Catalog, tmp_path: Path) -> None:
    made = catalog.sql("""
        CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED) WITH ('continuous.discovery-interval' = '1 ms', 'bucket' = '2',
            'sink.parallelism' = '4', 'file-index.bloom-filter.columns' = 'a', 'lookup.cache' = 'full')
    """)
    assert made.message == (
        "table 't' was created; without effect: 'continuous.discovery-interval': a trigger of the stream, or "
        "'tablestore.trigger' in SQL, says so; 'sink.parallelism': Spark divides the work among its tasks; "
        "'file-index.bloom-filter.columns': files have statistics and no further indexes"
    )
    changed = catalog.sql("ALTER TABLE t SET ('commit.force-compact' = 'true', 'snapshot.retain-min' = '7')")
    assert changed.message.startswith("table 't' was changed; without effect: 'commit.force-compact': compaction.comm")
    catalog.sql("ALTER TABLE t RESET ('sink.parallelism'); CREATE TABLE u LIKE t")
    for name in "tu":
        shown = Catalog(no_spark, tmp_path).sql(f"SHOW CREATE TABLE {name}").rows[0][0]
        assert "'continuous.discovery-interval' = '1 ms'" in shown
        assert "'commit.force-compact' = 'true'" in shown
        assert "sink.parallelism" not in shown
        stored = TableContext.open(str(tmp_path / name)).spec.properties
        assert {"bucket": "2", "snapshot.retain-min": "7"}.items() <= stored.items()
        assert not {"continuous.discovery-interval", "commit.force-compact"} & stored.keys()


def test_a_table_with_dynamic_buckets_has_the_default_number(catalog: Catalog, tmp_path: Path) -> None:
    made = catalog.sql("""
        CREATE TABLE t (a INT, b INT, PRIMARY KEY (a) NOT ENFORCED) PARTITIONED BY (b) WITH ('bucket' = '-1',
            'dynamic-bucket.target-row-num' = '3', 'cross-partition-upsert.index-ttl' = '1 d')
    """)
    why = "bucket is the number of buckets, and a key is found without an index"
    assert made.message == (
        "table 't' was created; without effect: "
        f"'dynamic-bucket.target-row-num': {why}; 'cross-partition-upsert.index-ttl': {why}"
    )
    assert TableContext.open(str(tmp_path / "t")).options.buckets == 1
    catalog.sql("CREATE TABLE IF NOT EXISTS t (a INT, b INT, PRIMARY KEY (a) NOT ENFORCED) PARTITIONED BY (b)")
    catalog.sql("CREATE TABLE u LIKE t")
    assert TableContext.open(str(tmp_path / "u")).options.buckets == 1


def test_write_only_leaves_maintenance_to_others(catalog: Catalog, tmp_path: Path) -> None:
    def automatic() -> list[bool]:
        options = TableContext.open(str(tmp_path / "t")).options
        return [options.compaction.auto, options.snapshot.auto, options.partition.auto]

    catalog.sql("CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED) WITH ('write-only' = 'true')")
    assert automatic() == [False, False, False]
    shown = catalog.sql("SHOW CREATE TABLE t").rows[0][0]
    assert "'compaction.auto' = 'false'" in shown
    assert "write-only" not in shown
    catalog.sql("ALTER TABLE t SET ('write-only' = 'false', 'compaction.auto' = 'false')")
    assert automatic() == [False, True, True]
    with pytest.raises(InvalidInputError, match=r"option 'write-only'.*expected"):
        catalog.sql("CREATE TABLE u (a INT) WITH ('write-only' = 'maybe')")


def test_a_table_of_a_connector_does_not_take_them(catalog: Catalog) -> None:
    with pytest.raises(InvalidInputError, match=r"commit\.force-compact"):
        catalog.sql(f"CREATE TABLE k (a INT) WITH ({KAFKA}, 'commit.force-compact' = 'true')")
    assert catalog.sql(f"CREATE TABLE k (a INT) WITH ({KAFKA}, 'sink.parallelism' = '4')").message == (
        "table 'k' was created"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'query-auth.enabled' = 'true'", "'query-auth.enabled': not supported: who may read the table's files"),
        ("'primary-key.nullable' = 'true'", "not supported: the columns of a primary key are never NULL"),
        ("'commit.callbacks' = 'x'", "not supported: other programs see commits in the log"),
        ("'target-file-size' = '1 mb'", "use write.target-file-size"),
        ("'compaction.commit' = '3'", "Did you mean 'compaction.commits'"),
        ("'buckett' = '3'", "Did you mean 'bucket'"),
    ],
)
def test_options_that_would_change_something_are_rejected(catalog: Catalog, options: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        catalog.sql(f"CREATE TABLE t (a INT) WITH ({options})")
    catalog.sql("CREATE TABLE t (a INT)")
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        catalog.sql(f"ALTER TABLE t SET ({options})")
