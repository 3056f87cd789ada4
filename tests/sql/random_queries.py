"""Random queries over the two tables of `tests.sql.changes`, which DuckDB and a continuous query answer alike."""

from __future__ import annotations

import random


def random_query(chance: random.Random) -> str:
    """Make a query over ``u`` and ``v``: filters, aggregates, unions, joins, IN, EXISTS, queries in queries."""
    kept = ["", " WHERE {}n > 0", " WHERE {}g <> 'b'", " WHERE {0}n IS NULL OR {0}m > 0", " WHERE {}k % 2 = 0"]
    chosen_where = chance.choice(kept)
    where, where_u = chosen_where.format(""), chosen_where.format("u.")
    keys = chance.choice([["g"], ["n % 2"], ["g", "n"], []])
    aggregates = ["COUNT(*)", "COUNT(n)", "SUM(n)", "AVG(n)", "SUM(m)", "AVG(m)", "COUNT(DISTINCT n)", "SUM(DISTINCT n)", "COUNT(DISTINCT g)", "COUNT(*) FILTER (WHERE n > 1)", "MIN(n)", "MAX(n)", "MAX(m)", "MIN(j) FILTER (WHERE n > 0)", "MAX(g)", "COUNT(*) + SUM(n)", "AVG(DISTINCT m)"]  # fmt: skip  # noqa: E501
    chosen = chance.sample(aggregates, chance.randint(1, 3))
    having = chance.choice(["", " HAVING COUNT(*) > 1", " HAVING SUM(n) > 0"]) if keys else ""
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    grouped = f"SELECT {', '.join([*keys, *chosen])} FROM u{where}{group}{having}"
    side = chance.choice(["", "LEFT ", "RIGHT ", "FULL "])
    joined = chance.choice(["TRUE", "u.n > 0", "v.g <> 'b' OR u.n IS NULL"])
    after = "" if joined == "TRUE" else f" WHERE {joined}"
    columns = chance.choice(["u.j = v.k", "u.j = v.j", "u.g = v.g AND u.j = v.j", "u.j = v.k AND u.n < v.n"])
    by_key = f"SELECT COALESCE(u.k, v.k) AS k, u.g, v.g AS h, u.n, v.m FROM u {side}JOIN v ON u.k = v.k{after}"
    outer = chance.choice(["", "LEFT ", "RIGHT ", "FULL "])
    on = chance.choice(["u.j = v.k", "u.j = v.j", "u.g = v.g AND u.j = v.j", "u.j = v.k AND u.n > 0", "u.n = v.n AND v.g <> 'b' AND u.m > 0", "u.k = v.k AND v.n IS NULL"])  # fmt: skip  # noqa: E501
    by_columns = f"SELECT u.k, v.k AS l, u.g, v.n FROM u {outer}JOIN v ON {on}{after}"
    by_inner = f"SELECT u.k, v.k AS l, u.g, v.n FROM u JOIN v ON {columns}{after}"
    by_where = f"SELECT u.k, v.k AS l, u.g, v.n FROM u, v WHERE {columns} AND ({joined})"
    found = chance.choice(["n IN (SELECT n FROM v)", "j IN (SELECT k FROM v WHERE n > 0)", "(g, n) IN (SELECT g, n FROM v)", "n > 0 AND k IN (SELECT j FROM v UNION ALL SELECT k FROM v)", "EXISTS (SELECT 1 FROM v WHERE v.g = u.g)", "EXISTS (SELECT * FROM v AS w WHERE w.j = u.j AND w.n > 0) AND g <> 'b'", "EXISTS (SELECT 1 FROM v WHERE v.g = u.g AND u.n = v.n) AND j IN (SELECT k FROM v)"])  # fmt: skip  # noqa: E501
    order = chance.choice(["n", "n DESC", "m NULLS LAST", "g DESC NULLS FIRST, m", "n % 2 DESC, m DESC"])
    place = chance.choice(["rn <= 2", "rn = 1", "rn < 4 AND rn > 1", "rn BETWEEN 2 AND 3", "3 >= rn"])
    of = chance.choice(["", "PARTITION BY g ", "PARTITION BY n % 2, g "])
    ranked = f"SELECT u.*, ROW_NUMBER() OVER ({of}ORDER BY {order}, k) AS rn FROM u{where}"
    first = f"SELECT k, g, n, m FROM ({ranked}) AS r WHERE {place}"
    return chance.choice(
        [
            grouped,
            grouped,
            first,
            f"SELECT r.*, rn + 1 FROM ({ranked}) AS r WHERE {place}",
            f"SELECT k, n, m FROM u{where} ORDER BY {order}, k LIMIT {chance.choice(['1', '3', '2 OFFSET 1'])}",
            f"SELECT g, COUNT(*), MIN(n), MAX(m) FROM ({first}) AS q GROUP BY g",
            f"SELECT g, n FROM (SELECT g, n, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n) AS rn FROM (SELECT g, n FROM u UNION ALL SELECT g, n FROM v) AS a) AS r WHERE {place}",  # noqa: E501
            f"SELECT g, c FROM (SELECT g, COUNT(*) AS c FROM u{where} GROUP BY g) AS q ORDER BY c DESC, g LIMIT 2",
            f"SELECT c, MIN(s), MAX(s) FROM (SELECT g, COUNT(*) AS c, SUM(n) AS s FROM u{where} GROUP BY g) AS q GROUP BY c",  # noqa: E501
            f"SELECT k, g, n * 2 FROM u{where}",
            f"SELECT g, n FROM u{where}",
            f"SELECT DISTINCT g, n FROM u{where}",
            f"SELECT g, n FROM u{where} UNION SELECT g, n + 1 FROM v",
            f"SELECT g, n FROM u{where} UNION ALL SELECT g, n FROM v",
            by_key,
            by_columns,
            by_columns,
            by_inner,
            by_where,
            f"SELECT k, g, n FROM u WHERE {found}",
            f"SELECT g, COUNT(*), SUM(n), MAX(m) FROM u WHERE {found} GROUP BY g",
            f"SELECT g, COUNT(*), SUM(n), COUNT(DISTINCT h) FROM ({by_key}) AS q GROUP BY g",
            f"SELECT g, COUNT(*), COUNT(DISTINCT n) FROM ({by_columns}) AS q GROUP BY g",
            f"SELECT u.k, u.n, q.c FROM u JOIN (SELECT j, COUNT(*) AS c FROM v GROUP BY j) AS q ON u.k = q.j{where_u}",
            f"SELECT c, COUNT(*), SUM(s) FROM (SELECT g, COUNT(*) AS c, SUM(n) AS s FROM u{where} GROUP BY g) AS q GROUP BY c",  # noqa: E501
            f"WITH q AS (SELECT g, n FROM u{where} UNION ALL SELECT g, n FROM v) SELECT g, COUNT(*), COUNT(DISTINCT n) FROM q GROUP BY g",  # noqa: E501
        ]
    )


