"""The catalog: definitions in a warehouse. Nothing here needs a broker, and only types of computed columns Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DecimalType, LongType, StructType

from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    InvalidInputError,
    NotFoundError,
    TableStoreError,
)
from snapshot.schema.evolution import AddColumn, RenameColumn, WidenColumn
from snapshot.storage import Storage
from tablestore.context import TableContext
from tablestore.ddl.alter import alter
from tablestore.sql import Catalog, SqlError
from tablestore.sql.parser.statements import CreateTable
from tests.sql.pairs import pairs

KAFKA = "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = '...', 'format' = 'json')"
PAGES = {param.values[0].name.split()[0]: param.values[0] for param in reversed(pairs("pages.sql"))}


def no_spark() -> NoReturn:
    msg = "definitions need no Spark"
    raise AssertionError(msg)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(no_spark, tmp_path)


@pytest.fixture
def another(tmp_path: Path) -> Callable[[], Catalog]:
    return lambda: Catalog(no_spark, tmp_path)


def shown(catalog: Catalog, name: str) -> str:
    return catalog.sql(f"SHOW CREATE TABLE `{name}`").rows[0][0]


@pytest.mark.parametrize("block", ["Q01", "Q02", "Q10", "Q11", "Q13", "Q14", "Q15"])
def test_c16_c17_the_pages_tables_are_made_without_a_broker(
    catalog: Catalog, another: Callable[[], Catalog], block: str
) -> None:
    """The pages' statements run unchanged, with a watermark on `TIMESTAMP` and a column called `value`."""
    made = catalog.sql(PAGES[block].text).statement
    assert isinstance(made, CreateTable)
    assert another().tables() == [made.name]
    # What another session sees makes the same table.
    text = shown(another(), made.name)
    catalog.sql(f"DROP TABLE {made.name}")
    assert another().tables() == []
    catalog.sql(text)
    assert shown(another(), made.name) == text


def test_q01_is_described_with_its_key(catalog: Catalog) -> None:
    """`DESCRIBE` shows the key and that it is NOT NULL."""
    catalog.sql(PAGES["Q01"].text)
    assert catalog.sql("DESCRIBE pageviews_per_region").rows == (
        ("user_region", "STRING", "FALSE", "PRI(user_region)", "", ""),
        ("pv", "BIGINT", "TRUE", "", "", ""),
        ("uv", "BIGINT", "TRUE", "", "", ""),
    )


def test_comments_are_described(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT COMMENT 'the key', v STRING, w AS PROCTIME() COMMENT 'now')")
    described = catalog.sql("DESC s")
    assert described.columns[-1] == "comment"
    assert [row[-1] for row in described.rows] == ["the key", "", "now"]


def test_q10_is_described_with_metadata_computed_column_and_watermark(catalog: Catalog) -> None:
    """`DESCRIBE` shows the metadata column, the computed one and the watermark."""
    catalog.sql(PAGES["Q10"].text)
    assert catalog.sql("DESC user_events").rows[-2:] == (
        (
            "event_ts",
            "TIMESTAMP(3) *ROWTIME*",
            "TRUE",
            "",
            "METADATA FROM 'timestamp'",
            "event_ts - INTERVAL '5' SECOND",
        ),
        ("proctime", "TIMESTAMP_LTZ(3) *PROCTIME*", "FALSE", "", "AS PROCTIME()", ""),
    )


@pytest.mark.parametrize("block", ["Q04", "Q05", "Q06", "Q07", "Q08", "Q09"])
def test_damaged_blocks_make_nothing(catalog: Catalog, block: str) -> None:
    with pytest.raises(SqlError):
        catalog.sql(PAGES["Q14"].text + ";\n" + PAGES[block].text)
    assert catalog.tables() == []


