"""Texts become statements, or an error that says where; the pairs are in the files beside this one."""

from __future__ import annotations

import pickle
import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapshot.errors import InvalidInputError
from tablestore.sql import SqlError, parse
from tablestore.sql.parser.dialect import to_spark
from tablestore.sql.parser.parse import parse_query
from tablestore.sql.parser.statements import CreateTable, Select, Statement
from tests.sql.pairs import Pair, pairs
from tests.sql.rendered import render

ALL = [*pairs("pages.sql"), *pairs("statements.sql"), *pairs("queries.sql")]
TEXTS = [param.values[0].text for param in ALL]


@pytest.mark.parametrize("pair", ALL)
def test_a_text_becomes_what_the_file_says(pair: Pair) -> None:
    if pair.kind == "error":
        with pytest.raises(SqlError) as caught:
            parse(pair.text)
        assert str(caught.value).splitlines()[0] == pair.expected
        return
    statements = parse(pair.text)
    if pair.kind == "spark":
        assert all(isinstance(each, Select) for each in statements)
        assert ";\n".join(to_spark(each.query.tree) for each in statements) == pair.expected
        return
    assert ";\n".join(map(render, statements)) == pair.expected


#: A masked credential is not the credential.
WHOLE = [param for param in ALL if param.values[0].kind == "becomes" and "***" not in param.values[0].expected]


@pytest.mark.parametrize("pair", WHOLE)
def test_what_is_written_reads_back_as_the_same(pair: Pair) -> None:
    assert parse(pair.expected) == tuple(parse(pair.text))


@pytest.mark.parametrize(
    "text",
    [
        "VALUES (1, )", "VALUES (1), ", "VALUES (, 1)", "VALUES ()", "VALUES (1) (2)", "INSERT INTO t VALUES (1,)",
        "SELECT a, FROM t", "SELECT , a FROM t", "SELECT a,, b FROM t", "SELECT f(a,) FROM t",
        "SELECT ARRAY[1,] FROM t", "SELECT MAP['k', 1,] FROM t", "SELECT ROW(1,) FROM t", "SELECT (1,) FROM t",
        "SELECT () FROM t",
        "SELECT CAST(a AS ROW<x INT,>) FROM t", "SELECT CAST(a AS DECIMAL(5,)) FROM t", "SELECT COUNT(DISTINCT) FROM t",
        "SELECT a FROM t,", "SELECT a FROM t, , u", "SELECT a FROM t AS x (b,)", "WITH x (a,) AS (SELECT 1) SELECT 1",
        "SELECT a FROM t GROUP BY", "SELECT COUNT(*) FROM t GROUP BY HAVING COUNT(*) > 1",
        "SELECT a FROM t GROUP BY a,",
        "SELECT a FROM t GROUP BY ROLLUP ()", "SELECT a FROM t GROUP BY GROUPING SETS ((a),)",
        "SELECT a FROM t ORDER BY", "SELECT a FROM t ORDER BY a,", "SELECT a FROM t WHERE a IN ()",
        "SELECT a FROM t WHERE a IN (1,)", "SELECT SUM(a) OVER (PARTITION BY ORDER BY b) FROM t",
        "SELECT SUM(a) OVER (PARTITION BY a, ORDER BY b) FROM t", "SELECT a FROM t JOIN u", "SELECT a FROM t JOIN u ON",
        "SELECT a FROM t LEFT JOIN u", "SELECT a FROM t INNER JOIN u", "SELECT a FROM t JOIN u USING ()",
        "SELECT a FROM t JOIN u USING (a,)", "SELECT a FROM t CROSS JOIN UNNEST(a,) AS u (x)",
        "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY,))",
    ],
)  # fmt: skip
def test_a_list_with_a_missing_item_and_a_join_without_a_condition_are_errors(text: str) -> None:
    with pytest.raises(SqlError):
        parse(text)


def test_the_columns_of_a_window_table_are_not_named_by_its_alias() -> None:
    window = "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY)) AS w"
    assert parse(window)
    with pytest.raises(SqlError, match="names for the columns of a window table are not supported: name them in SELE"):
        parse(f"{window} (b, a)")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(*) FROM t GROUP BY ()", "SELECT a FROM t GROUP BY GROUPING SETS ((a), ())",
        "SELECT a FROM t, u CROSS JOIN v NATURAL JOIN w JOIN x USING (a) LEFT JOIN UNNEST(a) ON TRUE",
        "SELECT f(), COUNT(*), SUM(a) OVER () FROM t WHERE a IN (SELECT 1)", "CREATE TABLE t (a INT) WITH ()",
    ],
)  # fmt: skip
def test_an_empty_list_that_means_something_is_parsed(text: str) -> None:
    assert parse(text)


