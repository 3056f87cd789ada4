"""The pages' statements, run as they are written: real Spark, a real broker."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from snapshot.errors import InvalidInputError, TableStoreError
from tablestore.cli import app
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import shuffle_partitions
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.pairs import Pair, pairs

PAGES: dict[str, Pair] = {param.values[0].name.split()[0]: param.values[0] for param in reversed(pairs("pages.sql"))}
BATCH = "SET 'execution.runtime-mode' = 'batch'"
STREAMING = "SET 'execution.runtime-mode' = 'streaming'"
ONCE = "SET 'tablestore.trigger' = 'available-now'"


def rows(catalog: Catalog, text: str) -> list[tuple[Any, ...]]:
    """Run a query over what is there."""
    before = dict(catalog.sql("SET").rows)["execution.runtime-mode"]
    catalog.sql(BATCH)
    frame = catalog.sql(text).frame
    assert frame is not None
    found = [tuple(row) for row in frame.collect()]
    catalog.sql(f"SET 'execution.runtime-mode' = '{before}'")
    return sorted(found, key=repr)


def finish(catalog: Catalog, text: str) -> int:
    """Run INSERTs to the end of what is there; give how many rows their sources were read for."""
    count = 0
    for query in catalog.sql(text).queries:
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert query.exception() is None
        count += sum(each.numInputRows for each in query.recentProgress)
    return count


def comes(wanted: Any, what: Callable[[], Any], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while (found := what()) != wanted and time.monotonic() < until:
        time.sleep(0.5)
    assert found == wanted


def view(user: int, region: str) -> Record:
    return Record(json.dumps({"user_id": user, "page_id": 1, "viewtime": "2024-01-02 03:04:05", "user_region": region}).encode())  # fmt: skip  # noqa: E501


def test_q01_q02_q03_c18_the_page_runs_as_one_text(catalog: Catalog, wire: Wire) -> None:
    """Page views are counted by region while they arrive, each user once in `uv`."""
    wire.make("pageviews")
    (query,) = catalog.sql("\n".join(PAGES[block].text for block in ("Q01", "Q02", "Q03"))).queries
    try:
        # Without a group that has offsets, a page view counts from the start of the query on.
        comes(True, lambda: query.lastProgress is not None)
        wire.send("pageviews", [view(1, "eu"), view(1, "eu"), view(2, "eu"), view(1, "us"), view(3, "us")])
        comes([("eu", 3, 2), ("us", 2, 2)], lambda: rows(catalog, "SELECT * FROM pageviews_per_region"))
        before = wire.pairs("pageviews_per_region")
        assert {key for key, _ in before} == {b"\x04eu", b"\x04us"}
        wire.send("pageviews", [view(1, "us")])
        comes([("eu", 3, 2), ("us", 3, 2)], lambda: rows(catalog, "SELECT * FROM pageviews_per_region"))
        after = wire.pairs("pageviews_per_region")
        assert [key for key, _ in after[len(before) :]] == [b"\x04us"]
        assert all(value is not None for _, value in after)
    finally:
        query.stop()


def test_q11_q12_q15_rows_that_pass_arrive_once(catalog: Catalog, wire: Wire) -> None:
    """Only rows that pass the filter are written, each once; a second run finds nothing new; `value` needs no
    quotes."""
    wire.make("orders_source")
    amounts = ["-1", "0", "0.01", "5"]
    wire.send("orders_source", [f'{{"order_id":{n},"product":"p","amount":{amount},"created_at":"2024-01-02 03:04:05.678"}}'.encode() for n, amount in enumerate(amounts)])  # fmt: skip  # noqa: E501
    catalog.sql(
        "CREATE TABLE orders_source (order_id BIGINT, product STRING, amount DECIMAL(10, 2), created_at TIMESTAMP(3)) "
        "WITH ('connector' = 'kafka', 'topic' = 'orders_source', 'properties.bootstrap.servers' = '...', "
        "'format' = 'json', 'scan.startup.mode' = 'earliest-offset')"
    )
    catalog.sql(f"{PAGES['Q11'].text}; {ONCE}")
    for _ in range(2):
        # The second time it goes on where it was, and there is nothing new.
        finish(catalog, PAGES["Q12"].text)
    assert wire.values("order_events") == [
        b'{"order_id":2,"product":"p","amount":0.01,"created_at":"2024-01-02 03:04:05.678"}',
        b'{"order_id":3,"product":"p","amount":5,"created_at":"2024-01-02 03:04:05.678"}',
    ]
    catalog.sql(PAGES["Q15"].text)
    finish(catalog, "INSERT INTO exactly_once_sink SELECT order_id, product FROM orders_source")
    finish(catalog, "INSERT INTO exactly_once_sink SELECT order_id, product FROM orders_source")
    assert [json.loads(value or b"")["id"] for value in wire.values("output_topic")] == [0, 1, 2, 3]


def test_q10_q13_q14_values_are_written_and_read(catalog: Catalog, wire: Wire) -> None:
    """Rows are written and read back: Avro has Flink's bytes, and the record timestamp is that of its column."""
    for block in ("Q10", "Q13", "Q14"):
        catalog.sql(PAGES[block].text)
    catalog.sql("INSERT INTO keyed_events VALUES (5, 'x')")
    assert wire.pairs("keyed_topic") == [(b'{"user_id":5}', b'{"payload":"x"}')]
    assert rows(catalog, "SELECT * FROM keyed_events") == []
    catalog.sql("ALTER TABLE keyed_events SET ('scan.startup.mode' = 'earliest-offset')")
    assert rows(catalog, "SELECT * FROM keyed_events") == [(5, "x")]

    catalog.sql("INSERT INTO avro_events VALUES (5, 'hi', TIMESTAMP '2024-01-02 03:04:05.6009')")
    assert wire.values("avro_events") == [bytes.fromhex("020a0204686902c0eb86829963")]

    with pytest.raises(InvalidInputError, match="Different number of columns: the table expects 5"):
        catalog.sql("INSERT INTO user_events VALUES (1, 2, 'c', 'b')")
    catalog.sql("INSERT INTO user_events (user_id, item_id, category, behavior) VALUES (1, 2, 'c', 'b')")
    catalog.sql("SET 'table.local-time-zone' = 'UTC'")
    catalog.sql("INSERT INTO user_events VALUES (2, 2, 'c', 'b', TIMESTAMP '2024-01-02 03:04:05.678')")
    assert wire.read("user_events")[1].timestamp == 1_704_164_645_678
    found = rows(catalog, "SELECT user_id, behavior, CAST(event_ts AS STRING), proctime FROM user_events")
    assert [row[:2] for row in found] == [(1, "b"), (2, "b")]
    assert found[1][2] == "2024-01-02 03:04:05.678"
    assert all(row[3] is not None for row in found)
    assert len(rows(catalog, "SELECT * FROM user_events")[0]) == 6


