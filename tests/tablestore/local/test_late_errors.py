"""Errors that come late in a stream: in any batch but the first, Arrow makes an ``OSError`` of DuckDB's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from snapshot.errors import DataLostError, InvalidInputError, TableStoreError
from tablestore import LocalTable, when_matched, when_not_matched
from tablestore.local import merge, row_changes

COLUMNS = "id int, v string, n int"
KEYS: dict[str, dict[str, Any]] = {"key": {"primary_key": ["id"]}, "no key": {}}
ROWS = {"first": 10, "late": 400_000}
MERGE = [when_matched().update({"n": "source.n"}), when_not_matched().insert({"id": "source.id", "n": "source.n"})]
OWN = "an error of its own"
VERBS: dict[str, Callable[[LocalTable, Any], Any]] = {
    "write": lambda table, rows: table.write(rows),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "overwrite where": lambda table, rows: table.overwrite(rows, "id >= 0"),
    "merge": lambda table, rows: table.merge(rows, "id", MERGE),
}


@pytest.fixture(params=KEYS)
def table(request: pytest.FixtureRequest, make: Callable[..., LocalTable]) -> LocalTable:
    made = make(COLUMNS, **KEYS[request.param])
    made.write([{"id": 1, "v": "a", "n": 1}])
    return made


def numbers(rows: int, text: str = "v") -> str:
    """SQL of so many rows; the last one has no number in ``v``."""
    rows_of = f"SELECT i::INT AS id, if(i = {rows - 1}, 'x', '1') AS v FROM range({rows}) t(i)"
    return f"SELECT id, v, {text} AS n FROM ({rows_of})"


def checked(table: LocalTable, act: Callable[[], Any], error: type[TableStoreError], match: str) -> None:
    """The error is one message, and nothing was written."""
    before = table.to_arrow().sort_by("id")
    with pytest.raises(error, match=match) as told:
        act()
    assert "\n" not in str(told.value)
    text = "".join(traceback.format_exception(told.value))
    assert "During handling of the above" not in text
    assert text.count("Traceback") <= 2
    assert table.to_arrow().sort_by("id").equals(before)


@pytest.mark.parametrize("when", ROWS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_relation_whose_rows_cannot_be_computed(table: LocalTable, verb: str, when: str) -> None:
    relation = duckdb.connect().sql(numbers(ROWS[when], "cast(v AS INT)"))
    match = "^rows: DuckDBPyRelation cannot be read: Conversion Error: .*'x' to INT32.* Nothing was written.$"
    checked(table, lambda: VERBS[verb](table, relation), InvalidInputError, match)


@pytest.mark.parametrize("verb", VERBS)
def test_a_relation_whose_connection_or_table_is_gone(table: LocalTable, verb: str) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE s AS SELECT 1 AS id, 'a' AS v, 2 AS n")
    relation = connection.sql("SELECT * FROM s")
    connection.execute("DROP TABLE s")
    checked(
        table, lambda: VERBS[verb](table, relation), InvalidInputError, "^rows: .* Table with name s does not exist"
    )
    connection.close()
    checked(table, lambda: VERBS[verb](table, relation), InvalidInputError, "^rows: .* already been closed")


@pytest.mark.parametrize("when", ROWS)
def test_a_merge_whose_values_cannot_be_evaluated(table: LocalTable, when: str) -> None:
    relation = duckdb.connect().sql(numbers(ROWS[when]))
    clauses = [when_not_matched().insert({"id": "source.id", "n": "cast(source.v AS INT)"})]
    match = "^merge: DuckDB cannot evaluate an expression: Conversion Error: .* Nothing was written.$"
    checked(table, lambda: table.merge(relation, "id", clauses), InvalidInputError, match)


@pytest.mark.parametrize("when", ROWS)
def test_a_source_that_fails_keeps_its_own_error(table: LocalTable, when: str) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(1 if when == "first" else 8):
            yield pa.RecordBatch.from_pydict({"id": [*range(50_000)], "v": ["x"] * 50_000, "n": [1] * 50_000})
        raise ZeroDivisionError(OWN)

    for verb in VERBS.values():
        with pytest.raises(ZeroDivisionError, match=OWN) as told:
            verb(table, rows())
        assert "During handling" not in "".join(traceback.format_exception(told.value))


def test_a_target_that_fails_late_in_a_merge_keeps_its_own_error(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(COLUMNS, primary_key=["id"])
    table.write(duckdb.connect().sql("SELECT i::INT AS id, '1' AS v, 1 AS n FROM range(400_000) t(i)"))
    real = merge.LocalMerge.matches

    def failing(self: merge.LocalMerge, connection: Any, rows: Iterator[pa.RecordBatch], **more: Any) -> Any:
        def cut() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(rows):
                if number > 1:
                    raise DataLostError(OWN)
                yield batch

        return real(self, connection, cut(), **more)

    monkeypatch.setattr(merge.LocalMerge, "matches", failing)
    relation = duckdb.connect().sql("SELECT i::INT AS id, 5 AS n FROM range(400_000) t(i)")
    checked(table, lambda: table.merge(relation, "id", MERGE), DataLostError, OWN)


class Interrupted:
    """Rows in whose middle Ctrl-C arrives."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["update", "delete"])
def test_ctrl_c_is_not_an_error_of_the_statement(table: LocalTable, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB reports it as an error of the query that it interrupts."""
    monkeypatch.setattr(row_changes, "_one_row", lambda schema: Interrupted())
    monkeypatch.setattr(pa, "table", lambda *given, **named: Interrupted())
    verbs: dict[str, Callable[[], Any]] = {
        "update": lambda: table.update("id = 1", {"n": "n + 1"}),
        "delete": lambda: table.delete("n = '1'"),
    }
    with pytest.raises(KeyboardInterrupt):
        verbs[verb]()
    monkeypatch.undo()
    assert table.to_arrow().to_pylist() == [{"id": 1, "v": "a", "n": 1}]
