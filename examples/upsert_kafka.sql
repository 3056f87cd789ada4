-- The upsert-kafka connector: a topic is a table, its key the primary key, and a null value a delete.
--
--   tablestore kafka start
--   tablestore sql -f examples/upsert_kafka.sql
--
-- What a SELECT gives stands below it, as comments.

SET 'execution.runtime-mode' = 'batch';

CREATE TABLE users (
  user_id BIGINT,
  name    STRING,
  city    STRING,
  PRIMARY KEY (user_id) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'users',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format' = 'json',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO users VALUES (1, 'Ann', 'Bern'), (2, 'Bob', 'Ulm'), (3, 'Cem', 'Köln');
INSERT INTO users VALUES (2, 'Bob', 'Wien');

SELECT * FROM users ORDER BY user_id;
-- 1 | Ann | Bern
-- 2 | Bob | Wien
-- 3 | Cem | Köln

-- The same messages, one by one.
CREATE TABLE user_messages (
  k_user_id BIGINT,
  name STRING,
  city STRING,
  at_offset BIGINT METADATA FROM 'offset' VIRTUAL
) WITH (
  'connector' = 'kafka',
  'topic' = 'users',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'json',
  'key.fields' = 'k_user_id',
  'key.fields-prefix' = 'k_',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

SELECT k_user_id, city FROM user_messages WHERE k_user_id = 2 ORDER BY at_offset;
-- 2 | Ulm
-- 2 | Wien

-- An updating result has its place here: each new count replaces the one before.
CREATE TABLE users_per_city (
  city STRING,
  n BIGINT,
  PRIMARY KEY (city) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'users_per_city',
  'properties.bootstrap.servers' = 'localhost:9092',
  'key.format' = 'avro',
  'value.format' = 'avro'
);

INSERT INTO users_per_city SELECT city, COUNT(*) FROM users GROUP BY city;

SELECT city, n FROM users_per_city ORDER BY city;
-- Bern | 1
-- Köln | 1
-- Wien | 1