def test_q09_b54_makes_a_store_table_in_the_warehouse(catalog: Catalog, tmp_path: Path) -> None:
    """A table without `connector` is a store table in the warehouse."""
    catalog.sql("CREATE TABLE T (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2')")
    catalog.sql("CREATE TABLE u (day DATE, v STRING) PARTITIONED BY (day)")
    table = TableContext.open(str(tmp_path / "T"))
    assert (table.spec.primary_key, table.options.buckets) == (("id",), 2)
    assert table.spec.schema.simpleString() == "struct<id:bigint,v:string>"
    assert TableContext.open(str(tmp_path / "u")).spec.partition_by == ("day",)
    assert catalog.sql("SHOW TABLES").rows == (("T", "store table"), ("u", "store table"))
    catalog.sql("CREATE TABLE a_b (v STRING); CREATE TABLE aab (v STRING); CREATE VIEW `a.b` AS SELECT * FROM u")
    for like, names in {
        "TABLES LIKE 'a_b'": ["a.b", "a_b", "aab"],
        "TABLES LIKE '%b'": ["a.b", "a_b", "aab"],
        "TABLES NOT LIKE 'a%'": ["T", "u"],
        "TABLES LIKE 't'": [],
        "VIEWS LIKE 'a.b'": ["a.b"],
        "VIEWS NOT LIKE '%.%'": [],
    }.items():
        assert [name for name, _ in catalog.sql(f"SHOW {like}").rows] == names, like
    catalog.sql("DROP TABLE T")
    assert not (tmp_path / "T").exists()
    with pytest.raises(NotFoundError, match=r"no table or view 'T'\. There are a.b, a_b, aab, u"):
        catalog.table("T")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            f"CREATE TABLE t (a INT, PRIMARY KEY (a) NOT ENFORCED) {KAFKA}",
            "can't guarantee the semantic of primary key",
        ),
        (
            f"CREATE TABLE t (a INT, PRIMARY KEY (b) NOT ENFORCED) {KAFKA}",
            "PRIMARY KEY: 'b' is not a column; there are a",
        ),
        (f"CREATE TABLE t (a INT) {KAFKA.replace('kafka', 'kafak')}", "'connector': expected 'kafka', 'upsert-kafka'"),
        (f"CREATE TABLE t (a INT) {KAFKA.replace('json', 'jsno')}", "jsno"),
        (f"CREATE TABLE t (a INT) {KAFKA.replace('topic', 'topci')}", "Did you mean 'topic'"),
        ("CREATE TABLE t (a INT) WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'json')", "bootstrap.servers"),
        ("CREATE TABLE t (a INT) WITH ('connector' = 'upsert-kafka', 'topic' = 't')", "value.format"),
        ("CREATE TABLE t (a INT) WITH ('topic' = 't')", "'topic' belongs to the connectors. Set 'connector'"),
        (
            "CREATE TABLE t (a INT) WITH ('properties.group.id' = 'g')",
            "'properties.group.id' belongs to the connectors",
        ),
        ("CREATE TABLE t (a INT) WITH ('sink.partitioner' = 'fixed')", "'sink.partitioner' belongs to the connectors"),
        ("CREATE TABLE t (a INT) WITH ('query-auth.enabled' = 'true')", "'query-auth.enabled': not supported: who may"),
        ("CREATE TABLE t (a INT) WITH ('target-file-size' = '1 mb')", "use write.target-file-size"),
        ("CREATE TABLE t (a INT) WITH ('log.system' = 'pulsar')", "kafka"),
        ("CREATE TABLE t (a INT) WITH ('log.system' = 'kafka')", "kafka.bootstrap.servers"),
        (
            "CREATE TABLE t (a INT) "
            "WITH ('log.system' = 'kafka', 'kafka.bootstrap.servers' = 'x:1', 'kafka.topic' = '')",
            "kafka.topic",
        ),
        ("CREATE TABLE t (a INT) WITH ('log.consistency' = 'eventual')", "log.system"),
        ("CREATE TABLE t (a FLOAT, PRIMARY KEY (a) NOT ENFORCED)", "type float"),
        (f"CREATE TABLE t (a INT METADATA VIRTUAL) {KAFKA}", "needs a column that is stored"),
        (f"CREATE TABLE t (a INT, ts INT METADATA FROM 'timestampx' VIRTUAL) {KAFKA}", "timestamp-type"),
        (f"CREATE TABLE t (a INT, A STRING) {KAFKA}", "'a' and 'A' are the same to Spark"),
        (f"CREATE TABLE t (a INT, WATERMARK FOR a AS a) {KAFKA}", "expected TIMESTAMP or TIMESTAMP_LTZ, got INT"),
        (f"CREATE TABLE t (a INT, WATERMARK FOR b AS b) {KAFKA}", "there is no such column"),
        (f"CREATE TABLE t (a INT) PARTITIONED BY (a) {KAFKA}", "PARTITIONED BY is for store tables"),
        ("CREATE TABLE t (a INT, o BIGINT METADATA FROM 'offset')", "METADATA needs a connector"),
        ("CREATE TABLE `_catalog` (a INT)", "the name is reserved by the warehouse"),
        ("CREATE TABLE t$snapshots (a INT)", r"is the name of a metadata table of 't'\."),
        ("CREATE TEMPORARY TABLE t (a INT)", "cannot be TEMPORARY"),
        ("CREATE VIEW v AS SELECT * FROM nobody", "no table or view 'nobody'"),
        ("CREATE VIEW v AS SELECT * FROM v", "would read itself"),
        ("CREATE TABLE t LIKE nobody", "no table or view 'nobody'"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_made(catalog: Catalog, tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(TableStoreError, match=match):
        catalog.sql(text)
    assert catalog.tables() == []
    assert not [name for name in tmp_path.iterdir() if name.name != "_catalog"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("properties.sasl.password", "hunter2"),
        ("properties.ssl.key.password", "hunter2"),
        (
            "properties.sasl.jaas.config",
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";',
        ),
        ("properties.bootstrap.servers", "https://u:hunter2@host:1"),
    ],
)
def test_credentials_are_refused_and_nowhere_written(catalog: Catalog, tmp_path: Path, key: str, value: str) -> None:
    options = f"'connector' = 'kafka', 'topic' = 't', 'format' = 'json', '{key}' = '{value}'"
    options += ", 'properties.bootstrap.servers' = 'h:1'" if "bootstrap" not in key else ""
    with pytest.raises(InvalidInputError, match="holds a credential") as caught:
        catalog.sql(f"CREATE TABLE t (a INT) WITH ({options})")
    assert "hunter2" not in str(caught.value)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not any("hunter2" in file.read_text() for file in files)
    # A temporary table is kept in the session only, and is shown with a mask.
    catalog.sql(f"CREATE TEMPORARY TABLE t (a INT) WITH ({options})")
    assert "hunter2" not in shown(catalog, "t")
    assert "***" in shown(catalog, "t")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not any("hunter2" in file.read_text() for file in files)


def test_references_to_credentials_are_kept_and_shown(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA[:-1]}, 'properties.sasl.password' = 'env:KAFKA_PW')")
    assert "'properties.sasl.password' = 'env:KAFKA_PW'" in shown(catalog, "t")


