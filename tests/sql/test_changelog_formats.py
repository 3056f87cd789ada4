"""Tables of the ``kafka`` connector whose messages are changes, as sources and sinks of SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.formats.test_avro_registry import envelope, sent
from tests.connectors.harness.changelog_messages import message_of
from tests.connectors.harness.schema_registry import basic, schema_registry
from tests.connectors.harness.wire import Record, Wire
from tests.sql.changes import Follower, Row, Side, random_side, run
from tests.sql.test_run import finish, rows

STEP, COUNT = 8, 24
COLUMNS = "k INT, g STRING, n BIGINT, m DECIMAL(6, 2), j INT"
QUERIES = [
    "SELECT g, COUNT(*), SUM(n), AVG(m), COUNT(DISTINCT n) FROM u WHERE k > 0 GROUP BY g HAVING COUNT(*) > 1",
    "SELECT COALESCE(u.k, v.k), u.n, v.m FROM u FULL JOIN v ON u.k = v.k WHERE u.n IS NULL OR u.n <> 3",
    "SELECT g, COUNT(*), SUM(n) FROM w GROUP BY g",
]


@dataclass
class ChangingSide(Side):
    """A table whose messages are changes; a delete of a row that is not there is a tombstone, which changes nothing."""

    format: str = "debezium-json"

    def records(self) -> list[Record]:
        last: dict[int, Row] = {}
        found = []
        for key, values in self.messages:
            before, after = last.pop(key, None), None if values is None else {"k": key, **values}
            if after is not None:
                last[key] = after
            message = None if before is None and after is None else message_of(self.format, before, after)
            found.append(Record(None if message is None else json.dumps(message).encode(), key=str(key).encode()))
        return found


def table(name: str, columns: str, topic: str, **options: str) -> str:
    given = {
        "connector": "kafka", "topic": topic, "properties.bootstrap.servers": "...",
        "scan.startup.mode": "earliest-offset", **{key.replace("_", "."): value for key, value in options.items()},
    }  # fmt: skip
    said = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({said})"


def test_every_micro_batch_gives_what_duckdb_gives(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """With and without a PRIMARY KEY: aggregates, a filter, a join by the keys of both."""
    catalog.sql(f"SET 'tablestore.addresses' = '...={wire.servers}'")
    formats = {"u": "debezium-json", "v": "ogg-json", "w": "canal-json"}
    sides: list[Side] = []
    for number, (name, form) in enumerate(formats.items()):
        side = ChangingSide(name, random_side(name, 11 + number, COUNT).messages, form)
        sides.append(side)
        wire.send(place := wire.make(topic()), side.records())
        key = "" if name == "w" else ", PRIMARY KEY (k) NOT ENFORCED"
        catalog.sql(table(name, COLUMNS + key, place, format=form, maxRowsPerTrigger=str(STEP)))
    follower = Follower(STEP, QUERIES, sides, fail_at=1)
    while follower.batches < COUNT // STEP:
        run(catalog, follower, tmp_path / "checkpoint")
    assert len(rows(catalog, "SELECT * FROM u")) == len(sides[0].folded(COUNT))
    assert len(rows(catalog, "SELECT * FROM w")) == len(sides[2].folded(COUNT))


ONE, TWO, THREE = ({"id": number, "g": "a", "n": number} for number in (1, 2, 3))


def test_changes_go_into_tables_by_key_and_into_topics_of_changes(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """From Debezium's messages into an upsert table, a table of the store and, as a changelog, into topics."""
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    source, upserts, groups, plain = (wire.make(topic()) for _ in range(4))
    item, key = "id INT, g STRING, n BIGINT", "PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(
        "; ".join(
            [
                table("items", f"{item}, {key}", source, format="debezium-json"),
                table("upserts", f"id INT, n BIGINT, {key}", upserts, key_format="json", value_format="json")
                .replace("'kafka'", "'upsert-kafka'").replace("'scan.startup.mode' = 'earliest-offset', ", ""),
                f"CREATE TABLE stored ({item}, {key})",
                table("grouped", "g STRING, s BIGINT, PRIMARY KEY (g) NOT ENFORCED", groups,
                      key_format="json", key_fields="g", value_format="maxwell-json"),
                table("doubled", "n BIGINT", plain, format="canal-json"),
                table("appended", "n BIGINT", plain, format="json"),
            ]
        )
    )  # fmt: skip
    inserts = (
        "EXECUTE STATEMENT SET BEGIN INSERT INTO upserts SELECT id, n FROM items WHERE n < 10; "
        "INSERT INTO stored SELECT * FROM items; INSERT INTO grouped SELECT g, SUM(n) FROM items GROUP BY g; "
        "INSERT INTO doubled SELECT n * 2 FROM items; END"
    )

    def send(*changes: tuple[Row | None, Row | None]) -> None:
        wire.send(source, [Record(json.dumps(message_of("debezium-json", *change)).encode()) for change in changes])
        finish(catalog, inserts)

    send((None, ONE), (None, TWO), (None, THREE))
    assert rows(catalog, "SELECT * FROM grouped") == [("a", 6)]
    send((ONE, ONE | {"n": 20}), (TWO, None), (THREE, THREE | {"n": 4}), (THREE | {"n": 4}, THREE | {"n": 5}))
    assert rows(catalog, "SELECT * FROM upserts") == [(3, 5)]
    assert rows(catalog, "SELECT * FROM stored") == [(1, "a", 20), (3, "a", 5)]
    assert rows(catalog, "SELECT * FROM doubled") == [(10,), (40,)]
    assert wire.pairs(groups) == [
        (b'{"g":"a"}', f'{{"data":{{"g":"a","s":{total}}},"type":"{op}"}}'.encode())
        for total, op in ((6, "insert"), (6, "delete"), (25, "insert"))
    ]
    with pytest.raises(InvalidInputError, match="Table sink 'appended' doesn't support consuming update changes"):
        catalog.sql("INSERT INTO appended SELECT n FROM items")
    with pytest.raises(InvalidInputError, match=r"its PRIMARY KEY \(g\) must contain all columns that identify"):
        catalog.sql("INSERT INTO grouped SELECT g, n FROM items")


