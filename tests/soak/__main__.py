"""Run the soaks one after another and print what came of them; exit code 1 when a promise broke.

``python -m tests.soak [--seconds N] [--seed N] [--only leaders|readers|sleepers|retention|queries] [--first N]``
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from log_system.local_kafka.owned import LocalKafka
from tablestore.session import session
from tests.harness.cluster import LocalCluster
from tests.soak import retention, sleepers
from tests.soak.leaders import soak_leaders
from tests.soak.outcome import Outcome, table_of
from tests.soak.queries import soak_queries
from tests.soak.readers import soak_readers
from tests.soak.retention import soak_retention
from tests.soak.sleepers import soak_sleepers

SOAKS = ("leaders", "readers", "sleepers", "retention", "queries")
WIDTH = 200


def run(what: str, folder: Path, *, seconds: float, seed: int, first: int) -> Outcome:
    """Run one soak on brokers of its own."""
    if what == "leaders":
        with LocalCluster() as cluster:
            return soak_leaders(folder, cluster, seconds=seconds, seed=seed, writers=3, every=8)
    if what == "readers":
        with LocalCluster() as cluster, spark_session(folder) as spark:
            return soak_readers(folder, cluster, spark, seconds=seconds, seed=seed, every=20)
    if what == "queries":
        with LocalKafka() as kafka, spark_session(folder) as spark:
            return soak_queries(
                folder, spark, kafka.bootstrap_servers, seconds=seconds, seed=seed, first=first, say=Console().print
            )
    with LocalKafka(properties={**sleepers.EAGER, **retention.EAGER}) as kafka:
        if what == "sleepers":
            return soak_sleepers(folder, kafka.bootstrap_servers, seconds=seconds, seed=seed, writers=2)
        return soak_retention(folder, kafka.bootstrap_servers, seconds=seconds, seed=seed)


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Yield a session that compiles queries and keeps state as users' do; the tests of CI do neither."""
    config = {"spark.sql.shuffle.partitions": "2"}
    spark = session("soak", master="local[2]", warehouse=folder / "spark", config=config)
    yield spark
    spark.stop()


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of each soak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SOAKS, help="leave the others out")
    parser.add_argument("--first", type=int, default=1, help="round of the queries to begin with")
    given = parser.parse_args()
    # What is tried again, and which snapshots are read from files, is no news here.
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    console, outcomes = Console(width=WIDTH), list[Outcome]()
    for what in SOAKS:
        if given.only in (None, what):
            with tempfile.TemporaryDirectory(prefix="soak-") as name:
                outcomes.append(run(what, Path(name), seconds=given.seconds, seed=given.seed, first=given.first))
            for trouble in outcomes[-1].troubles:
                console.print(f"{what}: {trouble}", markup=False)
    console.print(table_of(outcomes))
    return int(not all(outcome.good for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