def test_names_are_taken_once(catalog: Catalog, another: Callable[[], Catalog]) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}")
    for text in (f"CREATE TABLE t (b INT) {KAFKA}", "CREATE VIEW t AS SELECT 1"):
        with pytest.raises(AlreadyExistsError, match="'t'"):
            another().sql(text)
    assert another().sql(f"CREATE TABLE IF NOT EXISTS t (b INT) {KAFKA}").message == "it exists already"
    assert "`a` INT" in shown(another(), "t")
    with pytest.raises(InvalidInputError, match="is a table: use DROP TABLE"):
        catalog.sql("DROP VIEW t")
    with pytest.raises(InvalidInputError, match="is a table: use ALTER TABLE"):
        catalog.sql("ALTER VIEW t RENAME TO u")
    another().sql("DROP TABLE t")
    with pytest.raises(NotFoundError):
        catalog.sql("DROP TABLE t")
    assert catalog.sql("DROP TABLE IF EXISTS t").message == "it does not exist"
    catalog.sql(f"CREATE TABLE t (b INT) {KAFKA}")
    assert "`b` INT" in shown(another(), "t")


def test_temporary_tables_hide_others_in_their_session_only(catalog: Catalog, another: Callable[[], Catalog]) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}; CREATE TEMPORARY TABLE t (b INT) {KAFKA}")
    assert "`b` INT" in shown(catalog, "t")
    assert "`a` INT" in shown(another(), "t")
    catalog.sql("DROP TEMPORARY TABLE t")
    assert "`a` INT" in shown(catalog, "t")


