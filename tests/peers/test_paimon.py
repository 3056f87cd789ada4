"""Tables with random histories have the rows, and the changes, that they have in Paimon 1.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tablestore.sql import Catalog
from tests.peers.flink import Flink
from tests.peers.paimon import need_paimon, paimon
from tests.peers.paimon_histories import History, merged, partitioned

need_paimon()

SEEDS = range(6)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    with paimon(tmp_path_factory.mktemp("paimon")) as started:
        yield started


def ours(catalog: Catalog, query: str) -> list[list[Any]]:
    frame = catalog.sql(query).frame
    assert frame is not None
    return [list(row) for row in frame.collect()]


def in_order(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("make", [merged, partitioned])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_has_the_rows_of_paimon(
    catalog: Catalog, peer: Flink, make: Callable[[Random, str], History], seed: int
) -> None:
    history = make(Random(seed), f"{make.__name__}_{seed}")
    query, done = f"SELECT * FROM {history.name}", [history.definition()]
    catalog.sql(done[0])
    peer.sql(done[0])
    for step in history.steps:
        done.append(step)
        catalog.sql(step)
        peer.sql(step)
        assert in_order(ours(catalog, query)) == in_order(peer.sql(query)), "\n".join(done)


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_has_the_changes_of_paimon(catalog: Catalog, peer: Flink, producer: str, seed: int) -> None:
    history = merged(Random(seed), f"changed_{producer[:4]}_{seed}")
    if "sequence.field" in history.options or history.options["merge-engine"] == "first-row":
        pytest.skip("Paimon compacts for its changes, and then forgets deletes; first rows need another producer")
    history.options["changelog-producer"] = producer
    # Here an update to the same row is none, and each write is compared with the rows before it.
    more = {"changelog_producer.row_deduplicate": "true"}
    if producer == "full-compaction":
        more["full_compaction.delta_commits"] = "1"
    catalog.sql(history.definition())
    peer.sql(history.definition(**more))
    for step in history.steps:
        catalog.sql(step)
        peer.sql(step)
    ((last,),) = peer.sql(f"SELECT MAX(snapshot_id) FROM {history.name}$snapshots")
    every = f"'incremental-between' = '0,{last}', 'incremental-between-scan-mode' = 'changelog'"
    theirs = peer.sql(f"SELECT * FROM {history.name}$audit_log /*+ OPTIONS({every}) */")
    found = in_order(ours(catalog, f"SELECT * FROM {history.name}$audit_log"))
    assert found == in_order(theirs), "\n".join([history.definition(), *history.steps])
