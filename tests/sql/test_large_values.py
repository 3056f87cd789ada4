"""Columns of large values, as definitions of Paimon declare them: facts of its tests of managed BLOB columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.sql.query_rows import rows


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    return Catalog(spark, tmp_path / "warehouse", settings={"execution.runtime-mode": "batch"})


def test_partial_updates_keep_a_large_value_until_another_one_comes(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (id INT, name STRING, payload BYTES, PRIMARY KEY (id) NOT ENFORCED) WITH ('merge-engine' = 'partial-update', 'blob-field' = 'payload')")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO t VALUES (1, 'a', X'0102'); INSERT INTO t VALUES (1, 'b', CAST(NULL AS BYTES))")
    assert rows(catalog, "SELECT * FROM t") == [(1, "b", b"\1\2")]
    catalog.sql("INSERT INTO t VALUES (1, CAST(NULL AS STRING), X'03'); CALL sys.compact('t')")
    assert rows(catalog, "SELECT * FROM t") == [(1, "b", b"\3")]
    assert rows(catalog, "SELECT `value` FROM t$options WHERE key = 'blob-field'") == [("payload",)]


def test_large_values_of_a_sequence_group_are_replaced_by_newer_ones_and_by_null(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (id INT, payload BYTES, ts INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('merge-engine' = 'partial-update', 'blob-field' = 'payload', 'fields.ts.sequence-group' = 'payload')")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO t VALUES (1, X'01', 2); INSERT INTO t VALUES (1, X'02', 1)")
    assert rows(catalog, "SELECT * FROM t") == [(1, b"\1", 2)]
    catalog.sql("INSERT INTO t VALUES (1, CAST(NULL AS BYTES), 3)")
    assert rows(catalog, "SELECT * FROM t") == [(1, None, 3)]


def test_the_columns_are_binary_and_cannot_go_while_they_are_named(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (k INT, a ARRAY<BYTES>, m MAP<STRING, BYTES>, v STRING, b BYTES) WITH ('blob-field' = 'a, m')")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO t VALUES (1, ARRAY[X'01', CAST(NULL AS BYTES)], MAP['x', X'02'], 'v', X'03')")
    assert rows(catalog, "SELECT a, m, b FROM t") == [([b"\1", None], {"x": b"\2"}, b"\3")]
    with pytest.raises(InvalidInputError, match="'blob-field' names it; reset that first"):
        catalog.sql("ALTER TABLE t DROP a")
    with pytest.raises(InvalidInputError, match="'blob-field': column 'v' has type string; expected binary"):
        catalog.sql("ALTER TABLE t SET ('blob-field' = 'a, v')")
    with pytest.raises(InvalidInputError, match="'blob-field': there is no column 'x'"):
        catalog.sql("CREATE TABLE u (k INT) WITH ('blob-field' = 'x')")
    catalog.sql("ALTER TABLE t SET ('blob-field' = 'b'); ALTER TABLE t DROP a; ALTER TABLE t RESET ('blob-field'); ALTER TABLE t DROP b")  # fmt: skip  # noqa: E501
    assert rows(catalog, "SELECT * FROM t") == [(1, {"x": b"\2"}, "v")]


@pytest.mark.parametrize("option", ["blob-descriptor-field", "blob-view-field", "blob-as-descriptor"])
def test_references_to_bytes_are_refused_by_name(catalog: Catalog, option: str) -> None:
    with pytest.raises(
        InvalidInputError, match=f"'{option}': there are no references to bytes elsewhere: .*blob-field"
    ):
        catalog.sql(f"CREATE TABLE t (k INT, b BYTES) WITH ('{option}' = 'b')")
