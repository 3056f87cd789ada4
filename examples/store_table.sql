-- A table of the store: snapshots in files, and every change in its log.
--
--   tablestore kafka start
--   tablestore sql -f examples/store_table.sql
--   tablestore tail warehouse/stock --from earliest --no-follow
--   tablestore log warehouse/stock
--
-- What a SELECT gives stands below it, as comments.

SET 'execution.runtime-mode' = 'batch';

CREATE TABLE stock (
  item STRING,
  pieces INT,
  shelf STRING,
  PRIMARY KEY (item) NOT ENFORCED
) WITH (
  'bucket' = '2',
  'log.system' = 'kafka',
  'kafka.bootstrap.servers' = 'localhost:9092',
  'kafka.topic' = 'stock'
);

INSERT INTO stock VALUES ('rice', 8, 'a'), ('tea', 5, 'b'), ('salt', 1, 'a');
INSERT INTO stock VALUES ('tea', 4, 'b');
INSERT INTO stock SELECT UPPER(item), pieces * 10, shelf FROM stock WHERE shelf = 'a';

SELECT * FROM stock ORDER BY item;
-- RICE | 80 | a
-- SALT | 10 | a
-- rice | 8 | a
-- salt | 1 | a
-- tea | 4 | b

SELECT shelf, COUNT(*) AS items, SUM(pieces) AS pieces FROM stock GROUP BY shelf ORDER BY shelf;
-- a | 4 | 99
-- b | 1 | 4
