"""Flink's functions that Spark does not have; expected values as Flink's documentation and its tests have them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.sql.test_run import rows

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
    (f"JSON_VALUE({J}, 'lax $.zz' DEFAULT FALSE ON EMPTY)", "false"),
    (f"JSON_VALUE({J}, '$.s' DEFAULT FALSE ON EMPTY DEFAULT 0 ON ERROR)", "x"),
    (f"JSON_VALUE({J}, 'lax $.zz' RETURNING DOUBLE DEFAULT 1 ON EMPTY)", 1.0),
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
    # They may be the last argument of another function.
    (f"UPPER(JSON_VALUE({J}, '$.s'))", "X"),
    (f"JSON_QUERY(JSON_QUERY({J}, '$.o'), '$.b[1]')", '{"c":"y z"}'),
    ("'1' IS JSON", True),
    ("'abc' IS JSON", False),
    ("'abc' IS NOT JSON", True),
    ("'\"abc\"' IS JSON VALUE", True),
    ("CAST(NULL AS STRING) IS JSON", False),
    ("'{}' IS JSON OBJECT", True),
    ("'[]' IS JSON OBJECT", False),
    ("'[]' IS JSON ARRAY", True),
    ("'1' IS JSON SCALAR", True),
    ("'{}' IS JSON SCALAR", False),
    ("'{' IS JSON SCALAR", False),
    ("JSON_STRING('a\"b')", '"a\\"b"'),
    ("JSON_STRING(1.5)", "1.5"),
    ("JSON_STRING(TRUE)", "true"),
    ("JSON_STRING(CAST(NULL AS INT))", None),
    ("JSON_STRING(X'01')", '"AQ=="'),
    ("JSON_STRING(ARRAY[1, NULL])", "[1,null]"),
    ("JSON_STRING(MAP['a', ROW(CAST(NULL AS INT))])", '{"a":{"EXPR$0":null}}'),
    ("JSON_STRING(TIMESTAMP '1990-06-02 13:37:42.001')", '"1990-06-02T13:37:42.001"'),
    ("JSON_STRING(TO_TIMESTAMP_LTZ(0, 3))", '"1970-01-01T00:00:00.000Z"'),
    ("JSON_QUOTE('a\"b')", '"a\\"b"'),
    ('JSON_UNQUOTE(\'"a\\"b"\')', 'a"b'),
    ("JSON_UNQUOTE('plain')", "plain"),
    ("JSON_UNQUOTE('{\"a\":  1}')", '{"a":  1}'),
    ("JSON_OBJECT()", "{}"),
    ("JSON_OBJECT('a' VALUE 'x', KEY 'b' VALUE 1.5, 'c' VALUE TRUE)", '{"a":"x","b":1.5,"c":true}'),
    ("JSON_OBJECT('a' VALUE CAST(NULL AS STRING), 'b' VALUE 1)", '{"a":null,"b":1}'),
    ("JSON_OBJECT('a' VALUE CAST(NULL AS STRING), 'b' VALUE 1 ABSENT ON NULL)", '{"b":1}'),
    ("JSON_OBJECT('a' VALUE JSON_OBJECT('b' VALUE JSON_ARRAY(1, 'x')))", '{"a":{"b":[1,"x"]}}'),
    ("JSON_OBJECT('a' VALUE JSON('{\"x\": 1}'))", '{"a":{"x":1}}'),
    ("JSON_ARRAY()", "[]"),
    ("JSON_ARRAY(CAST(NULL AS STRING), 1)", "[1]"),
    ("JSON_ARRAY(CAST(NULL AS STRING), 1 NULL ON NULL)", "[null,1]"),
    ("CHAR_LENGTH(JSON_ARRAY('a' ABSENT ON NULL))", 5),
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
    ("CEILING(2.1)", 3),
    ("FLOOR(TIME '12:44:31' TO MINUTE)", time(12, 44)),
    ("TIMESTAMPADD(MINUTE, -20, TIME '00:10:00')", time(23, 50)),
    ("CEILING(TIME '12:44:31' TO HOUR)", time(13)),
    ("FLOOR(DATE '2018-03-29' TO MONTH)", date(2018, 3, 1)),
    ("CEIL(DATE '2018-03-29' TO YEAR)", date(2019, 1, 1)),
    (f"FLOOR({TS} TO DECADE)", datetime(2020, 1, 1)),
    ("FLOOR(DATE '2019-12-31' TO DECADE)", date(2010, 1, 1)),
    ("FLOOR(DATE '2000-06-01' TO CENTURY)", date(1901, 1, 1)),
    ("FLOOR(TIMESTAMP '2001-01-01 00:00:01' TO CENTURY)", datetime(2001, 1, 1)),
    ("FLOOR(DATE '2000-06-01' TO MILLENNIUM)", date(1001, 1, 1)),
    ("CEIL(DATE '2019-12-31' TO DECADE)", date(2020, 1, 1)),
    ("CEIL(DATE '2020-01-01' TO DECADE)", date(2030, 1, 1)),
    ("CEIL(TIMESTAMP '2001-01-01 00:00:00' TO CENTURY)", datetime(2101, 1, 1)),
    ("CEIL(DATE '2000-12-31' TO MILLENNIUM)", date(2001, 1, 1)),
    ("TIMESTAMPADD(WEEK, 1, DATE '2003-01-02')", date(2003, 1, 9)),
    ("TIMESTAMPADD(HOUR, 1, DATE '2003-01-02')", datetime(2003, 1, 2, 1)),
    ("TIMESTAMPADD(MONTH, 1, TIMESTAMP '2020-01-31 00:00:00')", datetime(2020, 2, 29)),
    ("EXTRACT(SECOND FROM TIMESTAMP '2020-01-01 00:00:01.923')", 1),
    (f"EXTRACT(MILLISECOND FROM {TS})", 987),
    (f"EXTRACT(MICROSECOND FROM {TS})", 987654),
    (f"EXTRACT(NANOSECOND FROM {TS}) + 1", 987654001),
    ("EXTRACT(MILLISECOND FROM TIME '10:11:12.345')", 345),
    ("EXTRACT(EPOCH FROM TIMESTAMP '2024-03-31 02:30:00.9')", 1711852200),
    ("EXTRACT(EPOCH FROM DATE '1970-01-02')", 86400),
    ("EXTRACT(EPOCH FROM TO_TIMESTAMP_LTZ(1711852200, 0))", 1711852200),
    ("EXTRACT(DECADE FROM DATE '1996-11-10')", 199),
    ("EXTRACT(CENTURY FROM DATE '2000-12-31') + 10 * EXTRACT(CENTURY FROM DATE '2001-01-01')", 230),
    ("EXTRACT(MILLENNIUM FROM TIMESTAMP '1996-11-10 06:55:44')", 2),
    ("(TIME '2:55:00', INTERVAL '1' HOUR) OVERLAPS (TIME '3:30:00', INTERVAL '2' HOUR)", True),
    ("(TIME '9:00:00', TIME '9:30:00') OVERLAPS (TIME '9:29:00', TIME '9:31:00')", True),
    ("(TIME '9:00:00', TIME '10:00:00') OVERLAPS (TIME '10:15:00', INTERVAL '3' HOUR)", False),
    ("(DATE '2011-03-10', INTERVAL '10' DAY) OVERLAPS (DATE '2011-03-19', INTERVAL '10' DAY)", True),
    ("(DATE '2011-03-10', INTERVAL '-10' DAY) OVERLAPS (DATE '2011-03-11', INTERVAL '1' MONTH)", False),
    ("(DATE '2011-03-20', CAST(NULL AS DATE)) OVERLAPS (DATE '2011-03-19', DATE '2011-03-20')", None),
    (f"({TS}, INTERVAL '0' SECOND) OVERLAPS ({TS}, TIMESTAMP '2011-03-10 05:02:01')", True),
    (f"({TS}, INTERVAL '0' SECOND) OVERLAPS ({TS} + INTERVAL '1' SECOND, LOCALTIMESTAMP)", False),
    ("EXTRACT(ISODOW FROM DATE '2024-01-07')", 7),
    ("EXTRACT(ISOYEAR FROM DATE '2021-01-01')", 2020),
    ("TO_DATE('2020-01-02')", date(2020, 1, 2)),
    ("TO_DATE('02/01/2020', 'dd/MM/yyyy')", date(2020, 1, 2)),
    ("TO_DATE('x')", None),
    ("TO_DATE('x', 'dd/MM/yyyy')", None),
    ("TO_TIMESTAMP('2024-03-31 02:30:00')", datetime(2024, 3, 31, 2, 30)),
    ("TO_TIMESTAMP('2024-03-31 02', 'yyyy-MM-dd HH')", datetime(2024, 3, 31, 2)),
    ("TO_TIMESTAMP('x')", None),
    ("TO_TIMESTAMP('2024-13-31 02', 'yyyy-MM-dd HH')", None),
    ("TO_TIMESTAMP('2024-13-31 02:00:00')", None),
    ("TO_TIMESTAMP('2024-03-31%Y', 'yyyy-MM-dd''%Y''')", datetime(2024, 3, 31)),
    ("DATE_FORMAT(TIMESTAMP '2024-03-31 02:30:00', 'd ''%Y YYYY'' E')", "31 %Y YYYY Sun"),
    ("TO_TIMESTAMP_LTZ(1500) = TO_TIMESTAMP_LTZ(1500, 3)", True),
    ("TO_TIMESTAMP_LTZ(CAST(1500 AS BIGINT)) = TO_TIMESTAMP_LTZ(1500, 3)", True),
    ("TO_TIMESTAMP_LTZ('1970-01-01 00:00:01.500') = TO_TIMESTAMP_LTZ(1500, 3)", True),
    ("TO_TIMESTAMP_LTZ('01.01.1970 00', 'dd.MM.yyyy HH') = TO_TIMESTAMP_LTZ(0, 0)", True),
    ("TO_TIMESTAMP_LTZ('01.01.1970 09', 'dd.MM.yyyy HH', 'Asia/Tokyo') = TO_TIMESTAMP_LTZ(0, 0)", True),
    ("TO_TIMESTAMP_LTZ('x')", None),
    ("TO_TIMESTAMP_LTZ('x', 'HH')", None),
    (f"CAST({TS} AS TIMESTAMP(2))", datetime(2020, 2, 29, 1, 56, 59, 980000)),
    (f"CAST({TS} AS TIMESTAMP(0))", datetime(2020, 2, 29, 1, 56, 59)),
    (f"CAST({TS} AS TIMESTAMP)", datetime(2020, 2, 29, 1, 56, 59, 987654)),
    ("CAST(TIMESTAMP '1969-12-31 23:59:58.999' AS TIMESTAMP(1))", datetime(1969, 12, 31, 23, 59, 58, 900000)),
    ("TRY_CAST('x' || 'y' AS TIMESTAMP(3))", None),
    ("CAST(TO_TIMESTAMP_LTZ(1555, 3) AS TIMESTAMP_LTZ(1)) = TO_TIMESTAMP_LTZ(1500, 3)", True),
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
#: Start, end, and the whole months between them.
MONTHS = [
    ("TIMESTAMP '2024-01-31 10:00:00'", "TIMESTAMP '2024-02-29 09:00:00'", 0),
    ("TIMESTAMP '2024-01-31 10:00:00'", "TIMESTAMP '2024-02-29 10:00:00'", 1),
    ("TIMESTAMP '2024-02-29 00:00:00'", "TIMESTAMP '2024-01-31 00:00:00'", -1),
    ("DATE '2024-02-29'", "DATE '2024-01-31'", -1),
    ("DATE '2024-01-30'", "DATE '2024-02-29'", 1),
    ("DATE '2024-03-31'", "DATE '2024-04-30'", 1),
    ("DATE '2024-05-31'", "DATE '2024-02-29'", -3),
    ("DATE '2024-01-15'", "TIMESTAMP '2024-02-15 00:00:01'", 1),
    ("DATE '2024-01-15'", "DATE '2024-02-14'", 0),
    ("TIMESTAMP '2020-02-29 10:00:00'", "TIMESTAMP '2021-02-28 11:00:00'", 12),
    ("DATE '2021-02-28'", "DATE '2020-02-29'", -12),
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
    ("TRUNCATE(CAST(-42.345 AS DOUBLE), 2)", -42.34),
    ("TRUNCATE(CAST(1E15 AS DOUBLE) + 0.123E0, 2)", 1000000000000000.1),
    ("FLOOR(-1.5E0)", -2.0),
    ("CEIL(1E300)", 1e300),
    ("CAST(FLOOR(CAST('NaN' AS DOUBLE)) AS STRING)", "NaN"),
    ("SIGN(CAST(-7 AS BIGINT))", -1),
    ("CAST(SIGN(-2.50) AS STRING)", "-1.00"),
    ("STR_TO_MAP('k1=v1,k2=v2')", {"k1": "v1", "k2": "v2"}),
    ("STR_TO_MAP('k1:v1;k2:v2', ';', ':')", {"k1": "v1", "k2": "v2"}),
    ("REGEXP('a1', '[0-9]')", True),
    ("REGEXP('a1', '')", False),
    ("REGEXP(CAST(NULL AS STRING), '')", None),
    ("REGEXP_REPLACE('foobar', 'oo|ar', '')", "fb"),
    ("REGEXP_REPLACE('foobar', '(o)', '$1\\')", "f$1\\$1\\bar"),
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
    ("ARRAY_REMOVE(ARRAY[1, NULL, 2], 1)", [None, 2]),
    ("ARRAY_REMOVE(ARRAY[1, NULL], NULL)", [1]),
    ("ARRAY_REVERSE(ARRAY[1, 2])", [2, 1]),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], 2, 3)", [2, 3]),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], -3, -2)", [2, 3]),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], 0, 9)", [1, 2, 3, 4]),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], -9, 1)", [1]),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], 3, 2)", []),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], 1, -5)", []),
    ("ARRAY_SLICE(ARRAY[1, 2, 3, 4], 3)", [3, 4]),
    ("ARRAY_SLICE(ARRAY[1, 2], 1, CAST(NULL AS INT))", None),
    ("ARRAY_SORT(ARRAY[3, NULL, 1])", [None, 1, 3]),
    ("ARRAY_SORT(ARRAY[3, NULL, 1], FALSE)", [3, 1, None]),
    ("ARRAY_SORT(ARRAY[3, NULL, 1], FALSE, TRUE)", [None, 3, 1]),
    ("ARRAY_SORT(ARRAY[3, NULL, 1], TRUE, FALSE)", [1, 3, None]),
    ("ARRAY_SORT(ARRAY[1, 2], (x, y) -> y - x)", [2, 1]),
    ("ELEMENT(ARRAY[5])", 5),
    ("ELEMENT(CAST(ARRAY[] AS ARRAY<INT>))", None),
    ("MAP_UNION(MAP['a', 1, 'c', 4], MAP['a', 2, 'b', NULL])", {"c": 4, "a": 2, "b": None}),
    ("INITCAP('hELLO flink-sql 1de')", "Hello Flink-Sql 1de"),
    ("IS_ALPHA('abc')", True),
    ("IS_ALPHA('ab1')", False),
    ("IS_ALPHA(CAST(NULL AS STRING))", False),
    ("IS_DECIMAL('-1.5')", True),
    ("IS_DECIMAL('x')", False),
    ("IS_DIGIT('12')", True),
    ("IS_DIGIT('1.2')", False),
    ("LPAD('hi', 4, '??')", "??hi"),
    ("LPAD('hi', -1, '?')", None),
    ("RPAD('hi', 4, '')", None),
    ("PARSE_URL('http://a.b/p?x=1', 'QUERY', 'x')", "1"),
    ("PARSE_URL('no url', 'HOST')", None),
    ("URL_DECODE('a+b%26c')", "a b&c"),
    ("URL_DECODE('%zz')", None),
    ("RAND_INTEGER(5) BETWEEN 0 AND 4", True),
    ("RAND_INTEGER(7, 5) = RAND_INTEGER(7, 5)", True),
    ("SPLIT('a.b.', '.')", ["a", "b", ""]),
    ("SPLIT('abc', '')", ["a", "b", "c"]),
    ("SPLIT('', ',')", []),
    ("SPLIT('', '')", []),
    ("SPLIT(',', ',')", ["", ""]),
    ("STR_TO_MAP('')", {}),
    ("STR_TO_MAP('', ';', ':')", {}),
    ("ELT(2, 'a', 'b')", "b"),
    ("ELT(3, 'a', 'b')", None),
    ("ELT(0, 'a')", None),
    ("ELT(CAST(NULL AS INT), 'a')", None),
    ("OVERLAY('abc' PLACING 'XY' FROM 2)", "aXY"),
    ("OVERLAY('abc' PLACING 'XY' FROM 2 FOR 1)", "aXYc"),
    ("OVERLAY('abc' PLACING 'XY' FROM 3)", "abXY"),
    ("OVERLAY('abc' PLACING 'XY' FROM 4)", "abc"),
    ("OVERLAY('abc' PLACING 'XY' FROM 0)", "abc"),
    ("INITCAP('ÄBC dEF 4gH ü_x-ÖY')", "ÄBc Def 4gh ü_X-ÖY"),
    ("CAST(1 > 0 AS STRING)", "TRUE"),
    ("CAST(CAST(NULL AS BOOLEAN) AS STRING)", None),
    ("TRY_CAST(1 > 2 AS VARCHAR(2))", "FA"),
    ("CAST(CAST(1 > 0 AS STRING) AS BOOLEAN)", True),
    ("CAST(ARRAY[ROW(1, TRUE)] AS STRING)", "[(1, TRUE)]"),
    ("CAST(ARRAY[1, CAST(NULL AS INT)] AS STRING)", "[1, NULL]"),
    ("CAST(CAST(NULL AS ARRAY<INT>) AS STRING)", None),
    ("CAST(CAST(NULL AS ROW<a INT>) AS STRING)", None),
    ("CAST(MAP['a', ARRAY[1, CAST(NULL AS INT)]] AS STRING)", "{a=[1, NULL]}"),
    ("CAST(ROW(CAST(NULL AS INT), ROW(TRUE, 'x')) AS STRING)", "(NULL, (TRUE, x))"),
    ("CAST(ARRAY['a', 'b'] AS VARCHAR(5))", "[a, b"),
    ("SPLIT_INDEX('a.b.c', '.', 1)", "b"),
    ("SPLIT_INDEX('a,,c', ',', 1)", ""),
    ("SPLIT_INDEX('a.b', 46, 1)", "b"),
    ("SPLIT_INDEX('a.b', CAST(46 AS BIGINT), 1)", "b"),
    ("SPLIT_INDEX('a.b', 256 + 46, 1)", None),
    ("SPLIT_INDEX('a', ',', 1)", None),
    ("SPLIT_INDEX('a', ',', -1)", None),
    ("SUBSTRING('abcd' FROM -3 FOR 2)", "bc"),
    ("SUBSTRING('abcd', -5, 3)", ""),
    ("SUBSTR('abcd', 2, -1)", None),
    ("SUBSTRING('abcd' FROM 3)", "cd"),
    ("LN(1E0)", 0.0),
    ("LN(0)", -math.inf),
    ("CAST(LN(-1.5) AS STRING)", "NaN"),
    ("LOG(CAST(NULL AS DOUBLE))", None),
    ("LOG(2, 8)", 3.0),
    ("LOG(1, 2)", math.inf),
    ("CAST(LOG(1, 1) AS STRING)", "NaN"),
    ("LOG10(1000)", 3.0),
    ("LOG2(8)", 3.0),
    ("LOG2(0)", -math.inf),
    ("CASE 2 WHEN 1, 2 THEN 'a' WHEN 3 THEN 'b' ELSE 'c' END || CASE WHEN 1 > 2 THEN 'd' ELSE 'e' END", "ae"),
    ("U&'\\00e4''\\\\\\D83D\\DE00'", "ä'\\😀"),
    ("u&'!0041\\' UESCAPE '!' || 'x'", "A\\x"),
    ("SHA256('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    ("WEEK(DATE '1994-09-27')", 39),
    ("CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'America/Los_Angeles')", "1969-12-31 16:00:00"),
    ("CONVERT_TZ('no time', 'UTC', 'Asia/Tokyo')", None),
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


@pytest.mark.parametrize(("start", "end", "months"), MONTHS)
def test_months_end_with_the_last_day_of_one(catalog: Catalog, start: str, end: str, months: int) -> None:
    texts = [f"TIMESTAMPDIFF({unit}, {start}, {end})" for unit in ("MONTH", "QUARTER", "YEAR")]
    frame = catalog.sql(f"SELECT {', '.join(texts)}").frame
    assert frame is not None
    assert tuple(frame.collect()[0]) == (months, int(months / 3), int(months / 12))


def test_a_text_with_a_fraction_has_a_unix_timestamp(catalog: Catalog) -> None:
    """As ``CAST(ts AS STRING)`` has."""
    texts = ("2024-01-02 03:04:05", "2024-01-02 03:04:05.678", "2024-1-2 3:4:5")
    expected = "EXTRACT(EPOCH FROM CAST('2024-01-02 03:04:05' AS TIMESTAMP_LTZ(3)))"
    frame = catalog.sql(f"SELECT {expected}, " + ", ".join(f"UNIX_TIMESTAMP('{text}')" for text in texts)).frame
    assert frame is not None
    assert len(set(frame.collect()[0])) == 1


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


ROWS = "(VALUES (CAST(NULL AS INT)), (1), (2), (CAST(NULL AS INT))) AS t (v)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ARRAY_AGG(v)", [None, 1, 2, None]),
        ("ARRAY_AGG(v IGNORE NULLS)", [1, 2]),
        ("ARRAY_AGG(v) FILTER (WHERE v IS NULL)", [None, None]),
        ("ARRAY_AGG(v) FILTER (WHERE v > 5)", None),
        ("ARRAY_AGG(v IGNORE NULLS) FILTER (WHERE v IS NULL)", None),
        ("ARRAY_AGG(v IGNORE NULLS) FILTER (WHERE v IS NULL OR v = 2)", [2]),
        ("ARRAY_AGG(v) FILTER (WHERE v > 5) OVER ()", None),
        ("FIRST_VALUE(v IGNORE NULLS) FILTER (WHERE v > 1 OR v IS NULL)", 2),
        ("JSON_STRING(ARRAY_AGG(v) FILTER (WHERE v > 5))", None),
        ("FIRST_VALUE(v)", 1),
        ("LAST_VALUE(v)", 2),
        ("LAST_VALUE(v) FILTER (WHERE v < 2) + 1", 2),
        ("JSON_ARRAYAGG(v)", "[1,2]"),
        ("JSON_ARRAYAGG(v NULL ON NULL)", "[null,1,2,null]"),
        ("JSON_ARRAYAGG(v) FILTER (WHERE v > 5)", "[]"),
        ("JSON_ARRAYAGG(JSON_OBJECT('v' VALUE v ABSENT ON NULL)) FILTER (WHERE v = 2)", '[{"v":2}]'),
        ("JSON_OBJECTAGG(KEY 'k' || v VALUE v) FILTER (WHERE v > 0)", '{"k1":1,"k2":2}'),
        ("JSON_OBJECTAGG('a' || COALESCE(v, 0) VALUE v ABSENT ON NULL) FILTER (WHERE COALESCE(v, 0) < 2)", '{"a1":1}'),
        ("JSON_OBJECTAGG(KEY 'a' VALUE v NULL ON NULL) FILTER (WHERE v > 5)", "{}"),
        ("JSON_OBJECTAGG('a' VALUE CAST(NULL AS INT)) FILTER (WHERE v = 1)", '{"a":null}'),
    ],
)
def test_aggregates_treat_nulls_as_in_flink(catalog: Catalog, text: str, expected: object) -> None:
    frame = catalog.sql(f"SELECT {text} FROM {ROWS}").frame
    assert frame is not None
    assert frame.collect()[0][0] == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ARRAY_AGG(v ORDER BY v)", r"ORDER BY ...\) is not supported: use ARRAY_SORT"),
        ("COLLECT(v)", "COLLECT is not supported: there is no type MULTISET; use ARRAY_AGG"),
        ("current_watermark(v)", "CURRENT_WATERMARK is not supported: Spark tells rows no watermark. Leave"),
        ("v = ANY (SELECT 1)", "ANY, SOME and ALL of a query are not supported: use IN, or its MIN or MAX"),
        ("v > ALL (SELECT 1)", "ANY, SOME and ALL of a query are not supported"),
        ("JSON_ARRAYAGG(v) OVER (PARTITION BY v)", "JSON_ARRAYAGG OVER .* is not supported: use GROUP BY"),
        ("JSON_ARRAYAGG(DISTINCT v)", "expected '\\)', got 'DISTINCT'"),
        ("(v, v) OVERLAPS (v, v, v)", "OVERLAPS: expected \\(start, end or interval\\)"),
        ("CASE v WHEN 1 'a' END", "expected 'THEN', got 'a'"),
        ("U&'\\00'", "starts an escape of four hex digits"),
        ("U&'x' UESCAPE 'a'", "UESCAPE: expected one character other than a hex digit"),
        ("DATE_FORMAT(LOCALTIMESTAMP, 'YYYY-MM')", "DATE_FORMAT: 'Y' in 'YYYY-MM' is not supported"),
        ("CAST(v AS DECIMAL())", "type DECIMAL: expected a number in brackets"),
        ("INSTR('abc', 'b', 1, 2)", "instr.* requires 2 parameters"),
        ("JSON_ARRAY(1", r"expected '\)'"),
    ],
)
def test_what_is_not_supported_is_named(catalog: Catalog, text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        catalog.sql(f"SELECT {text} FROM {ROWS}")


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_an_invalid_pattern_is_refused_before_the_query_runs(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Not by a stack trace of Java when the first row comes."""
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": mode})
    catalog.sql("CREATE TABLE t (s STRING)")
    for call in ("REGEXP(s, '(')", "s RLIKE '('", "REGEXP_REPLACE(s, '[', '')", "REGEXP_EXTRACT(s, '*a', 0)"):
        with pytest.raises(InvalidInputError, match="is not a regular expression of Java") as raised:
            catalog.sql(f"SELECT 1 FROM t WHERE {call} IS NOT NULL")
        assert "line 1, column" in str(raised.value)
    assert catalog.sql(r"SELECT REGEXP(s, '(?d)\d++(?<a>b)\k<a>'), REGEXP_REPLACE(s, s, '') FROM t").frame is not None


def test_grouping_has_a_bit_for_each_column(catalog: Catalog) -> None:
    outputs = "GROUPING(a), GROUPING(b, a), GROUPING_ID(a, b), COUNT(*)"
    text = f"SELECT {outputs} FROM (VALUES (1, 2), (1, 2)) AS t (a, b) GROUP BY ROLLUP (a, b)"
    assert rows(catalog, text) == [(0, 0, 0, 2), (0, 2, 1, 2), (1, 3, 3, 2)]
    assert rows(catalog, "SELECT COUNT(*) FROM (VALUES (1), (2)) AS t (a) GROUP BY ()") == [(2,)]
