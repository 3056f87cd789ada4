"""A table read without Spark: the rows of each snapshot, and its changes as they become visible."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, InvalidInputError, NotFoundError, TableReplacedError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.evolution import AddColumn, DropColumn, RenameColumn
from snapshot.schema.json_types import arrow_columns, sql_columns
from snapshot.schema.system_columns import SEQ
from snapshot.staging.stage import change_file_schema
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.local import tail, threads
from tablestore.local.threads import read_splits
from tablestore.maintenance.change_tags import make_tag
from tablestore.maintenance.compact import compact
from tablestore.write.writer import Writer
from tests.harness.local_writes import Change, fold_into, make_table, publisher_of, rows_of, run_here, write
from tests.harness.waiting import PATIENCE_SECONDS

COLUMNS = (
    StructType()
    .add("id", "long", nullable=False)
    .add("name", "string")
    .add("price", "double")
    .add("small", "float")
    .add("day", "date")
    .add("at", "timestamp")
    .add("place", StructType().add("city", "string").add("zip code", "integer"))
    .add("region", "string")
)
CITIES = ("Bern", "Ulm", None)


def row(number: int, version: int) -> dict[str, Any]:
    odd = number % 7
    return {
        "id": number,
        "name": None if odd == 0 else f"n{number * (version + 1)}",
        "price": float("nan") if odd == 1 else float("inf") if odd == 2 else number / 4 - version,
        "small": None if odd == 3 else float("nan") if odd == 4 else number / 8,
        "day": dt.date(2020, 1, 1) + dt.timedelta(days=number),
        "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number),
        "place": None if odd == 5 else {"city": CITIES[number % 3], "zip code": number},
        "region": f"r{number % 3}",
    }


def put(writer: Writer, rows: list[dict[str, Any]], kind: RowKind = RowKind.UPDATE_AFTER) -> None:
    spec = writer._table.spec
    more = [{KIND: int(kind), SEQ: n} if spec.has_key else {} for n in range(len(rows))]
    schema = change_file_schema(spec) if spec.has_key else spec.arrow
    batch = pa.RecordBatch.from_pylist([{**r, **m} for r, m in zip(rows, more, strict=True)], schema=schema)
    assert writer.write(lambda stager: stager.stage([batch], 0), None)


@pytest.fixture(scope="module", params=["key", "key, partitions", "append"])
def written(request, tmp_path_factory) -> tuple[TableContext, list[dict[int, dict[str, Any]]]]:
    """A table with compacted and changed rows, and the rows of each snapshot by its id."""
    path = str(tmp_path_factory.mktemp("local") / "t")
    has_key, partitions = request.param != "append", ["region"] if "," in request.param else []
    keys = ["id", "region"] if partitions else ["id"]
    options = {"bucket": 3, "compaction.auto": "false"} if has_key else {}
    table = create_drop.create(
        TableDefinition(path, COLUMNS, primary_key=keys if has_key else [], partition_by=partitions, options=options)
    )
    writer, now, states = Writer(table, None), {}, [{}]

    def step(numbers: range, version: int) -> None:
        put(writer, [row(number, version) for number in numbers])
        now.update({number: row(number, version) for number in numbers})
        states.append(dict(now))

    step(range(400), 0)
    if has_key:
        compact(table, run_here)
        while table.files.latest() >= len(states):
            states.append(dict(now))
        step(range(100, 200), 1)
        put(writer, [row(number, 9) for number in range(150, 250)], RowKind.DELETE)
        for number in range(150, 250):
            del now[number]
        states.append(dict(now))
    step(range(400, 450), 2)
    return table, states


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(each, default=str) for each in rows)


def test_the_rows_of_every_snapshot_are_there(written) -> None:
    table, states = written
    local = open_local(table.path)
    assert local.schema == table.spec.arrow
    for snapshot, rows in enumerate(states):
        found = local.to_arrow(snapshot=snapshot)
        assert found.schema == local.schema
        assert comparable(found.to_pylist()) == comparable(list(rows.values()))
        assert local.count(snapshot=snapshot) == len(rows)
    newest = local.snapshots()[0]
    assert newest.id == len(states) - 1
    assert local.count(snapshot=newest.time + dt.timedelta(minutes=1)) == len(states[-1])
    assert local.to_arrow(["price", "id"]).column_names == ["price", "id"]
    assert sum(batch.num_rows for batch in local.to_batches(["region"])) == len(states[-1])


def test_a_snapshot_is_chosen_by_the_arguments_that_spark_has_too(written) -> None:
    table, states = written
    local = open_local(table.path)
    at = local.snapshots()[1]
    local.tags.create("spring", at.id)
    try:
        for point in (
            {"tag": "spring"},
            {"timestamp": at.timestamp_ms},
            {"timestamp": at.time},
            {"snapshot": "spring"},
            {"snapshot": np.int64(at.id)},
        ):
            rows = states[at.id]
            assert comparable(local.scan(**point).read_all().to_pylist()) == comparable(list(rows.values()))
            for read in (local.to_arrow, local.to_pandas, local.to_polars, local.to_duckdb):
                assert len(read(columns=["id"], **point)) == len(rows)
            assert sum(batch.num_rows for batch in local.to_batches(**point)) == local.count(**point) == len(rows)
            if local.primary_key:
                key = {"id": 420, "region": "r0"} if len(local.primary_key) > 1 else 420
                assert local.get(key) is not None
                assert local.get(key, **point) is None
    finally:
        local.tags.delete("spring")
    with pytest.raises(NotFoundError, match="nothing"):
        local.scan(tag="nothing")
    with pytest.raises(InvalidInputError, match="exclude each other"):
        local.scan(tag="a", snapshot=1)
    with pytest.raises(NotFoundError, match=r"at that time; the oldest is 0, of \d{4}-\d\d-\d\d .*\+00:00\.$"):
        local.scan(timestamp="2004-01-01")


FILTERS = (
    "id = 17",
    "id BETWEEN 90 AND 210 AND name LIKE '%5%'",
    "ID in (1, 2, 160, 420) or name is null",
    "price > 40",
    "NOT price > 40",
    "small <= 2.5",
    "place.city = 'Ulm' AND place.\"zip code\" > 100",
    "place IS NULL",
    "day >= DATE '2020-05-01' AND \"at\" < TIMESTAMPTZ '2020-01-10 00:00:00+00'",
    "\"at\" >= '2020-01-12T00:00:00Z'",
    "region = 'r1' AND length(name) = 3",
    "coalesce(name, 'none') = 'none' AND id > 100",
    "TRUE",
)


@pytest.mark.parametrize("text", FILTERS)
def test_filters_keep_what_duckdb_keeps_of_the_whole(written, text: str) -> None:
    table, states = written
    local = open_local(table.path)
    whole = pa.Table.from_pylist(list(states[-1].values()), schema=local.schema)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        expected = connection.from_arrow(whole).filter(text).to_arrow_table().cast(whole.schema).to_pylist()
    assert comparable(local.to_arrow(filter=text).to_pylist()) == comparable(expected)
    assert local.count(text) == len(expected)
    assert sorted(local.to_arrow(["id"], text).column("id").to_pylist()) == sorted(each["id"] for each in expected)


def test_a_relation_reads_its_snapshot_each_time_it_is_asked(written) -> None:
    table, states = written
    local = open_local(table.path)
    with duckdb.connect() as connection:
        relation = local.to_duckdb(connection, columns=["region", "id"], filter="id < 100")
        for _ in range(2):
            found = relation.aggregate("region, count(*) AS n, sum(id)::BIGINT AS s", "region").order("region")
            ids = [number for number in states[-1] if number < 100]
            expected = [
                (f"r{n}", len(mine), sum(mine)) for n in range(3) for mine in [[each for each in ids if each % 3 == n]]
            ]
            assert found.fetchall() == expected
        both = connection.sql("SELECT count(*) FROM relation AS a JOIN relation AS b USING (id)")
        assert both.fetchall() == [(len(ids),)]
    assert local.to_duckdb(snapshot=0).fetchall() == []
    assert local.to_duckdb(columns=["id"]).limit(3).fetchall() != []


def test_what_is_wrong_is_named(written, tmp_path: Path) -> None:
    local = open_local(written[0].path)
    for text, match in [
        ("price >", "expected a condition"),
        ("id = 1) OR (TRUE", "expected a condition"),
        ("nothing = 1", "there is no column 'nothing'"),
        ("place.nothing = 1", "DuckDB rejects it"),
        ("id = 'x'", "DuckDB rejects it"),
        ("sum(id) > 1", "an aggregate cannot stand"),
        ("list_contains([id + 1 for id in [1, 2]], id)", "a list comprehension cannot stand"),
        ("id IN (SELECT 1)", "a query cannot stand"),
        ("id >", "a part of it is missing"),
        (5, "expected a condition in DuckDB's SQL, .* as text; got a int"),
        ("upper(id, 1) = 2", "arguments"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            local.to_batches(filter=text)
    with pytest.raises(InvalidInputError, match="Could not convert string"):
        local.to_arrow(filter="CAST(name AS INTEGER) = 1")
    with pytest.raises(InvalidInputError, match="columns: expected some of"):
        local.to_arrow(["id", "id"])
    with pytest.raises(InvalidInputError, match=r"expected some of .* got \['nothing'\]"):
        local.to_arrow("nothing")
    assert local.to_arrow("id").column_names == ["id"]
    with pytest.raises(InvalidInputError, match="timestamp: expected a datetime, ISO-8601 text or milliseconds"):
        local.to_arrow(timestamp=dt.date(2030, 1, 1))
    with pytest.raises(InvalidInputError, match="limit: expected a number of snapshots"):
        local.snapshots(-1)
    with pytest.raises(NotFoundError, match="there is no snapshot 99"):
        local.to_arrow(snapshot=99)
    with pytest.raises(NotFoundError, match="missing"):
        local.count(snapshot="missing")
    with pytest.raises(NotFoundError, match=r"there is no table .* Create one with create_local"):
        open_local(tmp_path / "none")
    with pytest.raises(NotFoundError, match="99"):
        local.changes(0, 99)
    with pytest.raises(InvalidInputError, match="older one first"):
        local.changes(1, 0)
    with pytest.raises(InvalidInputError, match="expected one of snapshots"):
        local.inspect("nothing")
    with pytest.raises(InvalidInputError, match="needs option 'snapshot'"):
        local.tail(scan_mode="from-snapshot")
    with pytest.raises(InvalidInputError, match="is for streams of Spark"):
        local.tail(scan_mode="from-snapshot-full", snapshot=0)
    files = written[0].files
    layout = files.layout(files.latest())
    paths = [files.storage.path(f.path) for f in layout.base] + [files.log.storage.path(f.path) for f in layout.changes]
    first = Path(paths[0])
    moved = first.rename(tmp_path / "lost.parquet")
    try:
        with pytest.raises(DataLostError):
            local.to_arrow()
    finally:
        moved.rename(first)


def test_a_reader_that_stops_early_leaves_no_thread_behind() -> None:
    class Endless:
        def read(self) -> Iterator[pa.RecordBatch]:
            while True:
                yield pa.RecordBatch.from_pylist([{"a": 1}])

    class Failing:
        def read(self) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist([{"a": 1}])
            msg = "gone"
            raise DataLostError(msg)

    threads = set(threading.enumerate())
    batches = read_splits([Endless(), Endless()], 2)
    next(batches)
    batches.close()
    with pytest.raises(DataLostError, match="gone"):
        list(read_splits([Endless(), Failing()], 2))
    left = set(threading.enumerate()) - threads
    assert not [each for each in left if each.name.startswith("tablestore-read")]


TAILED = {
    "json": {},
    "arrow": {"log.format": "arrow"},
    "debezium": {"log.format": "debezium-json", "changelog-producer": "lookup"},
    "eventual": {"log.consistency": "eventual"},
    "append": {},
    "no log": {},
}
FIRST: list[Change] = [(n, f"a{n}") for n in range(20)]
SECOND: list[Change] = [(3, None), (4, "b"), (30, "new")]
THIRD: list[Change] = [(5, "c"), (30, None)]


def folded(batches: list[pa.RecordBatch]) -> tuple[dict[int, str], list[int]]:
    """Fold changes in the order in which they came; give the snapshots in the same order."""
    rows = [each for batch in batches for each in batch.to_pylist()]
    changes = [(r["id"], None if r["_change_type"] == "delete" else r["v"]) for r in rows if r["_change_type"] != "update_preimage"]  # fmt: skip  # noqa: E501
    return fold_into({}, changes), [r["_commit_version"] for r in rows]


def assert_tags_name_snapshots(table: TableContext) -> None:
    local = open_local(table.path)
    make_tag(table, "first", 1)
    tailed = folded(list(local.tail(tag="first", follow=False)))
    assert tailed[1]
    assert tailed == folded(list(local.changes("first", 2)))
    assert local.count(snapshot="first") == local.count(snapshot=1) == len(FIRST)
    assert local.inspect("snapshots").column("snapshot_id").to_pylist() == [2, 1, 0]


@pytest.mark.parametrize("kind", TAILED)
def test_changes_come_whole_in_order_and_only_when_they_are_visible(
    kind: str, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    options = {name.replace(".", "__").replace("-", "_"): value for name, value in TAILED[kind].items()}
    path = tmp_path / "t"
    if kind == "no log":
        table = create_drop.create(
            TableDefinition(
                str(path), StructType().add("id", "long").add("v", "string"), primary_key=["id"], options={"bucket": 2}
            )
        )
        publisher = None
    else:
        table = make_table(path, kafka.bootstrap_servers, topic(), key=kind != "append", **options)
        publisher = publisher_of(table)
    writer = Writer(table, publisher)
    steps = [FIRST, [(40, "x")], [(41, "y")]] if kind == "append" else [FIRST, SECOND, THIRD]
    for step in steps[:2]:
        write(writer, step)
    local = open_local(path)
    expected = rows_of(table)

    batches = list(local.tail(scan_mode="earliest", follow=False))
    rows, order = folded(batches)
    assert rows == expected
    assert order == sorted(order)
    assert set(order) == {1, 2}
    assert batches[0].schema == local.feed_schema
    assert folded(list(local.changes(1)))[1] == [2] * len([1 for each in order if each == 2])
    assert folded(list(local.tail(scan_mode="full", follow=False)))[0] == expected
    assert list(local.tail(follow=False)) == []
    assert_tags_name_snapshots(table)

    got: list[pa.RecordBatch] = []
    ready = threading.Event()

    def follow() -> None:
        for batch in open_local(path).tail(snapshot=2, poll_seconds=0.02):
            got.append(batch)
            if 3 in batch.column("_commit_version").to_pylist():
                return
            ready.set()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    assert ready.wait(PATIENCE_SECONDS)
    if publisher is not None and kind != "eventual":
        # Committed, and not published: nobody sees it until somebody publishes it.
        write(Writer(table, None), steps[2])
        assert list(local.tail(snapshot=3, follow=False)) == []
        reader.join(0.3)
        assert reader.is_alive()
        Writer(table, publisher).recover_once()
    else:
        write(writer, steps[2])
    reader.join(PATIENCE_SECONDS)
    assert not reader.is_alive()
    assert folded(batches + [b for b in got if 3 in b.column("_commit_version").to_pylist()])[0] == rows_of(table)
    if publisher is not None:
        publisher.discard()


def test_columns_that_were_changed_are_those_of_now(tmp_path: Path) -> None:
    """One handle, from before; rows and changes from before and after, fields of structs included."""
    table = create_drop.create(TableDefinition(str(tmp_path / "t"), COLUMNS, primary_key=["id"], options={"bucket": 2}))
    local = open_local(table.path)
    put(Writer(table, None), [row(number, 0) for number in range(50)])
    ulm = sum(each["place"] is not None and each["place"]["city"] == "Ulm" for each in (row(n, 0) for n in range(50)))
    assert local.count("place.city = 'Ulm'") == ulm
    changes = [RenameColumn("place.city", "town"), RenameColumn("price", "cost"), DropColumn("small")]
    alter(table, [*changes, AddColumn("note", StringType())], publish=lambda _: None)
    now = table.refreshed()
    later = [row(number, 1) for number in range(50, 60)]
    for each in later:
        each["cost"], each["note"] = each.pop("price"), "new"
        each["place"] = each["place"] and {"town": "Ulm", "zip code": 1}
        del each["small"]
    put(Writer(now, None), later)

    assert local.count("place.town = 'Ulm' AND id < 50") == ulm
    found = local.to_arrow(["id", "note"], "place.town = 'Ulm' AND id >= 50")
    assert found.column_names == ["id", "note"]
    assert set(found.column("note").to_pylist()) == {"new"}
    assert local.schema.names == ["id", "name", "cost", "day", "at", "place", "region", "note"]
    assert local.count("cost > 5") == local.to_arrow(filter="cost > 5").num_rows > 0
    tailed = [each for batch in local.tail(scan_mode="earliest", follow=False) for each in batch.to_pylist()]
    assert len(tailed) == 60
    assert {each["place"]["town"] for each in tailed if each["place"]} == {"Bern", "Ulm", None}
    with pytest.raises(InvalidInputError, match="'small'"):
        local.count("small > 1")


@pytest.mark.parametrize("primary_key", ["id", []], ids=["key", "append"])
def test_a_struct_is_read_from_files_that_have_none_of_its_fields(tmp_path: Path, primary_key: str | list[str]) -> None:
    """Its fields were replaced one by one; a later file has the dropped fields, too, one of them widened."""
    columns = (
        "id int not null, place struct<a: smallint>, list array<struct<a: struct<b: int>>>, "
        "names map<int, struct<a: int>>"
    )
    local = create_local(tmp_path / "t", columns, primary_key=primary_key, options={"compaction.auto": False})
    whole = {"place": {"a": 1}, "list": [{"a": {"b": 1}}, None], "names": [(1, {"a": 1}), (2, None)]}
    local.write([{"id": 1, **whole}, {"id": 2, "place": None, "list": None, "names": None}])
    for place in ("place", "list.element", "names.value"):
        local.alter.add_column(f"{place}.z", "string")
    local.alter.widen_column("place.a", "int")
    both = {"place": {"a": 1 << 20, "z": "x"}, "list": [{"a": {"b": 1}, "z": "x"}], "names": [(1, {"a": 1, "z": "x"})]}
    local.write([{"id": 3, **both}])
    for place in ("place", "list.element", "names.value"):
        local.alter.drop_column(f"{place}.a")
    local.write([{"id": 4, "place": {"z": "y"}, "list": [], "names": [(3, {"z": None})]}])

    expected = [
        {"id": 1, "place": {"z": None}, "list": [{"z": None}, None], "names": [(1, {"z": None}), (2, None)]},
        {"id": 2, "place": None, "list": None, "names": None},
        {"id": 3, "place": {"z": "x"}, "list": [{"z": "x"}], "names": [(1, {"z": "x"})]},
        {"id": 4, "place": {"z": "y"}, "list": [], "names": [(3, {"z": None})]},
    ]
    places = [each["place"] for each in expected]
    for _ in range(2):
        assert local.to_arrow().sort_by("id").to_pylist() == expected
        assert local.to_arrow(filter="place IS NOT NULL AND id < 3").to_pylist() == expected[:1]
        assert local.count("place.z = 'x'") == 1
        assert not primary_key or [local.get(number) for number in range(1, 5)] == expected
        assert [each["place"] for batch in local.changes(0) for each in batch.to_pylist()] == places
        local.compact()


def test_filters_read_elements_of_columns_that_are_called_as_sql_calls_them(tmp_path: Path) -> None:
    columns = "id int not null, list array<int>, `array` array<array<int>>, s struct<list: array<int>>"
    local = create_local(tmp_path / "t", columns, primary_key="id")
    local.write([{"id": n, "list": [n], "array": [[n]], "s": {"list": [n]}} for n in (1, 2)])
    for text in ('"list"[1] = 2', '"array"[1][1] = 2', "s.list[1] = 2", "ARRAY[id, 0][1] = 2"):
        assert local.to_arrow(["id"], text).to_pylist() == [{"id": 2}]
    with pytest.raises(InvalidInputError, match=r"'LIST\[1\]' is a type; write the name of a column in double quotes"):
        local.to_arrow(filter="list[1] = 2")


@pytest.mark.parametrize("verb", ["drop", "add", "move"])
def test_a_filter_reads_a_field_wherever_it_is_in_its_file(tmp_path: Path, verb: str) -> None:
    """The struct is not among the columns that are read."""
    columns = "id int not null, place struct<a: int, b: int, c: int>"
    local = create_local(tmp_path / "t", columns, primary_key="id", options={"compaction.auto": False})
    local.write([{"id": 1, "place": {"a": None, "b": 2, "c": 3}}, {"id": 2, "place": {"a": 1, "b": None, "c": 3}}])
    match verb:
        case "drop":
            local.alter.drop_column("place.a")
        case "add":
            local.alter.add_column("place.d", "int", first=True)
        case "move":
            local.alter.move_column("place.b", first=True)
    for _ in range(2):
        assert local.to_arrow(["id"], "place.b IS NOT NULL").to_pylist() == [{"id": 1}]
        assert local.count("place.b IS NULL") == 1
        local.compact()
    local.delete("place.b IS NULL")
    assert local.to_arrow(["id"]).to_pylist() == [{"id": 1}]


def test_a_table_that_is_made_anew_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_LOOK_SECONDS", 0.0)

    def make() -> TableContext:
        return create_drop.create(TableDefinition(str(tmp_path / "t"), COLUMNS, primary_key=["id"]))

    lifecycle_table = make()
    following = open_local(tmp_path / "t").tail(poll_seconds=0)
    create_drop.drop(lifecycle_table)
    make()
    with pytest.raises(TableReplacedError, match="dropped and created again"):
        next(following)


def test_a_read_that_outlives_its_table_has_no_row_of_the_next(tmp_path: Path) -> None:
    """All changes of both are in the base table, whose versions have the same numbers."""

    def make(value: str) -> None:
        with create_local(tmp_path / "t", "id bigint, v string", primary_key=["id"], options={"bucket": 2}) as table:
            table.write([{"id": n, "v": value} for n in range(10)])
            table.compact()

    make("old")
    old = open_local(tmp_path / "t")
    batches = old.to_batches()
    create_drop.drop(old._handle.table)
    make("new")
    with pytest.raises(TableReplacedError, match="dropped and created again"):
        next(batches)


def test_neither_spark_nor_java_is_needed(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> None:
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic())
    publisher = publisher_of(table)
    write(Writer(table, publisher), FIRST)
    publisher.discard()
    text = f"""
