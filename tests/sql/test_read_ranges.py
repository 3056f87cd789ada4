"""Hints that read a part of a store table: a range of snapshots, some partitions; and hints of its changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.sql import Catalog
from tablestore.sql.catalog.partition_choice import KeptPartitions, PartitionChoice
from tablestore.table.store import TableStore
from tests.harness.clocks import clock
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.test_run import BATCH, STREAMING, finish, rows

WRITES = ["INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'b'), (2, 'b')", "DELETE FROM t WHERE k = 1", "INSERT INTO t VALUES (3, 'c')"]  # fmt: skip  # noqa: E501


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    return Catalog(spark, tmp_path / "warehouse", settings={"tablestore.trigger": "available-now"})


def history(catalog: Catalog, options: str = "", key: str = ", PRIMARY KEY (k) NOT ENFORCED") -> list[tuple[int, int]]:
    """Create ``t`` and give the id and time of each of its snapshots, oldest first; it begins with an empty one."""
    catalog.sql(f"CREATE TABLE t (k INT, v STRING{key}) {options}")
    for statement in WRITES:
        catalog.sql(statement)
    return [(each.id, each.timestamp_ms) for each in reversed(table_of(catalog).snapshots())]


def table_of(catalog: Catalog) -> TableStore:
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    return table


def between(catalog: Catalog, hint: str, table: str = "t") -> list[tuple[Any, ...]]:
    return rows(catalog, f"SELECT * FROM {table} /*+ OPTIONS({hint}) */")


@pytest.mark.parametrize("options", ["", "WITH ('changelog-producer' = 'lookup')"])
def test_a_range_has_the_newest_row_of_each_key_that_changed(catalog: Catalog, options: str) -> None:
    ids = [each for each, _ in history(catalog, options)]
    first = len(ids) - 4
    a, b, c, d = ids[first:]
    assert between(catalog, f"'incremental-between' = '{a},{b}'") == [(1, "b"), (2, "b")]
    assert between(catalog, f"'incremental-between' = '{a},{c}'") == [(2, "b")]
    assert between(catalog, f"'incremental-between' = '{a},{d}'") == [(2, "b"), (3, "c")]
    assert between(catalog, f"'incremental-between' = '{c},{c}'") == []
    table_of(catalog).tags.create("early", snapshot=b)
    table_of(catalog).tags.create("late", snapshot=d)
    assert between(catalog, "'incremental-between' = 'early,late'") == [(3, "c")]
    joined = f"SELECT n.k FROM t AS n JOIN t /*+ OPTIONS('incremental-between' = '{c},{d}') */ AS o ON n.k = o.k"
    assert rows(catalog, joined) == [(3,)]
    with pytest.raises(InvalidInputError, match="expected the older one first"):
        between(catalog, f"'incremental-between' = '{d},{a}'")
    with pytest.raises(NotFoundError):
        between(catalog, f"'incremental-between' = '{d},99'")


def test_a_difference_compares_two_snapshots_whatever_happened_in_between(catalog: Catalog) -> None:
    ids = [each for each, _ in history(catalog)]
    start, a, b, c, d = ids[-5:]
    diff = "'incremental-between' = '{},{}', 'incremental-between-scan-mode' = 'diff'".format
    assert between(catalog, diff(a, d)) == [(2, "b"), (3, "c")]
    assert between(catalog, diff(start, c)) == [(2, "b")]
    assert between(catalog, diff(b, b)) == []
    assert between(catalog, diff(a, b), "t$audit_log") == [("+I", 1, "b"), ("+I", 2, "b")]
    assert between(catalog, diff(a, d), "t$audit_log") == [("+I", 2, "b"), ("+I", 3, "c"), ("-D", 1, "a")]
    assert between(catalog, diff(a, d), "t$binlog") == [("+I", [2], ["b"]), ("+I", [3], ["c"]), ("-D", [1], ["a"])]
    table_of(catalog).tags.create("early", snapshot=a)
    table_of(catalog).maintenance.expire(older_than="0 s", keep_last=1)
    assert between(catalog, diff("early", d)) == [(2, "b"), (3, "c")]
    catalog.sql("CREATE TABLE m (k INT, v MAP<STRING, INT>)")
    with pytest.raises(InvalidInputError, match="has a MAP, which cannot be compared"):
        between(catalog, diff(0, 0), "m")


def test_a_difference_without_a_key_counts_equal_rows(catalog: Catalog) -> None:
    catalog.sql(
        f"CREATE TABLE a (v INT); INSERT INTO a VALUES (1), (1), (2); {BATCH}; INSERT OVERWRITE a VALUES (1), (3), (3)"
    )
    diff = "'incremental-between' = '1,2', 'incremental-between-scan-mode' = 'diff'"
    assert between(catalog, diff, "a") == [(3,), (3,)]
    assert between(catalog, diff, "a$audit_log") == [("+I", 3), ("+I", 3), ("-D", 1), ("-D", 2)]
    times = [each.timestamp_ms for each in reversed(catalog.table("a").snapshots())]  # type: ignore[union-attr]
    timed = f"'incremental-between-timestamp' = '{{}},{times[-1]}', 'incremental-between-scan-mode' = 'diff'".format
    assert between(catalog, timed(times[-2]), "a") == [(3,), (3,)]
    assert between(catalog, timed(0), "a") == [(1,), (3,), (3,)]


def test_the_changes_of_the_newest_snapshot(catalog: Catalog) -> None:
    """Snapshots without changes, such as those of a compaction, do not count."""
    newest = "'scan.mode' = 'latest-delta'"
    catalog.sql("CREATE TABLE a (v INT)")
    assert between(catalog, newest, "a") == []
    catalog.sql("INSERT INTO a VALUES (1), (2); INSERT INTO a VALUES (3), (4)")
    assert between(catalog, newest, "a") == [(3,), (4,)]
    history(catalog)
    table_of(catalog).compact()
    assert between(catalog, newest) == [(3, "c")]
    assert between(catalog, newest, "t$audit_log") == [("+U", 3, "c")]
    with pytest.raises(InvalidInputError, match="already selects a range: remove 'incremental-between'"):
        between(catalog, f"{newest}, 'incremental-between' = '0,1'")
    with pytest.raises(InvalidInputError, match="exclude each other"):
        between(catalog, f"{newest}, 'scan.snapshot-id' = '1'")
    with pytest.raises(InvalidInputError, match="is for batch queries"):
        catalog.sql(f"{STREAMING}; SELECT * FROM a /*+ OPTIONS({newest}) */")


def test_a_column_of_any_name_keeps_its_values(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE p (k INT, `_place` INT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("INSERT INTO p VALUES (1, 10), (2, 20)")
    assert between(catalog, "'incremental-between' = '0,1'", "p") == [(1, 10), (2, 20)]


def test_a_range_of_the_audit_log_has_every_change(catalog: Catalog) -> None:
    ids = [each for each, _ in history(catalog, "WITH ('changelog-producer' = 'lookup')")]
    hint = f"'incremental-between' = '{ids[-4]},{ids[-2]}', 'incremental-between-scan-mode' = 'changelog'"
    changes = [("+I", 2, "b"), ("+U", 1, "b"), ("-D", 1, "b"), ("-U", 1, "a")]
    assert between(catalog, hint, "t$audit_log") == changes
    assert between(catalog, hint, "t$binlog") == [("+I", [2], ["b"]), ("+U", [1, 1], ["a", "b"]), ("-D", [1], ["b"])]


def test_a_range_of_times(catalog: Catalog) -> None:
    """The rows of the oldest snapshot are part of a range that begins before it."""
    times = [time for _, time in history(catalog)]
    timed = "'incremental-between-timestamp' = '{},{}'".format
    assert between(catalog, timed(times[-4], times[-3])) == [(1, "b"), (2, "b")]
    assert between(catalog, timed(times[-2], 4_000_000_000_000)) == [(3, "c")]
    assert between(catalog, timed("2001-01-01 00:00:00", times[-4])) == [(1, "a")]
    assert between(catalog, timed(0, 1)) == []
    table_of(catalog).maintenance.expire(older_than="0 s", keep_last=2)
    assert between(catalog, timed(0, times[-1])) == [(2, "b"), (3, "c")]
    assert between(catalog, timed(0, 1)) == []


def test_a_range_of_a_table_without_a_key_has_its_added_rows(catalog: Catalog) -> None:
    ids = [each for each, _ in history(catalog, key="")]
    assert between(catalog, f"'incremental-between' = '{ids[-4]},{ids[-1]}'") == [(1, "b"), (2, "b"), (3, "c")]


def test_a_stream_of_changes_begins_where_a_hint_says(catalog: Catalog) -> None:
    """Rows of a table with a key may begin anywhere if each is a change."""
    ids = [each for each, _ in history(catalog, "WITH ('changelog-producer' = 'lookup')")]
    came: list[tuple[Any, ...]] = []
    for hint in (f"'scan.snapshot-id' = '{ids[-2]}'", "'scan.mode' = 'latest'"):
        query = catalog.follow(
            catalog.sql(f"SELECT * FROM t$audit_log /*+ OPTIONS({hint}) */"),
            lambda frame, _: came.extend(map(tuple, frame.collect())),
        )
        assert query.awaitTermination(int(PATIENCE_SECONDS))
    assert sorted(came) == [("+I", 3, "c"), ("-D", 1, "b")]
    with pytest.raises(InvalidInputError, match="'incremental-between' is not one of a streaming read"):
        catalog.sql("SELECT * FROM t /*+ OPTIONS('incremental-between' = '1,2') */")


def shown(catalog: Catalog, text: str) -> list[tuple[Any, ...]]:
    """Return what a continuous SELECT shows of what is there."""
    came: list[tuple[Any, ...]] = []
    query = catalog.follow(catalog.sql(text), lambda frame, _: came.extend(map(tuple, frame.collect())))
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    return came


def test_a_query_of_a_table_with_a_key_begins_where_a_hint_says(catalog: Catalog) -> None:
    """Its changes replace and delete rows that it has not read."""
    ids = [each for each, _ in history(catalog, "WITH ('changelog-producer' = 'full-compaction')")]
    before, after, gone, came = ("update_preimage", "update_postimage", "delete", "insert")
    select = "SELECT k, v FROM t /*+ OPTIONS({}) */".format
    assert shown(catalog, select(f"'scan.snapshot-id' = '{ids[-2]}'")) == [(1, "b", gone), (3, "c", came)]
    assert shown(catalog, select("'scan.mode' = 'latest'")) == []
    every = [(1, "a", came), (1, "a", before), (1, "b", after), (2, "b", came), (1, "b", gone), (3, "c", came)]
    all_of_them = select("'scan.timestamp-millis' = '0'")
    assert shown(catalog, all_of_them) == every
    assert shown(catalog, f"{all_of_them} WHERE v = 'b'") == every[2:5]


@pytest.mark.parametrize("producer", ["lookup", "input"])
def test_a_copy_of_a_table_with_a_key_is_continued_from_a_snapshot(catalog: Catalog, producer: str) -> None:
    """Rows that leave the filter, or are deleted, leave the copy, also those that were there before."""
    catalog.sql(
        f"CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer' = '{producer}')"
    )
    catalog.sql("CREATE TABLE copy (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("CREATE TABLE sums (p INT, n INT, PRIMARY KEY (p) NOT ENFORCED) WITH ('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'sum')")  # fmt: skip  # noqa: E501
    catalog.sql("INSERT INTO s VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    ((first,),) = rows(catalog, "SELECT MAX(snapshot_id) FROM s$snapshots")
    catalog.sql(f"{BATCH}; INSERT INTO copy SELECT * FROM s; INSERT INTO sums SELECT k % 2, v FROM s; {STREAMING}")
    catalog.sql("INSERT INTO s VALUES (1, -1), (2, 20), (5, 5), (6, -6); DELETE FROM s WHERE k = 3")
    hint = f"s /*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '{first + 1}') */"
    finish(catalog, f"INSERT INTO copy SELECT k, v FROM {hint} WHERE v > 0")
    finish(catalog, f"INSERT INTO sums SELECT k % 2, v FROM {hint} UNION ALL SELECT k, v FROM {hint} WHERE k < 0")
    assert rows(catalog, "SELECT * FROM copy") == [(2, 20), (4, 4), (5, 5)]
    assert rows(catalog, "SELECT * FROM sums") == rows(catalog, "SELECT k % 2, CAST(SUM(v) AS INT) FROM s GROUP BY k % 2")  # fmt: skip  # noqa: E501


def test_a_copy_is_continued_without_the_rows_before_changes(catalog: Catalog) -> None:
    """Deletes of rows that the query has not read are passed on; what needs those rows is refused."""
    for name in ("s", "copy", "byv"):
        catalog.sql(f"CREATE TABLE {name} (k INT, v INT, PRIMARY KEY ({'v, ' * (name == 'byv')}k) NOT ENFORCED)")
    catalog.sql("INSERT INTO s VALUES (1, 1), (2, 2), (3, 3)")
    ((first,),) = rows(catalog, "SELECT MAX(snapshot_id) FROM s$snapshots")
    catalog.sql(f"{BATCH}; INSERT INTO copy SELECT * FROM s; {STREAMING}")
    catalog.sql("INSERT INTO s VALUES (2, 20), (4, 4); DELETE FROM s WHERE k = 3; DELETE FROM s WHERE k = 4")
    hint = f"s /*+ OPTIONS('scan.snapshot-id' = '{first + 1}') */"
    finish(catalog, f"INSERT INTO copy SELECT k, v FROM {hint}")
    assert rows(catalog, "SELECT * FROM copy") == [(1, 1), (2, 20)]
    catalog.sql("INSERT INTO s VALUES (2, 21), (3, 33); DELETE FROM s WHERE k = 1")
    finish(catalog, f"INSERT INTO copy SELECT k, v FROM {hint}")
    assert rows(catalog, "SELECT * FROM copy") == rows(catalog, "SELECT * FROM s") == [(2, 21), (3, 33)]
    assert sorted(shown(catalog, f"SELECT * FROM {hint}")) == [
        (1, None, "delete"), (2, 21, "insert"), (3, 33, "insert"), (4, None, "delete")
    ]  # fmt: skip
    catalog.sql("CREATE TABLE sums (v INT, n INT, PRIMARY KEY (v) NOT ENFORCED) WITH ('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'sum')")  # fmt: skip  # noqa: E501
    for text, reason in (
        (f"SELECT * FROM {hint} WHERE v > 1", "WHERE over 's .*', which begins in the middle"),
        (f"INSERT INTO byv SELECT k, v FROM {hint}", "and the table has another key than the changes"),
        (f"INSERT INTO sums SELECT k, v FROM {hint}", "and the table takes back the rows that changes replace"),
    ):
        with pytest.raises(InvalidInputError, match=f"{reason}.*create the table with 'changelog-producer' = 'lookup'"):
            catalog.sql(text)


def test_a_consumer_of_a_table_with_a_key_goes_on_where_it_was(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer' = 'lookup')")
    catalog.sql("CREATE TABLE a LIKE s; CREATE TABLE b LIKE s; INSERT INTO s VALUES (1, 1)")
    select = "SELECT * FROM s /*+ OPTIONS('consumer-id' = 'me') */"
    finish(catalog, f"INSERT INTO a {select}")
    catalog.sql("INSERT INTO s VALUES (2, 2)")
    finish(catalog, f"INSERT INTO b {select}")
    assert rows(catalog, "SELECT * FROM a") == [(1, 1)]
    assert (2, 2) in rows(catalog, "SELECT * FROM b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT v, COUNT(*) FROM {} GROUP BY v", "an aggregate"),
        ("SELECT DISTINCT v FROM {}", "DISTINCT"),
        ("SELECT k FROM {} UNION SELECT k FROM n", "UNION without ALL"),
        ("SELECT a.k FROM {} AS a JOIN n ON a.k = n.k", "a join"),
        ("SELECT n.k FROM n JOIN (SELECT k FROM {} UNION ALL SELECT k FROM n) AS a ON a.k = n.k", "a join"),
        ("SELECT * FROM {} ORDER BY v LIMIT 3", "Top-N"),
        (
            "SELECT k FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY v ORDER BY k) AS n FROM {}) AS r WHERE n = 1",
            "Top-N",
        ),
        ("SELECT COUNT(*) FROM later", "an aggregate"),
    ],
)
def test_operators_with_state_need_the_rows_before(catalog: Catalog, text: str, what: str) -> None:
    catalog.sql("CREATE TABLE s (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer' = 'lookup')")
    catalog.sql("CREATE TABLE n LIKE s; CREATE VIEW later AS SELECT k FROM s /*+ OPTIONS('scan.mode' = 'latest') */")
    with pytest.raises(InvalidInputError, match=rf"{what} over 's .*', which begins in the middle, is not supported"):
        catalog.sql(text.format("s /*+ OPTIONS('scan.mode' = 'latest') */"))


def test_a_batch_query_of_changes_may_read_one_snapshot(catalog: Catalog) -> None:
    ids = [each for each, _ in history(catalog, "WITH ('changelog-producer' = 'lookup')")]
    assert between(catalog, "'scan.mode' = 'latest'", "t$binlog") == [("+I", [2], ["b"]), ("+I", [3], ["c"])]
    mode = "'scan.mode' = 'from-snapshot-full', 'scan.snapshot-id' ="
    assert between(catalog, f"{mode} '{ids[-4]}'", "t$audit_log") == [("+I", 1, "a")]
    assert between(catalog, f"{mode} '{ids[-4]}'") == [(1, "a")]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("max_pt()", [6]),
        ("max_two_pt()", [5, 6]),
        ("day = max_pt() ", [5, 6]),
        ("day=max_pt(),hour=max_pt()", [6]),
        ("day=2024-01-02,hour=7; hour=8, day=2024-01-01", [2, 4]),
        ("day=2001-01-01,hour=1", []),
    ],
)
def test_some_partitions(catalog: Catalog, choice: str, found: list[int]) -> None:
    catalog.sql("CREATE TABLE p (v INT, day DATE, hour INT) PARTITIONED BY (day, hour)")
    hint = f"p /*+ OPTIONS('scan.partitions' = '{choice}') */"
    assert rows(catalog, f"SELECT v FROM {hint}") == []
    days = [(1, 7), (1, 8), (1, 9), (2, 7), (3, 1), (3, 10)]
    values = ", ".join(f"({n}, DATE '2024-01-0{day}', {hour})" for n, (day, hour) in enumerate(days, start=1))
    catalog.sql(f"{BATCH}; INSERT INTO p VALUES {values}")
    assert rows(catalog, f"SELECT v FROM {hint}") == [(v,) for v in found]
    catalog.sql(f"ALTER TABLE p SET ('scan.partitions' = '{choice}')")
    assert rows(catalog, "SELECT v FROM p") == [(v,) for v in found]
    with pytest.raises(InvalidInputError, match=r"'scan.partitions': column 'hour': expected a value of type int32"):
        rows(catalog, "SELECT v FROM p /*+ OPTIONS('scan.partitions' = 'day=2024-01-01,hour=x') */")
    catalog.sql("ALTER TABLE p RESET ('scan.partitions')")
    assert rows(catalog, "SELECT v FROM p") == [(v,) for v in range(1, 7)]


def test_a_table_says_which_of_its_partitions_are_looked_up(catalog: Catalog) -> None:
    catalog.sql("""
        CREATE TABLE o (k INT, p AS PROCTIME());
        CREATE TABLE r (k INT, v INT);
        CREATE TABLE d (k INT, v INT, day STRING, PRIMARY KEY (day, k) NOT ENFORCED) PARTITIONED BY (day) WITH (
            'lookup.dynamic-partition' = 'max_pt()', 'lookup.dynamic-partition.refresh-interval' = '1 ms',
            'lookup.cache' = 'full');
        INSERT INTO o VALUES (1), (2);
        INSERT INTO d VALUES (1, 10, 'a'), (1, 11, 'b'), (2, 20, 'a')
    """)
    table = catalog.table("d")
    assert isinstance(table, TableStore)
    assert not [row for row in table.inspect.options().collect() if row["name"].startswith(("lookup", "scan"))]
    joined = "SELECT o.k, d.v FROM o LEFT JOIN d {} FOR SYSTEM_TIME AS OF o.p AS d ON o.k = d.k"
    for hint, found in (("", None), ("/*+ OPTIONS('scan.partitions' = 'day=a') */", 20)):
        for query in catalog.sql(f"INSERT INTO r {joined.format(hint)}").queries:
            assert query.awaitTermination(int(PATIENCE_SECONDS))
        assert (2, found) in rows(catalog, "SELECT * FROM r")
    assert rows(catalog, "SELECT k, v FROM d") == [(1, 11)]
    for text, reason in (
        ("SELECT * FROM d", "reads all partitions, not those of the table's option 'scan.partitions'"),
        ("ALTER TABLE d SET ('scan.partitions' = 'x=1')", "is given twice|'d': option 'scan.partitions': expected"),
        (
            "CREATE TABLE n (v INT) WITH ('scan.partitions' = 'max_pt()')",
            "'n': option 'scan.partitions': the table",
        ),
        (
            "CREATE TABLE n (v INT) WITH ('scan.mode' = 'latest')",
            "unknown option 'scan.mode': set it where the table is read",
        ),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            catalog.sql(f"SET 'execution.runtime-mode' = 'streaming'; {text}")
    made = catalog.sql("CREATE TABLE n (v INT) WITH ('sink.writer-coordinator.enabled' = 'true')")
    assert made.message.endswith("without effect: 'sink.writer-coordinator.enabled': a write looks up what it needs")


def test_hints_of_lookups_of_paimons_change_nothing(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE o (k INT, p AS PROCTIME()); CREATE TABLE d (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("CREATE TABLE r (k INT, v INT); INSERT INTO o VALUES (1), (2); INSERT INTO d VALUES (1, 10)")
    hint = "OPTIONS('lookup.async' = 'true', 'lookup.async-thread-number' = '4', 'scan.snapshot-id' = '1')"
    joined = f"SELECT o.k, d.v FROM o LEFT JOIN d /*+ {hint} */ FOR SYSTEM_TIME AS OF o.p AS d ON o.k = d.k"
    for query in catalog.sql(f"INSERT INTO r {joined}").queries:
        assert query.awaitTermination(int(PATIENCE_SECONDS))
    assert rows(catalog, "SELECT * FROM r") == [(1, 10), (2, None)]


def test_a_clock_that_goes_back_lets_no_lookup_keep_a_partition_for_longer(spark: SparkSession) -> None:
    choice, kept = replace(PartitionChoice.of("max_pt()", ["day"]), refresh_ms=60_000), KeptPartitions()
    before, after = (spark.createDataFrame([(day,) for day in range(1, days)], "day int") for days in (2, 3))
    with clock(7_200):
        assert kept.rows_of("d", choice, before).collect() == [(1,)]
        assert kept.rows_of("d", choice, after).collect() == [(1,)]
    assert kept.rows_of("d", choice, after).collect() == [(2,)]


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("", [10, 11, 12, 12]),
        ("'lookup.dynamic-partition.refresh-interval' = '1 h'", [10, 10, 10, 10]),
        ("'lookup.dynamic-partition.refresh-interval' = '1 ms'", [10, 11, 12, 12]),
        ("'lookup.dynamic-partition.refresh.async' = 'true'", [10, 10, 11, 12]),
    ],
)
@pytest.mark.parametrize("is_view", [False, True], ids=["table", "view"])
def test_a_lookup_keeps_the_newest_partition_as_long_as_it_says(
    catalog: Catalog, option: str, found: list[int], *, is_view: bool
) -> None:
    """With async refresh, the lookup that finds a newer partition still reads the one before."""
    catalog.sql("""
        CREATE TABLE o (k INT, p AS PROCTIME()); CREATE TABLE r (k INT, v INT);
        CREATE TABLE d (v INT, day INT) PARTITIONED BY (day);
        SET 'tablestore.trigger' = '0'; INSERT INTO d VALUES (10, 0)
    """)
    hint = f"OPTIONS('scan.partitions' = 'max_pt()'{',' * bool(option)} {option})"
    table, other = (f"d /*+ {hint} */", "FOR SYSTEM_TIME AS OF o.p")
    if is_view:
        catalog.sql(f"CREATE VIEW n AS SELECT * FROM {table}")
        table = "n"
    (query,) = catalog.sql(f"INSERT INTO r SELECT o.k, d.v FROM o LEFT JOIN {table} {other} AS d ON TRUE").queries
    try:
        for number in range(4):
            if number in {1, 2}:
                catalog.sql(f"INSERT INTO d VALUES ({10 + number}, {number})")
            catalog.sql(f"INSERT INTO o VALUES ({number})")
            query.processAllAvailable()
    finally:
        query.stop()
    assert rows(catalog, "SELECT * FROM r") == list(enumerate(found))


def test_options_of_lookups_that_would_change_rows_are_refused_by_name(catalog: Catalog) -> None:
    """Unless the value says what is so anyway."""
    catalog.sql("CREATE TABLE o (k INT, p AS PROCTIME()); CREATE TABLE d (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    periods = "2000-01-01 00:00->2000-01-01 00:01,2001-01-01 00:00->"
    off = (
        f"'lookup.blob-as-descriptor' = 'false', 'lookup.refresh.time-periods-blacklist' = '{periods}2001-01-02 00:00'"
    )
    catalog.sql(f"ALTER TABLE d SET ({off})")
    with pytest.raises(InvalidInputError, match=r"'lookup.refresh.time-periods-blacklist' = '2000.*is not supported"):
        catalog.sql(f"ALTER TABLE d SET ('lookup.refresh.time-periods-blacklist' = '{periods}2999-01-02 00:00')")
    joined = "SELECT o.k, d.v FROM o JOIN d /*+ OPTIONS('{}' = 'true') */ FOR SYSTEM_TIME AS OF o.p AS d ON o.k = d.k"
    for key, reason in (
        ("lookup.blob-as-descriptor", "is not supported: a lookup returns the bytes themselves"),
        ("lookup.refresh.time-periods-blacklist", "is not supported: each micro-batch looks rows up"),
        ("lookup.dynamic-partition.refresh.async", "the table has no partitions"),
        ("lookup.cash", "leave it out: a lookup join reads the table's current rows"),
    ):
        for text in (joined.format(key), f"ALTER TABLE d SET ('{key}' = 'true')"):
            with pytest.raises(InvalidInputError, match=f"'{key}'.*{reason}"):
                catalog.sql(text)
    catalog.sql("CREATE TABLE e (v INT, day INT) PARTITIONED BY (day)")
    with pytest.raises(InvalidInputError, match=r"refresh-interval'.*expected a duration such as"):
        catalog.sql("ALTER TABLE e SET ('lookup.dynamic-partition.refresh-interval' = 'soon')")


def test_a_continuous_query_takes_the_rows_of_an_overwrite_for_further_ones_if_told_to(catalog: Catalog) -> None:
    """Else it ends with a message without tracebacks of Python and Java."""
    key = "'streaming-read-append-overwrite'"
    catalog.sql("CREATE TABLE s (id INT, p STRING) PARTITIONED BY (p); CREATE TABLE copy (id INT, p STRING)")
    catalog.sql("CREATE TABLE other LIKE copy; INSERT INTO s VALUES (1, 'x')")
    copy, other = (
        "INSERT INTO copy SELECT * FROM s",
        f"INSERT INTO other SELECT * FROM s /*+ OPTIONS({key} = 'true') */",
    )
    finish(catalog, copy)
    finish(catalog, other)
    catalog.sql(f"{BATCH}; INSERT OVERWRITE s PARTITION (p = 'x') VALUES (2); UPDATE s SET id = 3; {STREAMING}")
    (failed,) = catalog.sql(copy).queries
    follows = catalog.follow(catalog.sql("SELECT * FROM s /*+ OPTIONS('scan.mode' = 'from-snapshot', 'scan.snapshot-id' = '2') */"), lambda frame, _: frame.collect())  # fmt: skip  # noqa: E501
    for query in (failed, follows):
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination(int(PATIENCE_SECONDS))
        for message in (str(raised.value), str(query.exception())):
            assert message.startswith("table 's' has no PRIMARY KEY, so this query expects rows to be inserted only")
            assert f"or set its option {key}" in message
            assert "Traceback" not in message
    finish(catalog, other)
    assert rows(catalog, "SELECT * FROM other") == [(1, "x"), (2, "x"), (3, "x")]
    catalog.sql(f"ALTER TABLE s SET ({key} = 'true'); SET 'pipeline.name' = 'again'")
    finish(catalog, copy)
    assert rows(catalog, "SELECT * FROM copy") == [(1, "x"), (3, "x")]
    for word, text in (("PRIMARY KEY", f"CREATE TABLE k (k INT PRIMARY KEY NOT ENFORCED) WITH ({key} = 'true')"), ("expected 'true' or 'false'", f"ALTER TABLE s SET ({key} = 'x')")):  # fmt: skip  # noqa: E501
        with pytest.raises(InvalidInputError, match=word):
            catalog.sql(text)
