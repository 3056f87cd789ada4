Queries, and how they are said to Spark.

---- strings
SELECT 'it''s', 'a\b', '\n', '"' FROM t

---- spark
SELECT 'it\'s', 'a\\b', '\\n', '"' FROM t

---- types
SELECT CAST(a AS TIMESTAMP), CAST(a AS TIMESTAMP_LTZ(3)), CAST(a AS STRING), CAST(a AS BYTES), CAST(a AS DECIMAL(10, 2)), CAST(a AS INT), TIMESTAMP '2024-01-02 03:04:05', DATE '2024-01-02' FROM t

---- spark
SELECT CAST(a AS TIMESTAMP_NTZ), (CAST(a AS TIMESTAMP_LTZ) - MAKE_DT_INTERVAL(0, 0, 0, EXTRACT(SECOND FROM CAST(a AS TIMESTAMP_LTZ)) % 0.001)) AS `EXPR$1`, CAST(a AS STRING), CAST(a AS BINARY), CAST(a AS DECIMAL(10, 2)), CAST(a AS INT), CAST('2024-01-02 03:04:05' AS TIMESTAMP_NTZ), CAST('2024-01-02' AS DATE) FROM t

---- PROCTIME
SELECT PROCTIME(), proctime() FROM t

---- spark
SELECT DATE_TRUNC('MILLISECOND', CURRENT_TIMESTAMP()) AS `EXPR$0`, DATE_TRUNC('MILLISECOND', CURRENT_TIMESTAMP()) AS `EXPR$1` FROM t

---- the current time
SELECT LOCALTIMESTAMP, LOCALTIME, CURRENT_TIME, CURRENT_ROW_TIMESTAMP(), `localtime`, t.localtime, a AS localtime FROM t

---- spark
SELECT LOCALTIMESTAMP() AS `EXPR$0`, CAST(CAST(CAST(SUBSTRING_INDEX(CAST(LOCALTIMESTAMP() AS STRING), ' ', -1) AS TIME(6)) AS TIME(0)) AS TIME(6)) AS `EXPR$1`, CAST(CAST(CAST(SUBSTRING_INDEX(CAST(LOCALTIMESTAMP() AS STRING), ' ', -1) AS TIME(6)) AS TIME(0)) AS TIME(6)) AS `EXPR$2`, CURRENT_TIMESTAMP() AS `EXPR$3`, `localtime`, t.localtime, a AS localtime FROM t

---- TIME
SELECT TIME '10:11:12.345', CAST('10:11:12.345' AS TIME(1)), CAST(a AS TIME), TRY_CAST(a AS TIME(3)), CAST(ROW(a) AS ROW<t TIME(3)>) FROM t

---- spark
SELECT CAST('10:11:12.345' AS TIME(6)), CAST(CAST(CAST('10:11:12.345' AS TIME(6)) AS TIME(1)) AS TIME(6)), CAST(CAST(CAST(SUBSTRING_INDEX(CAST(a AS STRING), ' ', -1) AS TIME(6)) AS TIME(0)) AS TIME(6)), CAST(CAST(TRY_CAST(SUBSTRING_INDEX(CAST(a AS STRING), ' ', -1) AS TIME(6)) AS TIME(3)) AS TIME(6)), CAST(NAMED_STRUCT('EXPR$0', a) AS STRUCT<t: TIME(6)>) FROM t

---- a path that is no constant
SELECT JSON_VALUE(v, p) FROM t

---- error
line 1, column 22: expected a path in single quotes, such as '$.name' or 'lax $.list[0]'

---- a path with more than names and positions
SELECT JSON_VALUE(v, '$..a') FROM t

---- error
line 1, column 22: path '$..a' is not supported: expected '$' with names and positions, such as '$.list[0][''a b'']'

---- a clause of another function
SELECT JSON_EXISTS(v, '$.a' EMPTY ARRAY ON EMPTY) FROM t

---- error
line 1, column 29: expected ')', got 'EMPTY'

---- a type that JSON_VALUE does not return
SELECT JSON_VALUE(v, '$.a' RETURNING DATE) FROM t

---- error
line 1, column 38: JSON_VALUE: expected RETURNING STRING, BOOLEAN, INTEGER or DOUBLE

---- literals and constructors
SELECT X'C0FFEE', x'00', MAP['k', 1], MAP['a', ROW(1, MAP['b', 2])], ROW(a, 'x'), ARRAY[1, 2], CAST(ROW(1) AS ROW<x INT>), TO_TIMESTAMP_LTZ(a, 3), TO_TIMESTAMP_LTZ(a, 0), TO_TIMESTAMP_LTZ(b) FROM t

