"""Random continuous queries over random changelogs, compared with DuckDB after each micro-batch.

Each round has two upsert topics of its own and runs a few queries as one, from the first to the last micro-batch, over
restarts and over a micro-batch that fails and is repeated. A round is determined by the seed and its number, so that a
soak goes on where the last one ended, and a round that failed can be run again.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.soak.outcome import Outcome
from tests.soak.rounds import SHOWN, Round
from tests.soak.timed_queries import run_timed_round
from tests.sql.changes import Follower, ddl, random_side, run
from tests.sql.random_queries import random_query, random_relation

QUERIES = 3
TIMED_EVERY = 3
"""Of so many rounds, one has a query of event time."""


def run_round(folder: Path, spark: SparkSession, wire: Wire, seed: int, number: int) -> Round:
    """Run the round of a seed and a number."""
    chance = random.Random(f"{seed}-{number}")
    step, batches = chance.choice([(3, 5), (8, 3), (20, 2)])
    sides = [random_side(name, chance.randrange(10**9), step * batches, chance.choice([3, 6, 12])) for name in "uv"]
    topics = {side.name: wire.make(f"soak-{uuid.uuid4().hex}") for side in sides}
    for side in sides:
        wire.send(topics[side.name], side.records())
    catalog = Catalog(spark, folder / "warehouse", settings={"tablestore.addresses": f"...={wire.servers}"})
    catalog.sql(ddl(topics, step))
    found = Round()
    for _ in range(QUERIES):
        text = random_query(chance) if chance.random() < 0.3 else random_relation(chance, chance.randint(1, 3))
        try:
            catalog.sql(text)
        except InvalidInputError as error:
            found.refuse(error)
        else:
            found.queries.append(text)
    if not found.queries:
        return found
    follower = Follower(step, found.queries, sides, fail_at=chance.choice([None, 0, 1]))
    try:
        # Once more for the micro-batch that fails.
        for _ in range(2):
            run(catalog, follower, folder / "checkpoint")
        assert follower.batches == batches, f"expected {batches} micro-batches, got {follower.batches}"
    except Exception as error:  # noqa: BLE001 - what a query says is what the soak is after
        found.wrong = f"seed {seed}, round {number}, {found.queries}: {str(error)[:SHOWN]}"
    found.batches = follower.batches
    return found


def soak_queries(
    folder: Path,
    spark: SparkSession,
    servers: str,
    *,
    seconds: float,
    seed: int,
    first: int,
    say: Callable[[str], None],
) -> Outcome:
    """Run rounds for a time, from the ``first`` one, and say what came of each."""
    outcome, wire, number, queries = Outcome("queries", seconds, 0), Wire(servers), first, 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        next_round = run_round if number % TIMED_EVERY else run_timed_round
        found = next_round(folder / str(number), spark, wire, seed, number)
        queries += len(found.queries)
        outcome.interruptions += found.refused
        outcome.snapshots += found.batches
        refused = sum(found.refused.values())
        say(f"round {number}: {len(found.queries)} queries, {refused} refused{', WRONG' if found.wrong else ''}")
        if found.wrong:
            outcome.troubles.append(found.wrong)
        number += 1
    outcome.faults = number - first
    refused = sum(outcome.interruptions.values())
    outcome.interruptions = Counter()
    outcome.notes.append(f"{queries} queries, {refused} refused; go on with --first {number}")
    return outcome
