"""MIN, MAX, Top-N and deduplication in continuous queries: the changelog of each is right after every micro-batch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Record, Wire
from tests.sql.changes import Follower, Side, ddl, run
from tests.sql.test_changes import COUNT, STEP, catalog, tables
from tests.sql.test_run import finish, rows

__all__ = ["catalog"]

RANKED = "SELECT u.*, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n DESC, k) AS rn FROM u"
EXTREMES = [
    "SELECT g, MIN(n), MAX(n), MIN(m), COUNT(*), MAX(j) FROM u GROUP BY g",
    "SELECT g, MAX(g), COUNT(DISTINCT n), MIN(n) FILTER (WHERE n > 0), MAX(DISTINCT n) FROM u GROUP BY g HAVING MIN(n) < 3",  # noqa: E501
    "SELECT MIN(n), MAX(m) FROM u WHERE k > 1",
    "SELECT c, MIN(s) FROM (SELECT g, COUNT(*) AS c, MAX(n) AS s FROM u GROUP BY g) AS q GROUP BY c",
]
TOP = [
    f"SELECT g, k, n, rn FROM ({RANKED}) AS r WHERE rn <= 2",
    f"SELECT k, g, m FROM ({RANKED}) AS r WHERE rn = 1 AND n > 0",
    # Ties: which of the rows is chosen does not show.
    "SELECT g, n FROM (SELECT g, n, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n) AS rn FROM u) AS r WHERE 2 >= rn",
    "SELECT k, n FROM u ORDER BY n DESC, 1 LIMIT 2 OFFSET 1",
    f"WITH r AS ({RANKED}) SELECT r.g, COUNT(*), MIN(r.n) FROM r WHERE r.rn BETWEEN 2 AND 3 GROUP BY r.g",
    "SELECT g, n FROM u UNION ALL SELECT g, n FROM v ORDER BY n, g LIMIT 3",
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("queries", [EXTREMES, TOP], ids=["extremes", "top"])
def test_each_micro_batch_gives_what_duckdb_gives(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path, queries: list[str]
) -> None:
    """Over inserts, updates and deletes, ties and NULLs, with a micro-batch that fails and is repeated."""
    sides = tables(catalog, wire, topic, 7)
    follower = Follower(STEP, queries, sides, fail_at=1)
    while follower.batches < COUNT // STEP:
        run(catalog, follower, tmp_path / "checkpoint")


def test_rows_that_are_only_added_are_deduplicated_over_restarts(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """The first and the last row of each key by event time, out of order; only the rows in the result are kept."""
    source, target = wire.make(topic(), 2), wire.make(topic())
    catalog.sql(
        f"CREATE TABLE e (k STRING, at TIMESTAMP(3), v INT) WITH ('connector' = 'kafka', 'topic' = '{source}', "
        "'properties.bootstrap.servers' = '...', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset', "
        "'maxRowsPerTrigger' = '20'); CREATE TABLE newest (k STRING, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ("
        f"'connector' = 'upsert-kafka', 'topic' = '{target}', 'properties.bootstrap.servers' = '...', 'key.format' = "
        "'json', 'value.format' = 'json'); CREATE TABLE oldest (k STRING, v INT, PRIMARY KEY (k) NOT ENFORCED); "
        "CREATE TABLE places (k STRING, n BIGINT, v INT, PRIMARY KEY (k, n) NOT ENFORCED); "
        "CREATE VIEW aged AS SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS n FROM e; "
        "SET 'tablestore.trigger' = 'available-now'"
    )
    inserts = (
        "EXECUTE STATEMENT SET BEGIN INSERT INTO newest SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k "
        "ORDER BY at DESC, v) AS n FROM e) WHERE n = 1; INSERT INTO oldest SELECT k, v FROM aged WHERE n = 1; INSERT "
        "INTO places SELECT k, n, v FROM aged WHERE n > 1 AND n <= 3; END"
    )
    chance, sent = random.Random(3), []
    for _ in range(2):
        new = [(chance.choice("abc"), chance.randrange(40), chance.randrange(5)) for _ in range(50)]
        sent += new
        values = [json.dumps({"k": k, "at": f"2024-01-01 00:00:{at:02}", "v": v}).encode() for k, at, v in new]
        wire.send(source, [Record(value, partition=n % 2) for n, value in enumerate(values)])
        finish(catalog, inserts)
        of = {key: sorted((at, v) for k, at, v in sent if k == key) for key in "abc"}
        # Rows of equal time are ordered by their other columns.
        assert rows(catalog, "SELECT * FROM oldest") == [(key, found[0][1]) for key, found in of.items()]
        last = {key: min(v for at, v in found if at == found[-1][0]) for key, found in of.items()}
        assert rows(catalog, "SELECT * FROM newest") == list(last.items())
        wanted = [(key, n, found[n - 1][1]) for key, found in of.items() for n in (2, 3)]
        assert rows(catalog, "SELECT * FROM places") == wanted
    assert len(wire.values(target)) < len(sent) / 2, "a row that changes nothing writes nothing"
    states = (tmp_path / "warehouse" / "_checkpoints").glob("_streams/*/operator-0/*")
    held = [sum(each["rows"] for each in newest_version(folder)["segments"]) for folder in states]
    assert 3 <= sum(held) < 40, "of 100 rows for three queries"


def newest_version(folder: Path) -> dict[str, list[dict[str, int]]]:
    """Read the newest version of a bucket's state."""
    path = max(folder.glob("*.json"), key=lambda each: int(each.stem))
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_a_state_that_is_not_that_of_the_micro_batch_before_ends_the_query(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """A sink that does not read a micro-batch, and a query that is started with other partitions."""
    sides = tables(catalog, wire, topic, 11)
    text = "SELECT k, n FROM u ORDER BY n DESC, k LIMIT 3"

    class Lazy(Follower):
        def take(self, frame: object, number: int) -> None:
            if number:
                super().take(frame, number)  # type: ignore[arg-type]
            self.batches = number + 1

    with pytest.raises(StreamingQueryException, match=r"state before micro-batch 1 is missing.*sink did not read"):
        run(catalog, Lazy(STEP, [text], sides), tmp_path / "lazy")
    grouped = "SELECT g, MIN(n) FROM u GROUP BY g"
    follower = Follower(STEP, [grouped], sides, fail_at=1)
    run(catalog, follower, tmp_path / "checkpoint")
    catalog.sql("SET 'spark.sql.shuffle.partitions' = '7'")
    follower.fail_at = None
    try:
        with pytest.raises(StreamingQueryException, match=r"shuffle\.partitions was changed"):
            run(catalog, follower, tmp_path / "checkpoint")
    finally:
        catalog.sql("RESET 'spark.sql.shuffle.partitions'")
    run(catalog, follower, tmp_path / "checkpoint")
    assert follower.batches == COUNT // STEP


def test_a_row_that_moves_to_another_group_stays_in_a_table_of_its_key(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """It goes in the task of one group and comes in that of another, in any order."""
    name = wire.make(topic())
    catalog.sql(
        ddl({"u": name}, 100)
        + "; CREATE TABLE top (k INT, g STRING, n BIGINT, PRIMARY KEY (k) NOT ENFORCED); CREATE TABLE best (g STRING, "
        "k INT, n BIGINT, PRIMARY KEY (g) NOT ENFORCED); SET 'tablestore.trigger' = 'available-now'"
    )
    ranked = "(SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n DESC, k) AS rn FROM u)"
    inserts = (
        f"EXECUTE STATEMENT SET BEGIN INSERT INTO top SELECT k, g, n FROM {ranked} WHERE rn <= 3; "
        f"INSERT INTO best SELECT g, k, n FROM {ranked} WHERE rn = 1; END"
    )
    for turn in range(3):
        side = Side("u", [(k, {"g": "abcdefgh"[(k + turn) % 8], "n": k, "m": None, "j": 0}) for k in range(16)])
        wire.send(name, side.records())
        finish(catalog, inserts)
        there = [(row["k"], row["g"], row["n"]) for row in side.folded(16)]
        assert rows(catalog, "SELECT * FROM top") == sorted(there, key=repr)
        assert rows(catalog, "SELECT * FROM best") == sorted((g, k, n) for k, g, n in there if k >= 8)


def test_rows_that_could_replace_each_other_are_refused(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    tables(catalog, wire, topic, 12)
    with pytest.raises(InvalidInputError, match=r"INSERT INTO 'w'.*PRIMARY KEY.*ROW_NUMBER"):
        catalog.sql(
            "CREATE TABLE w (g STRING, n BIGINT, PRIMARY KEY (g) NOT ENFORCED); INSERT INTO w SELECT g, n FROM "
            "(SELECT g, n, k, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n, k) AS rn FROM u) WHERE rn <= 2"
        )
