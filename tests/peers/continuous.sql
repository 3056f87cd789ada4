-- Continuous queries over tables a, b, r, and those of changes, two lines each: the name, [the primary key] and the columns of the table
-- that a query is inserted into, and the query. Without a primary key that table has format debezium-json.

---- Windows, also over late rows
-- tumble: k STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3), c BIGINT, s INT, a INT, m DECIMAL(10, 2)
SELECT k, window_start, window_end, COUNT(*), SUM(v), AVG(v), MIN(d) FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end
-- hop: k STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3), s INT
SELECT k, window_start, window_end, SUM(v) FROM TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '15' SECOND)) GROUP BY k, window_start, window_end
-- cumulate: window_start TIMESTAMP(3), window_end TIMESTAMP(3), s INT, c BIGINT
SELECT window_start, window_end, SUM(v), COUNT(DISTINCT k) FROM TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)) GROUP BY window_start, window_end
-- session: k STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3), c BIGINT
SELECT k, window_start, window_end, COUNT(*) FROM TABLE(SESSION(TABLE a PARTITION BY k, DESCRIPTOR(ts), INTERVAL '4' SECOND)) GROUP BY k, window_start, window_end
-- legacy: k STRING, s TIMESTAMP(3), r TIMESTAMP(3), c BIGINT
SELECT k, TUMBLE_START(ts, INTERVAL '10' SECOND), TUMBLE_ROWTIME(ts, INTERVAL '10' SECOND), COUNT(*) FROM a GROUP BY k, TUMBLE(ts, INTERVAL '10' SECOND)
-- two-windows: window_start TIMESTAMP(3), window_end TIMESTAMP(3), m INT, c BIGINT
SELECT window_start, window_end, MAX(s), COUNT(*) FROM (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) GROUP BY window_start, window_end
-- longer-windows: window_start TIMESTAMP(3), window_end TIMESTAMP(3), s INT, c BIGINT
WITH w AS (SELECT k, window_time AS t, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end, window_time) SELECT window_start, window_end, SUM(s), COUNT(*) FROM TABLE(TUMBLE(TABLE w, DESCRIPTOR(t), INTERVAL '20' SECOND)) GROUP BY window_start, window_end
-- windows-twice: k STRING, s INT
WITH w AS (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) SELECT k, s FROM w UNION ALL SELECT k, s + 1 FROM w
-- windows-with-themselves: k STRING, s INT, o INT, t TIMESTAMP(3)
WITH w AS (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) SELECT x.k, x.s, y.s, x.window_start FROM w AS x JOIN w AS y ON x.window_start = y.window_start AND x.window_end = y.window_end AND x.k <> y.k
-- window-grouping-sets: window_start TIMESTAMP(3), window_end TIMESTAMP(3), k STRING, c BIGINT, s INT
SELECT window_start, window_end, k, COUNT(*), SUM(v) FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, GROUPING SETS ((k), ())
-- window-top-n: window_start TIMESTAMP(3), window_end TIMESTAMP(3), k STRING, s INT, rn BIGINT
SELECT window_start, window_end, k, s, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY s DESC, k) AS rn FROM (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end)) WHERE rn <= 2
-- window-join: id INT, bid INT, s TIMESTAMP(3)
SELECT x.id, y.bid, x.window_start FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-left: id INT, bid INT, s TIMESTAMP(3), e TIMESTAMP(3)
SELECT x.id, y.bid, x.window_start, y.window_end FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x LEFT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-right: id INT, bid INT, s TIMESTAMP(3), e TIMESTAMP(3)
SELECT x.id, y.bid, x.window_start, y.window_end FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x RIGHT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-full: id INT, bid INT, s TIMESTAMP(3), e TIMESTAMP(3)
SELECT x.id, y.bid, x.window_start, y.window_end FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x FULL JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-exists: id INT, k STRING, s TIMESTAMP(3)
SELECT x.id, x.k, x.window_start FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x WHERE EXISTS (SELECT * FROM (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y WHERE x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end)
-- window-join-in: id INT, k STRING, s TIMESTAMP(3)
SELECT x.id, x.k, x.window_start FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x WHERE x.k IN (SELECT bk FROM (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y WHERE x.window_start = y.window_start AND x.window_end = y.window_end)
-- window-join-not-in: id INT, k STRING, s TIMESTAMP(3)
SELECT x.id, x.k, x.window_start FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x WHERE x.k NOT IN (SELECT bk FROM (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y WHERE x.window_start = y.window_start AND x.window_end = y.window_end)
-- window-join-not-exists: id INT, k STRING, s TIMESTAMP(3)
SELECT x.id, x.k, x.window_start FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x WHERE NOT EXISTS (SELECT * FROM (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y WHERE x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end)
-- window-join-of-groups: k STRING, bk STRING, s INT, t INT, e TIMESTAMP(3)
SELECT x.k, y.bk, x.s, y.s, x.window_end FROM (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) x FULL JOIN (SELECT bk, window_start, window_end, SUM(w) AS s FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND)) GROUP BY bk, window_start, window_end) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-of-groups-and-rows: k STRING, s INT, bid INT
SELECT x.k, x.s, y.bid FROM (SELECT k, window_start, window_end, SUM(v) AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end) x LEFT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end
-- window-join-grouped: window_start TIMESTAMP(3), window_end TIMESTAMP(3), c BIGINT, s INT
SELECT window_start, window_end, COUNT(*), SUM(w) FROM (SELECT x.window_start, x.window_end, y.w FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x LEFT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end) GROUP BY window_start, window_end
-- window-join-with-itself: id INT, other INT, e TIMESTAMP(3)
SELECT x.id, y.id, x.window_end FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x LEFT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) y ON x.k = y.k AND x.window_start = y.window_start AND x.window_end = y.window_end AND x.id <> y.id
-- window-join-of-three: id INT, bid INT, cid INT
SELECT x.id, y.bid, z.bid FROM (SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) x JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) y ON x.k = y.bk AND x.window_start = y.window_start AND x.window_end = y.window_end JOIN (SELECT * FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(bts), INTERVAL '10' SECOND))) z ON z.w = x.v AND y.window_start = z.window_start AND y.window_end = z.window_end
-- window-distinct: k STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3)
SELECT DISTINCT k, window_start, window_end FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))
-- window-deduplication: id INT, k STRING, s TIMESTAMP(3)
SELECT id, k, window_start FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, k ORDER BY ts DESC) AS rn FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))) WHERE rn = 1
-- over-range: id INT, s INT, c BIGINT, m DECIMAL(10, 2)
SELECT id, SUM(v) OVER w, COUNT(*) OVER w, MAX(d) OVER w FROM a WINDOW w AS (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW)
-- over-rows: id INT, s INT, a INT, f INT
SELECT id, SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), AVG(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), FIRST_VALUE(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM a
-- over-all: id INT, s INT, c BIGINT, cd BIGINT, l INT
SELECT id, SUM(v) OVER (PARTITION BY k ORDER BY ts), COUNT(v) OVER (PARTITION BY k ORDER BY ts), COUNT(DISTINCT v) OVER (PARTITION BY k ORDER BY ts), LAST_VALUE(v) OVER (PARTITION BY k ORDER BY ts) FROM a
-- over-everything: id INT, s INT
SELECT id, SUM(v) OVER (ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM a WHERE v > 2
-- over-lag: id INT, p INT
SELECT id, v - LAG(v) OVER (PARTITION BY k ORDER BY ts) FROM a
-- over-in-windows: k STRING, window_end TIMESTAMP(3), m INT
WITH o AS (SELECT k, ts, SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM a) SELECT k, window_end, MAX(s) FROM TABLE(TUMBLE(TABLE o, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end

---- Other queries
-- interval-inner: id INT, bid INT, k STRING, bk STRING
SELECT id, bid, k, bk FROM a INNER JOIN b ON a.k = b.bk AND a.ts BETWEEN b.bts - INTERVAL '5' SECOND AND b.bts + INTERVAL '3' SECOND
-- interval-left: id INT, bid INT, k STRING, bk STRING
SELECT id, bid, k, bk FROM a LEFT JOIN b ON a.k = b.bk AND a.ts BETWEEN b.bts - INTERVAL '5' SECOND AND b.bts + INTERVAL '3' SECOND
-- interval-right: id INT, bid INT, k STRING, bk STRING
SELECT id, bid, k, bk FROM a RIGHT JOIN b ON a.k = b.bk AND a.ts BETWEEN b.bts - INTERVAL '5' SECOND AND b.bts + INTERVAL '3' SECOND
-- interval-equal: id INT, bid INT
SELECT id, bid FROM a LEFT JOIN b ON a.k = b.bk AND a.ts = b.bts
-- interval-full: id INT, bid INT, k STRING, bk STRING
SELECT id, bid, k, bk FROM a FULL JOIN b ON a.k = b.bk AND a.ts BETWEEN b.bts - INTERVAL '5' SECOND AND b.bts + INTERVAL '3' SECOND
-- temporal: id INT, k STRING, rate INT
SELECT id, k, rate FROM a LEFT JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = r.rk
-- temporal-inner: id INT, x INT
SELECT id, v * rate FROM a JOIN r FOR SYSTEM_TIME AS OF a.ts ON a.k = r.rk WHERE rate > 1
-- group [k]: k STRING, c BIGINT, s INT, av INT, mi INT, ma INT, cd BIGINT, sd DECIMAL(38, 2)
SELECT k, COUNT(*), SUM(v), AVG(v), MIN(v), MAX(v), COUNT(DISTINCT v), SUM(d) FROM a WHERE k IS NOT NULL GROUP BY k
-- filter-having [k]: k STRING, c BIGINT, s INT
SELECT k, COUNT(*) FILTER (WHERE v > 5), SUM(v) FILTER (WHERE v < 0) FROM a WHERE k IS NOT NULL GROUP BY k HAVING COUNT(*) > 4
-- group-of-groups [c]: c BIGINT, n BIGINT
SELECT c, COUNT(*) FROM (SELECT k, COUNT(*) AS c FROM a GROUP BY k) GROUP BY c
-- distinct: k STRING, v INT
SELECT DISTINCT k, v FROM a
-- first [k]: id INT, k STRING, v INT
SELECT id, k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts ASC) AS rn FROM a) WHERE rn = 1 AND k IS NOT NULL
-- last [k]: id INT, k STRING, v INT
SELECT id, k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS rn FROM a) WHERE rn = 1 AND k IS NOT NULL
-- top-n: id INT, k STRING, v INT, rn BIGINT
SELECT id, k, v, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS rn FROM a) WHERE rn <= 3
-- top-n-without-place: id INT, k STRING, v INT
SELECT id, k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v, id) AS rn FROM a) WHERE rn <= 2
-- limit: id INT, v INT
SELECT id, v FROM a ORDER BY v DESC, id LIMIT 4
-- join: id INT, bid INT
SELECT id, bid FROM a JOIN b ON a.k = b.bk AND a.v = b.w
-- join-left: id INT, bid INT, w INT
SELECT id, bid, w FROM a LEFT JOIN b ON a.k = b.bk AND b.w > 3
-- join-full: id INT, bid INT
SELECT id, bid FROM a FULL JOIN b ON a.k = b.bk AND a.v > 3
-- windows-and-rows [window_start, window_end]: window_start TIMESTAMP(3), window_end TIMESTAMP(3), c BIGINT
SELECT window_start, window_end, COUNT(*) FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) JOIN b ON k = bk GROUP BY window_start, window_end
-- union: k STRING
SELECT k FROM a UNION SELECT bk FROM b
-- intersect: k STRING
SELECT k FROM a INTERSECT SELECT bk FROM b
-- except: k STRING
SELECT bk FROM b EXCEPT SELECT k FROM a WHERE v > 8
-- intersect-all: k STRING
SELECT k FROM a INTERSECT ALL SELECT bk FROM b
-- except-all: k STRING
SELECT k FROM a EXCEPT ALL SELECT bk FROM b
-- rollup: k STRING, v INT, g BIGINT, c BIGINT
SELECT k, v, GROUPING(k, v), COUNT(*) FROM a GROUP BY ROLLUP (k, v)
-- in: id INT
SELECT id FROM a WHERE v IN (SELECT w FROM b)
-- not-exists: id INT
SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.bk = a.k AND b.w = a.v)
-- unnest: id INT, x STRING
SELECT id, x FROM a CROSS JOIN UNNEST(ARRAY[k, 'z']) AS t (x)

