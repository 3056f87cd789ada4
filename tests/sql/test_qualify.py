"""SELECTs whose tables are joined in WHERE, and the names of columns without one."""

from __future__ import annotations

import pytest
from sqlglot import exp

from tablestore.sql.parser.dialect import to_spark
from tablestore.sql.parser.parse import parse_query
from tablestore.sql.parser.qualify import (
    Source,
    grouping_sets,
    join_by_where,
    join_subqueries,
    output_names,
    qualified,
)

SOURCES = {name: Source(name, (*columns, "x")) for name, columns in {"a": "kn", "b": "jm", "c": "i"}.items()}


def select(text: str) -> exp.Select:
    tree = parse_query(f"SELECT {text}").tree
    assert isinstance(tree, exp.Select)
    return tree


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a, b WHERE a.k = b.j", "a JOIN b ON a.k = b.j"),
        ("a CROSS JOIN b WHERE k = j AND n > 1", "a JOIN b ON k = j WHERE n > 1"),
        ("a, b WHERE a.x < b.x AND (b.x = a.k) AND m = k", "a JOIN b ON a.x < b.x AND b.x = a.k AND m = k"),
        ("a, b, c WHERE a.k = b.j AND b.x = c.x", "a JOIN b ON a.k = b.j JOIN c ON b.x = c.x"),
        ("a, b, c WHERE a.k = c.i AND b.x = c.x", "a CROSS JOIN b JOIN c ON a.k = c.i AND b.x = c.x"),
        ("a, b LEFT JOIN c ON m = i WHERE k = j AND c.x = n", "a JOIN b ON k = j LEFT JOIN c ON m = i WHERE c.x = n"),
        ("a, b", "a CROSS JOIN b"),
        ("a, b WHERE a.k < b.j", "a CROSS JOIN b WHERE a.k < b.j"),
        ("a, b WHERE a.k = 1 OR b.j = a.k", "a CROSS JOIN b WHERE a.k = 1 OR b.j = a.k"),
        ("a, b WHERE k = x", "a CROSS JOIN b WHERE k = x"),
        ("a, b RIGHT JOIN c ON b.m = c.i WHERE a.k = b.j", "a CROSS JOIN b RIGHT JOIN c ON b.m = c.i WHERE a.k = b.j"),
        ("a, b WHERE a.k = (SELECT MAX(b.j))", "a CROSS JOIN b WHERE a.k = (SELECT MAX(b.j))"),
        ("a, other WHERE a.k = other.j", "a CROSS JOIN other WHERE a.k = other.j"),
        ("a, b, other WHERE k = j", "a CROSS JOIN b CROSS JOIN other WHERE k = j"),
        ("a JOIN b ON a.k = b.j WHERE a.n = b.m", "a JOIN b ON a.k = b.j WHERE a.n = b.m"),
    ],
)
def test_equalities_of_where_join_tables_after_a_comma(given: str, expected: str) -> None:
    made = select(f"1 AS one FROM {given}")
    join_by_where(made, SOURCES)
    assert to_spark(made) == f"SELECT 1 AS one FROM {expected}"


@pytest.mark.parametrize(
    ("given", "rows", "on", "rest"),
    [
        ("a.k IN (SELECT j FROM b)", "SELECT j FROM b", ["a.k"], ""),
        ("k IN (SELECT j FROM b UNION SELECT i FROM c)", "SELECT j FROM b UNION SELECT i FROM c", ["k"], ""),
        ("(k, n) IN (SELECT j, MAX(m) FROM b GROUP BY j)", "SELECT j, MAX(m) FROM b GROUP BY j", ["k", "n"], ""),
        ("n > 1 AND (k IN (SELECT j FROM b))", "SELECT j FROM b", ["k"], " WHERE n > 1"),
        ("EXISTS (SELECT 1 FROM b WHERE b.j = a.k AND m > 2)", "SELECT b.j FROM b WHERE m > 2", ["a.k"], ""),
        ("k IN (SELECT j + 1 FROM b WHERE b.m = a.n)", "SELECT j + 1, b.m FROM b", ["k", "a.n"], ""),
        ("EXISTS (SELECT * FROM b WHERE a.n = m + 1 AND (j = a.k))", "SELECT m + 1, j FROM b", ["a.n", "a.k"], ""),
        ("EXISTS (SELECT 1 FROM b AS a WHERE a.j = 1) AND k IN (SELECT j FROM b)", "SELECT j FROM b", ["k"], None),
    ],
)
def test_subqueries_become_joins_with_their_distinct_rows(
    given: str, rows: str, on: list[str], rest: str | None
) -> None:
    made = select(f"*, a.x AS y FROM a WHERE {given}")
    join_subqueries(made, lambda _: True)
    names = ", ".join(f"`_value_{number}`" for number in range(len(on)))
    equal = " AND ".join(f"{column} = `_in_0`.`_value_{number}`" for number, column in enumerate(on))
    rest = " WHERE EXISTS(SELECT 1 FROM b AS a WHERE a.j = 1)" if rest is None else rest
    joined = f"JOIN (SELECT DISTINCT {names} FROM ({rows}) AS _rows({names})) AS `_in_0` ON {equal}{rest}"
    assert to_spark(made) == f"SELECT `a`.*, a.x AS y FROM a {joined}"


