"""Tables of the ``print`` and ``blackhole`` connectors; the expected lines are those that Flink 2.2 prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, TableStoreError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.sql.test_run import BATCH, ONCE, finish

COLUMNS = (
    "a INT, b STRING, c DOUBLE, d DECIMAL(5, 2), e DATE, f TIME, g TIMESTAMP(3), h TIMESTAMP_LTZ(3), i BYTES, "
    "j ARRAY<INT>, k MAP<STRING, INT>, l ROW<x INT, y STRING>, m BOOLEAN, n TIMESTAMP(6), o ARRAY<ROW<x INT, y STRING>>"
)
VALUES = (
    "1, 'x', 1.5E0, 2.50, DATE '2020-01-02', TIME '01:02:03', TIMESTAMP '2020-01-01 00:00:00', "
    "TO_TIMESTAMP_LTZ(1500, 3), X'C0FFEE', ARRAY[1, 2], MAP['a', 1], ROW(1, 'z'), TRUE, "
    "TIMESTAMP '2020-01-01 00:00:01.5', ARRAY[ROW(1, 'q'), ROW(2, CAST(NULL AS STRING))]"
)
LINES = (
    "+I[1, x, 1.5, 2.50, 2020-01-02, 01:02:03, 2020-01-01T00:00, 1970-01-01T00:00:01.500Z, [-64, -1, -18], "
    "[1, 2], {a=1}, +I[1, z], true, 2020-01-01T00:00:01.500, [+I[1, q], +I[2, null]]]",
    "+I[2, null, null, null, null, null, null, null, null, null, null, null, null, null, null]",
)


def test_values_of_each_type_are_printed_as_by_flink(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    catalog.sql(
        f"{BATCH}; SET 'table.local-time-zone' = 'Asia/Tokyo'; CREATE TABLE p ({COLUMNS}) WITH ('connector' = 'print')"
    )
    catalog.sql(f"INSERT INTO p VALUES ({VALUES}); INSERT INTO p (a) VALUES (2)")
    assert capsys.readouterr().out.splitlines() == list(LINES)
    catalog.sql(
        "INSERT INTO p (i, j, g, f) "
        "VALUES (X'', ARRAY[CAST(NULL AS INT)], TIMESTAMP '2020-01-01 10:20:00', TIME '10:00:00')"
    )
    assert "10:00, 2020-01-01T10:20, null, [], [null], null" in capsys.readouterr().out


def test_the_identifier_precedes_each_line_and_lines_can_go_to_standard_error(
    catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog.sql(f"{BATCH}; CREATE TABLE p (v INT) WITH ('connector' = 'print', 'print-identifier' = 'hello')")
    catalog.sql("INSERT INTO p VALUES (3), (1), (2)")
    assert capsys.readouterr().out.splitlines() == ["hello> +I[3]", "hello> +I[1]", "hello> +I[2]"]
    catalog.sql("INSERT INTO p /*+ OPTIONS('standard-error' = 'true', 'print-identifier' = 'x') */ VALUES (4)")
    printed = capsys.readouterr()
    assert "x> +I[4]" in printed.err.splitlines()
    assert printed.out == ""


def test_a_continuous_query_prints_the_rows_that_updates_replace(
    catalog: Catalog, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    wire.make("numbers", partitions=1)
    catalog.sql(
        f"{ONCE}; CREATE TABLE n (k STRING, v INT) WITH ('connector' = 'kafka', 'topic' = 'numbers', "
        f"'format' = 'json', 'properties.bootstrap.servers' = '{wire.servers}', 'maxRowsPerTrigger' = '2', "
        "'scan.startup.mode' = 'earliest-offset');"
        "CREATE TABLE p (k STRING, s BIGINT) WITH ('connector' = 'print');"
        "CREATE TABLE q (k STRING, s BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'print');"
        "CREATE TABLE nowhere (k STRING, s BIGINT) WITH ('connector' = 'blackhole')"
    )
    catalog.sql("INSERT INTO n VALUES ('a', 1), ('b', 1), ('a', 2), ('b', -1)")
    capsys.readouterr()
    grouped = "SELECT k, SUM(v) FROM n GROUP BY k HAVING SUM(v) > 0"
    for name in ("p", "q"):
        finish(catalog, f"INSERT INTO {name} {grouped}")
        lines = capsys.readouterr().out.splitlines()
        assert sorted(lines) == ["+I[a, 1]", "+I[b, 1]", "+U[a, 3]", "-D[b, 1]", "-U[a, 1]"]
        assert lines.index("-U[a, 1]") < lines.index("+U[a, 3]")
    # A query that has printed rows does not print them again.
    assert finish(catalog, f"INSERT INTO p {grouped}") == 0
    assert finish(catalog, f"INSERT INTO nowhere {grouped}") == 4
    assert capsys.readouterr().out == ""
    finish(catalog, "INSERT INTO p SELECT k, v FROM n WHERE v = 2")
    assert capsys.readouterr().out == "+I[a, 2]\n"


def test_a_blackhole_computes_the_rows(catalog: Catalog) -> None:
    catalog.sql(f"{BATCH}; CREATE TABLE nowhere (v INT) WITH ('connector' = 'blackhole')")
    catalog.sql("INSERT INTO nowhere VALUES (1)")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        catalog.sql("INSERT INTO nowhere SELECT 1 / v FROM (VALUES (1), (0)) AS t (v)")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM p", "'p': Connector 'print' can only be used as a sink. It cannot be used as a source."),
        ("SELECT * FROM nowhere", "'nowhere': Connector 'blackhole' can only be used as a sink."),
        ("DELETE FROM p WHERE v = 1", "'p' is a 'print' table"),
        ("CREATE TABLE t (v INT) WITH ('connector' = 'print', 'standard-eror' = 'true')", "'standard-error'?"),
        ("CREATE TABLE t (v INT) WITH ('connector' = 'print', 'standard-error' = 'no')", "or 'false', got 'no'"),
        ("CREATE TABLE t (v INT) WITH ('connector' = 'print', 'sink.parallelism' = '0')", "'sink.parallelism'"),
        ("CREATE TABLE t (v INT) WITH ('connector' = 'blackhole', 'print-identifier' = 'x')", "options are: connector"),
        ("CREATE TABLE t (v INT METADATA) WITH ('connector' = 'print')", "METADATA: a 'print' table has none"),
        ("CREATE TABLE t (v INT) PARTITIONED BY (v) WITH ('connector' = 'print')", "PARTITIONED BY is for"),
        ("INSERT INTO p SELECT 'a'", "column 'v' is INT"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_refused(spark: SparkSession, tmp_path: Path, statement: str, message: str) -> None:
    catalog = Catalog(spark, tmp_path)
    catalog.sql("CREATE TABLE p (v INT) WITH ('connector' = 'print')")
    catalog.sql("CREATE TABLE nowhere WITH ('connector' = 'blackhole') LIKE p (EXCLUDING ALL)")
    for mode in (BATCH, "RESET 'execution.runtime-mode'"):
        catalog.sql(mode)
        with pytest.raises((InvalidInputError, TableStoreError), match=re.escape(message)):
            catalog.sql(statement)
    assert catalog.tables() == ["nowhere", "p"]
