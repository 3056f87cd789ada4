"""Flink's functions that Spark does not have; expected values as Flink's documentation and its tests have them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog

J = """'{"a": 1, "t": true, "n": null, "s": "x", "d": 1.50, "o": {"b": [1, {"c": "y z"}], "e": {}}, "a.b": [0.998]}'"""
BAD = "'{\"a\": 1'"
JSON = [
    (f"JSON_VALUE({J}, '$.a')", "1"),
    (f"JSON_VALUE({J}, 'lax $.s')", "x"),
    (f"JSON_VALUE({J}, '$.t' RETURNING BOOLEAN)", True),
    (f"JSON_VALUE({J}, '$.a' RETURNING INTEGER)", 1),
    (f"JSON_VALUE({J}, '$.d' RETURNING DOUBLE)", 1.5),
    (f"JSON_VALUE({J}, '$.[''a.b''][0]')", "0.998"),
    (f"JSON_VALUE({J}, '$[\"a.b\"][0]')", "0.998"),
    (f"JSON_VALUE({J}, '$.o.b[1].c')", "y z"),
    (f"JSON_VALUE({J}, 'lax $.zz' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "none"),
    (f"JSON_VALUE({J}, 'strict $.zz' NULL ON EMPTY DEFAULT 'wrong' ON ERROR)", "wrong"),
    (f"JSON_VALUE({J}, '$.zz' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "wrong"),
    (f"JSON_VALUE({J}, '$.n' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "none"),
    (f"JSON_VALUE({J}, 'lax $.o' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "none"),
    (f"JSON_VALUE({J}, 'strict $.o' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "wrong"),
    (f"JSON_VALUE({J}, '$.s' RETURNING INTEGER DEFAULT 7 ON ERROR)", 7),
    (f"JSON_VALUE({BAD}, 'strict $.a' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "wrong"),
    (f"JSON_VALUE({BAD}, 'lax $.a' DEFAULT 'none' ON EMPTY DEFAULT 'wrong' ON ERROR)", "none"),
    ("JSON_VALUE(CAST(NULL AS STRING), '$.a' DEFAULT 'wrong' ON ERROR)", None),
    (f"JSON_QUERY({J}, '$.o.b')", '[1,{"c":"y z"}]'),
    (f"JSON_QUERY({J}, '$.o.e')", "{}"),
    (f"JSON_QUERY({J}, '$.a')", None),
    (f"JSON_QUERY({J}, 'lax $.a' EMPTY ARRAY ON EMPTY EMPTY OBJECT ON ERROR)", "[]"),
    (f"JSON_QUERY({J}, 'strict $.a' EMPTY ARRAY ON EMPTY EMPTY OBJECT ON ERROR)", "{}"),
    (f"JSON_QUERY({J}, '$.zz' EMPTY ARRAY ON ERROR)", "[]"),
    (f"JSON_QUERY({J}, '$.s' WITH WRAPPER)", '["x"]'),
    (f"JSON_QUERY({J}, '$.o.e' WITH UNCONDITIONAL ARRAY WRAPPER)", "[{}]"),
    (f"JSON_QUERY({J}, '$.o.b' WITH CONDITIONAL ARRAY WRAPPER)", '[1,{"c":"y z"}]'),
    (f"JSON_QUERY({J}, '$.o.e' WITH CONDITIONAL WRAPPER)", "[{}]"),
    (f"JSON_QUERY({J}, '$.o.b' WITHOUT ARRAY WRAPPER)", '[1,{"c":"y z"}]'),
    (f"JSON_EXISTS({J}, '$.o.b[1].c')", True),
    (f"JSON_EXISTS({J}, '$.zz')", False),
    (f"JSON_EXISTS({J}, '$.n')", False),
    (f"JSON_EXISTS({J}, 'strict $.zz' TRUE ON ERROR)", True),
    (f"JSON_EXISTS({J}, 'strict $.zz' UNKNOWN ON ERROR)", None),
    (f"JSON_EXISTS({J}, 'lax $.zz' TRUE ON ERROR)", False),
    (f"JSON_EXISTS({BAD}, '$.a' TRUE ON ERROR)", True),
    ("JSON_EXISTS(CAST(NULL AS STRING), '$.a')", None),
]
TS, LTZ = "TIMESTAMP '2020-02-29 01:56:59.987654'", "CAST(TIMESTAMP '2024-03-31 12:34:56' AS TIMESTAMP_LTZ)"
TIME_TYPE = "spark.sql.timeType.enabled"
TIMES = [
    (f"FLOOR({TS} TO MILLISECOND)", datetime(2020, 2, 29, 1, 56, 59, 987000)),
    (f"CEIL({TS} TO MILLISECOND)", datetime(2020, 2, 29, 1, 56, 59, 988000)),
    (f"FLOOR({TS} TO SECOND)", datetime(2020, 2, 29, 1, 56, 59)),
    (f"CEIL({TS} TO SECOND)", datetime(2020, 2, 29, 1, 57)),
    (f"CEIL({TS} TO MINUTE)", datetime(2020, 2, 29, 1, 57)),
    (f"FLOOR({TS} TO HOUR)", datetime(2020, 2, 29, 1)),
    (f"CEIL({TS} TO HOUR)", datetime(2020, 2, 29, 2)),
    ("CEIL(TIMESTAMP '2020-02-29 02:00:00' TO HOUR)", datetime(2020, 2, 29, 2)),
    (f"FLOOR({TS} TO DAY)", datetime(2020, 2, 29)),
    (f"CEIL({TS} TO DAY)", datetime(2020, 3, 1)),
    (f"FLOOR({TS} TO WEEK)", datetime(2020, 2, 23)),
    (f"CEIL({TS} TO WEEK)", datetime(2020, 3, 1)),
    (f"FLOOR({TS} TO MONTH)", datetime(2020, 2, 1)),
    (f"CEIL({TS} TO MONTH)", datetime(2020, 3, 1)),
    (f"CEIL({TS} TO QUARTER)", datetime(2020, 4, 1)),
    (f"FLOOR({TS} TO YEAR)", datetime(2020, 1, 1)),
    (f"CEIL({TS} TO YEAR)", datetime(2021, 1, 1)),
    # These times do not exist in Berlin, and a TIMESTAMP does not mind.
    ("FLOOR(TIMESTAMP '2024-03-31 02:30:00' TO HOUR)", datetime(2024, 3, 31, 2)),
    # The clock was changed between the start of this day and its noon.
    (f"DATE_FORMAT(FLOOR({LTZ} TO DAY), 'yyyy-MM-dd HH:mm:ss')", "2024-03-31 00:00:00"),
    (f"DATE_FORMAT(CEIL({LTZ} TO DAY), 'yyyy-MM-dd HH:mm:ss')", "2024-04-01 00:00:00"),
    (f"DATE_FORMAT(CEIL({LTZ} TO HOUR), 'yyyy-MM-dd HH:mm:ss')", "2024-03-31 13:00:00"),
    ("FLOOR(2.5)", 2),
    ("TIME '10:11:12.345'", time(10, 11, 12, 345000)),
    ("CAST('10:11:12' AS TIME)", time(10, 11, 12)),
    ("CAST(CAST('10:11' AS TIME) AS STRING)", "10:11:00"),
    (f"CAST({TS} AS TIME)", time(1, 56, 59)),
    (f"CAST({TS} AS TIME(2))", time(1, 56, 59, 980000)),
    (f"CAST({LTZ} AS TIME(3))", time(12, 34, 56)),
    ("CAST(CAST('10:11:12.345' AS STRING) AS TIME) = TIME '10:11:12'", True),
    ("CAST('10:11:12.345' AS TIME(3)) > CAST(CAST('10:11:12.345' AS STRING) AS TIME(0))", True),
    ("TRY_CAST('x' || 'y' AS TIME)", None),
    ("INTERVAL '1' YEAR", "+1-00"),
    ("INTERVAL '-1-2' YEAR TO MONTH", "-1-02"),
    ("INTERVAL '14' MONTH", "+1-02"),
    ("IF(1 > 2, INTERVAL '14' MONTH, NULL)", None),
    ("INTERVAL '3' DAY", timedelta(days=3)),
    ("LOCALTIMESTAMP - LOCALTIMESTAMP", timedelta(0)),
    ("LOCALTIME = CURRENT_TIME AND CURRENT_ROW_TIMESTAMP() = NOW()", True),
]
# Spark has functions of these names, with other results; expected values from Flink's page of built-in functions.
TEXTS = [
    ("CAST('abc' AS CHAR(2))", "ab"),
    ("CAST('a' AS CHAR(3)) || '|'", "a  |"),
    ("CAST(12345 AS VARCHAR(3))", "123"),
    ("CAST(12345 AS VARCHAR)", "12345"),
    ("TRY_CAST('abc' AS VARCHAR(2))", "ab"),
    ("CAST(X'61' AS BINARY(3))", b"a\0\0"),
    ("CAST(X'616263' AS BINARY(2))", b"ab"),
    ("CAST(X'616263' AS VARBINARY(2))", b"ab"),
    ("CAST(CAST(ARRAY['abc'] AS ARRAY<VARCHAR(3)>) AS ARRAY<STRING>)", ["abc"]),
    ("TRUNCATE(42.345, 2)", Decimal("42.34")),
    ("TRUNCATE(-42.345, 2)", Decimal("-42.34")),
    ("TRUNCATE(42.9)", 42),
    ("TRUNCATE(-12345, -2)", -12300),
    ("STR_TO_MAP('k1=v1,k2=v2')", {"k1": "v1", "k2": "v2"}),
    ("STR_TO_MAP('k1:v1;k2:v2', ';', ':')", {"k1": "v1", "k2": "v2"}),
    ("REGEXP_EXTRACT('foothebar', 'foo(.*?)(bar)', 2)", "bar"),
    ("REGEXP_EXTRACT('foothebar', 'foo(.*?)(bar)')", "foothebar"),
    ("REGEXP_EXTRACT('foothebar', 'zoo')", None),
    ("REGEXP_EXTRACT('a12', '(\\d+)', 1)", "12"),
    ("GREATEST(1, CAST(NULL AS INT), 3)", None),
    ("LEAST(3, 1, 2)", 1),
    ("FROM_BASE64('aGVsbG8gd29ybGQ=')", "hello world"),
    ("LTRIM('xxax', 'x')", "ax"),
    ("RTRIM('xaxx', 'x')", "xa"),
    ("BTRIM('xax', 'x')", "a"),
    ("LTRIM(' a')", "a"),
    ("ARRAY_CONTAINS(ARRAY[1, NULL], 2)", False),
    ("ARRAY_CONTAINS(ARRAY[1, NULL], NULL)", True),
    ("ARRAY_CONTAINS(CAST(NULL AS ARRAY<INT>), 1)", None),
    ("SPLIT_INDEX('a.b.c', '.', 1)", "b"),
    ("SPLIT_INDEX('a,,c', ',', 1)", ""),
    ("SPLIT_INDEX('a', ',', 1)", None),
    ("SPLIT_INDEX('a', ',', -1)", None),
    ("SHA256('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    ("WEEK(DATE '1994-09-27')", 39),
    ("CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'America/Los_Angeles')", "1969-12-31 16:00:00"),
    ("'a\\b' LIKE 'a\\b'", True),
    ("'a%b' LIKE 'a\\%b'", False),
    ("'a\\xb' LIKE CONCAT('a\\', '%b')", True),
    ("'a%b' LIKE 'a!%b' ESCAPE '!'", True),
    ("'axb' LIKE 'a!%b' ESCAPE '!'", False),
]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Catalog]:
    settings = {"execution.runtime-mode": "batch", "table.local-time-zone": "Europe/Berlin", TIME_TYPE: "true"}
    made = Catalog(spark, tmp_path / "warehouse", settings=settings)
    yield made
    made.sql("RESET")


@pytest.mark.parametrize("cases", [JSON, TIMES, TEXTS], ids=["json", "times", "texts"])
def test_functions_return_what_flink_s_do(catalog: Catalog, cases: list[tuple[str, Any]]) -> None:
    frame = catalog.sql(f"SELECT {', '.join(text for text, _ in cases)}").frame
    assert frame is not None
    found = dict(zip((text for text, _ in cases), frame.collect()[0], strict=True))
    assert found == dict(cases)


def test_an_error_that_is_asked_for_is_raised(catalog: Catalog) -> None:
    frame = catalog.sql(f"SELECT JSON_VALUE({J}, 'strict $.zz' ERROR ON ERROR)").frame
    assert frame is not None
    assert frame.columns == ["EXPR$0"]
    with pytest.raises(Exception, match="the text is not JSON, or the path is not in it"):
        frame.collect()


def test_spark_without_time_says_so(catalog: Catalog) -> None:
    catalog.sql(f"SET '{TIME_TYPE}' = 'false'")
    with pytest.raises(InvalidInputError, match=f"type TIME is off in this Spark: SET '{TIME_TYPE}' = 'true'"):
        catalog.sql("SELECT CAST('10:11:12' AS TIME)")
    catalog.sql("RESET")


def test_a_time_is_rounded_to_known_units(catalog: Catalog) -> None:
    with pytest.raises(InvalidInputError, match="expected one of MILLISECOND, SECOND, MINUTE"):
        catalog.sql(f"SELECT FLOOR({TS} TO EPOCH)")