def test_not_exists_becomes_a_join_whose_rows_have_no_partner() -> None:
    made = select("k FROM a WHERE n > 1 AND NOT EXISTS (SELECT 1 FROM b WHERE b.j = a.k)")
    join_subqueries(made, lambda _: True)
    distinct = "(SELECT DISTINCT `_value_0` FROM (SELECT b.j FROM b) AS _rows(`_value_0`)) AS `_in_0`"
    kept = "n > 1 AND `_in_0`.`_value_0` IS NULL"
    assert to_spark(made) == f"SELECT k FROM a LEFT JOIN {distinct} ON a.k = `_in_0`.`_value_0` WHERE {kept}"


def test_fields_of_rows_follow_the_column_that_has_them() -> None:
    made = qualified(select("a.k.f, k.f, n.b.c, j.m, B.x.a.k, other.z, other.y.z, a.k FROM a, b, c"), SOURCES)
    expected = "`a`.`k`.f, `a`.`k`.f, `a`.`n`.b.c, `b`.`j`.m, `b`.`x`.a.k, other.z, other.y.z, `a`.`k`"
    assert to_spark(made) == f"SELECT {expected} FROM a CROSS JOIN b CROSS JOIN c"


@pytest.mark.parametrize(
    "given",
    [
        "k NOT IN (SELECT j FROM b)",
        "k IN (SELECT j FROM b) OR n > 1",
        "k + 1 IN (SELECT j FROM b)",
        "k IN (SELECT j FROM b WHERE b.m < a.n)",
        "k IN (SELECT j FROM b WHERE b.m = a.n LIMIT 1)",
        "k IN (WITH w AS (SELECT j FROM b) SELECT j FROM w)",
        "k IN (SELECT * FROM b)",
        "NOT EXISTS (SELECT COUNT(*) FROM b WHERE b.j = a.k)",
        "NOT (EXISTS (SELECT 1 FROM b WHERE b.j = a.k) AND n > 1)",
        "EXISTS (SELECT 1 FROM b WHERE b.j < a.k)",
        "EXISTS (SELECT 1 FROM b WHERE b.j = a.k AND b.m < a.n)",
        "EXISTS (SELECT 1 FROM b JOIN c ON b.m = c.i AND c.x = a.n WHERE b.j = a.k)",
        "EXISTS (SELECT COUNT(*) FROM b WHERE b.j = a.k)",
        "EXISTS (SELECT 1 FROM b WHERE b.j = a.k LIMIT 0)",
    ],
)
def test_other_subqueries_stay(given: str) -> None:
    made = select(f"* FROM a WHERE {given}")
    before = to_spark(made)
    join_subqueries(made, lambda _: True)
    assert to_spark(made) == before
    made = select("* FROM a WHERE k IN (SELECT j FROM b)")
    join_subqueries(made, lambda _: False)
    assert to_spark(made) == "SELECT * FROM a WHERE k IN (SELECT j FROM b)"


def test_not_in_is_false_for_nulls() -> None:
    made = select("k FROM a WHERE a.k NOT IN (SELECT j FROM b WHERE b.m = a.n)")
    join_subqueries(made, lambda _: True)
    names = ["`_value_0`, `_value_1`", "`_value_0`", "`_value_0`"]
    inner = ["j, b.m FROM b", "b.m FROM b WHERE j IS NULL", "b.m FROM b"]
    on = [
        "a.k = `_in_0`.`_value_0` AND a.n = `_in_0`.`_value_1`",
        "a.n = `_in_1`.`_value_0`",
        "a.n = `_in_2`.`_value_0` AND a.k IS NULL",
    ]
    joins = [
        f"LEFT JOIN (SELECT DISTINCT {names[n]} FROM (SELECT {inner[n]}) AS _rows({names[n]})) AS `_in_{n}` ON {on[n]}"
        for n in range(3)
    ]
    kept = " AND ".join(f"`_in_{n}`.`_value_0` IS NULL" for n in range(3))
    assert to_spark(made) == f"SELECT k FROM a {' '.join(joins)} WHERE {kept}"


def test_columns_without_a_name_have_those_of_flink() -> None:
    made = select("k, a.n AS m, COUNT(*), UPPER('x'), 1, (SELECT 1) AS s, CAST(k AS INT) FROM a")
    assert output_names(made) == ("k", "m", "EXPR$2", "EXPR$3", "EXPR$4", "s", "EXPR$6")


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("a, b", []),
        ("()", [""]),
        ("GROUPING SETS ((a, b), a, ())", ["a, b", "a", ""]),
        ("ROLLUP (a, (b, c))", ["a, b, c", "a", ""]),
        ("CUBE (a, b), c", ["a, b, c", "a, c", "b, c", "c"]),
        ("ROLLUP (a), CUBE (b)", ["a, b", "a", "b", ""]),
        ("a, GROUPING SETS ((a, b), (c))", ["a, b", "a, c"]),
        ("GROUPING SETS (ROLLUP (a, b), CUBE (c), (d))", ["a, b", "a", "", "c", "", "d"]),
        ("GROUPING SETS ((a), (a))", ["a", "a"]),
    ],
)
def test_grouping_sets_are_listed(group: str, expected: list[str]) -> None:
    found = grouping_sets(select(f"COUNT(*) FROM t GROUP BY {group}"))
    assert [", ".join(each.name for each in one) for one in found] == expected
