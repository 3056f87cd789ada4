"""What INSERT does with values that a column does not take, by Flink's `table.exec.sink.*-enforcer`.

Facts of Flink's documentation: `ERROR` and `IGNORE` are the defaults; `DROP` leaves out rows with NULL in a NOT NULL
column; `TRIM_PAD` cuts to the length of the column, and pads CHAR by spaces and BINARY by zeros.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.query_rows import rows

TRIM = "SET 'table.exec.sink.type-length-enforcer' = 'TRIM_PAD'"
DROP = "SET 'table.exec.sink.not-null-enforcer' = 'drop'"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    return Catalog(spark, tmp_path / "warehouse", settings={"execution.runtime-mode": "batch"})


def test_lengths_are_ignored_unless_they_are_to_be_cut_and_padded(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (k INT, c CHAR(4), v VARCHAR(3), b BINARY(2), w VARBINARY(2), s STRING)")
    values = "('ab', 'abcd', X'01', X'010203', 'any'), ('äöüßx', 'ä', X'010203', X'01', 'any'), (NULL, '', NULL, NULL, '')"  # fmt: skip  # noqa: E501
    inserted = "INSERT INTO t SELECT {}, c, v, b, w, s FROM (VALUES {}) AS q (c, v, b, w, s)"
    catalog.sql(inserted.format(1, values))
    catalog.sql(f"{TRIM}; {inserted.format(2, values)}")
    catalog.sql(f"RESET 'table.exec.sink.type-length-enforcer'; {inserted.format(3, values)}")
    plain = [("ab", "abcd", b"\1", b"\1\2\3", "any"), ("äöüßx", "ä", b"\1\2\3", b"\1", "any"), (None, "", None, None, "")]  # fmt: skip  # noqa: E501
    fitted = [("ab  ", "abc", b"\1\0", b"\1\2", "any"), ("äöüß", "ä", b"\1\2", b"\1", "any"), (None, "", None, None, "")]  # fmt: skip  # noqa: E501
    for number, expected in ((1, plain), (2, fitted), (3, plain)):
        found = rows(catalog, f"SELECT c, v, b, w, s FROM t WHERE k = {number}")
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_rows_with_null_are_an_error_unless_they_are_to_be_dropped(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (k INT, v INT NOT NULL, w INT, PRIMARY KEY (k) NOT ENFORCED)")
    inserted = "INSERT INTO t VALUES (1, 1, 1), (2, CAST(NULL AS INT), 2), (3, 3, CAST(NULL AS INT))"
    with pytest.raises(InvalidInputError, match="'v'"):
        catalog.sql(inserted)
    assert rows(catalog, "SELECT * FROM t") == []
    catalog.sql(f"{DROP}; {inserted}; INSERT INTO t VALUES (CAST(NULL AS INT), 4, 4)")
    assert rows(catalog, "SELECT * FROM t ORDER BY k") == [(1, 1, 1), (3, 3, None)]
    catalog.sql("INSERT OVERWRITE t VALUES (5, 5, 5), (6, CAST(NULL AS INT), 6)")
    assert rows(catalog, "SELECT * FROM t") == [(5, 5, 5)]


def test_continuous_inserts_are_enforced_as_they_were_when_they_started(catalog: Catalog) -> None:
    """Also those whose rows are computed in each micro-batch, as those of Top-N."""
    catalog.sql("CREATE TABLE s (k INT, v STRING, n INT); INSERT INTO s VALUES (1, 'abcd', 1), (1, 'xyz', 2), (2, CAST(NULL AS STRING), 1)")  # fmt: skip  # noqa: E501
    catalog.sql("CREATE TABLE a (k INT, v VARCHAR(2) NOT NULL); CREATE TABLE top (k INT, v VARCHAR(2) NOT NULL, PRIMARY KEY (k) NOT ENFORCED)")  # fmt: skip  # noqa: E501
    catalog.sql(f"{TRIM}; {DROP}; SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")  # fmt: skip  # noqa: E501
    first = "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY n DESC) AS place FROM s) WHERE place = 1"  # fmt: skip  # noqa: E501
    started = [*catalog.sql("INSERT INTO a SELECT k, v FROM s").queries, *catalog.sql(f"INSERT INTO top {first}").queries]  # fmt: skip  # noqa: E501
    catalog.sql("RESET; SET 'execution.runtime-mode' = 'batch'")
    assert all(query.awaitTermination(PATIENCE_SECONDS) for query in started)
    assert sorted(rows(catalog, "SELECT * FROM a")) == [(1, "ab"), (1, "xy")]
    assert rows(catalog, "SELECT * FROM top") == [(1, "xy")]