def test_q09_b54_a_store_table_with_its_log(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """A table without `connector` is a store table with files and a log."""
    name = topic()
    text = PAGES["Q09"].text.replace("(...)", "(id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(text.replace("'kafka.topic' = '...'", f"'kafka.topic' = '{name}', 'bucket' = '1'"))
    catalog.sql("INSERT INTO T VALUES (1, 'a'), (2, 'b'); INSERT INTO T (v, id) SELECT UPPER(v), id FROM (SELECT 2 AS id, 'c' AS v) AS q")  # fmt: skip  # noqa: E501
    assert rows(catalog, "SELECT * FROM T WHERE id > 0") == [(1, "a"), (2, "C")]
    assert len(wire.values(name)) >= 3
    assert rows(catalog, "SELECT kind, published FROM T$snapshots WHERE rows > 0") == [("upsert", True)] * 2
    frame = catalog.sql("SELECT s.* FROM `T$log` AS s ORDER BY 1").frame
    assert [(row.topic, row.lag_rows) for row in frame.collect()] == [(name, 0)]
    catalog.sql("DROP TABLE T")
    assert name not in wire.topics()


def test_distinct_counts_stay_exact_over_many_micro_batches(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """Into a store table, with NULLs, from several partitions, restarted in the middle; each message is read once."""
    name = wire.make(topic(), 2)
    catalog.sql(
        f"CREATE TABLE views (region STRING, who BIGINT, n BIGINT) WITH ('connector' = 'kafka', 'topic' = '{name}', "
        "'properties.bootstrap.servers' = '...', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset', "
        "'maxRowsPerTrigger' = '40'); CREATE TABLE per_region (region STRING, c BIGINT, d BIGINT, s BIGINT, m BIGINT, "
        "few BIGINT, ds BIGINT, v DOUBLE, "
        f"PRIMARY KEY (region) NOT ENFORCED); {ONCE}"
    )
    seen = []
    for part in range(2):
        new = [(f"r{n % 3}", None if n % 7 == 0 else (n * n + part) % 11, n) for n in range(60)]
        seen += new
        wire.send(name, [Record(json.dumps({"region": r, "who": w, "n": n}).encode(), partition=n % 2) for r, w, n in new])  # fmt: skip  # noqa: E501
        read = finish(
            catalog,
            "INSERT INTO per_region SELECT region, COUNT(*), COUNT(DISTINCT who), SUM(n), MAX(n), COUNT(*) FILTER "
            "(WHERE n > 30), SUM(DISTINCT n % 5), VAR_POP(n) FROM views GROUP BY region",
        )
        assert read == 60, "several distinct aggregates share one scan"
        groups = defaultdict(list)
        for region, who, n in seen:
            groups[region].append((who, n))
        expected = []
        for region, pairs_ in sorted(groups.items()):
            users, numbers = {who for who, _ in pairs_} - {None}, [n for _, n in pairs_]
            few, fives = sum(n > 30 for n in numbers), {n % 5 for n in numbers}
            whole = (len(pairs_), len(users), sum(numbers), max(numbers), few, sum(fives))
            expected.append((region, *whole, round(statistics.pvariance(numbers), 6)))
        assert rows(catalog, "SELECT region, c, d, s, m, few, ds, ROUND(v, 6) FROM per_region") == expected


def test_queries_that_would_be_wrong_are_refused(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    name = wire.make(topic())
    base = f"'topic' = '{name}', 'properties.bootstrap.servers' = '...'"
    catalog.sql(
        f"CREATE TABLE s (a BIGINT, b STRING) WITH ('connector' = 'kafka', 'format' = 'json', {base}); "
        f"CREATE TABLE u (a BIGINT, n BIGINT, PRIMARY KEY (a) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        f"'key.format' = 'json', 'value.format' = 'json', {base}); CREATE TABLE plain (a BIGINT, n BIGINT); "
        "CREATE VIEW v AS SELECT a, COUNT(*) AS n FROM s GROUP BY a"
    )
    for text, match in [
        ("INSERT INTO s SELECT COUNT(*), b FROM s GROUP BY b", "Table sink 's' doesn't support consuming update"),
        ("INSERT INTO plain SELECT a, COUNT(*) FROM s GROUP BY a", "Table sink 'plain' doesn't support"),
        (
            "INSERT INTO u SELECT a, COUNT(*) FROM s GROUP BY a, b",
            "PRIMARY KEY.*are not known to do so.*upsertMaterialize",
        ),
        ("SET 'table.exec.sink.upsert-materialize' = 'force'", "not supported: an INSERT is refused"),
        ("SET 'table.exec.sink.type-length-enforcer' = 'ERROR'", "expected 'IGNORE' or 'TRIM_PAD', got 'ERROR'"),
        ("SET 'table.exec.source.cdc-events-duplicate' = 'true'", "not supported: changes .* are taken as they are"),
        ("INSERT INTO u SELECT COUNT(*), a FROM s GROUP BY a", "PRIMARY KEY"),
        ("SELECT LAST_VALUE(n) FROM u", "column 8: LAST_VALUE.* over rows that change .*no order.*ROW_NUMBER"),
        ("SELECT ANY_VALUE(n) FILTER (WHERE n > 1) FROM u", "column 8: ANY_VALUE.* over rows that change .*no order"),
        ("SELECT STDDEV(n) FROM u", "column 8: STDDEV.* over rows that change; .*MIN and MAX are.*'batch'"),
        (
            "SELECT a, MIN(ARRAY[c]) FROM (SELECT a, COUNT(*) AS c FROM s GROUP BY a, b) AS q GROUP BY a",
            "column 11: MIN",
        ),
        ("SELECT a, ROW_NUMBER() OVER (ORDER BY a) AS r FROM s", "column 11: ROW_NUMBER.* without an upper limit"),
        ("SELECT * FROM (SELECT a, ROW_NUMBER() OVER (ORDER BY a) AS r FROM s) WHERE r > 2", "without an upper limit"),
        ("SELECT * FROM (SELECT a, ROW_NUMBER() OVER (ORDER BY a) AS r FROM s) WHERE r < 1", "no row meets"),
        ("SELECT * FROM (SELECT a, RANK() OVER (ORDER BY a) AS r FROM s) WHERE r < 3", "column 48: OVER .*ROW_NUMBER"),
        ("SELECT a FROM s ORDER BY a", "ORDER BY is not .* add a LIMIT"),
        ("SELECT a FROM s LIMIT 3", "LIMIT is not .* add ORDER BY"),
        ("SELECT a FROM (SELECT a, RAND() AS r FROM s) AS q ORDER BY r LIMIT 3", "column 26: RAND with Top-N"),
        ("SELECT a FROM s ORDER BY ARRAY[a] LIMIT 3", "ORDER BY of array"),
        ("SELECT AVG(CAST(n AS DOUBLE)) FROM u", "column 8: AVG.* CAST it to a DECIMAL"),
        ("SELECT n, NOW() FROM u WHERE n > 1", "column 11: NOW over rows that change"),
        (
            "SELECT u.n FROM u LEFT JOIN v ON u.n = v.n AND u.a < v.a",
            "column 50: a LEFT JOIN with a condition over both sides that is not an equality",
        ),
        (
            "SELECT u.n FROM u JOIN u AS w ON u.a = w.a AND u.n < w.n RIGHT JOIN v ON w.n = v.n",
            "column 69: a RIGHT JOIN after an inner join with other conditions .* write those joins as a query in FROM",
        ),
        ("SELECT n FROM u JOIN v USING (n)", "column 17: USING JOIN of tables whose rows change .* ON"),
        ("SELECT n FROM u NATURAL JOIN v", "column 25: NATURAL JOIN of tables whose rows change .* ON"),
        ("SELECT u.n FROM u CROSS JOIN v", "column 25: CROSS JOIN of tables whose rows change .* ON"),
        ("SELECT n FROM u EXCEPT BY NAME SELECT n FROM v", "EXCEPT BY NAME .* select the columns in the same order"),
        ("SELECT n FROM u WHERE n NOT IN (SELECT a FROM s)", "a query over 's' within an expression"),
        ("SELECT n FROM u WHERE n + 1 IN (SELECT a FROM s)", "a query over 's' within an expression"),
        ("INSERT INTO u SELECT n, a FROM u", "PRIMARY KEY"),
        ("SELECT a, COUNT(*) FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(a), INTERVAL '1' MINUTE)) GROUP BY a", "TIMESTAMP"),
        ("INSERT INTO u VALUES ('x', 1)", r"column 'a' is BIGINT, the query's column 1 is string\. Use CAST"),
        ("INSERT INTO u (n) VALUES (1)", "'a' is in the PRIMARY KEY, but is not given"),
        ("INSERT INTO u (a, z) VALUES (1, 1)", "'z' is not a column"),
        ("INSERT INTO v VALUES (1, 1)", "this is a view"),
        ("SELECT nothing FROM plain", "line 1, column 8: there is no column `nothing`; similar ones are `"),
        ("SELECT a,\n no_such(a) FROM s", "line 2, column 2: there is no function NO_SUCH"),
        ("SELECT TUMBLE_END(n, INTERVAL '1' HOUR) FROM s", "TUMBLE_END goes with GROUP BY TUMBLE"),
        (f"{BATCH}; SELECT a FROM plain WHERE n = x; {STREAMING}", "line 1, column 71: .*`x`"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)
    assert wire.values(name) == []


def test_settings_of_spark_are_taken_back_to_what_the_session_had(spark: SparkSession, tmp_path: Path) -> None:
    partitions, unset, zone = "spark.sql.shuffle.partitions", "spark.sql.caseSensitive", "spark.sql.session.timeZone"
    keys = (partitions, unset, zone)
    before = [spark.conf.get(key, None) for key in keys]
    assert before[0] is not None, "one that the session has"
    assert before[1] is None, "and one that it has not"
    catalog = Catalog(spark, tmp_path)
    catalog.sql(f"SET '{partitions}' = '7'; SET '{unset}' = 'true'; SET 'table.local-time-zone' = 'Asia/Tokyo'")
    catalog.sql(f"SET '{partitions}' = '9'")
    assert [spark.conf.get(key, None) for key in keys] == ["9", "true", "Asia/Tokyo"]
    with pytest.raises(InvalidInputError, match=rf"SET '{partitions}': Spark does not accept 'many': .*int"):
        catalog.sql(f"SET '{partitions}' = 'many'")
    assert dict(catalog.sql("SET").rows)[partitions] == "9", "what is refused changes nothing"
    catalog.sql(f"RESET '{partitions}'")
    assert spark.conf.get(partitions) == before[0]
    catalog.sql("RESET")
    assert [spark.conf.get(key, None) for key in keys] == before
    # Before Spark has started nobody knows what it takes: the first use tells, and the setting is gone.
    late = Catalog(lambda: spark, tmp_path, settings={partitions: "many", unset: "true"})
    with pytest.raises(InvalidInputError, match="does not accept 'many'"):
        late.sql(f"{BATCH}; SELECT 1 + 1")
    assert [spark.conf.get(key, None) for key in keys] == [before[0], "true", before[2]]
    late.sql("RESET")
    assert [spark.conf.get(key, None) for key in keys] == before


def test_views_computed_columns_and_cut_timestamps_in_batch(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE t (a INT, b AS a + 1, ts TIMESTAMP(3), z TIMESTAMP_LTZ(0), v STRING NOT NULL); "
        "CREATE VIEW twice (x) AS SELECT b * 2 FROM t; CREATE VIEW four AS SELECT x * 2 AS y FROM twice; " + BATCH
    )
    catalog.sql("INSERT INTO t VALUES (1, TIMESTAMP '2024-01-02 03:04:05.678999', TIMESTAMP_LTZ '2024-01-02 03:04:05.9', 'it''s')")  # fmt: skip  # noqa: E501
    assert rows(catalog, "SELECT a, b, CAST(ts AS STRING), SECOND(z), v FROM t") == [
        (1, 2, "2024-01-02 03:04:05.678", 5, "it's")
    ]
    assert rows(catalog, "SELECT * FROM four") == [(8,)]
    assert rows(catalog, "SELECT x FROM four JOIN twice ON y = x * 2 ORDER BY x LIMIT 1") == [(4,)]
    with pytest.raises(Exception, match="NOT NULL"):
        catalog.sql("INSERT INTO t (a) VALUES (2)")
    assert len(rows(catalog, "SELECT * FROM t")) == 1
    assert "Physical Plan" in catalog.sql("EXPLAIN SELECT * FROM four").rows[0][0]


def test_names_of_flinks_default_database_are_those_of_the_warehouse(catalog: Catalog) -> None:
    """As SHOW CREATE TABLE of Flink writes them."""
    catalog.sql(
        f"{BATCH}; CREATE TABLE `default_catalog`.`default_database`.`t` (a INT); "
        "INSERT INTO default_catalog.default_database.t VALUES (1), (2); "
        "CREATE VIEW default_catalog.default_database.v AS "
        "SELECT t.a FROM default_catalog.default_database.t WHERE default_catalog.default_database.t.a > 1"
    )
    assert rows(catalog, "SELECT v.a FROM default_catalog.default_database.v") == [(2,)]


def test_rows_are_chosen_by_those_of_an_unbounded_table(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE a (x INT, n INT); CREATE TABLE b (y INT); CREATE TABLE kept (x INT, n INT); "
        "CREATE TABLE there (n INT); INSERT INTO a VALUES (1, 1), (2, 2), (3, 3), (1, 4), (NULL, 5); "
        f"INSERT INTO b VALUES (1), (1), (4), (NULL); {ONCE}"
    )
    kept = "INSERT INTO kept SELECT * FROM a WHERE x IN (SELECT y FROM b)"
    there = "INSERT INTO there SELECT n FROM a WHERE EXISTS (SELECT 1 FROM b WHERE y = a.x AND y > 1) AND n > 0"
    for added, expected in (("(4), (1)", [(1, 1), (1, 4)]), ("(3), (1)", [(1, 1), (1, 4), (3, 3)])):
        catalog.sql(f"INSERT INTO b VALUES {added}")
        finish(catalog, f"EXECUTE STATEMENT SET BEGIN {kept}; {there}; END")
        assert rows(catalog, "SELECT * FROM kept") == expected
        assert rows(catalog, "SELECT n FROM there") == [(n,) for x, n in expected if x > 1]


def test_distinct_values_are_counted_in_one_partition(catalog: Catalog, spark: SparkSession) -> None:
    """Spark would run the compiled operators in one task, and RocksDB take the state of one for that of the other."""
    catalog.sql(
        "CREATE TABLE t (g STRING, n INT); CREATE TABLE counts (g STRING, c BIGINT, PRIMARY KEY (g) NOT ENFORCED); "
        f"SET 'spark.sql.codegen.wholeStage' = 'true'; SET 'spark.sql.codegen.factoryMode' = 'FALLBACK'; {ONCE}"
    )
    with shuffle_partitions(spark, 1):
        for values in ("('a', 1), ('a', 2), ('b', 1)", "('a', 2), ('b', 3)"):
            catalog.sql(f"INSERT INTO t VALUES {values}")
            finish(catalog, "INSERT INTO counts SELECT g, COUNT(DISTINCT n) FROM t GROUP BY g")
        assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    catalog.sql("RESET")
    assert rows(catalog, "SELECT * FROM counts") == [("a", 2), ("b", 2)]


def test_explain_plans_streams_and_checks_where_an_insert_writes(catalog: Catalog) -> None:
    options = "'connector' = 'kafka', 'topic' = 'none', 'properties.bootstrap.servers' = '...', 'format' = 'json'"
    catalog.sql(f"CREATE TABLE a (n INT, s STRING) WITH ({options}); CREATE TABLE b (n INT) WITH ({options})")
    once = f"CREATE TABLE c (n INT) WITH ({options}, 'sink.delivery-guarantee' = 'exactly-once')"
    catalog.sql(once)
    for text in ("SELECT s FROM a", "INSERT INTO b SELECT n FROM a", "INSERT INTO b SELECT DISTINCT n FROM a"):
        assert "Physical Plan" in catalog.sql(f"EXPLAIN {text}").rows[0][0]
    wrong = {
        "INSERT INTO none SELECT n FROM a": "'none'",
        "INSERT INTO b SELECT s FROM a": "column 'n' is INT",
        "INSERT INTO b SELECT CAST(COUNT(*) AS INT) FROM a": "doesn't support consuming update changes",
        "INSERT INTO c SELECT n FROM a": "sink.transactional-id-prefix must be specified",
    }
    for text, why in wrong.items():
        with pytest.raises(TableStoreError, match=re.escape(why)):
            catalog.sql(f"EXPLAIN {text}")


def test_upsert_tables_stream_into_other_tables_with_their_deletes(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    name = wire.make(topic())
    catalog.sql(
        f"CREATE TABLE u (k STRING, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        f"'topic' = '{name}', 'properties.bootstrap.servers' = '...', 'key.format' = 'json', 'value.format' = 'json'); "
        f"CREATE TABLE copy (k STRING, n BIGINT, PRIMARY KEY (k) NOT ENFORCED); {ONCE}"
    )
    catalog.sql("INSERT INTO u VALUES ('a', 1), ('b', 2)")
    finish(catalog, "INSERT INTO copy SELECT k, n FROM u")
    assert rows(catalog, "SELECT * FROM copy") == [("a", 1), ("b", 2)]
    wire.send(name, [Record(None, key=b'{"k":"a"}'), Record(b'{"k":"b","n":3}', key=b'{"k":"b"}')])
    finish(catalog, "INSERT INTO copy SELECT k, n FROM u")
    assert rows(catalog, "SELECT * FROM copy") == [("b", 3)]


def test_continuous_selects_are_followed_and_sets_run_all_their_inserts(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    name = wire.make(topic())
    values = [(1, "a"), (1, "a"), (2, "b")]
    wire.send(name, [json.dumps({"n": n, "s": s}).encode() for n, s in values])
    catalog.sql(
        f"CREATE TABLE s (n BIGINT, s STRING) WITH ('connector' = 'kafka', 'topic' = '{name}', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset'); "
        f"CREATE TABLE one (n BIGINT, s STRING); CREATE TABLE two (n BIGINT, s STRING); {ONCE}"
    )

    def followed(text: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        query = catalog.follow(catalog.sql(text), lambda frame, _: found.extend(map(tuple, frame.collect())))
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert query.exception() is None
        return sorted(found)

    assert followed("SELECT DISTINCT n, s FROM s") == [(1, "a"), (2, "b")]
    assert followed("SELECT n FROM s WHERE n > 1 UNION ALL SELECT n * 10 FROM s") == [(2,), (10,), (10,), (20,)]
    assert followed("SELECT s, COUNT(*), COUNT(DISTINCT n) FROM s GROUP BY s") == [("a", 2, 1, "insert"), ("b", 1, 1, "insert")]  # fmt: skip  # noqa: E501
    finish(
        catalog,
        "EXECUTE STATEMENT SET BEGIN INSERT INTO one SELECT * FROM s; "
        "INSERT INTO two SELECT n, s FROM s WHERE n > 1; END",
    )
    assert rows(catalog, "SELECT * FROM one") == values
    assert rows(catalog, "SELECT * FROM two") == [(2, "b")]
    # A table that was dropped and created again begins anew.
    catalog.sql("DROP TABLE two; CREATE TABLE two (n BIGINT, s STRING)")
    finish(catalog, "INSERT INTO two SELECT n, s FROM s WHERE n > 1")
    assert rows(catalog, "SELECT * FROM two") == [(2, "b")]

    settings = ["--set", "tablestore.trigger=available-now", "--set", f"tablestore.addresses=...={wire.servers}"]
    command = ["sql", "-w", str(tmp_path / "warehouse"), "--json", *settings, "-e", "SELECT s, COUNT(*) AS c FROM s GROUP BY s"]  # fmt: skip  # noqa: E501
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(told, key=str) == [{"op": "+I", "s": "a", "c": 2}, {"op": "+I", "s": "b", "c": 1}]
