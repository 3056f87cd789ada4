-- The kafka connector: each message is a row, and each row a message.
--
--   tablestore kafka start
--   tablestore sql -f examples/kafka_connector.sql
--
-- What a SELECT gives stands below it, as comments.

SET 'execution.runtime-mode' = 'batch';
SET 'table.local-time-zone' = 'UTC';

CREATE TABLE orders_source (
  order_id   BIGINT,
  product    STRING,
  amount     DECIMAL(10, 2),
  created_at TIMESTAMP(3)
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'orders_source',
  'properties.bootstrap.servers' = 'localhost:9092',
  'properties.group.id'          = 'orders',
  'scan.startup.mode'            = 'earliest-offset',
  'format'                       = 'json'
);

CREATE TABLE order_events_sink (
  order_id   BIGINT,
  product    STRING,
  amount     DECIMAL(10, 2),
  created_at TIMESTAMP(3)
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'order_events',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode'            = 'earliest-offset',
  'format'                       = 'json'
);

INSERT INTO orders_source VALUES
  (1, 'rice', 2.50, TIMESTAMP '2026-01-02 03:04:05.678'),
  (2, 'tea', 0, TIMESTAMP '2026-01-02 03:04:06'),
  (3, 'salt', 1.20, TIMESTAMP '2026-01-02 03:04:07');

INSERT INTO order_events_sink
SELECT order_id, product, amount, created_at
FROM orders_source
WHERE amount > 0;

SELECT * FROM order_events_sink ORDER BY order_id;
-- 1 | rice | 2.50 | 2026-01-02 03:04:05.678
-- 3 | salt | 1.20 | 2026-01-02 03:04:07

-- A key beside the value, and what the broker knows of a message.
CREATE TABLE keyed_events (
  user_id  BIGINT,
  payload  STRING,
  at_partition INT METADATA FROM 'partition' VIRTUAL,
  at_offset BIGINT METADATA FROM 'offset' VIRTUAL,
  double_id AS user_id * 2
) WITH (
  'connector'                    = 'kafka',
  'topic'                        = 'keyed_topic',
  'properties.bootstrap.servers' = 'localhost:9092',
  'scan.startup.mode'            = 'earliest-offset',
  'key.format'                   = 'json',
  'key.fields'                   = 'user_id',
  'value.format'                 = 'json',
  'value.fields-include'         = 'EXCEPT_KEY'
);

INSERT INTO keyed_events VALUES (5, 'x');
INSERT INTO keyed_events VALUES (5, 'y');

SELECT user_id, payload, at_partition, at_offset, double_id FROM keyed_events ORDER BY at_offset;
-- 5 | x | 0 | 0 | 10
-- 5 | y | 0 | 1 | 10
