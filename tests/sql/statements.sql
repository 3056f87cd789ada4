Every other statement, and what is refused.

---- every type
CREATE TABLE t (a CHAR, b CHAR(3), c VARCHAR(9), d STRING, e BOOLEAN, f BINARY(2), g VARBINARY(3), h BYTES, i DECIMAL, j DECIMAL(10, 2), k DEC(5), l NUMERIC(7, 7), m TINYINT, n SMALLINT, o INT, p INTEGER, q BIGINT, r FLOAT, s DOUBLE, t DOUBLE PRECISION, u DATE, v TIMESTAMP, w TIMESTAMP(0), x TIMESTAMP(3) WITHOUT TIME ZONE, y TIMESTAMP_LTZ(3), z TIMESTAMP(6) WITH LOCAL TIME ZONE)

---- becomes
CREATE TABLE `t` (
  `a` CHAR(1),
  `b` CHAR(3),
  `c` VARCHAR(9),
  `d` STRING,
  `e` BOOLEAN,
  `f` BINARY(2),
  `g` VARBINARY(3),
  `h` BYTES,
  `i` DECIMAL(10, 0),
  `j` DECIMAL(10, 2),
  `k` DECIMAL(5, 0),
  `l` DECIMAL(7, 7),
  `m` TINYINT,
  `n` SMALLINT,
  `o` INT,
  `p` INT,
  `q` BIGINT,
  `r` FLOAT,
  `s` DOUBLE,
  `t` DOUBLE,
  `u` DATE,
  `v` TIMESTAMP(6),
  `w` TIMESTAMP(0),
  `x` TIMESTAMP(3),
  `y` TIMESTAMP_LTZ(3),
  `z` TIMESTAMP_LTZ(6)
)

---- nested types
CREATE TABLE t (a ARRAY<INT NOT NULL>, b MAP<STRING, BYTES> NOT NULL, c ROW<x INT, `y z` ROW<v STRING>>, d ROW(x TIMESTAMP(3), y ARRAY<ARRAY<INT>>), e INT ARRAY, f MAP<STRING, ARRAY<ROW<n INT>>>)

---- becomes
CREATE TABLE `t` (
  `a` ARRAY<INT NOT NULL>,
  `b` MAP<STRING, BYTES> NOT NULL,
  `c` ROW<`x` INT, `y z` ROW<`v` STRING>>,
  `d` ROW<`x` TIMESTAMP(3), `y` ARRAY<ARRAY<INT>>>,
  `e` ARRAY<INT>,
  `f` MAP<STRING, ARRAY<ROW<`n` INT>>>
)

---- words as names
CREATE TABLE `table` (value INT, message INT, payload INT, behavior INT, select_ INT, `select` INT, order_ INT, timestamp TIMESTAMP(3), watermark INT, metadata INT, comment INT, key INT, date DATE, `a``b` INT, user INT, primary INT, group INT, year INT)

---- becomes
CREATE TABLE `table` (
  `value` INT,
  `message` INT,
  `payload` INT,
  `behavior` INT,
  `select_` INT,
  `select` INT,
  `order_` INT,
  `timestamp` TIMESTAMP(3),
  `watermark` INT,
  `metadata` INT,
  `comment` INT,
  `key` INT,
  `date` DATE,
  `a``b` INT,
  `user` INT,
  `primary` INT,
  `group` INT,
  `year` INT
)