def test_alter_changes_the_definition_and_checks_it(catalog: Catalog, another: Callable[[], Catalog]) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}")
    catalog.sql("ALTER TABLE t SET ('scan.startup.mode' = 'earliest-offset'); ALTER TABLE t ADD (b AS a + 1, c STRING)")
    text = shown(another(), "t")
    assert "'scan.startup.mode' = 'earliest-offset'" in text
    assert text.index("`b` AS a + 1") < text.index("`c` STRING")
    with pytest.raises(InvalidInputError, match=r"scan\.startup\.mode"):
        catalog.sql("ALTER TABLE t SET ('scan.startup.mode' = 'sometimes')")
    with pytest.raises(InvalidInputError, match="format"):
        catalog.sql("ALTER TABLE t RESET ('format')")
    assert shown(another(), "t") == text
    catalog.sql("ALTER TABLE t RESET ('scan.startup.mode'); ALTER TABLE t RENAME c TO d")
    assert "startup" not in shown(another(), "t")
    assert "`d` STRING" in shown(another(), "t")
    catalog.sql("ALTER TABLE t RENAME TO u")
    assert another().tables() == ["u"]
    with pytest.raises(InvalidInputError, match=r"'u\$tags' is the name of a metadata table"):
        catalog.sql("ALTER TABLE u RENAME TO u$tags")
    with pytest.raises(NotFoundError, match="no table or view 't'"):
        catalog.sql("ALTER TABLE t RENAME TO u2")


@pytest.mark.parametrize("options", [KAFKA, ""], ids=["connector", "store"])
def test_a_watermark_is_altered(catalog: Catalog, another: Callable[[], Catalog], options: str) -> None:
    """As in Flink; a column that has the watermark can be dropped after it."""
    catalog.sql(f"CREATE TABLE t (a INT, ts TIMESTAMP(3)) {options}")
    with pytest.raises(InvalidInputError, match="table 't' has no WATERMARK: use ADD"):
        catalog.sql("ALTER TABLE t MODIFY WATERMARK FOR ts AS ts")
    with pytest.raises(InvalidInputError, match="'at'"):
        catalog.sql("ALTER TABLE t ADD WATERMARK FOR at AS at")
    catalog.sql("ALTER TABLE t ADD WATERMARK FOR ts AS ts - INTERVAL '1' HOUR")
    assert "WATERMARK FOR `ts` AS ts - INTERVAL '1' HOUR" in shown(another(), "t")
    with pytest.raises(InvalidInputError, match="has a WATERMARK for 'ts': use MODIFY"):
        catalog.sql("ALTER TABLE t ADD WATERMARK FOR ts AS ts")
    catalog.sql("ALTER TABLE t MODIFY WATERMARK FOR ts AS ts")
    assert "WATERMARK FOR `ts` AS ts" in shown(another(), "t")
    with pytest.raises(InvalidInputError, match="'ts' cannot change: it has the WATERMARK"):
        catalog.sql("ALTER TABLE t RENAME ts TO at")
    catalog.sql("ALTER TABLE t DROP WATERMARK; ALTER TABLE t DROP ts")
    assert "ts" not in shown(another(), "t").split("WITH")[0]


