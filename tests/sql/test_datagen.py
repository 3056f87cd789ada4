"""Tables of the ``datagen`` connector: values of each type, sequences, streams that go on after a restart, errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore.connectors import read
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.harness.spark_tables import shuffle_partitions
from tests.harness.waiting import until
from tests.sql.test_run import BATCH, rows

HEX = set("0123456789abcdef")


def declare(catalog: Catalog, columns: str, name: str = "g", **options: object) -> None:
    """Create a table; ``__`` in an option's name stands for a dot, and ``_`` for a hyphen."""
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "datagen", **named}.items())
    catalog.sql(f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ({listed})")


def in_order(catalog: Catalog, text: str) -> list[tuple[Any, ...]]:
    frame = catalog.sql(text).frame
    assert frame is not None
    return [tuple(row) for row in frame.collect()]


def values(catalog: Catalog, kind: str, **options: object) -> list[Any]:
    """Return 2000 values of a column `v` of a type."""
    declare(catalog, f"v {kind}", number_of_rows=2000, **options)
    found = [row[0] for row in rows(catalog, "SELECT v FROM g")]
    assert len(found) == 2000
    catalog.sql("DROP TEMPORARY TABLE g")
    return found


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("TINYINT", -128, 127),
        ("SMALLINT", -(2**15), 2**15 - 1),
        ("INT", -(2**31), 2**31 - 1),
        ("BIGINT", -(2**63), 2**63 - 1),
        ("FLOAT", 0, 3.4028234663852886e38),
        ("DOUBLE", 0, 1.7976931348623157e308),
        ("DECIMAL(5, 2)", 0, Decimal("999.99")),
        ("DECIMAL(38, 0)", 0, Decimal("9" * 38)),
    ],
)
def test_numbers_fill_the_range_of_their_type_or_of_their_options(
    catalog: Catalog, kind: str, low: Any, high: Any
) -> None:
    catalog.sql(BATCH)
    found = values(catalog, kind)
    part = (Decimal(high) - Decimal(low)) / 10
    assert low <= min(found) < Decimal(low) + part
    assert high >= max(found) > Decimal(high) - part
    found = values(catalog, kind, fields__v__min=-3, fields__v__max=4)
    assert -3 <= min(found) < -2
    assert 4 >= max(found) > 3
    assert set(values(catalog, kind, fields__v__min=7, fields__v__max=7)) == {7}
    if "INT" in kind:
        assert {(value - low) % 256 for value in values(catalog, kind)} > set(range(0, 256, 64))
        assert set(found) == set(range(-3, 5))
        wide = values(catalog, kind, fields__v__min=low + 1)
        assert low < min(wide) < Decimal(low) + part


def test_the_greatest_numbers_do_not_overflow(catalog: Catalog) -> None:
    catalog.sql(BATCH)
    most = 1.7976931348623157e308
    found = values(catalog, "DOUBLE", fields__v__min=-most)
    assert min(found) < -most / 2 < most / 2 < max(found) <= most
    most = Decimal("9" * 18)
    found = values(catalog, "DECIMAL(18, 0)", fields__v__min=most - 100)
    assert all(most - 100 <= value <= most for value in found)


@pytest.mark.parametrize(
    ("kind", "length", "unit"),
    [
        ("CHAR(3)", 3, str),
        ("VARCHAR(150)", 150, str),
        ("STRING", 100, str),
        ("BINARY(65)", 65, bytes),
        ("VARBINARY(7)", 7, bytes),
        ("BYTES", 100, bytes),
    ],
)
def test_texts_and_bytes_have_the_length_of_their_type_or_option(
    catalog: Catalog, kind: str, length: int, unit: type
) -> None:
    catalog.sql(BATCH)
    found = values(catalog, kind)
    assert {len(value) for value in found} == {length}
    assert all(set(value) <= HEX if unit is str else isinstance(value, bytes | bytearray) for value in found)
    assert len(set(map(bytes if unit is bytes else str, found))) > 1500
    if length > 3 and not kind.startswith("BINARY"):
        assert {len(value) for value in values(catalog, kind, fields__v__length=2)} == {2}
        varied = values(catalog, kind, fields__v__length=4, fields__v__var_len="true")
        assert {len(value) for value in varied} == {1, 2, 3, 4}