---- metadata and computed columns
CREATE TABLE t (a INT COMMENT 'it''s a', `offset` BIGINT METADATA VIRTUAL, p INT METADATA FROM 'partition' VIRTUAL COMMENT 'c', ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', b AS a + 1 COMMENT 'more', c AS UPPER('x''y'), pt AS PROCTIME(), WATERMARK FOR ts AS ts)

---- becomes
CREATE TABLE `t` (
  `a` INT COMMENT 'it''s a',
  `offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `p` INT METADATA FROM 'partition' VIRTUAL COMMENT 'c',
  `ts` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  `b` AS a + 1 COMMENT 'more',
  `c` AS UPPER('x''y'),
  `pt` AS PROCTIME(),
  WATERMARK FOR `ts` AS ts
)

---- keys
CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY NOT ENFORCED COMMENT 'k', v STRING NOT NULL, w INT NULL) COMMENT 'a table' PARTITIONED BY (v) WITH ('bucket' = '4')

---- becomes
CREATE TABLE IF NOT EXISTS `t` (
  `id` BIGINT COMMENT 'k',
  `v` STRING NOT NULL,
  `w` INT,
  PRIMARY KEY (`id`) NOT ENFORCED
)
COMMENT 'a table'
PARTITIONED BY (`v`)
WITH (
  'bucket' = '4'
)

---- a named constraint
CREATE TEMPORARY TABLE t (a INT, b INT, CONSTRAINT pk PRIMARY KEY (a, b) NOT ENFORCED)

---- becomes
CREATE TEMPORARY TABLE `t` (
  `a` INT,
  `b` INT,
  PRIMARY KEY (`a`, `b`) NOT ENFORCED
)

---- watermark delays
CREATE TABLE a (t TIMESTAMP(3), WATERMARK FOR t AS t - INTERVAL '0.001' SECOND); CREATE TABLE b (t TIMESTAMP(3), WATERMARK FOR t AS (t - INTERVAL '5' MINUTES));

---- becomes
CREATE TABLE `a` (
  `t` TIMESTAMP(3),
  WATERMARK FOR `t` AS t - INTERVAL '0.001' SECOND
);
CREATE TABLE `b` (
  `t` TIMESTAMP(3),
  WATERMARK FOR `t` AS (t - INTERVAL '5' MINUTES)
)

---- LIKE
CREATE TABLE b (WATERMARK FOR ts AS ts) WITH ('topic' = 'b') LIKE a (EXCLUDING ALL INCLUDING CONSTRAINTS OVERWRITING OPTIONS); CREATE TABLE c LIKE a

---- becomes
CREATE TABLE `b` (
  WATERMARK FOR `ts` AS ts
)
WITH (
  'topic' = 'b'
)
LIKE `a` (EXCLUDING ALL INCLUDING CONSTRAINTS OVERWRITING OPTIONS);
CREATE TABLE `c`
LIKE `a`

---- views
CREATE VIEW v AS SELECT a, b FROM t WHERE c > 1; CREATE TEMPORARY VIEW IF NOT EXISTS w (x, `y`) COMMENT 'two' AS (SELECT 1, 2)

---- becomes
CREATE VIEW `v` AS
SELECT a, b FROM t WHERE c > 1;
CREATE TEMPORARY VIEW IF NOT EXISTS `w` (`x`, `y`) COMMENT 'two' AS
(SELECT 1, 2)

---- drops
DROP TABLE t; DROP TABLE IF EXISTS t; DROP TEMPORARY TABLE t; DROP VIEW v; DROP TEMPORARY VIEW IF EXISTS v

---- becomes
DROP TABLE `t`;
DROP TABLE IF EXISTS `t`;
DROP TEMPORARY TABLE `t`;
DROP VIEW `v`;
DROP TEMPORARY VIEW IF EXISTS `v`

---- alters
ALTER TABLE t SET ('a' = 'b', c.d-e = 'f'); ALTER TABLE t RESET ('a', 'c.d-e'); ALTER TABLE IF EXISTS t RENAME TO u; ALTER TABLE t RENAME a TO b; ALTER TABLE t ADD x INT; ALTER TABLE t ADD COLUMN x INT COMMENT 'c'; ALTER TABLE t ADD (x INT, y AS x + 1); ALTER VIEW v RENAME TO w;
ALTER TABLE t ADD x INT FIRST; ALTER TABLE t ADD (x INT COMMENT 'c' AFTER a, y STRING); ALTER TABLE t MODIFY x BIGINT;
ALTER TABLE t MODIFY (x BIGINT NOT NULL FIRST, y STRING AFTER `a b`); ALTER TABLE t DROP x; ALTER TABLE IF EXISTS t DROP (x, y)

---- becomes
ALTER TABLE `t` SET ('a' = 'b', 'c.d-e' = 'f');
ALTER TABLE `t` RESET ('a', 'c.d-e');
ALTER TABLE IF EXISTS `t` RENAME TO `u`;
ALTER TABLE `t` RENAME `a` TO `b`;
ALTER TABLE `t` ADD (`x` INT);
ALTER TABLE `t` ADD (`x` INT COMMENT 'c');
ALTER TABLE `t` ADD (`x` INT, `y` AS x + 1);
ALTER VIEW `v` RENAME TO `w`;
ALTER TABLE `t` ADD (`x` INT FIRST);
ALTER TABLE `t` ADD (`x` INT COMMENT 'c' AFTER `a`, `y` STRING);
ALTER TABLE `t` MODIFY (`x` BIGINT);
ALTER TABLE `t` MODIFY (`x` BIGINT NOT NULL FIRST, `y` STRING AFTER `a b`);
ALTER TABLE `t` DROP (`x`);
ALTER TABLE IF EXISTS `t` DROP (`x`, `y`)

---- shows
SHOW TABLES; SHOW VIEWS; SHOW TABLES LIKE 'a_%'; SHOW VIEWS NOT LIKE '''%'; SHOW CREATE TABLE t; SHOW CREATE VIEW v; DESCRIBE t; DESC `t`; DESCRIBE TABLE t; SHOW PARTITIONS t; SHOW PARTITIONS t PARTITION (a = 'x', b = 1)

---- becomes
SHOW TABLES;
SHOW VIEWS;
SHOW TABLES LIKE 'a_%';
SHOW VIEWS NOT LIKE '''%';
SHOW CREATE TABLE `t`;
SHOW CREATE VIEW `v`;
DESCRIBE `t`;
DESCRIBE `t`;
DESCRIBE `t`;
SHOW PARTITIONS `t`;
SHOW PARTITIONS `t` PARTITION (`a` = 'x', `b` = 1)

---- settings
SET; SET 'execution.runtime-mode' = 'batch'; SET table.exec.source.idle-timeout = '1 s'; RESET; RESET 'execution.runtime-mode'

---- becomes
SET;
SET 'execution.runtime-mode' = 'batch';
SET 'table.exec.source.idle-timeout' = '1 s';
RESET;
RESET 'execution.runtime-mode'

---- inserts
INSERT INTO t VALUES (1, 'x'), (2, NULL); INSERT INTO t (b, a) SELECT 1, 2; INSERT INTO t (SELECT 1); INSERT INTO t WITH q AS (SELECT 1 AS a) SELECT a FROM q

---- becomes
INSERT INTO `t`
VALUES (1, 'x'), (2, NULL);
INSERT INTO `t` (`b`, `a`)
SELECT 1, 2;
INSERT INTO `t`
(SELECT 1);
INSERT INTO `t`
WITH q AS (SELECT 1 AS a) SELECT a FROM q

---- statement sets
EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT * FROM s; INSERT INTO b SELECT * FROM s WHERE x > 1; END; SELECT 1

---- becomes
EXECUTE STATEMENT SET BEGIN
INSERT INTO `a`
SELECT * FROM s;
INSERT INTO `b`
SELECT * FROM s WHERE x > 1;
END;
SELECT 1

---- the older statement set
BEGIN STATEMENT SET; INSERT INTO a SELECT * FROM s; END

---- becomes
EXECUTE STATEMENT SET BEGIN
INSERT INTO `a`
SELECT * FROM s;
END

---- explains
EXPLAIN SELECT 1; EXPLAIN PLAN FOR INSERT INTO t SELECT 1

---- becomes
EXPLAIN SELECT 1;
EXPLAIN INSERT INTO `t`
SELECT 1

---- EXECUTE INSERT
EXECUTE INSERT INTO t SELECT 1

---- becomes
INSERT INTO `t`
SELECT 1

---- comments
-- one
SELECT /* two; */ 1 -- three; 'x'
; /* four */ SELECT '-- five', '/* six */' -- seven

---- becomes
SELECT /* two; */ 1;
SELECT '-- five', '/* six */'

---- nothing
 -- nothing
 /* at all */ ; ;

---- becomes


---- secrets are masked
CREATE TABLE t (a INT) WITH ('properties.sasl.password' = 'hunter2', 'properties.ssl.key.password' = 'env:PW')

---- becomes
CREATE TABLE `t` (
  `a` INT
)
WITH (
  'properties.sasl.password' = '***',
  'properties.ssl.key.password' = 'env:PW'
)

---- no CREATE
CREATE

---- error
line 1, column 7: unexpected end of statement: expected TABLE or VIEW

---- CREATE of something else
CREATE DATABASE d

---- error
line 1, column 8: CREATE DATABASE is not supported: a warehouse is one database, whose tables CREATE TABLE makes

---- DROP of something else
DROP DATABASE d

---- error
line 1, column 6: DROP DATABASE is not supported: a warehouse is one database, whose tables CREATE TABLE makes

---- ALTER of something else
ALTER DATABASE d SET ('a' = 'b')

---- error
line 1, column 7: ALTER DATABASE is not supported: a warehouse is one database, whose tables CREATE TABLE makes

---- ALTER TABLE ADD PARTITION
ALTER TABLE t ADD PARTITION (p = 1)

---- error
line 1, column 19: ALTER TABLE cannot add a PARTITION: rows that are inserted make theirs

---- a column of that name
ALTER TABLE t ADD partition INT

---- becomes
ALTER TABLE `t` ADD (`partition` INT)

---- SHOW CURRENT
SHOW CURRENT DATABASE

---- error
line 1, column 6: SHOW CURRENT is not supported: a warehouse is one catalog with one database, which is always in use

---- CREATE CATALOG
CREATE CATALOG paimon WITH ('type' = 'paimon', 'warehouse' = 'file:/tmp/paimon')

---- error
line 1, column 8: CREATE CATALOG is not supported: a warehouse is one catalog: name another by Catalog(spark, folder) or tablestore sql --warehouse

---- CREATE OR REPLACE
CREATE OR REPLACE TABLE t (a INT)

---- error
line 1, column 8: CREATE OR REPLACE is not supported: DROP it first

---- CREATE TABLE AS
CREATE TABLE t LIKE a AS SELECT 1

---- error
line 1, column 23: LIKE is not supported in CREATE TABLE AS, whose columns are those of the query

---- no columns
CREATE TABLE t WITH ('a' = 'b')

---- error
line 1, column 32: unexpected end of statement: expected columns in brackets

---- a column twice
CREATE TABLE t (a INT, a STRING)

---- error
line 1, column 24: column 'a' is declared twice

---- no type
CREATE TABLE t (a, b INT)

---- error
line 1, column 18: expected a type such as STRING, BIGINT or TIMESTAMP(3), got ','

---- an unknown type
CREATE TABLE t (a INT, b NUMBER(3))

---- error
line 1, column 26: there is no type NUMBER; there are STRING, BYTES, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE, CHAR, VARCHAR, BINARY, VARBINARY, TIME, TIMESTAMP, TIMESTAMP_LTZ, DECIMAL, ARRAY, MAP, ROW

---- partitions
ALTER TABLE t DROP PARTITION (a = 1, `b c` = 'x'), PARTITION (a = 2); ALTER TABLE IF EXISTS t DROP IF EXISTS PARTITION (a = DATE '2024-01-01'); ALTER TABLE t DROP partition

---- becomes
ALTER TABLE `t` DROP PARTITION (`a` = 1, `b c` = 'x'), PARTITION (`a` = 2);
ALTER TABLE IF EXISTS `t` DROP IF EXISTS PARTITION (`a` = DATE '2024-01-01');
ALTER TABLE `t` DROP (`partition`)

---- times of day
CREATE TABLE t (a TIME, b TIME(0) NOT NULL, c TIME(3), d ARRAY<TIME(1)>, e ROW<x TIME WITHOUT TIME ZONE>)

---- becomes
CREATE TABLE `t` (
  `a` TIME(0),
  `b` TIME(0) NOT NULL,
  `c` TIME(3),
  `d` ARRAY<TIME(1)>,
  `e` ROW<`x` TIME(0)>
)

---- a time of microseconds
CREATE TABLE t (a TIME(6))

---- error
line 1, column 19: type TIME has 0 to 3 digits of a second, as many as Flink keeps; got (6)

---- a type that Spark has not
CREATE TABLE t (a INTERVAL)

---- error
line 1, column 19: type INTERVAL is not supported: intervals cannot be columns; use BIGINT

---- nanoseconds
CREATE TABLE t (a TIMESTAMP(9))

---- error
line 1, column 19: type TIMESTAMP has 0 to 6 digits of a second here, as Spark has; got (9)

---- too many digits
CREATE TABLE t (a DECIMAL(39, 2))

---- error
line 1, column 19: type DECIMAL takes a precision from 1 to 38 and a scale up to it, got (39, 2)

---- a type with time zone
CREATE TABLE t (a TIMESTAMP(3) WITH TIME ZONE)

---- error
line 1, column 19: TIMESTAMP WITH TIME ZONE is not supported: use TIMESTAMP_LTZ, an instant

---- an enforced key
CREATE TABLE t (a INT, PRIMARY KEY (a))

---- error
line 1, column 24: a PRIMARY KEY must be NOT ENFORCED: rows that other programs write are not checked

---- two keys
CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED, PRIMARY KEY (a) NOT ENFORCED)

---- error
line 1, column 49: a table has one PRIMARY KEY at most

---- another watermark
CREATE TABLE t (ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' EPOCH)

---- error
line 1, column 54: a watermark is the column itself or the column less an interval, such as ts - INTERVAL '5' SECOND; this is neither

---- a watermark of another column
CREATE TABLE t (ts TIMESTAMP(3), WATERMARK FOR ts AS other - INTERVAL '5' SECOND)

---- error
line 1, column 54: a watermark is the column itself or the column less an interval, such as ts - INTERVAL '5' SECOND; this is neither

---- two watermarks
CREATE TABLE t (ts TIMESTAMP(3), WATERMARK FOR ts AS ts, WATERMARK FOR ts AS ts)

---- error
line 1, column 58: a table has one watermark at most

---- an option twice
CREATE TABLE t (a INT) WITH ('a' = 'b', 'a' = 'c')

---- error
line 1, column 41: option 'a' is given twice

---- an option without value
CREATE TABLE t (a INT) WITH ('connector')

---- error
line 1, column 41: expected '=', got ')'

---- an option with a number
CREATE TABLE t (a INT) WITH ('bucket' = 4)

---- error
line 1, column 41: expected the value of option 'bucket' in single quotes, got '4'

---- the names of Flink's default catalog and database
CREATE TABLE `default_catalog`.`default_database`.`t` (a ROW<default_database ROW<x INT>>); DROP TABLE default_catalog.default_database.t

---- becomes
CREATE TABLE `t` (
  `a` ROW<`default_database` ROW<`x` INT>>
);
DROP TABLE `t`

---- a database without its catalog, which could be a column of type ROW
DROP TABLE default_database.t

---- error
line 1, column 12: a warehouse is one database: give the name of what to drop without the names before it

---- a name before the name
CREATE TABLE db.t (a INT)

---- error
line 1, column 14: a warehouse is one database: give the name of the table without the names before it

---- double quotes
SELECT "a" FROM t

---- error
line 1, column 8: double quotes are not supported: put strings in single quotes, names in backquotes

---- a string in double quotes
SELECT a FROM t WHERE b = "x"

---- error
line 1, column 27: double quotes are not supported: put strings in single quotes, names in backquotes

---- a quote that is open
SELECT 'it''s
FROM t

---- error
line 1, column 8: a quote is not closed

---- a comment that is open
SELECT 1 /* never
ending

---- error
line 1, column 10: a comment is not closed

---- a secret in a damaged text
CREATE TABLE t (a INT) WITH ('properties.sasl.password' = 'hunter2' 'x')

---- error
line 1, column 69: expected ',' or ')', got 'x'

---- an open quote in a secret
CREATE TABLE t (a INT) WITH ('properties.sasl.password' = 'hunter2)

---- error
line 1, column 59: a quote is not closed

---- no semicolon
SELECT 1 SELECT 2

---- error
line 1, column 10: expected the end of the statement, got 'SELECT'

---- no table
SELECT a FROM

---- error
line 1, column 14: unexpected end of statement: expected table name

---- no expression
SELECT FROM t

---- error
line 1, column 1: a SELECT without columns: name them, or use *

---- hints
SELECT * FROM t /*+ OPTIONS('a' = 'b') */

---- becomes
SELECT * FROM t /*+ OPTIONS('a' = 'b') */

---- a hint for a sink
INSERT INTO t /*+ OPTIONS(sink.parallelism = '2', 'properties.sasl.password' = 'x') */ (a, b) SELECT * FROM u /*+ OPTIONS('a' = 'b') */ AS v JOIN w ON v.a = w.a

---- becomes
INSERT INTO `t` /*+ OPTIONS('sink.parallelism' = '2', 'properties.sasl.password' = '***') */ (`a`, `b`)
SELECT * FROM u /*+ OPTIONS('a' = 'b') */ AS v JOIN w ON v.a = w.a

---- a hint in a view
CREATE VIEW v AS SELECT * FROM t /*+ OPTIONS('a' = 'b') */; SELECT 1

---- becomes
CREATE VIEW `v` AS
SELECT * FROM t /*+ OPTIONS('a' = 'b') */;
SELECT 1

---- a hint after SELECT
SELECT /*+ LOOKUP('table' = 'd'), lookup('table' = 'e', 'async' = 'true') */ t.a FROM (SELECT /*+ LOOKUP('table' = 'f') */ a FROM u) AS t

---- becomes
SELECT /*+ LOOKUP('table' = 'd'), lookup('table' = 'e', 'async' = 'true') */ t.a FROM (SELECT /*+ LOOKUP('table' = 'f') */ a FROM u) AS t

---- another hint after SELECT
SELECT /*+ BROADCAST(t) */ * FROM t

---- error
line 1, column 12: expected LOOKUP, the only hint after SELECT: Spark plans joins and state by itself, got 'BROADCAST'

---- a hint after an alias
SELECT * FROM t AS u /*+ OPTIONS('a' = 'b') */

---- error
line 1, column 22: a hint goes after the name of a table in FROM or INSERT INTO, t /*+ OPTIONS('key' = 'value') */, or after SELECT

---- a hint of a table that is deleted from
DELETE FROM t /*+ OPTIONS('a' = 'b') */

---- error
line 1, column 15: a hint goes after the name of a table in FROM or INSERT INTO, t /*+ OPTIONS('key' = 'value') */, or after SELECT

---- another hint
SELECT * FROM t /*+ LOOKUP('a' = 'b') */

---- error
line 1, column 21: expected OPTIONS, the only hint of a table: Spark plans joins and state by itself, got 'LOOKUP'

---- a hint without a value
SELECT * FROM t /*+ OPTIONS('a') */

---- error
line 1, column 32: expected '=', got ')'

---- a window without a size
SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts)))

---- error
line 1, column 51: TUMBLE: SIZE is missing

---- a window of months
SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MONTH))

---- error
line 1, column 53: expected an interval of one unit, such as INTERVAL '10' MINUTE

---- a window that is no whole number of its steps
SELECT * FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '3' MINUTE, INTERVAL '10' MINUTE))

---- error
line 1, column 36: CUMULATE: the window has to be a multiple of its step

---- INSERT OVERWRITE
INSERT OVERWRITE t SELECT 1; INSERT OVERWRITE INTO t PARTITION (p = 'x', q) (b, a) SELECT 1, 2;
INSERT OVERWRITE t /*+ OPTIONS('dynamic-partition-overwrite' = 'FALSE') */ PARTITION (p = 'x') SELECT 1

---- becomes
INSERT OVERWRITE `t`
SELECT 1;
INSERT OVERWRITE `t` PARTITION (`p` = 'x', `q`) (`b`, `a`)
SELECT 1, 2;
INSERT OVERWRITE `t` /*+ OPTIONS('dynamic-partition-overwrite' = 'FALSE') */ PARTITION (`p` = 'x')
SELECT 1

---- INSERT INTO PARTITION
INSERT INTO t PARTITION (p = 'x', q) (b, a) SELECT 1, 2; CREATE TABLE e (a INT) WITH ()

---- becomes
INSERT INTO `t` PARTITION (`p` = 'x', `q`) (`b`, `a`)
SELECT 1, 2;
CREATE TABLE `e` (
  `a` INT
)

---- an empty SET
ALTER TABLE t SET ()

---- error
line 1, column 20: expected an option's name in single quotes, got ')'

---- a part is missing
SELECT a FROM t WHERE a < AND b

---- error
line 1, column 27: expected an expression

---- a part is missing at the end
SELECT a FROM t WHERE a <

---- error
line 1, column 26: unexpected end of statement: expected an expression

---- MATCH_RECOGNIZE
SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.x AS y PATTERN (A) DEFINE A AS A.x > 1)

---- error
line 1, column 17: MATCH_RECOGNIZE is not supported: Spark does not support it

---- EXPLAIN INSERT OVERWRITE
EXPLAIN INSERT OVERWRITE t SELECT 1

---- error
line 1, column 9: EXPLAIN supports SELECT, INSERT INTO and STATEMENT SET

---- INSERT of nothing
INSERT INTO t

---- error
line 1, column 14: unexpected end of statement: expected SELECT, VALUES or WITH

---- EXPLAIN of something else
EXPLAIN DROP TABLE t

---- error
line 1, column 9: EXPLAIN supports SELECT, INSERT INTO and STATEMENT SET

---- an empty statement set
EXECUTE STATEMENT SET BEGIN END

---- error
line 1, column 29: a STATEMENT SET without an INSERT INTO

---- DELETE
DELETE FROM t; delete from `t` as x where x.a > 1 and b in ('p', 'q')

---- becomes
DELETE FROM `t`;
DELETE FROM `t` AS `x` WHERE x.a > 1 and b in ('p', 'q')

---- DELETE with a query in it
DELETE FROM t WHERE a IN (SELECT a FROM u)

---- error
line 1, column 21: a query in a condition or value is not supported here: MERGE INTO ... USING (SELECT ...)

---- UPDATE
UPDATE t SET a = 1; UPDATE t x SET a = x.a + 1, `b c` = CASE WHEN a = 1 THEN 'y' ELSE b END WHERE a IS NOT NULL

---- becomes
UPDATE `t` SET `a` = 1;
UPDATE `t` AS `x` SET `a` = x.a + 1, `b c` = CASE WHEN a = 1 THEN 'y' ELSE b END WHERE a IS NOT NULL

---- UPDATE of a field
UPDATE t SET a.b = 1

---- error
line 1, column 14: set a column by its name alone; a field of a row cannot be set by itself

---- TRUNCATE
TRUNCATE TABLE t

---- becomes
TRUNCATE TABLE `t`

---- MERGE
MERGE INTO t AS a USING (SELECT id, v FROM u) b ON a.id = b.id WHEN MATCHED AND b.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = b.v WHEN NOT MATCHED BY TARGET THEN INSERT (id, v) VALUES (b.id, b.v) WHEN NOT MATCHED BY SOURCE THEN DELETE;
MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED AND u.v > 1 THEN INSERT VALUES (u.id, u.v + 1)

---- becomes
MERGE INTO `t` AS `a` USING (SELECT id, v FROM u) AS `b` ON a.id = b.id
WHEN MATCHED AND b.v IS NULL THEN DELETE
WHEN MATCHED THEN UPDATE SET `v` = b.v
WHEN NOT MATCHED THEN INSERT (`id`, `v`) VALUES (b.id, b.v)
WHEN NOT MATCHED BY SOURCE THEN DELETE;
MERGE INTO `t` USING `u` AS `u` ON t.id = u.id
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *;
MERGE INTO `t` USING `u` AS `u` ON t.id = u.id
WHEN NOT MATCHED AND u.v > 1 THEN INSERT VALUES (u.id, u.v + 1)

---- MERGE without a clause
MERGE INTO t USING u ON t.id = u.id

---- error
line 1, column 36: unexpected end of statement: expected WHEN MATCHED or WHEN NOT MATCHED

---- MERGE of too few values
MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)

---- error
line 1, column 80: 2 columns are named, but 1 values given

---- LIKE with every part
CREATE TABLE b (a AS x + 1, PRIMARY KEY (x) NOT ENFORCED) PARTITIONED BY (y) LIKE a (INCLUDING ALL EXCLUDING CONSTRAINTS EXCLUDING PARTITIONS OVERWRITING GENERATED OVERWRITING METADATA OVERWRITING WATERMARKS EXCLUDING OPTIONS)

---- becomes
CREATE TABLE `b` (
  `a` AS x + 1,
  PRIMARY KEY (`x`) NOT ENFORCED
)
PARTITIONED BY (`y`)
LIKE `a` (INCLUDING ALL EXCLUDING CONSTRAINTS EXCLUDING PARTITIONS OVERWRITING GENERATED OVERWRITING METADATA OVERWRITING WATERMARKS EXCLUDING OPTIONS)

---- LIKE with commas
CREATE TABLE t (a INT) LIKE b (INCLUDING OPTIONS, EXCLUDING WATERMARKS)

---- error
line 1, column 49: expected INCLUDING, EXCLUDING or OVERWRITING, got ','

---- LIKE with an unknown part
CREATE TABLE t LIKE b (INCLUDING DISTRIBUTION)

---- error
line 1, column 34: expected one of ALL, CONSTRAINTS, GENERATED, METADATA, OPTIONS, PARTITIONS, WATERMARKS, got 'DISTRIBUTION'

---- LIKE with a key that is overwritten
CREATE TABLE t LIKE b (OVERWRITING CONSTRAINTS)

---- error
line 1, column 24: OVERWRITING goes with ALL, GENERATED, METADATA, OPTIONS, WATERMARKS, not with CONSTRAINTS

---- the key first, and a key of a column that says it
CREATE TABLE t (PRIMARY KEY (a) NOT ENFORCED, a INT); CREATE TABLE u (a INT NOT NULL PRIMARY KEY NOT ENFORCED, m BIGINT METADATA)

---- becomes
CREATE TABLE `t` (
  `a` INT,
  PRIMARY KEY (`a`) NOT ENFORCED
);
CREATE TABLE `u` (
  `a` INT NOT NULL,
  `m` BIGINT METADATA FROM 'm',
  PRIMARY KEY (`a`) NOT ENFORCED
)

---- metadata without quotes
CREATE TABLE t (a INT METADATA FROM timestamp)

---- error
line 1, column 37: expected the metadata's name in single quotes, got 'timestamp'

---- a comma too many among columns
CREATE TABLE t (a INT,)

---- error
line 1, column 23: expected the name of a column, got ')'

---- a comma too many among options
CREATE TABLE t (a INT) WITH ('a' = 'b',)

---- error
line 1, column 40: expected an option's name in single quotes, got ')'

---- DISTRIBUTED
CREATE TABLE t (a INT) DISTRIBUTED BY HASH(a) INTO 4 BUCKETS

---- error
line 1, column 24: DISTRIBUTED is not supported: set option 'bucket'

---- ALTER of a watermark
ALTER TABLE t ADD WATERMARK FOR ts AS ts; ALTER TABLE IF EXISTS t MODIFY WATERMARK FOR ts AS ts - INTERVAL '1' HOUR; ALTER TABLE t DROP WATERMARK

---- becomes
ALTER TABLE `t` ADD WATERMARK FOR `ts` AS ts;
ALTER TABLE IF EXISTS `t` MODIFY WATERMARK FOR `ts` AS ts - INTERVAL '1' HOUR;
ALTER TABLE `t` DROP WATERMARK

---- ALTER of a watermark among columns
ALTER TABLE t ADD (a INT, WATERMARK FOR ts AS ts)

---- error
line 1, column 27: a WATERMARK needs a separate statement: ALTER TABLE t ADD WATERMARK FOR ...

---- ALTER of a key
ALTER TABLE t DROP PRIMARY KEY

---- error
line 1, column 20: ALTER TABLE cannot change the PRIMARY KEY: create a new table LIKE this one

---- ALTER VIEW AS
ALTER VIEW v AS SELECT 1

---- error
line 1, column 14: expected RENAME TO; other changes of a view are DROP VIEW and CREATE VIEW, got 'AS'

---- SHOW COLUMNS
SHOW COLUMNS FROM t

---- error
line 1, column 6: SHOW COLUMNS is not supported: use DESCRIBE and the name of the table

---- SHOW of something else
SHOW GRANTS

---- error
line 1, column 6: expected TABLES, VIEWS, PARTITIONS, CREATE TABLE or CREATE VIEW, got 'GRANTS'

---- DESCRIBE HISTORY
DESCRIBE HISTORY t

---- error
line 1, column 10: HISTORY is not supported: use SELECT * FROM t$snapshots, or TableStore.history() in Python

---- DESCRIBE EXTENDED
DESCRIBE EXTENDED t

---- error
line 1, column 10: EXTENDED is not supported: use DESCRIBE, and SELECT * FROM t$options

---- a table that is called extended
DESCRIBE extended; DESCRIBE `extended`

---- becomes
DESCRIBE `extended`;
DESCRIBE `extended`

---- EXPLAIN of a set
EXPLAIN STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; END; EXPLAIN EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END

---- becomes
EXPLAIN EXECUTE STATEMENT SET BEGIN
INSERT INTO `a`
SELECT 1;
INSERT INTO `b`
SELECT 2;
END;
EXPLAIN EXECUTE STATEMENT SET BEGIN
INSERT INTO `a`
SELECT 1;
END

---- EXPLAIN with details
EXPLAIN CHANGELOG_MODE SELECT 1

---- error
line 1, column 9: details of EXPLAIN are not supported: use EXPLAIN and the statement

---- a statement set that is open
EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;

---- error
line 1, column 52: unexpected end of statement: expected INSERT INTO or END

---- USE
USE CATALOG c

---- error
line 1, column 1: USE is not supported: a warehouse is one catalog with one database, which is always in use

---- a setting without quotes
SET execution.runtime-mode = batch

---- error
line 1, column 30: expected the value of 'execution.runtime-mode' in single quotes, got 'batch'

---- CALL by names and by places
CALL sys.create_tag(`table` => 'default.t', tag => 'x', snapshot_id => CAST(10 AS BIGINT));
CALL compact('t', '', 'none', '', '', '', '', 'full');
CALL sys.rollback_to('t', 3);
CALL sys.remove_orphan_files('t', dry_run => true)

---- becomes
CALL sys.`create_tag`(`table` => 'default.t', `tag` => 'x', `snapshot_id` => 10);
CALL sys.`compact`(`table` => 't', `order_strategy` => 'none', `compact_strategy` => 'full');
CALL sys.`rollback_to`(`table` => 't', `snapshot_id` => 3);
CALL sys.`remove_orphan_files`(`table` => 't', `dry_run` => TRUE)
