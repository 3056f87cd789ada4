"""What INSERT hands to tables: updates to those that merge rows, rows in the order of the statement, times."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from snapshot.errors import InvalidInputError
from tablestore.cli import app
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import shuffle_partitions
from tests.sql.test_run import BATCH, ONCE, finish, rows


def source(catalog: Catalog, topic: str) -> None:
    """Make a table `s` over a topic."""
    catalog.sql(
        f"CREATE TABLE s (k INT, r STRING, v INT) WITH ('connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset')"
    )


def message(k: int, r: str, v: int | None) -> Record:
    return Record(json.dumps({"k": k, "r": r, "v": v}).encode())


AGGREGATED = """
CREATE TABLE agg (k INT, total BIGINT, named BIGINT, all_of ARRAY<BIGINT>, last BIGINT, PRIMARY KEY (k) NOT ENFORCED)
WITH ('merge-engine' = 'aggregation', 'fields.total.aggregate-function' = 'sum',
    'fields.named.aggregate-function' = 'count', 'fields.all_of.aggregate-function' = 'collect')
"""
GROUPED = """
CREATE TABLE part (k INT, total BIGINT, at BIGINT, PRIMARY KEY (k) NOT ENFORCED)
WITH ('merge-engine' = 'partial-update', 'fields.at.sequence-group' = 'total',
    'fields.total.aggregate-function' = 'sum')