---- Queries over rows that change
-- upsert [id]: id INT, k STRING, v INT, d DECIMAL(10, 2)
SELECT * FROM u
-- upsert-filter [id]: id INT, k STRING, v INT
SELECT id, k, v FROM u WHERE v > 3
-- upsert-group [k]: k STRING, c BIGINT, cv BIGINT, s INT, mi INT, ma INT, cd BIGINT, sd DECIMAL(38, 2)
SELECT k, COUNT(*), COUNT(v), SUM(v), MIN(v), MAX(v), COUNT(DISTINCT v), SUM(d) FROM u WHERE k IS NOT NULL GROUP BY k
-- upsert-average [k]: k STRING, a INT, b DECIMAL(38, 6), f BIGINT
SELECT k, AVG(v), AVG(CAST(v AS DECIMAL(10, 2))), COUNT(*) FILTER (WHERE v > 3) FROM u WHERE k IS NOT NULL GROUP BY k HAVING COUNT(*) > 1
-- upsert-all: c BIGINT, s INT, m STRING
SELECT COUNT(*), SUM(v), MAX(k) FROM u
-- upsert-group-of-groups [c]: c BIGINT, n BIGINT, m STRING
SELECT c, COUNT(*), MIN(k) FROM (SELECT k, COUNT(*) AS c FROM u GROUP BY k) GROUP BY c
-- upsert-distinct: k STRING, v INT
SELECT DISTINCT k, v FROM u
-- upsert-top-n [id]: id INT, k STRING, v INT
SELECT id, k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS rn FROM u) WHERE rn <= 2
-- upsert-top-n-with-place: id INT, k STRING, v INT, rn BIGINT
SELECT id, k, v, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v, id) AS rn FROM u) WHERE rn <= 3
-- upsert-limit: id INT, v INT
SELECT id, v FROM u ORDER BY v, id LIMIT 3
-- upsert-of-groups-top-n: k STRING, s INT
SELECT k, s FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY s DESC, k) AS rn FROM (SELECT k, SUM(v) AS s FROM u GROUP BY k)) WHERE rn <= 2
-- join-of-changes: id INT, cid INT, v INT, w INT
SELECT u.id, c.id, u.v, c.v FROM u JOIN c ON u.k = c.k
-- join-of-changes-left: id INT, v INT, cid INT, w INT
SELECT u.id, u.v, c.id, c.v FROM u LEFT JOIN c ON u.id = c.id AND c.v > 2
-- join-of-changes-full: id INT, cid INT, v INT, w INT
SELECT u.id, c.id, u.v, c.v FROM u FULL JOIN c ON u.k = c.k AND u.v = c.v
-- join-of-changes-keys [id]: id INT, v INT, w INT
SELECT u.id, u.v, c.v FROM u JOIN (SELECT id, MAX(v) AS v FROM c GROUP BY id) c ON u.id = c.id
-- join-of-changes-and-groups: id INT, v INT, s INT
SELECT u.id, u.v, g.s FROM u LEFT JOIN (SELECT k, SUM(v) AS s FROM c GROUP BY k) g ON u.k = g.k
-- join-of-changes-and-rows: id INT, x INT, v INT
SELECT u.id, a.id, u.v FROM u JOIN a ON u.k = a.k
-- changes-in: id INT, v INT
SELECT id, v FROM u WHERE k IN (SELECT k FROM c WHERE v > 2)
-- changes-not-in: id INT, v INT
SELECT id, v FROM u WHERE v NOT IN (SELECT v FROM c WHERE c.k = u.k)
-- changes-not-exists: id INT, v INT
SELECT id, v FROM u WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.k = u.k AND c.v = u.v)
-- changes-union: k STRING, v INT
SELECT k, v FROM u UNION SELECT k, v FROM c
-- changes-union-all: k STRING, v INT
SELECT k, v FROM u UNION ALL SELECT k, v FROM c
-- changes-intersect: k STRING
SELECT k FROM u INTERSECT SELECT k FROM c WHERE v > 2
-- changes-except-all: k STRING
SELECT k FROM u EXCEPT ALL SELECT k FROM c
-- changes-rollup: k STRING, id INT, s INT
SELECT k, id, SUM(v) FROM u GROUP BY ROLLUP (k, id)
-- debezium: id INT, k STRING, v INT, d DECIMAL(10, 2)
SELECT * FROM c
-- debezium-group [k]: k STRING, c BIGINT, s INT, mi INT, ma INT, sd DECIMAL(38, 2)
SELECT k, COUNT(*), SUM(v), MIN(v), MAX(v), SUM(d) FROM c WHERE k IS NOT NULL GROUP BY k
-- debezium-top-n: id INT, k STRING, v INT, rn BIGINT
SELECT id, k, v, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS rn FROM c) WHERE rn <= 2
-- canal: id INT, k STRING, v INT, d DECIMAL(10, 2)
SELECT * FROM n
-- canal-group [k]: k STRING, c BIGINT, s INT, mi INT
SELECT k, COUNT(*), SUM(v), MIN(v) FROM n WHERE k IS NOT NULL GROUP BY k
-- maxwell: id INT, k STRING, v INT, d DECIMAL(10, 2)
SELECT * FROM m
-- maxwell-group [k]: k STRING, c BIGINT, s INT, ma INT
SELECT k, COUNT(*), SUM(v), MAX(v) FROM m WHERE k IS NOT NULL GROUP BY k
-- ogg: id INT, k STRING, v INT, d DECIMAL(10, 2)
SELECT * FROM o
-- ogg-join: id INT, v INT, w INT
SELECT o.id, o.v, n.v FROM o LEFT JOIN n ON o.k = n.k AND o.id = n.id
