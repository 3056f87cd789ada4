"""A normalized stream goes on with a saved state: smaller, and both streams together are one true changelog."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import DataLostError, InvalidInputError
from snapshot.storage import Storage
from tablestore import TableStore
from tablestore.streaming.saved_state import saved_splits
from tests.harness.faults import Crash, failing
from tests.harness.spark_tables import AVAILABLE, changes, frame, log_options, make, rows, shuffle_partitions
from tests.tablestore.read.test_batch_read import TYPES, VALUES
from tests.tablestore.streaming.test_normalize import Auditor


@pytest.fixture(autouse=True)
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    with shuffle_partitions(spark, 2):
        yield


@pytest.fixture
def table(spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    return make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")


def going_on(table: TableStore, before: Auditor, checkpoint: Path, state: Path) -> Auditor:
    """Follow a table with a saved state, as one who has seen what the query before it gave."""
    after = Auditor(checkpoint, lambda: table.read_stream(state=state))
    after.table = before.table
    return after


def run(stream: DataFrame, checkpoint: Path, mode: str = "update") -> None:
    query = stream.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query.trigger(**AVAILABLE).start().awaitTermination()


def test_it_holds_the_keys_that_live_and_the_stream_goes_on(
    spark: SparkSession, tmp_path: Path, table: TableStore
) -> None:
    table.write(frame(spark, [(k, "a") for k in range(20)]))
    first = Auditor(tmp_path / "c1", table.read_stream)
    first.follow()
    table.write(changes(spark, [(k, None, "delete") for k in range(15)]))
    table.write(frame(spark, [(16, "b"), (17, None)]))
    first.follow()
    assert first.state_rows == 20
    # Not read yet when the state is saved.
    table.write(changes(spark, [(18, "c", "insert"), (19, None, "delete"), (3, "again", "insert")]))
    saved = table.log.save_state(tmp_path / "c1", tmp_path / "s")
    assert (saved.rows, saved.deleted, saved.expired) == (5, 15, 0)
    # The query before may be gone, and the number of parts is another.
    shutil.rmtree(tmp_path / "c1")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    second = going_on(table, first, tmp_path / "c2", tmp_path / "s")
    (emitted,) = second.follow()
    assert sorted(emitted) == [
        (3, "again", "insert"),
        (18, "a", "update_preimage"),
        (18, "c", "update_postimage"),
        (19, "a", "delete"),
    ]
    assert second.state_rows == 6
    table.write(frame(spark, [(16, "b"), (17, None), (15, "z")]))
    assert [sorted(batch) for batch in second.follow()] == [
        [(15, "a", "update_preimage"), (15, "z", "update_postimage")]
    ]
    assert second.table == rows(table.read())
    # A second time, and a query that goes on needs the folder no more.
    again = table.log.save_state(tmp_path / "c2", tmp_path / "s2")
    assert (again.rows, again.deleted) == (5, 1)
    shutil.rmtree(tmp_path / "s")
    table.delete(frame(spark, [(15,)], "id bigint"))
    plain = Auditor(tmp_path / "c2", table.read_stream)
    plain.table = dict(second.table)
    assert plain.follow() == [[(15, "z", "delete")]]
    third = going_on(table, second, tmp_path / "c3", tmp_path / "s2")
    assert third.follow() == [[(15, "z", "delete")]]


def test_keys_that_do_not_change_are_forgotten(spark: SparkSession, tmp_path: Path, table: TableStore) -> None:
    first = Auditor(tmp_path / "c1", lambda: table.read_stream(scan_mode="earliest"))
    table.write(frame(spark, [(1, "old"), (2, "old"), (3, "old")]))
    time.sleep(1.5)
    middle = time.time()
    time.sleep(1.5)
    table.write(frame(spark, [(3, "new"), (4, "new")]))
    first.follow()
    saved = table.log.save_state(tmp_path / "c1", tmp_path / "s", ttl=f"{int((time.time() - middle) * 1000)} ms")
    assert (saved.rows, saved.deleted, saved.expired) == (2, 0, 2)
    second = Auditor(tmp_path / "c2", lambda: table.read_stream(state=tmp_path / "s"))
    second.table = {3: "new", 4: "new"}
    assert second.follow() == []
    table.write(changes(spark, [(1, "back", "insert"), (2, None, "delete"), (3, "newer", "insert")]))
    assert sorted(second.follow()[0]) == [
        (1, "back", "insert"),
        (3, "new", "update_preimage"),
        (3, "newer", "update_postimage"),
    ]


def test_every_type_is_the_same_after_it(spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any) -> None:
    options = log_options(kafka.bootstrap_servers, topic(), log__consistency="eventual")
    ddl = TYPES.replace("id bigint", "`i.d``` bigint")
    table = TableStore.create(
        spark, tmp_path / "t", ddl, primary_key=["i.d`", "tiny"], log_system="kafka", options=options
    )
    given = spark.createDataFrame(
        [value if value[2] is not None else (2, True, 5, *value[3:]) for value in VALUES], ddl
    )
    table.write(given)
    run(table.read_stream(), tmp_path / "c1")
    assert table.log.save_state(tmp_path / "c1", tmp_path / "s").rows == len(VALUES)
    found: list[Any] = []
    table.write(given)
    query = table.read_stream(state=tmp_path / "s").writeStream.foreachBatch(lambda b, _: found.extend(b.collect()))
    query = query.outputMode("update").option("checkpointLocation", str(tmp_path / "c2"))
    query.trigger(**AVAILABLE).start().awaitTermination()
    # Rows that come again as they are give nothing, so they are in the state as they were.
    assert found == []
    table.delete(given.select("`i.d```", "tiny"))
    query.trigger(**AVAILABLE).start().awaitTermination()
    assert sorted(repr(row[: len(given.columns)]) for row in found) == sorted(repr(row[:]) for row in given.collect())
    assert {row["_change_type"] for row in found} == {"delete"}


def test_a_query_that_cannot_go_on_is_refused(
    spark: SparkSession, kafka: Any, tmp_path: Path, table: TableStore
) -> None:
    table.write(frame(spark, [(1, "a")]))
    run(table.read_stream(), tmp_path / "c")

    def refused(message: str, checkpoint: str = "c", into: str = "s", **more: Any) -> None:
        with pytest.raises(InvalidInputError, match=message):
            table.log.save_state(tmp_path / checkpoint, tmp_path / into, **more)
        assert not (tmp_path / into / "state.json").exists()

    refused("no micro-batch that is done", "nowhere")
    refused("ttl='soon': expected a duration", ttl="soon")
    plain = table.read_stream(normalize=False)
    run(plain.groupBy("v").count(), tmp_path / "counted")
    refused("another state than normalize's", "counted")
    run(plain, tmp_path / "stateless", "append")
    refused("another state than normalize's", "stateless")
    other = make(spark, tmp_path / "other")
    other.write(frame(spark, [(1, "a")]))
    run(other.read_stream(), tmp_path / "of-other", "append")
    refused("does not read the stream of table", "of-other")
    offsets = (tmp_path / "c" / "offsets" / "0").read_text()
    for number, text in enumerate((offsets.rpartition("\n")[0] + "\n5", offsets + "\n" + offsets, "v1", "")):
        shutil.copytree(tmp_path / "c", tmp_path / f"odd{number}")
        (tmp_path / f"odd{number}" / "offsets" / "0").write_text(text)
        refused("does not read the stream of table", f"odd{number}")
    shutil.copytree(tmp_path / "c", tmp_path / "half")
    for commit in (tmp_path / "half" / "commits").iterdir():
        commit.unlink()
    (tmp_path / "half" / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "half" / "offsets" / "1").write_bytes((tmp_path / "half" / "offsets" / "0").read_bytes())
    refused("stopped in micro-batch 1", "half")
    assert table.log.save_state(tmp_path / "c", tmp_path / "s").rows == 1
    with pytest.raises(InvalidInputError, match="holds a saved state already"):
        table.log.save_state(tmp_path / "c", tmp_path / "s")


def test_a_state_that_does_not_fit_is_refused(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], table: TableStore
) -> None:
    table.write(frame(spark, [(1, "a")]))
    run(table.read_stream(), tmp_path / "c")
    with failing(Storage, "put"), pytest.raises(Crash):
        table.log.save_state(tmp_path / "c", tmp_path / "s")
    with pytest.raises(InvalidInputError, match="holds no saved state"):
        table.read_stream(state=tmp_path / "s")
    # What an attempt that died has left there is in nobody's way.
    assert table.log.save_state(tmp_path / "c", tmp_path / "s").rows == 1
    assert len(list((tmp_path / "s").glob("*.parquet"))) == 2
    for more in ({"normalize": False}, {"scan_mode": "latest"}):
        with pytest.raises(InvalidInputError, match=r"it goes with\s+log\.consistency='eventual'"):
            table.read_stream(state=tmp_path / "s", **more)
    transactional = make(spark, tmp_path / "other", kafka.bootstrap_servers, topic())
    with pytest.raises(InvalidInputError, match=r"it goes with\s+log\.consistency='eventual'"):
        transactional.read_stream(state=tmp_path / "s")
    other = make(spark, tmp_path / "third", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    with pytest.raises(InvalidInputError, match="is another table's"):
        other.read_stream(state=tmp_path / "s")
    (part,) = saved_splits(str(tmp_path / "s"), table._handle.table.spec)
    Path(Storage.at(str(tmp_path / "s")).path(part.file)).unlink()
    with pytest.raises(DataLostError, match="a file of a saved state is gone"):
        list(part.read())
    table.alter.add_column("w", "int")
    with pytest.raises(InvalidInputError, match="before the table's columns were changed"):
        table.read_stream(state=tmp_path / "s")
    with pytest.raises(InvalidInputError, match=r"columns of table .* were changed since the query began"):
        table.log.save_state(tmp_path / "c", tmp_path / "s2")