import sys, tablestore
table = tablestore.open_local({table.path!r})
assert table.count() == 20 and len(table.to_arrow()) == 20 and "sqlglot" not in sys.modules
assert table.to_arrow(filter="id < 5").num_rows == 5
assert table.to_duckdb().aggregate("count(*)").fetchall() == [(20,)]
assert sum(batch.num_rows for batch in table.tail(scan_mode="earliest", follow=False)) == 20
assert len(table.snapshots()) == 2
keys = table.to_arrow(filter="id = 1").select(list(table.primary_key))
table.merge(keys, list(table.primary_key), [tablestore.when_matched().delete()])
table.update("id = 2", {{"id": "id + 100"}})
assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == [0, *range(3, 20), 102]
assert table.get(keys.to_pylist()[0]) is None
print(sorted(name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")))
"""
    nowhere = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", text], env=nowhere, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # fmt: skip  # noqa: E501
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


def test_public_names_are_not_hidden_by_the_modules_of_their_name() -> None:
    text = "import tablestore.session, tablestore; from tablestore import session; assert callable(session), session; assert session is tablestore.session; import sys; assert callable(sys.modules['tablestore.session'].session)"  # noqa: E501
    ran = subprocess.run([sys.executable, "-c", text], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # fmt: skip  # noqa: E501
    assert ran.returncode == 0, ran.stderr


def test_the_schema_is_the_one_that_spark_gives() -> None:
    inner = StructType().add("x", "decimal(20,3)").add("y", "timestamp_ntz", nullable=False)
    nested = (
        StructType()
        .add("a", ArrayType(MapType(StringType(), inner, valueContainsNull=False)), metadata={"comment": "é"})
        .add("b", "boolean", nullable=False)
        .add("t", "byte")
        .add("s", "short")
        .add("d", "decimal(38,18)")
        .add("e", "decimal")
        .add("raw", "binary")
        .add("c", "string collate UNICODE")
    )
    for schema in (COLUMNS, nested):
        found = arrow_columns(schema.json())
        expected = to_arrow_schema(schema, timezone="UTC")
        assert found.equals(expected, check_metadata=True)
    assert sql_columns(nested.json())[0] == ("a", "array<map<string,struct<x:decimal(20,3),y:timestamp_ntz>>>", True)
    with pytest.raises(ValueError, match="day to second"):
        arrow_columns(StructType().add("i", "interval day to second").json())


def test_a_reader_that_waits_while_the_last_split_ends_does_not_wait_any_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_LOOK_SECONDS", PATIENCE_SECONDS)

    class EndsLate:
        def read(self) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"id": [1]})
            time.sleep(0.5)

    begun = time.monotonic()
    assert [batch.num_rows for batch in read_splits([EndsLate(), EndsLate()], 2)] == [1, 1]
    assert time.monotonic() - begun < PATIENCE_SECONDS


def test_the_delta_history_of_a_base_table_says_where_the_history_is(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id bigint", primary_key="id", options={"compaction.auto": "false"})
    for number in (1, 2):
        table.write([{"id": number}])
    assert table.compact() is not None
    notes = [version["userMetadata"] for version in DeltaTable(table.path).history()]
    assert [note.partition(".")[0] for note in notes] == ["Rows as of snapshot 2", "Rows as of snapshot 0"]
    assert all("TableStore.history()" in note for note in notes)