def test_what_changes_add_up_to_does_not_depend_on_the_micro_batch(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """Two inserts of one key, an update and a delete: one by one, and all in one micro-batch; with a filter too."""
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    source = wire.make(topic())
    rows_of_one = [ONE | {"n": number} for number in range(6)]
    changes = [
        (None, rows_of_one[1]), (None, rows_of_one[2]), (rows_of_one[2], rows_of_one[3]), (None, rows_of_one[4]),
        (rows_of_one[1], None), (None, TWO), (None, rows_of_one[5]), (TWO, TWO | {"n": 7}),
    ]  # fmt: skip
    wire.send(source, [Record(json.dumps(message_of("debezium-json", *change)).encode()) for change in changes])
    for size in ("1", "3", "100"):
        key = "PRIMARY KEY (id) NOT ENFORCED"
        options = {"format": "debezium-json", "maxRowsPerTrigger": size}
        catalog.sql(table(f"c{size}", f"id INT, g STRING, n BIGINT, {key}", source, **options))
        catalog.sql(
            f"CREATE TABLE sums{size} (id INT, all_n ARRAY<BIGINT>, n BIGINT, m MAP<STRING, BIGINT>, {key}) WITH ("
            "'merge-engine' = 'aggregation', 'fields.all_n.aggregate-function' = 'collect', "
            "'fields.n.aggregate-function' = 'sum', 'fields.m.aggregate-function' = 'merge_map'); "
            f"CREATE TABLE large{size} (id INT, n BIGINT, {key}) WITH ('merge-engine' = 'aggregation', "
            "'fields.n.aggregate-function' = 'sum'); "
            f"CREATE TABLE firsts{size} (id INT, n BIGINT, {key}) WITH ('merge-engine' = 'first-row', "
            "'ignore-delete' = 'true'); "
            f"CREATE TABLE strict{size} (id INT, n BIGINT, {key}) WITH ('merge-engine' = 'first-row')"
        )
        finish(catalog, f"INSERT INTO sums{size} SELECT id, ARRAY[n], n, MAP[CAST(n AS STRING), n] FROM c{size}")
        finish(catalog, f"INSERT INTO large{size} SELECT id, x FROM (SELECT id, n AS x FROM c{size}) AS q WHERE x > 2")
        found = [(key, sorted(values), *rest) for key, values, *rest in rows(catalog, f"SELECT * FROM sums{size}")]
        assert found == [(1, [3, 4, 5], 12, {"3": 3, "4": 4, "5": 5}), (2, [7], 7, {"7": 7})], size
        assert rows(catalog, f"SELECT * FROM large{size}") == [(1, 12), (2, 7)], size
        finish(catalog, f"INSERT INTO firsts{size} SELECT id, n FROM c{size}")
        assert rows(catalog, f"SELECT * FROM firsts{size}") == [(1, 1), (2, 2)], size
        with pytest.raises(InvalidInputError, match="with 'ignore-delete' = 'true', one of a changelog format"):
            catalog.sql(f"INSERT INTO strict{size} SELECT id, n FROM c{size}")


def test_definitions_are_checked_when_they_are_created(catalog: Catalog) -> None:
    at = "id INT, at TIMESTAMP(3) METADATA FROM 'value.source.timestamp'"
    key = "id INT, PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(table("ok", f"{at} VIRTUAL", "t", format="debezium-json"))
    for columns, options, said in [
        (key, {"format": "json"}, "'json' format doesn't support defining a PRIMARY KEY"),
        (at, {"format": "canal-json"}, "Invalid metadata key 'value.source.timestamp'"),
        (
            key,
            {"format": "ogg-json", "ogg-json.schema-include": "true"},
            "unsupported option 'ogg-json.schema-include'",
        ),
        (key, {"format": "debezium-avro-confluent"}, "debezium-avro-confluent.url"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            catalog.sql(table("bad", columns, "t", **options))
    catalog.sql(table("writable", at, "t", format="debezium-json"))
    with pytest.raises(InvalidInputError, match="Declare the column VIRTUAL"):
        catalog.sql("INSERT INTO writable SELECT 1, TIMESTAMP '2024-01-01 00:00:00'")


def test_avro_changes_with_a_schema_registry_are_read_and_written(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """Debezium's messages become rows, which a result that changes is written with; an upsert table has Avro keys."""
    source, copy, upsert = wire.make(topic(), 1), wire.make(topic(), 1), wire.make(topic(), 1)
    key, change = "id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED", "debezium-avro-confluent"
    a, b, c = ({"id": number, "name": name} for number, name in ((1, "a"), (1, "b"), (2, "c")))
    (tmp_path / "user").write_text("me:pw")
    with schema_registry() as registry:
        registry.authorization = basic("me:pw")
        history = [(None, a, "c"), (None, c, "r"), (a, b, "u"), (c, None, "d")]
        messages = [{"before": one, "after": two, "op": op, "source": {"ts": 0}} for one, two, op in history]
        wire.send(source, [Record(each) for each in sent(registry, envelope(), *messages)])
        auth = {"url": registry.url, "basic-auth.user-info": f"file:{tmp_path}/user"}
        changes = {"format": change, **{f"{change}.{name}": value for name, value in auth.items()}}
        catalog.sql(table("people", key, source, **changes))
        catalog.sql(table("copied", key, copy, **changes))
        upserts = {f"{side}.avro-confluent.{name}": value for side in ("key", "value") for name, value in auth.items()}
        catalog.sql(
            f"CREATE TABLE latest ({key}) WITH ('connector' = 'upsert-kafka', 'topic' = '{upsert}', "
            "'properties.bootstrap.servers' = '...', "
            "'key.format' = 'avro-confluent', 'value.format' = 'avro-confluent', "
            + ", ".join(f"'{name}' = '{value}'" for name, value in upserts.items())
            + ")"
        )
        assert rows(catalog, "SELECT * FROM people") == [(1, "b")]
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")
        for target in ("copied", "latest"):
            finish(catalog, f"INSERT INTO {target} SELECT * FROM people")
            assert rows(catalog, f"SELECT * FROM {target}") == [(1, "b")]
        assert {f"{copy}-value", f"{upsert}-key", f"{upsert}-value"} <= set(registry.subjects)
        assert all(value is None or value[:1] == b"\0" for _, value in wire.pairs(upsert))
        registry.authorization = "another"
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        with pytest.raises(Exception, match=r"rejected the request \(401\)") as raised:
            # What the registry has answered is kept: another schema is one that it is asked for.
            catalog.sql(table("other", "n BIGINT", copy, **changes) + "; INSERT INTO other VALUES (3)")
        assert "me:pw" not in str(raised.value)


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (k) NOT ENFORCED"])
def test_an_update_of_a_store_table_is_a_delete_before_an_insert(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], key: str
) -> None:
    """A consumer that applies the messages in order has the new row."""
    name = wire.make(topic())
    catalog.sql(table("told", f"k INT, v STRING{key}", name, format="debezium-json"))
    catalog.sql("CREATE TABLE kept (k INT PRIMARY KEY NOT ENFORCED, v STRING) WITH ('changelog-producer' = 'lookup')")
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    for values in ("(1, 'a'), (2, 'b')", "(1, 'A'), (2, 'B')"):
        catalog.sql(f"INSERT INTO kept VALUES {values}")
        finish(catalog, "INSERT INTO told SELECT * FROM kept")
    messages = [json.loads(each or b"") for each in wire.values(name)]
    for number, old, new in ((1, "a", "A"), (2, "b", "B")):
        told = [(each["op"], (each["before"] or each["after"])["v"]) for each in messages if number in _keys(each)]
        assert told == [("c", old), ("d", old), ("c", new)]


def _keys(message: dict[str, dict[str, int] | None]) -> set[int]:
    return {row["k"] for row in (message["before"], message["after"]) if row is not None}


def test_an_insert_of_bounded_changes_deletes_rows_that_were_there_before(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """As in Flink, in streaming mode; it is complete when it returns, and reads them again when it is run again."""
    item, key, came, went = "id INT, n BIGINT", "PRIMARY KEY (id) NOT ENFORCED", wire.make(topic()), wire.make(topic())
    options = {"format": "debezium-json", "scan_bounded_mode": "latest-offset"}
    catalog.sql(table("came", f"{item}, {key}", came, **options))
    catalog.sql(
        f"CREATE TABLE stored ({item}, {key}); INSERT INTO stored VALUES (1, 1), (2, 1), (3, 1); CREATE TABLE went "
        f"({item}, {key}) WITH ('connector' = 'upsert-kafka', 'topic' = '{went}', 'properties.bootstrap.servers' = "
        "'...', 'key.format' = 'json', 'value.format' = 'json'); CREATE VIEW of_came AS SELECT * FROM came"
    )
    changes = [({"id": 1, "n": 1}, None), ({"id": 2, "n": 1}, {"id": 2, "n": 2}), (None, {"id": 4, "n": 2})]
    wire.send(came, [Record(json.dumps(message_of("debezium-json", *change)).encode()) for change in changes])
    for text in ("INSERT INTO stored SELECT * FROM of_came", "INSERT INTO went SELECT id, n FROM came WHERE id <> 4"):
        assert catalog.sql(text).queries == ()
    assert rows(catalog, "SELECT * FROM stored") == [(2, 2), (3, 1), (4, 2)]
    assert sorted(wire.pairs(went)) == [(b'{"id":1}', None), (b'{"id":2}', b'{"id":2,"n":2}')]
    catalog.sql("INSERT INTO stored VALUES (1, 3); INSERT INTO stored SELECT * FROM came")
    assert rows(catalog, "SELECT * FROM stored") == [(2, 2), (3, 1), (4, 2)]
    assert not list((Path(catalog._scope.checkpoints)).glob("stored-*"))
    with pytest.raises(InvalidInputError, match=r"ORDER BY is not supported in a continuous query: .* 'batch'"):
        catalog.sql("INSERT INTO stored SELECT * FROM came ORDER BY n")