def test_a_renamed_store_table_keeps_its_files_and_frees_its_name(catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql("CREATE TABLE t (a INT); ALTER TABLE t RENAME TO u; CREATE TABLE t (b INT)")
    assert TableContext.open(str(tmp_path / "t")).spec.schema.simpleString() == "struct<a:int>"
    catalog.sql("DROP TABLE u")
    assert not (tmp_path / "t").exists()
    assert catalog.sql("DESCRIBE t").rows[0][0] == "b"
    assert len([path for path in tmp_path.iterdir() if path.name != "_catalog"]) == 1
    with pytest.raises(InvalidInputError, match="'bucket' cannot change after create"):
        catalog.sql("ALTER TABLE t SET ('bucket' = '2')")


def test_a_store_table_is_altered_with_its_definition(
    spark: SparkSession, catalog: Catalog, another: Callable[[], Catalog], tmp_path: Path
) -> None:
    catalog.sql("CREATE TABLE t (a INT, b AS a + 1, v VARCHAR(9) COMMENT 'v', PRIMARY KEY (a) NOT ENFORCED)")
    catalog.sql("""
        ALTER TABLE t ADD (w DECIMAL(5, 2) FIRST, x TIMESTAMP(3) AFTER b, y AS w + 1);
        ALTER TABLE t MODIFY (w DECIMAL(9, 2), v VARCHAR(20) AFTER w);
        ALTER TABLE t RENAME x TO z;
        ALTER TABLE t SET ('compaction.commits' = '7', 'write.target-file-size' = '1 mb')
    """)
    opened = TableContext.open(str(tmp_path / "t"))
    assert opened.spec.schema.simpleString() == "struct<w:decimal(9,2),v:string,a:int,z:timestamp_ntz>"
    assert opened.options.compaction.commits == 7
    described = [row[:2] for row in Catalog(spark, tmp_path).sql("DESCRIBE t").rows]
    assert described == [
        ("w", "DECIMAL(9, 2)"), ("v", "VARCHAR(20)"), ("a", "INT"), ("b", "INT"), ("z", "TIMESTAMP(3)"),
        ("y", "DECIMAL(10, 2)"),
    ]  # fmt: skip
    catalog.sql("ALTER TABLE t RESET ('compaction.commits'); ALTER TABLE t DROP y; ALTER TABLE t DROP (w, z)")
    assert "commits" not in shown(another(), "t")
    text = shown(another(), "t")
    for refused, words in [
        ("DROP a", "PRIMARY KEY"),
        ("MODIFY v ROW<x INT>", "widen a nested type by its path"),
        ("ADD v INT", "there would be two columns 'v'"),
        ("MODIFY v STRING AFTER v", "column 'v' cannot be placed AFTER itself"),
        ("MODIFY (v VARCHAR(30), w INT, v VARCHAR(40))", "MODIFY: a column is named twice: v, w, v"),
        ("ADD n INT NOT NULL", "cannot be NOT NULL"),
        ("RESET ('bucket')", "'bucket' cannot change"),
        ("SET ('compaction.commit' = '1')", "Did you mean"),
        ("RENAME v TO _kind", "reserved"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            catalog.sql(f"ALTER TABLE t {refused}")
    catalog.sql("ALTER TABLE t ADD c AS UPPER(v)")
    with pytest.raises(InvalidInputError, match="'c' is computed from 'v'"):
        catalog.sql("ALTER TABLE t DROP v")
    catalog.sql("ALTER TABLE t DROP c")
    assert shown(another(), "t") == text


@pytest.mark.parametrize("options", [KAFKA, ""], ids=["connector", "store"])
def test_a_column_is_computed_from_stored_columns_only(catalog: Catalog, options: str) -> None:
    stored = "v STRING, r ROW<x INT>, ts TIMESTAMP(3), a ARRAY<INT>, d AS UPPER(v)"
    for computed, missing in [
        ("w", "w"),
        ("UPPER(d)", "d"),
        ("r.x + w.x", "w"),
        ("MAP['k', w]", "w"),
        ("MAP[1]", "MAP"),
    ]:
        with pytest.raises(InvalidInputError, match=f"'c' is computed from '{missing}', which is not a stored column"):
            catalog.sql(f"CREATE TABLE t ({stored}, c AS {computed}) {options}")
    assert not catalog.sql("SHOW TABLES").rows
    computed = "m AS MAP['k', V], n AS r.x, o AS TIMESTAMPADD(DAY, 1, ts), p AS transform(a, e -> e + LENGTH(v))"
    catalog.sql(f"CREATE TABLE t ({stored}, {computed}, q AS PROCTIME()) {options}")
    with pytest.raises(InvalidInputError, match="'c' is computed from 'n'"):
        catalog.sql("ALTER TABLE t ADD c AS n + 1")


def test_elements_and_values_become_nullable_and_not_the_reverse(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (a ARRAY<INT NOT NULL>, m MAP<STRING, ARRAY<INT NOT NULL>>, n ARRAY<INT>)")
    for column, words in [
        ("m MAP<STRING, ARRAY<INT NOT NULL> NOT NULL>", r"'m\.value' cannot become NOT NULL"),
        ("n ARRAY<INT NOT NULL>", r"'n\.element' cannot become NOT NULL"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            catalog.sql(f"ALTER TABLE t MODIFY {column}")
    catalog.sql("ALTER TABLE t MODIFY a ARRAY<BIGINT NOT NULL>")
    assert "`a` ARRAY<BIGINT NOT NULL>" in shown(catalog, "t")
    catalog.sql("ALTER TABLE t MODIFY (a ARRAY<BIGINT>, m MAP<STRING, ARRAY<INT>>)")
    assert "`a` ARRAY<BIGINT>" in shown(catalog, "t")
    assert "`m` MAP<STRING, ARRAY<INT>>" in shown(catalog, "t")
    with pytest.raises(InvalidInputError, match=r"'m\.value\.element' cannot become NOT NULL"):
        catalog.sql("ALTER TABLE t MODIFY m MAP<STRING, ARRAY<INT NOT NULL>>")


def test_a_definition_follows_a_table_that_was_changed_elsewhere(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """Changed from Python, or by a statement that died before it wrote the definition."""
    catalog.sql("CREATE TABLE t (a INT, v VARCHAR(9), b AS a + 1, c AS UPPER(v))")
    opened = TableContext.open(str(tmp_path / "t"))
    new = StructType().add("x", "timestamp").add("y", ArrayType(DecimalType(5, 2)))
    changes = [AddColumn("s", new, first=True), RenameColumn("v", "text"), WidenColumn("a", LongType())]
    alter(opened, changes, publish=lambda _: None)
    # A column that can no longer be computed has no type; a query says why.
    assert [row[:2] for row in Catalog(spark, tmp_path).sql("DESCRIBE t").rows] == [
        ("s", "ROW<`x` TIMESTAMP_LTZ(6), `y` ARRAY<DECIMAL(5, 2)>>"), ("a", "BIGINT"), ("b", "BIGINT"), ("c", ""),
        ("text", "STRING"),
    ]  # fmt: skip
    catalog.sql("ALTER TABLE t DROP c; ALTER TABLE t ADD w STRING AFTER s")
    assert catalog.columns("t") == ("s", "w", "a", "b", "text")


def test_a_crash_within_a_renaming_loses_no_rows(catalog: Catalog, tmp_path: Path) -> None:
    """The new name is there, the old one is not free yet: dropping one of them leaves the table."""
    catalog.sql("CREATE TABLE t (a INT); ALTER TABLE t RENAME TO u")
    (tmp_path / "_catalog" / "t" / "00000002.json").unlink()
    assert catalog.tables() == ["t", "u"]
    catalog.sql("DROP TABLE t")
    assert TableContext.open(str(tmp_path / "t")).spec.schema.simpleString() == "struct<a:int>"
    catalog.sql("DROP TABLE u")
    assert not (tmp_path / "t").exists()


def test_a_crash_within_create_or_drop_leaves_a_name_that_can_be_taken(catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql("CREATE TABLE t (a INT); CREATE TABLE u (a INT)")
    for name in ("t", "u"):
        Storage.at(tmp_path / name).delete_tree()
    catalog.sql("DROP TABLE t; CREATE TABLE u (b INT)")
    assert catalog.tables() == ["u"]
    assert TableContext.open(str(tmp_path / "u")).spec.schema.simpleString() == "struct<b:int>"


def test_a_table_of_somebody_else_is_not_taken_over(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "letter.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"letter\.txt"):
        catalog.sql("CREATE TABLE t (a INT)")
    assert catalog.tables() == []
    assert (tmp_path / "t" / "letter.txt").read_text() == "mine"


def test_like_takes_over_what_it_says(catalog: Catalog) -> None:
    catalog.sql(
        f"CREATE TABLE a (x INT, y AS x + 1, o BIGINT METADATA FROM 'offset' VIRTUAL, ts TIMESTAMP(3), "
        f"WATERMARK FOR ts AS ts) {KAFKA}"
    )
    catalog.sql("CREATE TABLE b (z STRING) WITH ('topic' = 'b') LIKE a")
    text = shown(catalog, "b")
    assert "'topic' = 'b'" in text
    assert "LIKE" not in text
    assert catalog.columns("b") == ("x", "y", "o", "ts", "z")
    catalog.sql(
        "CREATE TABLE c WITH ('topic' = 'c') LIKE a (EXCLUDING GENERATED EXCLUDING METADATA EXCLUDING WATERMARKS)"
    )
    assert [row[0] for row in catalog.sql("DESCRIBE c").rows] == ["x", "ts"]
    assert "WATERMARK" not in shown(catalog, "c")
    for clause, match in [
        ("WITH ('topic' = 'd') LIKE a (INCLUDING ALL)", "option 'topic'"),
        ("(x INT) LIKE a", "column 'x'"),
        ("(WATERMARK FOR ts AS ts) LIKE a", "WATERMARK"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(f"CREATE TABLE d {clause}")


def test_of_many_who_make_a_table_at_once_one_wins(another: Callable[[], Catalog]) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def make(n: int) -> None:
        mine = another()
        start.wait()
        try:
            mine.sql(f"CREATE TABLE t (c{n} INT) {KAFKA}")
            outcomes.append(f"c{n}")
        except AlreadyExistsError:
            outcomes.append("late")

    run(make)
    assert outcomes.count("late") == 7
    (winner,) = set(outcomes) - {"late"}
    assert f"`{winner}` INT" in shown(another(), "t")


def test_of_many_changes_at_once_none_is_lost(catalog: Catalog, another: Callable[[], Catalog]) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}")
    start = threading.Barrier(8)

    def change(n: int) -> None:
        mine = another()
        start.wait()
        mine.sql(f"ALTER TABLE t ADD c{n} INT")

    run(change)
    assert sorted(row[0] for row in another().sql("DESCRIBE t").rows) == ["a", *(f"c{n}" for n in range(8))]


def run(work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_damaged_definition_is_an_error_that_names_the_file(catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}")
    file = tmp_path / "_catalog" / "t" / "00000001.json"
    for content in ("{", "[]", json.dumps({"format": 1, "ddl": "SELECT 1"}), json.dumps({"format": 2})):
        file.write_text(content)
        with pytest.raises(CorruptedError, match=r"00000001\.json"):
            catalog.tables()


@pytest.mark.parametrize("name", ["a b", "..", "a/b", "ä", "%41", "CON", "`", "a.b"])
def test_any_name_is_a_name(catalog: Catalog, tmp_path: Path, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    catalog.sql(f"CREATE TABLE {quoted} (a INT)")
    assert catalog.tables() == [name]
    assert len(list(tmp_path.iterdir())) == 2
    catalog.sql(f"DROP TABLE {quoted}")
    assert catalog.tables() == []


def test_settings_are_checked_and_shown(catalog: Catalog) -> None:
    rows = dict(catalog.sql("SET").rows)
    assert (rows["execution.runtime-mode"], rows["table.exec.source.idle-timeout"]) == ("streaming", "0")
    catalog.sql("SET 'execution.runtime-mode' = 'BATCH'; SET 'spark.hadoop.fs.s3a.secret.key' = 'hunter2'")
    rows = dict(catalog.sql("SET").rows)
    assert rows["execution.runtime-mode"] == "BATCH"
    assert rows["spark.hadoop.fs.s3a.secret.key"] == "***"
    for text, match in [
        ("SET 'execution.runtime-mod' = 'batch'", "Did you mean 'execution.runtime-mode'"),
        ("SET 'execution.runtime-mode' = 'fast'", "expected 'streaming' or 'batch', got 'fast'"),
        ("SET 'tablestore.addresses' = 'localhost:9092'", "expected pairs"),
        ("RESET 'nothing'", "unknown setting"),
        ("SET 'execution.checkpointing.interval' = 'often'", "expected a duration"),
        ("SET 'execution.checkpointing.timeout' = '3 s'", "'execution.checkpointing.interval' is the interval"),
        ("SET 'table.exec.mini-batch.latency' = '1 s'", "unknown setting"),
        ("SET 'table.exec.state.ttl' = '1 h'", "wrong once state has expired"),
        ("SET 'table.exec.state.ttls' = '1 h'", "unknown setting"),
        ("SET 'parallelism.default' = '1'", "use 'spark.sql.shuffle.partitions'"),
        ("SET 'sql-client.execution.result-mode' = 'changelog'", "the options of 'tablestore sql'"),
        ("RESET 'state.backend.type'", "'spark.sql.streaming.stateStore.providerClass' is its backend"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)
    catalog.sql("SET 'table.exec.mini-batch.enabled' = 'true'; SET 'table.exec.mini-batch.allow-latency' = '5 s'")
    catalog.sql("RESET 'table.exec.mini-batch.enabled'")
    catalog.sql("RESET 'execution.runtime-mode'")
    assert dict(catalog.sql("SET").rows)["execution.runtime-mode"] == "streaming"
    catalog.sql("RESET")
    assert "spark.hadoop.fs.s3a.secret.key" not in dict(catalog.sql("SET").rows)


def test_the_interval_between_checkpoints_is_that_between_micro_batches(catalog: Catalog) -> None:
    settings = catalog._scope.settings
    assert settings.trigger == {"processingTime": "0 milliseconds"}
    catalog.sql("SET 'execution.checkpointing.interval' = '10 s'; SET 'sql-client.execution.result-mode' = 'tableau'")
    assert settings.trigger == {"processingTime": "10000 milliseconds"}
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    assert settings.trigger == {"availableNow": True}
    catalog.sql("RESET 'tablestore.trigger'; RESET 'execution.checkpointing.interval'")
    assert settings.trigger == {"processingTime": "0 milliseconds"}


def test_addresses_are_mapped_for_the_session(catalog: Catalog) -> None:
    settings = catalog._scope.settings
    assert settings.servers("...") == "..."
    catalog.sql("SET 'tablestore.addresses' = 'localhost:9092=10.0.0.1:1, ...=10.0.0.1:2'")
    assert settings.servers("localhost:9092") == "10.0.0.1:1"
    assert settings.servers("other:1, localhost:9092,...") == "other:1,10.0.0.1:1,10.0.0.1:2"
    catalog.sql(PAGES["Q14"].text)
    table = catalog.table("keyed_events")
    assert table._options()["properties.bootstrap.servers"] == "10.0.0.1:1"
    assert "localhost:9092" in shown(catalog, "keyed_events")


def test_views_are_kept_and_shown(catalog: Catalog, another: Callable[[], Catalog]) -> None:
    catalog.sql(f"CREATE TABLE t (a INT) {KAFKA}")
    catalog.sql("CREATE VIEW v (b) AS WITH q AS (SELECT a FROM t) SELECT a + 1 FROM q")
    assert another().sql("SHOW VIEWS").rows == (("v", "view"),)
    assert another().sql("SHOW CREATE VIEW v").rows[0][0] == (
        "CREATE VIEW `v` (`b`) AS\nWITH q AS (SELECT a FROM t) SELECT a + 1 FROM q"
    )
    catalog.sql("ALTER VIEW v RENAME TO w; DROP VIEW w")
    assert another().tables() == ["t"]


def test_a_missing_table_is_told_with_its_place(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE pages (a INT) {KAFKA}; CREATE TABLE gone (a INT) {KAFKA}")
    catalog.sql("CREATE VIEW v AS SELECT a FROM gone; DROP TABLE gone")
    for text, match in [
        ("SELECT p.a\nFROM pages AS p JOIN page ON p.a = page.a", "line 2, column 22: .*Did you mean 'pages'"),
        ("EXPLAIN SELECT * FROM nowhere", "line 1, column 23: there is no table or view 'nowhere'. There are pages, v"),
        ("SELECT * FROM v", "view 'v': line [0-9]+, column [0-9]+: there is no table or view 'gone'"),
        ("CREATE VIEW w AS SELECT a FROM gone", "line 1, column 32: there is no table or view 'gone'"),
    ]:
        for mode in ("streaming", "batch"):
            catalog.sql(f"SET 'execution.runtime-mode' = '{mode}'")
            with pytest.raises(NotFoundError, match=match):
                catalog.sql(text)
    with pytest.raises(SqlError, match=r"line 1, column 15: 'db.pages': a warehouse is one database"):
        catalog.sql("SELECT * FROM db.pages")


def test_put_new_lets_one_win_and_shows_whole_files_only(tmp_path: Path) -> None:
    for storage in (Storage.at(tmp_path), Storage.at("memory://put-new")):
        assert storage.put_new("a/b.json", b"first")
        assert not storage.put_new("a/b.json", b"second")
        assert storage.read("a/b.json") == b"first"
        assert storage.names("a") == ["b.json"]


def test_the_comment_of_a_store_table_is_set_like_an_option(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (a INT) COMMENT 'first'")
    catalog.sql("ALTER TABLE t SET ('comment' = 'second', 'compaction.commits' = '7')")
    ((shown,),) = catalog.sql("SHOW CREATE TABLE t").rows
    assert "COMMENT 'second'" in shown
    assert "'compaction.commits' = '7'" in shown
    catalog.sql("ALTER TABLE t RESET ('comment')")
    ((shown,),) = catalog.sql("SHOW CREATE TABLE t").rows
    assert "omment" not in shown
