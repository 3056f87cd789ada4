"""Whoever dies on the way into an eventual log: the normalized stream stays a true changelog, and becomes the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash.matrix.cases import SMALL, Case
from tests.crash.processes.batches import DRIVER, EVENTUAL, SETTLE, TASK
from tests.crash.processes.eventual import run_lives
from tests.crash.processes.ledger import Given, follow
from tests.harness.spark_tables import shuffle_partitions

DEATHS = [
    (EVENTUAL, "flush:after", DRIVER),
    (EVENTUAL, "commit:before", DRIVER),
    (EVENTUAL, "produce:after", TASK),
    (EVENTUAL, "end:after", DRIVER),
    (SETTLE, "repair:after", DRIVER),
    (SETTLE, "offsets:before", DRIVER),
]


@pytest.mark.crash
def test_a_stream_follows_a_log_whose_writers_die_and_gives_no_illegal_change(
    spark: SparkSession, kafka: Any, tmp_path: Path
) -> None:
    cases = [Case(verb, point, who, "upsert", "json", SMALL) for verb, point, who in DEATHS]
    with shuffle_partitions(spark, 1):
        results = list(run_lives(cases, 7, tmp_path, kafka.bootstrap_servers, spark))
    assert [(r.case.name, r.verdict, r.trouble) for r in results if not r.good] == []
    assert len(results) == len(DEATHS)


@pytest.mark.parametrize(
    ("batch", "wrong"),
    [
        ([(3, "x", "insert")], 0),
        ([(1, "a", "update_preimage"), (1, "b", "update_postimage")], 0),
        ([(1, "a", "delete"), (2, "b", "delete")], 0),
        ([(1, "x", "insert")], 1),
        ([(3, "x", "delete")], 1),
        ([(1, "other", "delete")], 1),
        ([(1, "other", "update_preimage"), (1, "b", "update_postimage")], 1),
        ([(1, "a", "update_preimage"), (1, "a", "update_postimage")], 1),
        ([(3, "x", "update_preimage"), (3, "b", "update_postimage")], 1),
        ([(1, "b", "update_postimage")], 1),
        ([(1, "a", "update_preimage")], 1),
        ([(1, "a", "delete"), (1, "c", "insert")], 1),
        ([(3, "x", "insert"), (1, "x", "insert"), (2, "x", "insert")], 2),
    ],
)
def test_the_checker_knows_which_changes_may_follow(batch: list[Given], wrong: int) -> None:
    rows = {1: "a", 2: "b"}
    assert follow(rows, batch) == wrong
