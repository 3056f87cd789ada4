-- Row formats: the same rows as JSON, Avro and CSV, and lines of text.
--
--   tablestore kafka start
--   tablestore sql -f examples/formats.sql
--
-- What a SELECT gives stands below it, as comments.

SET 'execution.runtime-mode' = 'batch';

CREATE TABLE as_json (id BIGINT, name STRING, score DOUBLE, day DATE) WITH (
  'connector' = 'kafka',
  'topic' = 'as_json',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'json',
  'json.ignore-parse-errors' = 'true'
);

CREATE TABLE as_avro (id BIGINT, name STRING, score DOUBLE, day DATE) WITH (
  'connector' = 'kafka',
  'topic' = 'as_avro',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'avro'
);

CREATE TABLE as_csv (id BIGINT, name STRING, score DOUBLE, day DATE) WITH (
  'connector' = 'kafka',
  'topic' = 'as_csv',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'csv',
  'csv.field-delimiter' = ';'
);

INSERT INTO as_json VALUES (1, 'rice; "white"', 1.5, DATE '2026-01-02'), (2, NULL, -0.25, NULL);
INSERT INTO as_avro SELECT * FROM as_json;
INSERT INTO as_csv SELECT id, COALESCE(name, 'none'), score, day FROM as_avro;

SELECT * FROM as_avro ORDER BY id;
-- 1 | rice; "white" | 1.5 | 2026-01-02
-- 2 | NULL | -0.25 | NULL

SELECT * FROM as_csv ORDER BY id;
-- 1 | rice; "white" | 1.5 | 2026-01-02
-- 2 | none | -0.25 | NULL

-- What is in the messages.
CREATE TABLE csv_lines (line STRING) WITH (
  'connector' = 'kafka',
  'topic' = 'as_csv',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode' = 'earliest-offset',
  'format' = 'raw'
);

SELECT line FROM csv_lines ORDER BY line;
-- 1;"rice; ""white""";1.5;"2026-01-02"
-- 2;none;-0.25;