---- spark
SELECT X'C0FFEE', X'00', MAP('k', 1), MAP('a', NAMED_STRUCT('EXPR$0', 1, 'EXPR$1', MAP('b', 2))), NAMED_STRUCT('EXPR$0', a, 'EXPR$1', 'x'), ARRAY(1, 2), CAST(NAMED_STRUCT('EXPR$0', 1) AS STRUCT<x: INT>), TIMESTAMP_MILLIS(a) AS `EXPR$7`, TIMESTAMP_SECONDS(a) AS `EXPR$8`, IF(TYPEOF((b)) = 'string', TRY_CAST(CONCAT(CAST((b) AS STRING), ' UTC') AS TIMESTAMP), TIMESTAMP_MILLIS(TRY_CAST((b) AS BIGINT))) AS `EXPR$9` FROM t

---- elements of arrays and maps
SELECT l[1], l[n], m['k'], `map`['k'], t.m['k'][2], ROW(l[1]), r.x FROM t

---- spark
SELECT TRY_ELEMENT_AT(l, 1), TRY_ELEMENT_AT(l, n), TRY_ELEMENT_AT(m, 'k'), TRY_ELEMENT_AT(`map`, 'k'), TRY_ELEMENT_AT(TRY_ELEMENT_AT(t.m, 'k'), 2), NAMED_STRUCT('EXPR$0', TRY_ELEMENT_AT(l, 1)), r.x FROM t

---- aggregates
SELECT user_region, COUNT(*), COUNT(DISTINCT user_id), SUM(a), AVG(a) FROM pageviews GROUP BY user_region HAVING COUNT(*) > 1

---- spark
SELECT user_region, COUNT(*), COUNT(DISTINCT user_id), SUM(a), AVG(a) FROM pageviews GROUP BY user_region HAVING COUNT(*) > 1

---- names
SELECT `a b`, t.value, `x``y` FROM `my table` AS t

---- spark
SELECT `a b`, t.value, `x``y` FROM `my table` AS t

---- joins and unions
SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k UNION ALL SELECT 1, 2 ORDER BY x LIMIT 3

---- spark
SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k UNION ALL SELECT 1, 2 ORDER BY x LIMIT 3

---- subqueries
WITH q AS (SELECT a FROM t) SELECT * FROM q WHERE a IN (SELECT a FROM u) AND EXISTS (SELECT 1 FROM v)

---- spark
WITH q AS (SELECT a FROM t) SELECT * FROM q WHERE a IN (SELECT a FROM u) AND EXISTS(SELECT 1 FROM v)

---- values
VALUES (1, 'x'), (2, NULL)

---- spark
VALUES (1, 'x'), (2, NULL)

---- functions are Spark's
SELECT DATE_FORMAT(ts, 'yyyy-MM-dd'), COALESCE(a, 0), IF(a > 1, 'x', 'y'), REGEXP_COUNT(s, '(\d+)'), CONCAT(a, b), a || b, SUBSTRING(s, 1, 2), ABS(x), MOD(x, 2), x / 2, CASE WHEN a THEN 1 ELSE 2 END FROM t

---- spark
SELECT DATE_FORMAT(ts, 'yyyy-MM-dd'), COALESCE(a, 0), IF(a > 1, 'x', 'y'), REGEXP_COUNT(s, '(\\d+)'), CONCAT(a, b), a || b, SUBSTRING(s, 1, 2), ABS(x), x % 2, x / 2, CASE WHEN a THEN 1 ELSE 2 END FROM t

---- functions with other results in Spark
SELECT REGEXP_EXTRACT(s, '(\d+)', 1), GREATEST(SUM(a), b), s LIKE 'a\b%' AS l, CAST(s AS CHAR(2)) AS c FROM t

---- spark
SELECT CASE WHEN (s) RLIKE ('(\\d+)') THEN REGEXP_EXTRACT((s), ('(\\d+)'), (1)) END AS `EXPR$0`, IF((SUM(a)) IS NULL OR (b) IS NULL, NULL, GREATEST((SUM(a)), (b))) AS `EXPR$1`, s LIKE 'a\\\\b%' AS l, RPAD(CAST(s AS STRING), 2) AS c FROM t

---- intervals
SELECT ts - INTERVAL '2' SECOND, ts + INTERVAL '1' DAY FROM t

---- spark
SELECT ts - INTERVAL '2' SECOND, ts + INTERVAL '1' DAY FROM t

---- window functions
SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC) AS n FROM t

---- spark
SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC) AS n FROM t
