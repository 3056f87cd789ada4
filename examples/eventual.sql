-- A log that has rows before they are committed, and converges to the table.
--
--   tablestore kafka start
--   tablestore sql -f examples/eventual.sql
--
-- Its readers see rows sooner, and some of them more than once; a streaming SELECT folds them into a true changelog,
-- which keeps the rows of each key in state. Without a reason to hurry leave 'log.consistency' out.

SET 'execution.runtime-mode' = 'batch';

CREATE TABLE meters (
  meter BIGINT,
  reading DOUBLE,
  PRIMARY KEY (meter) NOT ENFORCED
) WITH (
  'log.system' = 'kafka',
  'log.consistency' = 'eventual',
  'kafka.bootstrap.servers' = 'localhost:9092',
  'kafka.topic' = 'meters'
);

INSERT INTO meters VALUES (1, 10.5), (2, 20.5);
INSERT INTO meters VALUES (2, 21.25), (3, 5.0);

SELECT * FROM meters ORDER BY meter;
-- 1 | 10.5
-- 2 | 21.25
-- 3 | 5.0
