-- The datagen connector: rows that are generated, to try a query without any data. It needs no broker.
--
--   tablestore sql -f examples/datagen.sql
--
-- What a SELECT gives stands below it, as comments.

SET 'execution.runtime-mode' = 'batch';

CREATE TEMPORARY TABLE orders (
  order_id BIGINT,
  product  CHAR(1),
  amount   DECIMAL(5, 2),
  rebate   INT,
  is_large AS amount >= 500
) WITH (
  'connector'                = 'datagen',
  'fields.order_id.kind'     = 'sequence',
  'fields.order_id.start'    = '1',
  'fields.order_id.end'      = '1000',
  'fields.amount.min'        = '1',
  'fields.rebate.min'        = '0',
  'fields.rebate.max'        = '9',
  'fields.rebate.null-rate'  = '0.9'
);

SELECT * FROM orders WHERE order_id <= 3 ORDER BY order_id;
-- 1 | 1 | 978.74 | NULL | true
-- 2 | 2 | 385.65 | NULL | false
-- 3 | 7 | 458.83 | NULL | false

SELECT is_large, COUNT(*), COUNT(rebate) FROM orders GROUP BY is_large ORDER BY is_large;
-- false | 528 | 56
-- true | 472 | 44