def test_times_are_those_of_the_query_or_before(catalog: Catalog) -> None:
    catalog.sql(BATCH)
    catalog.sql("SET 'table.local-time-zone' = 'Asia/Tokyo'")
    declare(
        catalog,
        "d DATE, t0 TIME, t3 TIME(3), n0 TIMESTAMP(0), n1 TIMESTAMP(1), n3 TIMESTAMP(3), l TIMESTAMP_LTZ(3), "
        "old TIMESTAMP(3)",
        number_of_rows=500,
        fields__old__max_past="10 s",
    )
    before = datetime.now(UTC).replace(microsecond=0)
    text = "SELECT d, CAST(t0 AS STRING), CAST(t3 AS STRING), n0, n1, n3, CAST(l AS TIMESTAMP(3)), old FROM g"
    found = rows(catalog, text)
    after = datetime.now(UTC)
    first, last = ((each + timedelta(hours=9)).replace(tzinfo=None) for each in (before, after))
    assert {first <= row[5] <= last and row[5] == row[6] for row in found} == {True}
    now = found[0][5]
    second, tenth = now.replace(microsecond=0), now.replace(microsecond=now.microsecond // 100_000 * 100_000)
    assert {row[:2] + row[3:5] for row in found} == {(now.date(), now.strftime("%H:%M:%S"), second, tenth)}
    assert {time.fromisoformat(row[2]) for row in found} == {now.time()}
    ages = [(now - row[7]).total_seconds() for row in found]
    assert 0 <= min(ages) < 1
    assert 9 < max(ages) <= 10
    assert isinstance(found[0][0], date)


def test_booleans_arrays_maps_and_rows(catalog: Catalog) -> None:
    catalog.sql(BATCH)
    assert 800 < sum(values(catalog, "BOOLEAN")) < 1200
    assert {len(value) for value in values(catalog, "ARRAY<INT>")} == {3}
    declare(
        catalog,
        "r ROW<`Word` CHAR(4), n INT, inner_row ROW<at TIMESTAMP(0)>>, a ARRAY<ARRAY<STRING>>, m MAP<INT, VARCHAR(6)>, "
        "b MAP<BOOLEAN, ROW<x INT NOT NULL>>",
        number_of_rows=500,
        fields__r__n__min=1,
        fields__r__n__max=3,
        fields__a__length=2,
        fields__a__element__length=4,
        fields__a__element__element__length=1,
        fields__m__key__min=0,
        fields__m__key__max=5,
    )
    found = rows(catalog, "SELECT r, a, m, b FROM g")
    assert {(len(r.Word), r.inner_row.at.microsecond) for r, *_ in found} == {(4, 0)}
    assert {r.n for r, *_ in found} == {1, 2, 3}
    assert {(len(a), *map(len, a)) for _, a, *_ in found} == {(2, 4, 4)}
    assert len({tuple(map(tuple, a)) for _, a, *_ in found}) == 500
    assert {value for _, a, *_ in found for each in a for value in each} == HEX
    assert {key for *_, m, _ in found for key in m} == set(range(6))
    assert {len(value) for *_, m, _ in found for value in m.values()} == {6}
    assert {len(m) for *_, m, _ in found} <= {1, 2, 3}
    assert {len(b) for *_, b in found} == {1, 2}
    assert all(entry.x is not None for *_, b in found for entry in b.values())


def test_the_null_rate_is_that_of_each_field(catalog: Catalog) -> None:
    catalog.sql(BATCH)
    found = values(catalog, "INT", fields__v__null_rate=0.25)
    assert 400 < found.count(None) < 600
    assert values(catalog, "STRING", fields__v__null_rate=1) == [None] * 2000
    lists = values(catalog, "ARRAY<INT>", fields__v__null_rate=0.5, fields__v__element__null_rate=0.5)
    assert 850 < lists.count(None) < 1150
    elements = [each for value in lists if value is not None for each in value]
    assert 0.45 < elements.count(None) / len(elements) < 0.55


def test_a_sequence_is_in_order_and_ends_with_the_shortest_range(catalog: Catalog) -> None:
    options: dict[str, object] = {}
    wanted = {"id": (7, 1_000_000), "small": (-2, 3), "s": (9, 100), "b": (-1, 50), "price": (1, 99), "f": (5, 500)}
    for name, (start, end) in wanted.items():
        options |= {f"fields__{name}__kind": "sequence", f"fields__{name}__start": start, f"fields__{name}__end": end}
    columns = "id BIGINT, small TINYINT, s VARCHAR(3), b BYTES, price DECIMAL(4, 2), f FLOAT, twice AS id * 2"
    declare(catalog, columns, **options)
    expected = [
        (7 + n, -2 + n, str(9 + n), (n - 1).to_bytes(8, "big", signed=True), Decimal(1 + n), 5.0 + n, 14 + 2 * n)
        for n in range(6)
    ]
    assert in_order(catalog, "SELECT id, small, s, b, price, f, twice FROM g") == expected
    catalog.sql(BATCH)
    assert in_order(catalog, "SELECT id, small, s, b, price, f, twice FROM g") == expected
    assert in_order(catalog, "SELECT id FROM g /*+ OPTIONS('number-of-rows' = '2') */") == [(7,), (8,)]
    assert rows(catalog, "SELECT COUNT(*) FROM g /*+ OPTIONS('number-of-rows' = '7') */") == [(6,)]


def test_rows_of_a_sequence_are_written_in_order(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """Also in streaming mode, where a table with an end is read at once."""
    there = wire.make(topic())
    declare(catalog, "id INT", fields__id__kind="sequence", fields__id__start=1, fields__id__end=200)
    catalog.sql(
        f"CREATE TABLE t (id INT) WITH ('connector' = 'kafka', 'topic' = '{there}', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...'); INSERT INTO t SELECT id FROM g"
    )
    assert wire.values(there) == [b'{"id":%d}' % number for number in range(1, 201)]
    assert catalog.table("g").read().rdd.getNumPartitions() == 1


def test_values_are_those_of_the_row_in_each_query(catalog: Catalog) -> None:
    """Whatever the number of tasks; another table or column has others."""
    catalog.sql(BATCH)
    declare(catalog, "a INT, b INT", number_of_rows=1000)
    declare(catalog, "a INT, b INT", "other", number_of_rows=1000)
    found = in_order(catalog, "SELECT a, b FROM g")
    assert in_order(catalog, "SELECT a, b FROM g /*+ OPTIONS('scan.parallelism' = '3') */") == found
    assert not {a for a, _ in found} & {b for _, b in found}
    assert not set(found) & set(rows(catalog, "SELECT a, b FROM other"))
    frame = catalog.table("g", options={"scan.parallelism": "5", "number-of-rows": "10"}).read()
    assert isinstance(frame, DataFrame)
    assert (frame.rdd.getNumPartitions(), [tuple(row) for row in frame.collect()]) == (5, found[:10])


def test_a_mock_of_a_table(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE orders (id INT, buyer ROW<name VARCHAR(5)>, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(
        "CREATE TEMPORARY TABLE mock WITH ('connector' = 'datagen', 'number-of-rows' = '10') "
        "LIKE orders (EXCLUDING ALL); INSERT INTO orders SELECT * FROM mock"
    )
    catalog.sql(BATCH)
    assert rows(catalog, "SELECT COUNT(DISTINCT id), MIN(CHAR_LENGTH(buyer.name)) FROM orders") == [(10, 5)]


def test_a_stream_goes_on_after_a_restart_with_each_row_once(catalog: Catalog, spark: SparkSession) -> None:
    declare(catalog, "a BIGINT, s STRING", rows_per_second=500, fields__s__length=3)
    catalog.sql("CREATE TABLE t (a BIGINT, s STRING)")

    def count() -> int:
        return catalog.table("t").read().count()

    ends = []
    for _ in range(2):
        (query,) = catalog.sql("INSERT INTO t SELECT * FROM g").queries
        try:
            until(lambda: count() > (ends[-1] if ends else 0))
        finally:
            query.stop()
        ends.append(count())
    assert ends[1] > ends[0] > 0
    catalog.sql(BATCH)
    found = rows(catalog, "SELECT * FROM t")
    assert sorted(found) == sorted(rows(catalog, f"SELECT * FROM g /*+ OPTIONS('number-of-rows' = '{ends[1]}') */"))
    assert ends[1] % 500 == 0


def test_words_are_counted_as_they_come(catalog: Catalog, spark: SparkSession) -> None:
    """Flink's and Paimon's first example."""
    declare(catalog, "word STRING", "word_table", fields__word__length=1)
    catalog.sql("CREATE TABLE word_count (word STRING, cnt BIGINT, PRIMARY KEY (word) NOT ENFORCED)")
    with shuffle_partitions(spark, 1):
        (query,) = catalog.sql("INSERT INTO word_count SELECT word, COUNT(*) FROM word_table GROUP BY word").queries
        try:
            until(lambda: catalog.table("word_count").read().count() == 16)
        finally:
            query.stop()
    counts = {row.word: row.cnt for row in catalog.table("word_count").read().collect()}
    assert set(counts) == HEX
    assert sum(counts.values()) % 10_000 == 0
    assert min(counts.values()) > 0.8 * max(counts.values())


@pytest.mark.parametrize("computed", [False, True])
def test_windows_end_by_the_watermark(catalog: Catalog, spark: SparkSession, computed: bool) -> None:
    time_column = "at AS CAST(made AS TIMESTAMP(3)), made TIMESTAMP_LTZ(3)" if computed else "at TIMESTAMP(3)"
    declare(catalog, f"a INT, {time_column}, WATERMARK FOR at AS at - INTERVAL '1' SECOND", rows_per_second=100)
    catalog.sql("CREATE TABLE t (w TIMESTAMP(3), n BIGINT)")
    with shuffle_partitions(spark, 1):
        (query,) = catalog.sql(
            "INSERT INTO t SELECT window_start, COUNT(*) "
            "FROM TABLE(TUMBLE(TABLE g, DESCRIPTOR(at), INTERVAL '1' SECOND)) GROUP BY window_start, window_end"
        ).queries
        try:
            until(lambda: catalog.table("t").read().count() >= 3)
        finally:
            query.stop()
    found = sorted(tuple(row) for row in catalog.table("t").read().collect())
    starts = [start for start, _ in found]
    assert starts == [starts[0] + timedelta(seconds=number) for number in range(len(starts))]
    assert {count for _, count in found[1:]} == {100}


REFUSED = {
    ("c CHAR(3)", "fields__c__length", "3"): r"c.length. 'c' of type CHAR\(3\) and kind 'random' has no 'length'",
    ("c VARCHAR(3)", "fields__c__length", "4"): "'fields.c.length': expected a whole number from 1 to 3, got '4'",
    ("c INT", "fields__c__mim", "3"): "Did you mean 'fields.c.min'",
    ("c INT", "fields__d__min", "3"): "fields.d.min. Did you mean 'fields.c.min'",
    ("c INT", "row_per_second", "3"): "row-per-second. Did you mean 'rows-per-second'",
    ("c INT", "rows_per_second", "0"): "'rows-per-second': expected a whole number of 1 or more, got '0'",
    ("c INT", "number_of_rows", "many"): "'number-of-rows': expected a whole number of 0 or more, got 'many'",
    ("c INT", "fields__c__kind", "ordered"): "'fields.c.kind': expected 'random' or 'sequence', got 'ordered'",
    ("c INT", "fields__c__kind", "sequence"): "'fields.c.start' is required for 'fields.c.kind' = 'sequence'",
    ("c DATE", "fields__c__kind", "sequence"): "'fields.c.kind': expected 'random' for type DATE, got 'sequence'",
    ("c INT", "fields__c__start", "3"): "'c' of type INT and kind 'random' has no 'start'",
    ("c TINYINT", "fields__c__max", "128"): "'fields.c.max': expected a whole number from -128 to 127, got '128'",
    ("c INT", "fields__c__max", "1.5"): "'fields.c.max': expected a whole number .*, got '1.5'",
    ("c DECIMAL(3, 1)", "fields__c__max", "100"): "expected a number from -99.9 to 99.9, got '100'",
    ("c DECIMAL(38, 0)", "fields__c__min", "-1e38"): f"expected a number from -{'9' * 38} to {'9' * 38}, got '-1e38'",
    ("c DOUBLE", "fields__c__max", "NaN"): "'fields.c.max': expected a number from .*, got 'NaN'",
    ("c DOUBLE", "fields__c__max", "-1"): "'fields.c.min': expected at most 'fields.c.max', which is -1, got 0",
    ("c INT", "fields__c__null_rate", "1.5"): "'fields.c.null-rate': expected a number from 0 to 1, got '1.5'",
    ("c INT NOT NULL", "fields__c__null_rate", "0.5"): "'fields.c.null-rate': 'c' is NOT NULL",
    ("c MAP<INT, INT>", "fields__c__key__null_rate", "0.5"): "'c.key' of type INT has no 'null-rate'",
    ("c TIMESTAMP(3)", "fields__c__max_past", "long"): "'fields.c.max-past': expected a duration .*, got 'long'",
    ("c BOOLEAN", "fields__c__length", "1"): "'c' of type BOOLEAN and kind 'random' has no 'length'",
    ("c ROW<d INT>", "fields__c__d__max", "x"): "'fields.c.d.max': expected a whole number",
    ("c INT METADATA", "number_of_rows", "1"): "column 'c': METADATA: a 'datagen' table has none",
    ("c MULTISET<INT>", "number_of_rows", "1"): "type MULTISET is not supported",
    ("c INTERVAL DAY", "number_of_rows", "1"): "type INTERVAL is not supported",
    ("c INT", "topic", "t"): "Unsupported options found for 'datagen': topic",
}


@pytest.mark.parametrize(("columns", "option", "value"), REFUSED)
def test_what_does_not_fit_is_refused_by_create(tmp_path: Path, columns: str, option: str, value: str) -> None:
    catalog = Catalog(no_spark, tmp_path)
    with pytest.raises(InvalidInputError, match=REFUSED[columns, option, value]):
        declare(catalog, columns, **{option: value})


def no_spark() -> SparkSession:
    pytest.fail("DDL starts no Spark session")


def test_a_sequence_ends_after_it_starts(tmp_path: Path) -> None:
    ends = {"fields__c__kind": "sequence", "fields__c__start": "3", "fields__c__end": "2"}
    with pytest.raises(InvalidInputError, match=r"c.start': expected at most 'fields.c.end', which is 2, got 3"):
        declare(Catalog(no_spark, tmp_path), "c INT", **ends)


def test_an_unbounded_table_is_read_as_a_stream_only(catalog: Catalog) -> None:
    declare(catalog, "c INT")
    with pytest.raises(InvalidInputError, match="a 'datagen' table generates its rows, and cannot be written to"):
        catalog.sql("INSERT INTO g VALUES (1)")
    with pytest.raises(InvalidInputError, match="only rows of a store table can be changed; 'g' is a 'datagen' table"):
        catalog.sql("DELETE FROM g")
    catalog.sql(BATCH)
    for text in ("SELECT * FROM g", "SELECT a.c FROM g AS a JOIN g AS b ON a.c = b.c"):
        with pytest.raises(InvalidInputError, match=r"'g': an unbounded 'datagen' table .* Set 'number-of-rows'"):
            catalog.sql(text)


def test_a_bounded_table_is_read_in_python_as_a_batch_only(catalog: Catalog) -> None:
    declare(catalog, "c INT", "bounded", number_of_rows=3)
    declare(catalog, "c INT, PRIMARY KEY (c) NOT ENFORCED", "endless")
    assert catalog.table("endless").read_stream(ordered=True).columns == ["c"]
    assert catalog.table("bounded").read().count() == 3
    with pytest.raises(InvalidInputError, match="a bounded 'datagen' table is no stream: use read"):
        catalog.table("bounded").read_stream()


@pytest.mark.parametrize(
    ("connector", "hint"),
    [("jdbc", ""), ("filesystem", "a store table"), ("datagem", "Did you mean 'datagen'")],
)
def test_another_connector_is_answered_with_those_there_are(tmp_path: Path, connector: str, hint: str) -> None:
    known = "'kafka', 'upsert-kafka', 'datagen', 'print', 'blackhole'"
    with pytest.raises(InvalidInputError, match=rf"expected {known}, or none.*got '{connector}'\..*{hint}"):
        Catalog(no_spark, tmp_path).sql(f"CREATE TABLE t (a INT) WITH ('connector' = '{connector}')")


def test_functions_for_topics_name_their_connectors(spark: SparkSession) -> None:
    for name in ("datagen", "kafak"):
        with pytest.raises(InvalidInputError, match=f"connector: expected 'kafka' or 'upsert-kafka', got '{name}'"):
            read(spark, name, "a INT", {})


def test_a_table_of_generated_rows_has_no_versions(catalog: Catalog) -> None:
    declare(catalog, "c INT, at AS PROCTIME()")
    declare(catalog, "c INT, PRIMARY KEY (c) NOT ENFORCED", "d")
    with pytest.raises(InvalidInputError, match="its rows have no versions"):
        catalog.sql("SELECT g.c FROM g JOIN d FOR SYSTEM_TIME AS OF g.at ON g.c = d.c")