def random_relation(chance: random.Random, depth: int) -> str:
    """Make a query with columns ``g``, ``n`` and ``j`` out of queries with the same columns, so many within each other.

    Each gives rows that do not depend on the order of equal rows.
    """
    if depth == 0:
        return f"SELECT g, n, CAST(j AS BIGINT) AS j FROM {chance.choice('uv')}"

    def below(name: str) -> str:
        return f"({random_relation(chance, depth - 1)}) AS {name}"

    condition = chance.choice(["n > 0", "g <> 'b'", "n IS NULL OR j > 2", "j % 2 = 0", "g = 'a' AND n < j"])
    grouped = "CAST(SUM(n) AS BIGINT) AS n, COUNT(*) AS j"
    two = chance.choice([grouped, "MIN(n) AS n, MAX(j) AS j", "MAX(n) AS n, COUNT(DISTINCT j) AS j", "COUNT(n) FILTER (WHERE j > 1) AS n, MIN(j) AS j"])  # fmt: skip  # noqa: E501
    having = chance.choice(["", "", " HAVING COUNT(*) > 1", " HAVING MAX(n) > 0"])
    order = chance.choice(["n, j", "n DESC, j", "j DESC, n DESC", "n DESC NULLS FIRST, j NULLS LAST"])
    place = chance.choice(["rn = 1", "rn <= 2", "rn BETWEEN 2 AND 3"])
    side = chance.choice(["", "LEFT ", "RIGHT ", "FULL "])
    kind = chance.randrange(11)
    if kind == 0:
        return f"SELECT g, n, j FROM {below('q')} WHERE {condition}"
    if kind == 1:
        return f"SELECT CASE WHEN n > 1 THEN 'x' ELSE g END AS g, n - j AS n, COALESCE(j, n, 0) AS j FROM {below('q')}"
    if kind in {2, 3}:
        return f"SELECT g, {two} FROM {below('q')} GROUP BY g{having}"
    if kind == 4:
        return f"SELECT DISTINCT g, n, j FROM {below('q')}"
    if kind == 5:
        return f"SELECT g, n, j FROM {below('a')} UNION{chance.choice(['', ' ALL'])} SELECT g, n, j FROM {below('b')}"
    if kind == 6:
        ranked = f"SELECT g, n, j, ROW_NUMBER() OVER (PARTITION BY g ORDER BY {order}) AS rn FROM {below('q')}"
        return f"SELECT g, n, j FROM ({ranked}) AS r WHERE {place}"
    if kind == 7:
        join, on = chance.choice([(" JOIN", "ON"), (",", "WHERE"), (f" {side}JOIN", "ON")])
        equal = "a.j = b.j" if side and join != "," else "a.j = b.j AND a.g = b.g"
        return f"SELECT COALESCE(a.g, b.g) AS g, a.n, b.j FROM {below('a')}{join} {below('b')} {on} {equal}"
    if kind in {8, 9}:
        found, also = chance.choice([("j IN (SELECT j", ""), ("(g, n) IN (SELECT g, n", ""), ("EXISTS (SELECT 1", "b.g = a.g AND ")])  # fmt: skip  # noqa: E501
        within = f"{found} FROM {below('b')} WHERE {also}b.n > 0)"
        return f"SELECT g, n, j FROM {below('a')} WHERE {within}"
    one, other = (f"(SELECT g, {two} FROM {below('q')} GROUP BY g) AS {name}" for name in "ab")
    return f"SELECT COALESCE(a.g, b.g) AS g, a.n, b.j FROM {one} {side}JOIN {other} ON a.g = b.g"