def test_an_error_shows_the_place() -> None:
    with pytest.raises(SqlError) as caught:
        parse("SELECT 1;\nCREATE TABLE t (\n  a NUMBER,\n  b INT\n)")
    error = caught.value
    assert (error.line, error.column, error.text) == (3, 5, "NUMBER")
    assert str(error).splitlines()[1:] == ["    a NUMBER,", "      ^"]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.column) == (str(error), 3, 5)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (a INT) WITH ('properties.sasl.password' = 'hunter2' 'x')",
        "CREATE TABLE t (a INT) WITH ('properties.sasl.password' = 'hunter2)",
        "CREATE TABLE t (a INT) WITH ('properties.sasl.password' = hunter2)",
        "CREATE TABLE t (a INT) WITH ('properties.sasl.password' 'hunter2')",
        "CREATE TABLE t (a INT) WITH (properties.sasl.password = 'hunter2' x)",
        "CREATE TABLE t (a INT) WITH ('kafka.sasl.password' = 'hunter2', 'kafka.sasl.password' = 'hunter2')",
        "SET 'properties.sasl.password' = 'hunter2' x",
        """CREATE TABLE t (a INT) WITH ('properties.sasl.jaas.config' = 'x.PlainLoginModule required
           username="u" password="hunter2";' x)""",
    ],
)
def test_an_error_shows_no_credential(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value) + caught.value.text + repr(caught.value)


@pytest.mark.parametrize(
    ("interval", "days"),
    [("'2' WEEK", 14), ("'1' MONTH", 31), ("'2' YEARS", 732), ("'1-2' YEAR TO MONTH", 428), ("'0.5' DAY", 0.5)],
)
def test_a_watermark_is_never_less_than_its_interval(interval: str, days: float) -> None:
    (made,) = parse(f"CREATE TABLE t (ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL {interval})")
    assert isinstance(made, CreateTable)
    assert made.watermark is not None
    assert made.watermark.delay_ms == days * 86_400_000


def test_deep_nesting_is_an_error_with_a_place() -> None:
    with pytest.raises(SqlError, match="nested too deeply"):
        parse("SELECT " + "(" * 5000 + "1" + ")" * 5000)


def test_a_long_text_of_many_statements_is_read() -> None:
    assert len(parse("SELECT 'a;b', 1; -- c\n" * 500)) == 500


def tried(text: str) -> tuple[tuple[Statement, ...], SqlError | None]:
    try:
        return parse(text), None
    except SqlError as error:
        return (), error


def has_a_place(error: SqlError, text: str) -> bool:
    lines = text.split("\n")
    return 1 <= error.line <= len(lines) and 1 <= error.column <= len(lines[error.line - 1]) + 1


def reads_back(statements: tuple[Statement, ...]) -> bool:
    """Statements that are written read as the same; a masked credential is not the credential."""
    written = ";\n".join(map(render, statements))
    return "***" in written or tuple(map(render, parse(written))) == tuple(map(render, statements))


def ends_well(text: str) -> bool:
    """Any text is an error with a place in it, or statements that read back as the same."""
    statements, error = tried(text)
    return has_a_place(error, text) if error is not None else reads_back(statements)


@given(st.text(max_size=200))
@example("{# a #}")
@example("/*")
@example("SELECT '")
@example("\x00")
@example("SELECT 1e999999")
@example("SELECT ( MAP ( WHILE INTERVAL ARRAY WHERE")
def test_any_characters_end_well(text: str) -> None:
    assert ends_well(text)


WORDS = sorted({word for text in TEXTS for word in re.findall(r"\w+|[^\w\s]|'[^']*'", text)})


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_any_words_of_sql_end_well(text: str) -> None:
    assert ends_well(text)


@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_damage_ends_well(text: str, chance: random.Random, times: int) -> None:
    """Words are removed, repeated, swapped, cut off."""
    words = re.findall(r"\s+|\w+|'[^']*'|.", text)
    for _ in range(times):
        if not words:
            break
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        move = chance.randrange(5)
        if move == 0:
            del words[at]
        elif move == 1:
            words.insert(at, words[other])
        elif move == 2:
            words[at], words[other] = words[other], words[at]
        elif move == 3:
            words[at] = chance.choice(WORDS)
        else:
            words = words[:at]
    assert ends_well("".join(words))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT 1 + length(builtin.`java_method`('java.lang.System', 'getenv', 'HOME')) FROM t",
        "SELECT * FROM t LATERAL VIEW try_reflect('a', 'b') v",
        "SELECT TRANSFORM (a) USING 'bash' AS (b) FROM t",
        "SELECT a FROM t WHERE a IN (SELECT TRANSFORM (a) USING 'bash' FROM t)",
        "SELECT * FROM IDENTIFIER('csv.`/etc/passwd`')",
    ],
)
def test_no_sql_runs_code_or_reads_other_files(text: str) -> None:
    with pytest.raises(InvalidInputError, match="SQL and definitions must not do"):
        to_spark(parse_query(text).tree)
    assert to_spark(parse_query("SELECT TRANSFORM(a, x -> x + 1) FROM t").tree).startswith("SELECT TRANSFORM(a")
