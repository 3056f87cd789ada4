"""Flink's functions that Spark does not have; expected values as Flink's documentation and its tests have them."""

from __future__ import annotations

from datetime import datetime, time, timedelta
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
    ("INTERVAL '1' YEAR", "+1-00"),
    ("INTERVAL '-1-2' YEAR TO MONTH", "-1-02"),
    ("INTERVAL '14' MONTH", "+1-02"),
    ("IF(1 > 2, INTERVAL '14' MONTH, NULL)", None),
    ("INTERVAL '3' DAY", timedelta(days=3)),
    ("LOCALTIMESTAMP - LOCALTIMESTAMP", timedelta(0)),
    ("LOCALTIME = CURRENT_TIME AND CURRENT_ROW_TIMESTAMP() = NOW()", True),
]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    settings = {"execution.runtime-mode": "batch", "table.local-time-zone": "Europe/Berlin", TIME_TYPE: "true"}
    return Catalog(spark, tmp_path / "warehouse", settings=settings)


@pytest.mark.parametrize("cases", [JSON, TIMES], ids=["json", "times"])
def test_functions_return_what_flink_s_do(catalog: Catalog, cases: list[tuple[str, Any]]) -> None:
    try:
        frame = catalog.sql(f"SELECT {', '.join(text for text, _ in cases)}").frame
        assert frame is not None
        found = dict(zip((text for text, _ in cases), frame.collect()[0], strict=True))
        assert found == dict(cases)
    finally:
        catalog.sql("RESET")


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
