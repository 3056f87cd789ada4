"""How a query with distinct counts is taken apart, judged by DuckDB: the parts together give what the query gives."""

from __future__ import annotations

import re
from functools import reduce

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from snapshot.errors import InvalidInputError
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.parse import parse_query
from tablestore.sql.queries.distinct_aggregates import MARK, ROWS, counter, expand_distinct, has_distinct
from tablestore.sql.queries.unsupported import check_endless, check_repeatable

SCHEMA = pa.schema([("g", pa.string()), ("h", pa.int64()), ("x", pa.int64()), ("y", pa.int64())])
ROWS_OF_T = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.sampled_from([1, 2, None]),
        st.sampled_from([0, 1, 2, None]),
        st.sampled_from([0, 1, None]),
    ),
    max_size=12,
)
QUERIES = [
    "SELECT g, COUNT(*), COUNT(DISTINCT x) FROM t GROUP BY g",
    "SELECT COUNT(DISTINCT x), g FROM t WHERE y > 0 GROUP BY g, h",
    "SELECT g, h, COUNT(DISTINCT x), COUNT(DISTINCT y), COUNT(DISTINCT x, y), SUM(x), AVG(y) FROM t GROUP BY g, h",
    "SELECT UPPER(g) AS u, MIN(x), MAX(x + y), COUNT(DISTINCT x + y) AS d FROM t GROUP BY UPPER(g)",
    "SELECT COUNT(*) + COUNT(DISTINCT x) * 2, g || '!' FROM t GROUP BY g",
    "SELECT COUNT(1), COUNT(DISTINCT x) FROM t",
    "SELECT g, SUM(DISTINCT x), AVG(DISTINCT y), MIN(DISTINCT x), COUNT(DISTINCT x) FROM t GROUP BY g",
    "SELECT COUNT(*) FILTER (WHERE y > 0), COUNT(DISTINCT x) FILTER (WHERE y = 0), SUM(x) FILTER (WHERE h = 1) FROM t",
    "SELECT g, VAR_POP(x), COUNT_IF(x > 0), COUNT(DISTINCT y), BOOL_OR(x > 0) FILTER (WHERE h > 1) FROM t GROUP BY g",
    "SELECT q.g, COUNT(DISTINCT q.x), SUM(q.x) FROM (SELECT g, x FROM t WHERE x > 0) AS q GROUP BY q.g",
]


def select_of(text: str) -> exp.Select:
    tree = parse_query(text).tree
    assert isinstance(tree, exp.Select)
    return tree


def said(tree: exp.Expr) -> str:
    return tree.sql(dialect="duckdb")


@pytest.mark.parametrize("text", QUERIES)
@given(rows=ROWS_OF_T)
def test_the_parts_give_what_the_query_gives(text: str, rows: list[tuple[str | None, int, int, int]]) -> None:
    parts = expand_distinct(select_of(text))
    with duckdb.connect() as db:
        t = pa.table([pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA)], schema=SCHEMA) if rows else SCHEMA.empty_table()  # fmt: skip  # noqa: B905, E501
        db.register("t", t)
        db.execute(f"CREATE TABLE rows AS {said(parts.inner)}")
        numbers = range(len(parts.distinct))
        values = [name for names in parts.distinct for name in names]
        nulls = [f"NULL AS {name}" for name in values]
        marks = [f"1::BIGINT AS {MARK}", *(f"NULL::BIGINT AS {counter(n)}" for n in numbers)]
        plain = [*parts.keys, *parts.plain, *nulls, *marks]
        branches = [f"SELECT {', '.join(plain)} FROM rows"]
        for number, names in enumerate(parts.distinct):
            own = [*parts.keys, *(f"NULL AS {name}" for name in parts.plain)]
            own += [*(name if name in names else f"NULL AS {name}" for name in values), f"NULL AS {MARK}"]
            own += [f"{1 if n == number else 'NULL'} AS {counter(n)}" for n in numbers]
            there = " AND ".join(f"{name} IS NOT NULL" for name in names)
            distinct = ", ".join([*parts.keys, *names])
            branches.append(f"SELECT {', '.join(own)} FROM (SELECT DISTINCT {distinct} FROM rows WHERE {there})")
        db.execute(f"CREATE TABLE {ROWS} AS {' UNION ALL '.join(branches)}")
        # DuckDB counts pairs that hold a NULL, Spark and Flink do not.
        pairs = "COUNT(DISTINCT CASE WHEN x IS NOT NULL AND y IS NOT NULL THEN (x, y) END)"
        # DuckDB's COUNT_IF of nothing but NULLs is NULL, that of Spark 0.
        theirs = {"COUNT(DISTINCT (x, y))": pairs, "COUNT_IF(x > 0)": "COUNT(CASE WHEN x > 0 THEN 1 END)"}
        asked = reduce(lambda sql, name: sql.replace(name, theirs[name]), theirs, said(select_of(text)))
        expected = db.sql(asked).fetchall()
        assert sorted(db.sql(said(parts.outer)).fetchall(), key=repr) == sorted(expected, key=repr)


def test_columns_keep_their_names() -> None:
    parts = expand_distinct(select_of("SELECT g, COUNT(*) AS pv, COUNT(DISTINCT x) FROM t GROUP BY g"))
    assert [each.alias for each in parts.outer.expressions] == ["g", "pv", "EXPR$2"]
    assert has_distinct(select_of("SELECT COUNT(DISTINCT x) FROM t"))
    assert not has_distinct(select_of("SELECT COUNT(x) FROM t"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT g, x, COUNT(DISTINCT y) FROM t GROUP BY g", "'x' is neither in GROUP BY nor in an aggregate"),
        ("SELECT g, STDDEV(DISTINCT x) FROM t GROUP BY g", "STDDEV.* of distinct values COUNT, SUM and AVG are"),
        ("SELECT g, LISTAGG(x) WITHIN GROUP (ORDER BY y), COUNT(DISTINCT x) FROM t GROUP BY g", "separate query"),
        ("SELECT g, COUNT(DISTINCT x) FROM t GROUP BY 1", "name the column instead"),
    ],
)
def test_what_would_be_wrong_is_refused(text: str, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        expand_distinct(select_of(text))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "SELECT a FROM t ORDER BY a",
            "column 17: ORDER BY is not supported in a continuous query: an unbounded result",
        ),
        ("SELECT a FROM t LIMIT 3", "column 17: LIMIT"),
        ("SELECT a FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY a) = 1", "QUALIFY is not supported"),
        ("SELECT DISTINCT ON (a) b FROM t", "DISTINCT ON"),
        ("SELECT a, UUID() FROM t", "column 11: UUID over rows that change"),
    ],
)
def test_what_a_continuous_query_cannot_answer_is_refused_with_its_place(text: str, match: str) -> None:
    query = parse_query(text)
    check = check_repeatable if "UUID" in text else check_endless
    with pytest.raises(RefusedError) as caught:
        check(query.tree)
    assert re.search(match, str(placed(caught.value, query)))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE b IN (1, 2)",
        "SELECT a, COUNT(*) FROM t GROUP BY a HAVING COUNT(*) > 1",
        "SELECT DISTINCT a FROM t",
        "SELECT a FROM t AS x JOIN t AS y ON x.a = y.a",
    ],
)
def test_what_it_can_is_let_pass(text: str) -> None:
    check_endless(parse_query(text).tree)
    check_repeatable(parse_query(text).tree)