"""


def test_a_table_that_adds_rows_up_takes_back_what_updates_replace(
    catalog: Catalog, spark: SparkSession, wire: Wire, topic: Callable[[], str]
) -> None:
    name = wire.make(topic())
    source(catalog, name)
    catalog.sql(f"{AGGREGATED}; {GROUPED}; {ONCE}")
    into_agg = "INSERT INTO agg SELECT k, SUM(v), SUM(v), ARRAY(SUM(v)), SUM(v) FROM s GROUP BY k"
    into_part = "INSERT INTO part SELECT k, SUM(v), COUNT(*) FROM s GROUP BY k"
    dice, sent = random.Random(3), Counter[int]()
    with shuffle_partitions(spark, 1):
        for number in range(4):
            for _ in range(6):
                k, v = dice.randrange(3), dice.randrange(1, 9)
                sent[k] += v
                wire.send(name, [message(k, "x", v)])
            finish(catalog, f"EXECUTE STATEMENT SET BEGIN {into_agg}; {into_part}; END")
            expected = sorted(sent.items())
            found = rows(catalog, "SELECT k, total, named, all_of, last FROM agg")
            assert found == [(k, v, 1, [v], v) for k, v in expected], f"run {number}"
            assert [row[:2] for row in rows(catalog, "SELECT k, total FROM part")] == expected, f"run {number}"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("'fields.m.aggregate-function' = 'max'", "'max', which does not support retraction"),
        ("'fields.m.aggregate-function' = 'sum', 'aggregation.remove-record-on-delete' = 'true'", "removes the row"),
    ],
)
def test_a_table_that_cannot_take_rows_back_refuses_updates(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], options: str, why: str
) -> None:
    source(catalog, wire.make(topic()))
    catalog.sql(
        "CREATE TABLE t (k INT, m BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
        f"WITH ('merge-engine' = 'aggregation', {options}); {ONCE}"
    )
    with pytest.raises(InvalidInputError, match=f"doesn't support consuming update changes.*{why}"):
        catalog.sql("INSERT INTO t SELECT k, SUM(v) FROM s GROUP BY k")
    finish(catalog, "INSERT INTO t SELECT k, v FROM s")


def test_a_table_of_first_rows_takes_rows_that_are_added(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """Of a row that changes, which one is the first would depend on the micro-batches."""
    name = wire.make(topic())
    source(catalog, name)
    catalog.sql(
        "CREATE TABLE t (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('merge-engine' = 'first-row', "
        f"'ignore-delete' = 'true'); {ONCE}"
    )
    with pytest.raises(InvalidInputError, match=r"doesn't support consuming update changes.*the first row of each key"):
        catalog.sql("INSERT INTO t SELECT k, SUM(v) FROM s GROUP BY k")
    wire.send(name, [message(1, "x", 3), message(1, "x", 4)])
    finish(catalog, "INSERT INTO t SELECT k, v FROM s")
    assert rows(catalog, "SELECT * FROM t") == [(1, 3)]


def test_tables_that_keep_the_last_value_take_updates_as_upserts(
    catalog: Catalog, spark: SparkSession, wire: Wire, topic: Callable[[], str]
) -> None:
    name = wire.make(topic())
    source(catalog, name)
    catalog.sql(
        "CREATE TABLE t (k INT, m BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
        f"WITH ('merge-engine' = 'partial-update'); {ONCE}"
    )
    with shuffle_partitions(spark, 1):
        for v in (10, 20):
            wire.send(name, [message(1, "x", v)])
            finish(catalog, "INSERT INTO t (k, m) SELECT k, SUM(v) FROM s GROUP BY k")
    assert rows(catalog, "SELECT * FROM t") == [(1, 30, None)]


def test_rows_of_a_statement_arrive_in_its_order(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    name = wire.make(topic())
    source(catalog, name)
    values = [*range(40)]
    random.Random(1).shuffle(values)
    catalog.sql(f"{BATCH}; INSERT INTO s VALUES {', '.join(f'({v}, CAST(NULL AS STRING), 0)' for v in values)}")
    assert [json.loads(value)["k"] for value in wire.values(name)] == values
    catalog.sql("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '4')")
    catalog.sql(f"INSERT INTO t VALUES {', '.join(f'({v})' for v in values)}")
    catalog.sql("INSERT INTO s SELECT k, 'x', 1 FROM t ORDER BY k DESC")
    assert [json.loads(value)["k"] for value in wire.values(name)][40:] == sorted(values, reverse=True)


def test_the_epoch_is_no_time_of_a_message(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    name = wire.make(topic())
    catalog.sql(
        "CREATE TABLE e (v INT, at TIMESTAMP_LTZ(3) METADATA FROM 'timestamp') WITH ('connector' = 'kafka', 'format' = "
        f"'json', 'topic' = '{name}', 'properties.bootstrap.servers' = '...'); "
        f"{BATCH}; SET 'table.local-time-zone' = 'UTC'"
    )
    insert = "INSERT INTO e VALUES (1, CAST(TIMESTAMP '{}' AS TIMESTAMP_LTZ(3)))"
    catalog.sql(insert.format("1970-01-01 00:00:00.001"))
    for number, text in ((0, "1970-01-01 00:00:00"), (-1, "1969-12-31 23:59:59.999")):
        with pytest.raises(Exception, match=f"expected a time after 1970-01-01.*got {number} milliseconds"):
            catalog.sql(insert.format(text))
    (record,) = wire.read(name)
    assert record.timestamp == 1


def test_values_are_inserted_exactly_once_without_a_checkpoint_of_their_own(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    name = wire.make(topic())
    catalog.sql(
        f"CREATE TABLE once (v INT) WITH ('connector' = 'kafka', 'format' = 'json', 'topic' = '{name}', "
        "'properties.bootstrap.servers' = '...', 'sink.delivery-guarantee' = 'exactly-once', "
        f"'sink.transactional-id-prefix' = '{name}'); {BATCH}; INSERT INTO once VALUES (1), (2)"
    )
    assert wire.values(name) == [b'{"v":1}', b'{"v":2}']
    assert not list((tmp_path / "warehouse").rglob("kafka-staged/*/*")), "staged rows are left"


@pytest.mark.parametrize(
    ("options", "statement", "message"),
    [
        ("'sink.partitioner' = 'no.such.Class'", "INSERT INTO t VALUES (1)", "no.such.Class"),
        (
            "'scan.startup.mode' = 'group-offsets', 'properties.group.id' = 'g', "
            "'properties.auto.offset.reset' = 'none'",
            "SELECT * FROM t",
            "has no usable offset",
        ),
    ],
)
def test_the_command_line_tells_what_a_source_or_sink_refuses_in_one_line(
    spark: SparkSession,
    wire: Wire,
    topic: Callable[[], str],
    tmp_path: Path,
    options: str,
    statement: str,
    message: str,
) -> None:
    made = (
        f"CREATE TABLE t (v INT) WITH ('connector' = 'kafka', 'format' = 'json', 'topic' = '{wire.make(topic())}', "
        f"'properties.bootstrap.servers' = '{wire.servers}', {options})"
    )
    batch = ["--set", "execution.runtime-mode=batch"]
    command = ["sql", "-w", str(tmp_path / "w"), *batch, "-e", f"{made}; {statement}"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code != 0
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
    assert "PYTHON_" not in done.output


def test_insert_overwrite_replaces_the_partitions_that_the_table_says(catalog: Catalog) -> None:
    made = "CREATE TABLE {} (a INT, p INT, q INT) PARTITIONED BY (p, q) WITH ('dynamic-partition-overwrite' = '{}')"
    catalog.sql(f"{BATCH}; {made.format('dynamic', 'true')}; {made.format('fixed', 'false')}")
    for name in ("dynamic", "fixed"):
        catalog.sql(f"INSERT INTO {name} VALUES (1, 0, 0), (2, 0, 1), (3, 1, 0)")
    nothing = "SELECT a, q FROM dynamic WHERE a < 0"
    catalog.sql(f"INSERT OVERWRITE dynamic PARTITION (p = 0) {nothing}")
    assert len(rows(catalog, "SELECT * FROM dynamic")) == 3
    catalog.sql(f"INSERT OVERWRITE fixed PARTITION (p = 0) {nothing}")
    assert rows(catalog, "SELECT * FROM fixed") == [(3, 1, 0)]
    catalog.sql("INSERT OVERWRITE fixed PARTITION (p = 1) SELECT 4, 1")
    assert rows(catalog, "SELECT * FROM fixed") == [(4, 1, 1)]
    catalog.sql("INSERT OVERWRITE fixed SELECT 5, 0, 0")
    assert rows(catalog, "SELECT * FROM fixed") == [(5, 0, 0)]
    hint = "/*+ OPTIONS('dynamic-partition-overwrite' = '{}') */"
    catalog.sql(f"INSERT OVERWRITE fixed {hint.format('true')} SELECT 6, 1, 0")
    assert rows(catalog, "SELECT * FROM fixed") == [(5, 0, 0), (6, 1, 0)]
    catalog.sql(f"INSERT OVERWRITE dynamic {hint.format('False')} PARTITION (p = 0) SELECT 7, 7")
    assert rows(catalog, "SELECT * FROM dynamic") == [(3, 1, 0), (7, 0, 7)]
    with pytest.raises(InvalidInputError, match="'dynamic-partition-overwrite': expected 'true' or 'false'"):
        catalog.sql(f"INSERT OVERWRITE fixed {hint.format('maybe')} SELECT 6, 1, 0")
    with pytest.raises(InvalidInputError, match="INSERT OVERWRITE 'fixed': option 'bucket' of a hint: a store"):
        catalog.sql("INSERT OVERWRITE fixed /*+ OPTIONS('bucket' = '2') */ SELECT 6, 1, 0")
    catalog.sql("SET 'table.dynamic-table-options.enabled' = 'false'")
    with pytest.raises(InvalidInputError, match="hint OPTIONS is allowed only while"):
        catalog.sql(f"INSERT OVERWRITE fixed {hint.format('true')} SELECT 6, 1, 0")


def test_products_of_decimals_are_rounded_the_same_whether_written_at_once_or_one_by_one(catalog: Catalog) -> None:
    table = (
        "CREATE TABLE {} (k INT, d DECIMAL(10, 1), PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('merge-engine' = 'aggregation', 'fields.d.aggregate-function' = 'product')"
    )
    catalog.sql(f"{BATCH}; {table.format('at_once')}; {table.format('one_by_one')}")
    factors = ["0.5", "0.5", "0.5", "7.7", "1.1"]
    catalog.sql(f"INSERT INTO at_once VALUES {', '.join(f'(1, CAST({x} AS DECIMAL(10, 1)))' for x in factors)}")
    for factor in factors:
        catalog.sql(f"INSERT INTO one_by_one VALUES (1, CAST({factor} AS DECIMAL(10, 1)))")
    found: list[Any] = [rows(catalog, f"SELECT d FROM {name}") for name in ("at_once", "one_by_one")]
    assert found[0] == found[1]


def test_literals_and_elements_are_those_of_flink(catalog: Catalog) -> None:
    catalog.sql(f"{BATCH}; CREATE TABLE r (a INT, b ROW<x INT, y STRING>, m MAP<STRING, INT>, l ARRAY<INT>, y BYTES)")
    catalog.sql("INSERT INTO r VALUES (1, ROW(5, 'five'), MAP['k', 1], ARRAY[10, 20], X'C0FFEE')")
    found = rows(catalog, "SELECT b.x, b.y, m['k'], m['z'], l[1], l[2], l[3], MAP[1, 'x'][1], y FROM r")
    assert found == [(5, "five", 1, None, 10, 20, None, "x", b"\xc0\xff\xee")]
    with pytest.raises(InvalidInputError, match=r"column 'b' is ROW<`x` INT, `y` STRING>"):
        catalog.sql("INSERT INTO r VALUES (1, ROW(5), MAP['k', 1], ARRAY[10], X'00')")


def test_rows_are_inserted_into_the_topics_that_they_name(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    one, two = wire.make(topic()), wire.make(topic())
    catalog.sql(
        f"CREATE TABLE many (k INT, t STRING METADATA FROM 'topic') WITH ('connector' = 'kafka', 'format' = 'json', "
        f"'topic' = '{one};{two}', 'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset')"
    )
    catalog.sql(f"INSERT INTO many VALUES (1, '{one}'), (2, '{two}'), (3, '{one}')")
    assert [wire.values(each) for each in (one, two)] == [[b'{"k":1}', b'{"k":3}'], [b'{"k":2}']]
    assert rows(catalog, "SELECT k, t FROM many") == sorted([(1, one), (2, two), (3, one)])
    with pytest.raises(InvalidInputError, match="only headers, header-list and timestamp can be written"):
        catalog.sql(f"INSERT INTO many /*+ OPTIONS('topic' = '{one}') */ VALUES (1, '{one}')")


def test_upserts_of_several_topics_are_one_table(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    one, two = wire.make(topic()), wire.make(topic())
    catalog.sql(
        "CREATE TABLE shards (k INT, v INT, t STRING METADATA FROM 'topic', PRIMARY KEY (k) NOT ENFORCED) WITH ("
        f"'connector' = 'upsert-kafka', 'topic' = '{one};{two}', 'properties.bootstrap.servers' = '...', "
        "'key.format' = 'json', 'value.format' = 'json'); CREATE TABLE total (t STRING, n BIGINT, s BIGINT, PRIMARY "
        "KEY (t) NOT ENFORCED)"
    )
    total = "INSERT INTO total SELECT t, COUNT(*), SUM(v) FROM shards GROUP BY t"
    catalog.sql(f"INSERT INTO shards VALUES (1, 1, '{one}'), (2, 2, '{two}'), (3, 3, '{one}')")
    finish(catalog, f"{ONCE}; {total}")
    assert rows(catalog, "SELECT * FROM total") == sorted([(one, 2, 4), (two, 1, 2)])
    catalog.sql(f"INSERT INTO shards VALUES (1, 10, '{one}'), (2, 5, '{two}')")
    finish(catalog, total)
    assert rows(catalog, "SELECT * FROM total") == sorted([(one, 2, 13), (two, 1, 5)])
    assert rows(catalog, "SELECT k, v FROM shards") == [(1, 10), (2, 5), (3, 3)]


def test_streams_complete_a_row_as_one_query(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """A union of streams, each with the columns of its sequence group, and NULL for those of the other."""
    catalog.sql(
        "CREATE TABLE whole (k INT, a STRING, g INT, b INT, h INT, PRIMARY KEY (k) NOT ENFORCED) WITH ("
        "'merge-engine' = 'partial-update', 'fields.g.sequence-group' = 'a', 'fields.h.sequence-group' = 'b')"
    )
    for name, sent in (("one", [(1, "x", 2), (2, "y", 1), (1, "late", 1)]), ("two", [(1, "5", 1), (3, "6", 1)])):
        made = wire.make(topic())
        wire.send(made, [message(k, r, v) for k, r, v in sent])
        source(catalog, made)
        catalog.sql(f"ALTER TABLE s RENAME TO {name}; {ONCE}")
    finish(
        catalog,
        "INSERT INTO whole SELECT k, r, v, CAST(NULL AS INT), CAST(NULL AS INT) FROM one "
        "UNION ALL SELECT k, CAST(NULL AS STRING), CAST(NULL AS INT), CAST(r AS INT), v FROM two",
    )
    assert rows(catalog, "SELECT * FROM whole") == [(1, "x", 2, 5, 1), (2, "y", 1, None, None), (3, None, None, 6, 1)]


def test_delete_removes_rows_also_where_deletes_of_streams_are_ignored(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE kept (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('ignore-delete' = 'true')")
    catalog.sql("INSERT INTO kept VALUES (1, 1), (2, 2), (3, 3); DELETE FROM kept WHERE k = 1")
    assert rows(catalog, "SELECT k FROM kept") == [(2,), (3,)]
    catalog.sql("DELETE FROM kept WHERE v > 2")
    assert rows(catalog, "SELECT k FROM kept") == [(2,)]
    catalog.sql("TRUNCATE TABLE kept")
    assert rows(catalog, "SELECT k FROM kept") == []


def test_a_null_in_a_column_of_a_connector_that_is_not_null_is_named(catalog: Catalog, wire: Wire) -> None:
    wire.make("strict_topic")
    catalog.sql(
        "CREATE TABLE strict (l ARRAY<INT NOT NULL>, n INT NOT NULL) WITH ('connector' = 'kafka', 'format' = 'json', "
        "'topic' = 'strict_topic', 'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset')"
    )
    with pytest.raises(InvalidInputError, match=r"^table 'strict': column 'n' is NOT NULL, and a row has NULL there"):
        catalog.sql("INSERT INTO strict VALUES (ARRAY[1], CAST(NULL AS INT))")
    with pytest.raises(InvalidInputError, match=r"^NOT NULL field 'l\.element' must not contain NULL"):
        catalog.sql("INSERT INTO strict VALUES (ARRAY[1, CAST(NULL AS INT)], 1)")
    catalog.sql("INSERT INTO strict VALUES (ARRAY[1], 2), (CAST(NULL AS ARRAY<INT>), 3)")
    assert rows(catalog, "SELECT * FROM strict") == [(None, 3), ([1], 2)]
