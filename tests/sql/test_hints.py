"""Hints: options of one query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.sql import Catalog, SqlError
from tablestore.table.store import TableStore
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.test_run import finish, rows

LOOKED = "t.id FROM t JOIN s FOR SYSTEM_TIME AS OF PROCTIME() AS d ON d.k = t.id"
RETRY = "'table' = 'd', 'retry-predicate' = 'lookup_miss', 'retry-strategy' = 'fixed_delay', 'fixed-delay' = '1 ms', 'max-attempts' = '3'"  # fmt: skip  # noqa: E501
BATCH = "SET 'execution.runtime-mode' = 'batch'"


def orders(catalog: Catalog, wire: Wire, topic: str, **options: str) -> None:
    """Create a table over a topic with three rows."""
    wire.make(topic)
    wire.send(topic, [json.dumps({"id": number}).encode() for number in range(3)])
    given = "".join(f", '{key.replace('_', '.')}' = '{value}'" for key, value in options.items())
    catalog.sql(
        f"CREATE TABLE {topic} (id INT, `offset` BIGINT METADATA VIRTUAL) WITH ('connector' = 'kafka', "
        f"'topic' = '{topic}', 'properties.bootstrap.servers' = '...', 'format' = 'json'{given})"
    )


def from_(offset: int) -> str:
    return f"OPTIONS('scan.startup.mode' = 'specific-offsets', 'scan.startup.specific-offsets' = 'partition:0,offset:{offset}')"  # fmt: skip  # noqa: E501


def test_a_hint_overrides_the_options_of_one_mention(catalog: Catalog, wire: Wire) -> None:
    orders(catalog, wire, "hinted", scan_startup_mode="timestamp", **{"scan.startup.timestamp-millis": "0"})
    catalog.sql(f"CREATE VIEW late AS SELECT id FROM hinted /*+ {from_(2)} */")
    assert rows(catalog, "SELECT id FROM hinted") == [(0,), (1,), (2,)]
    assert rows(catalog, f"SELECT hinted.id FROM hinted /*+ {from_(1)} */") == [(1,), (2,)]
    joined = f"SELECT a.id FROM hinted /*+ {from_(1)} */ AS a JOIN hinted AS b ON a.id = b.id + 1"
    assert rows(catalog, joined) == [(1,), (2,)]
    assert rows(catalog, "SELECT id FROM late") == [(2,)]
    assert rows(catalog, "SELECT id FROM hinted") == [(0,), (1,), (2,)]


def test_a_hint_of_a_table_with_windows(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    name = wire.make(topic(), 2)
    catalog.sql(f"""
        CREATE TABLE t (n INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'kafka',
          'topic' = '{name}', 'properties.bootstrap.servers' = '{wire.servers}', 'format' = 'json');
        SET 'execution.runtime-mode' = 'batch'
    """)
    wire.send(name, [b'{"n":1,"ts":"2024-01-01 00:00:01"}', b'{"n":2,"ts":"2024-01-01 00:00:02"}'])
    hint = "/*+ OPTIONS('scan.startup.mode' = 'earliest-offset') */"
    frame = catalog.sql(f"SELECT COUNT(*) FROM t {hint} GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)").frame
    assert frame is not None
    assert [tuple(row) for row in frame.collect()] == [(2,)]


def test_a_hint_of_a_continuous_query_and_of_its_sink(catalog: Catalog, wire: Wire) -> None:
    orders(catalog, wire, "came")
    wire.make("went", partitions=4)
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    catalog.sql(
        "CREATE TABLE went (id INT) WITH ('connector' = 'kafka', 'topic' = 'went', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset')"
    )
    text = f"INSERT INTO went /*+ OPTIONS('sink.partitioner' = 'fixed') */ (id) SELECT id FROM came /*+ {from_(1)} */"
    assert finish(catalog, text) == 2
    assert rows(catalog, "SELECT * FROM went") == [(1,), (2,)]
    bounded = f"{from_(0)[:-1]}, 'scan.bounded.mode' = 'latest-offset')"
    assert rows(catalog, f"SELECT * FROM came /*+ {bounded} */ ORDER BY id LIMIT 1") == [(0, 0)]


def test_a_hint_reads_an_old_snapshot_of_a_store_table(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("INSERT INTO s VALUES (1, 1)")
    ((first,),) = rows(catalog, "SELECT MAX(snapshot_id) FROM s$snapshots")
    catalog.sql("INSERT INTO s VALUES (1, 2), (2, 2)")
    assert rows(catalog, f"SELECT k, v FROM s /*+ OPTIONS('snapshot' = '{first}') */") == [(1, 1)]
    assert rows(catalog, f"SELECT n.v FROM s AS n JOIN s /*+ OPTIONS('snapshot' = '{first}') */ AS o ON n.k = o.k") == [
        (2,)
    ]


def test_a_hint_shows_files_partitions_and_buckets_of_an_old_snapshot(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE s (k INT, p STRING, PRIMARY KEY (k, p) NOT ENFORCED) PARTITIONED BY (p) WITH ('bucket' = '2')"
    )
    for k, p in ((1, "a"), (2, "b"), (3, "b")):
        catalog.sql(f"INSERT INTO s VALUES ({k}, '{p}'); CALL sys.compact('s')")
    table = catalog.table("s")
    assert isinstance(table, TableStore)
    first = min(each.id for each in table.snapshots() if each.operation == "compact")
    table.tags.create("early", snapshot=first)
    shown = {"files": "`partition`, record_count", "partitions": "`partition`, file_count", "buckets": "SUM(rows)"}
    for hint in (f"'scan.snapshot-id' = '{first}'", "'tag' = 'early'"):
        found = {what: rows(catalog, f"SELECT {c} FROM s${what} /*+ OPTIONS({hint}) */") for what, c in shown.items()}
        assert found == {"files": [("p=a", 1)], "partitions": [("p=a", 1)], "buckets": [(1,)]}
    assert rows(catalog, "SELECT SUM(rows) FROM s$buckets") == [(3,)]
    assert len(rows(catalog, "SELECT * FROM s$partitions")) == 2


def test_a_query_of_an_eventual_log_begins_with_the_rows(catalog: Catalog, wire: Wire) -> None:
    log = f"'log.system' = 'kafka', 'kafka.bootstrap.servers' = '{wire.servers}', 'kafka.topic' = 'eventually'"
    catalog.sql(f"CREATE TABLE e (k INT PRIMARY KEY NOT ENFORCED) WITH ({log}, 'log.consistency' = 'eventual')")
    with pytest.raises(InvalidInputError, match=r"the rows that later changes replace .* after e\$audit_log"):
        catalog.sql("SELECT * FROM e /*+ OPTIONS('scan-mode' = 'latest') */")
    with pytest.raises(InvalidInputError, match=r"option 'scan-mode': .* does not keep snapshots apart. Use 'full'"):
        catalog.sql("SELECT * FROM e /*+ OPTIONS('scan.mode' = 'from-snapshot-full', 'scan.snapshot-id' = '0') */")
    catalog.sql("DROP TABLE e")


@pytest.mark.parametrize(
    ("options", "batch", "streamed"),
    [
        ("'scan.snapshot-id' = '{first}'", [1], [1, 2, 3]),
        ("'scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '{first}'", [1], [1, 2, 3]),
        ("'scan.mode' = 'from-snapshot-full', 'scan.snapshot-id' = '{second}'", [1, 2], [1, 2, 3]),
        ("'scan.snapshot-id' = '{second}'", [1, 2], [2, 3]),
        ("'scan.timestamp-millis' = '{second_ms}'", [1, 2], [2, 3]),
        ("'scan.mode' = 'default', 'scan.tag-name' = 'early'", [1], [2, 3]),
        ("'scan.mode' = 'latest-full', 'scan.parallelism' = '4'", [1, 2], [1, 2, 3]),
        ("'scan.mode' = 'full'", [1, 2], [1, 2, 3]),
        ("'scan.mode' = 'latest'", [1, 2], [3]),
        ("'scan-mode' = 'latest'", [1, 2], [3]),
        ("'consumer-id' = 'me'", [1, 2], [1, 2, 3]),
    ],
)
def test_hints_of_a_store_table_take_paimons_names(
    catalog: Catalog, options: str, batch: list[int], streamed: list[int]
) -> None:
    """A batch query reads one snapshot, a continuous one the rows from there on."""
    catalog.sql("CREATE TABLE s (k INT); INSERT INTO s VALUES (1)")
    table = catalog.table("s")
    assert isinstance(table, TableStore)
    first = table.snapshots()[0]
    table.tags.create("early", snapshot=first.id)
    catalog.sql("INSERT INTO s VALUES (2)")
    second = table.snapshots()[0]
    hint = f"s /*+ OPTIONS({options.format(first=first.id, second=second.id, second_ms=second.timestamp_ms)}) */"
    assert rows(catalog, f"SELECT k FROM {hint}") == [(k,) for k in batch]
    came: list[int] = []
    query = catalog.follow(catalog.sql(f"SELECT k FROM {hint}"), lambda frame, _: came.extend(row.k for row in frame.collect()))  # fmt: skip  # noqa: E501
    try:
        query.processAllAvailable()
        catalog.sql("INSERT INTO s VALUES (3)")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(came) == streamed


def test_a_stream_of_a_table_with_a_key_may_be_told_to_begin_with_its_rows(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT, PRIMARY KEY (k) NOT ENFORCED); CREATE TABLE t LIKE s; INSERT INTO s VALUES (1)")
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    finish(catalog, "INSERT INTO t SELECT * FROM s /*+ OPTIONS('scan.mode' = 'latest-full') */")
    assert rows(catalog, "SELECT * FROM t") == [(1,)]


def test_options_of_paimon_that_change_nothing_are_taken_in_hints(catalog: Catalog) -> None:
    """Queries and statements of Paimon bring them along, as for the number of its tasks."""
    catalog.sql(BATCH)
    hint = "/*+ OPTIONS('sink.parallelism' = '4', 'full-compaction.delta-commits' = '1', 'page-size' = '1 mb') */"
    read = "/*+ OPTIONS('deletion-vectors.enabled' = 'true', 'scan.snapshot-id' = '1') */"
    catalog.sql("CREATE TABLE s (k INT, v INT) PARTITIONED BY (k); CREATE TABLE o (k INT, p AS PROCTIME())")
    catalog.sql(f"INSERT INTO s {hint} VALUES (1, 1), (2, 2); INSERT INTO o {hint} (k) VALUES (1)")
    catalog.sql(f"INSERT OVERWRITE s {hint} SELECT 1, 10; INSERT OVERWRITE s {hint} PARTITION (k = 2) SELECT 20")
    assert rows(catalog, "SELECT * FROM s") == [(1, 10), (2, 20)]
    assert rows(catalog, f"SELECT * FROM s {read}") == [(1, 1), (2, 2)]
    looked = f"SELECT s.v FROM o JOIN s {hint} FOR SYSTEM_TIME AS OF o.p ON s.k = o.k"
    assert rows(catalog, looked) == [(10,)]
    catalog.sql("SET 'table.dynamic-table-options.enabled' = 'false'")
    for text in (f"INSERT INTO s {hint} VALUES (1, 1)", f"INSERT OVERWRITE s {hint} VALUES (1, 1)"):
        with pytest.raises(InvalidInputError, match="hint OPTIONS is allowed only while"):
            catalog.sql(text)


def test_a_continuous_query_reads_the_rows_that_a_table_has(catalog: Catalog) -> None:
    """As in Paimon, `scan.bounded` ends a table, also beside one that goes on; hints for tasks change nothing."""
    catalog.sql("CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED); CREATE TABLE o (k INT); CREATE TABLE n (k INT, v INT)")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO s VALUES (1, 1), (2, 2); INSERT INTO s VALUES (1, 10); INSERT INTO o VALUES (1), (2)")
    hint = "'scan.bounded' = 'true', 'scan.dedicated-split-generation' = 'true', 'scan.infer-parallelism' = 'false'"
    assert sorted(rows(catalog, f"SELECT * FROM s /*+ OPTIONS({hint}) */")) == [(1, 10), (2, 2)]
    ((first,),) = rows(catalog, "SELECT MIN(snapshot_id) FROM s$snapshots WHERE commit_kind = 'APPEND'")
    old = f"SELECT v FROM s /*+ OPTIONS({hint}, 'scan.snapshot-id' = '{first}') */ ORDER BY v DESC LIMIT 1"
    assert rows(catalog, old) == [(2,)]
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    joined = f"SELECT o.k, s.v FROM o JOIN s /*+ OPTIONS({hint}) */ ON o.k = s.k"
    (query,) = catalog.sql(f"INSERT INTO n {joined}").queries
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert sorted(rows(catalog, "SELECT * FROM n /*+ OPTIONS('scan.bounded' = 'true') */")) == [(1, 10), (2, 2)]
    for text, reason in (
        ("s /*+ OPTIONS('scan.bounded' = 'true', 'scan.mode' = 'from-timestamp') */", "a batch query reads one snap"),
        ("s /*+ OPTIONS('scan.bounded' = 'yes') */", "'scan.bounded': expected 'true' or 'false', got 'yes'"),
        ("s$audit_log /*+ OPTIONS('scan.bounded' = 'true') */", "'scan.bounded' of a hint is for tables"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            catalog.sql(f"SELECT * FROM {text}")


def test_a_query_with_state_may_begin_with_the_rows_of_a_snapshot(catalog: Catalog) -> None:
    """As in Paimon, the rows of the snapshot are inserts, and the changes of later ones follow."""
    catalog.sql("CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED); CREATE TABLE n (v INT, c BIGINT, PRIMARY KEY (v) NOT ENFORCED)")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO s VALUES (1, 1), (2, 1), (3, 2); INSERT INTO s VALUES (1, 2); CALL sys.compact('s')")
    ((second,),) = rows(catalog, "SELECT MAX(snapshot_id) FROM s$snapshots WHERE commit_kind = 'APPEND'")
    catalog.sql("INSERT INTO s VALUES (2, 2); DELETE FROM s WHERE k = 3; SET 'tablestore.trigger' = 'available-now'")
    counted = "SELECT v, COUNT(*) FROM s /*+ OPTIONS('scan.mode' = 'from-snapshot-full', 'scan.snapshot-id' = '{}') */"
    finish(catalog, f"INSERT INTO n {counted.format(second)} GROUP BY v")
    assert rows(catalog, "SELECT * FROM n") == [(2, 2)]
    with pytest.raises(StreamingQueryException, match="can be streamed from snapshot 0 to"):
        finish(catalog, f"INSERT INTO n {counted.format(99)} GROUP BY v")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "SELECT * FROM s /*+ OPTIONS('scan.mode' = 'compacted-full') */",
            "of a hint: expected one of default",
        ),
        ("SELECT * FROM s /*+ OPTIONS('scan.snapshot-id' = 'x') */", "option 'snapshot': expected a whole number of 0"),
        ("SELECT * FROM s /*+ OPTIONS('scan.snapshot-id' = '') */", "option 'snapshot': expected a whole number of 0"),
        ("SELECT * FROM s /*+ OPTIONS('incremental-between' = '') */", "expected two snapshots or tags, such as"),
        (
            "SELECT * FROM s /*+ OPTIONS('snapshot' = '1', 'scan.snapshot-id' = '1') */",
            "of a hint is given twice",
        ),
        (
            "SELECT * FROM s /*+ OPTIONS('scan-mode' = 'earliest') */",
            "reads one snapshot.*got 'earliest'",
        ),
        ("SELECT * FROM s /*+ OPTIONS('scan.mode' = 'from-snapshot') */", "'from-snapshot' with option 'snapshot'"),
        ("SELECT * FROM s /*+ OPTIONS('scan.mode' = 'latest', 'tag' = 'x') */", "a batch query reads one snapshot"),
        ("SELECT * FROM t /*+ OPTIONS('scan.mode' = 'x') */", "Unsupported options found for 'kafka': scan.mode"),
        ("SELECT * FROM t /*+ OPTIONS('connector' = 'upsert-kafka') */", "a hint cannot change option 'connector'"),
        ("SELECT * FROM v /*+ OPTIONS('topic' = 'x') */", "'v' is a view, which has no options"),
        ("WITH w AS (SELECT 1) SELECT * FROM w /*+ OPTIONS('topic' = 'x') */", "'w', a query of WITH, is not"),
        ("SELECT * FROM s /*+ OPTIONS('bucket' = '2') */", "A store table's hints are snapshot, timestamp, tag"),
        ("SELECT * FROM s$manifests", "no metadata table 'manifests'. There are"),
        ("SELECT * FROM s /*+ OPTIONS('snapshot' = 'x') */", "option 'snapshot': expected a whole number of 0"),
        ("SELECT * FROM s /*+ OPTIONS('scan.partitions' = 'max_pt()') */", "'s.*the table has no partitions"),
        ("SELECT * FROM p /*+ OPTIONS('scan.partitions' = 'b=max_pt()') */", "expected 'max_pt\\(\\)' or 'max_two_pt"),
        ("SELECT * FROM p /*+ OPTIONS('scan.partitions' = 'a=1') */", "for each column: .*; got 'a=1'. Paimon takes"),
        ("SELECT * FROM s /*+ OPTIONS('incremental-between' = '1') */", "'s .*expected two snapshots or tags, such as"),
        (
            "SELECT * FROM s /*+ OPTIONS('incremental-between' = '1,2', 'incremental-between-timestamp' = '1,2') */",
            "expected one of the options .*, got incremental-between and incremental-between-timestamp",
        ),
        (
            "SELECT * FROM s /*+ OPTIONS('incremental-between' = '1,2', 'snapshot' = '1') */",
            "a range and 'snapshot' exclude each other",
        ),
        (
            "SELECT * FROM s /*+ OPTIONS('incremental-between' = '1,2', 'incremental-between-scan-mode' = 'x') */",
            "expected one of auto, delta, changelog, diff, got 'x'",
        ),
        ("SELECT * FROM s$tags /*+ OPTIONS('snapshot' = '1') */", "takes no hint; of metadata tables, .files, .par"),
        ("SELECT * FROM s$files /*+ OPTIONS('snapshot' = '9') */", "there is no snapshot 9"),
        ("SELECT * FROM s$files /*+ OPTIONS('incremental-between' = '0,1') */", "'tag', got 'incremental-between'"),
        ("SELECT * FROM p$files /*+ OPTIONS('scan.partitions' = 'max_pt()') */", "'tag', got 'scan.partitions'"),
        ("SELECT * FROM s$files /*+ OPTIONS('scan.mode' = 'latest-delta') */", "'tag', got 'scan-mode'"),
        (
            "INSERT INTO s /*+ OPTIONS('sink.parallelism' = '2', 'bucket' = '2') */ VALUES (1)",
            "option 'bucket' of a hint: a store table is written with its own options",
        ),
        (
            "SELECT * FROM s /*+ OPTIONS('scan.mode' = 'compacted-full') */",
            "got 'compacted-full'. 's.ro' has the rows of",
        ),
        ("SELECT * FROM s /*+ OPTIONS('scan.version' = '1') */", "of a hint: use scan.snapshot-id or scan.tag-name."),
        ("SELECT * FROM s /*+ OPTIONS('scan.nothing' = '1') */", "A store table's hints are snapshot, timestamp, tag"),
        ("SELECT * FROM s /*+ OPTIONS('scan.fallback-branch' = 'b') */", "of a hint: there are no branches: copy the"),
        (
            "SELECT * FROM s$audit_log /*+ OPTIONS('table-read.sequence-number.enabled' = 'true') */",
            "of a hint: not supported: rows have no sequence numbers; sequence.field orders the rows of a key\\.",
        ),
        ("CREATE VIEW x AS SELECT * FROM t /*+ OPTIONS('properties.sasl.password' = 'p') */", "holds a credential"),
        (f"SELECT /*+ LOOKUP('table' = 'x') */ {LOOKED}", "hint LOOKUP: table 'x': the query looks up d, s"),
        (f"SELECT /*+ LOOKUP('table' = 'd', 'retries' = '1') */ {LOOKED}", "hint LOOKUP: option 'retries'"),
        (f"SELECT /*+ LOOKUP('async' = 'true') */ {LOOKED}", "option 'table' is missing: 'table' is required"),
        (f"SELECT /*+ LOOKUP('table' = 'd', 'max-attempts' = '1') */ {LOOKED}", "option 'retry-predicate' is missing"),
        (f"SELECT /*+ LOOKUP({RETRY.replace('1 ms', 'x')}) */ {LOOKED}", "option 'fixed-delay': expected a duration"),
        ("SELECT /*+ LOOKUP('table' = 's') */ * FROM s", "hint LOOKUP: table 's'.*the query looks up no table"),
        ("SELECT /*+ BROADCAST(s) */ * FROM s", "expected LOOKUP, the only hint after SELECT"),
        ("SELECT * FROM s /*+ LOOKUP('table' = 's') */", "expected OPTIONS, the only hint of a table"),
        ("SELECT * /*+ OPTIONS('a' = 's') */ FROM s", "a hint goes after the name of a table"),
        (
            "SET 'table.dynamic-table-options.enabled' = 'false'; SELECT * FROM t /*+ OPTIONS('topic' = 'x') */",
            "allowed only while setting 'table.dynamic-table-options.enabled' is 'true'",
        ),
    ],
)
def test_a_hint_that_cannot_be_is_refused(spark: SparkSession, tmp_path: Path, text: str, reason: str) -> None:
    catalog = Catalog(spark, tmp_path / "warehouse", settings={"execution.runtime-mode": "batch"})
    catalog.sql(
        "CREATE TABLE t (id INT) WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...'); CREATE TABLE s (k INT); CREATE VIEW v AS SELECT * FROM t; "
        "CREATE TABLE p (a INT, b INT, v INT) PARTITIONED BY (a, b)"
    )
    with pytest.raises((InvalidInputError, NotFoundError), match=reason) as caught:
        catalog.sql(text)
    assert isinstance(caught.value, SqlError | NotFoundError) or "INTO" in text or "VIEW" in text
