"""What the processes that die write, batch by batch; the auditor is told the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness.local_writes import Change, Row, fold_into

BATCHES = 3
BATCHES_OF_EXPIRY = 24
"""Enough commits that Delta's log has a checkpoint behind which expiry cuts it."""
KEYS = 40
FOREACH_BATCH, SINK = "foreachBatch", "format"
STREAMS = (FOREACH_BATCH, SINK)
"""Verbs of the queries of ``streams.py``."""
EXPIRE, ALTER = "expire", "alter"
EVENTUAL, SETTLE, NORMALIZE = "eventual", "settle", "normalize"
"""Verbs of tables with an eventual log: write, recover, and the query of ``normalized.py``."""
REWRITE, VERBS, ROLLBACK, ROLLBACK_FILES = "rewrite", "verbs", "rollback", "rollback-files"
WITHOUT_KEY = frozenset({"append", REWRITE, ROLLBACK_FILES})
NOBODY, DRIVER, TASK, ORPHAN, BROKER = "nobody", "driver", "task", "driver, not its tasks", "broker"


@dataclass(frozen=True)
class Job:
    """What a process does, and where somebody dies.

    Attributes:
        path: the table.
        verb: ``write``, ``recover``, ``compact``, ``expire``, ``alter``, ``create``, ``drop``, ``foreachBatch`` or
            ``format``; of an eventual log ``eventual`` (write), ``settle`` (recover) or ``normalize``.
        kind: what the batches hold. ``append``, ``upsert`` or ``delete``; ``rewrite``: the first appends, and each
            other deletes some rows of a table without a key and updates the others; ``verbs``: rows are upserted, then
            some are updated and some deleted by condition, then all are overwritten; ``rollback`` and
            ``rollback-files``: the third takes back what the second did, with a key and without.
        rows: of a batch.
        seed: of the batches.
        who: who dies.
        point: where; empty for nowhere.
        hit: at which time it is reached.
        options: for ``create``.
        first: the number of the first batch.
    """

    path: str
    verb: str
    kind: str
    rows: int
    seed: int
    who: str = NOBODY
    point: str = ""
    hit: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    first: int = 0

    @property
    def key(self) -> bool:
        """Whether the table has a primary key."""
        return self.kind not in WITHOUT_KEY

    @property
    def batches(self) -> int:
        """How many batches are written in all."""
        return BATCHES_OF_EXPIRY if self.verb == EXPIRE else BATCHES


def changes_of(job: Job, batch: int) -> list[Change]:
    """Make a batch's changes; the same for the same seed and number."""
    dice = random.Random(f"{job.seed}/{batch}")
    if batch > 0 and job.kind == REWRITE:
        old = _rewritten(job, batch - 1)
        after = {row: rewrite_row(batch, row) for row in old}
        return [*((key, f"-{value}") for key, value in old), *(row for row in after.values() if row is not None)]
    if batch > 0 and job.kind == VERBS:
        return verb_changes(job, batch, _rows_after(job, batch - 1))
    if batch == 2 and job.kind == ROLLBACK:
        then, now = _rows_after(job, 0), _rows_after(job, 1)
        return [(key, then.get(key)) for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)]
    if batch == 2 and job.kind == ROLLBACK_FILES:
        return [(key, f"-{value}") for key, value in changes_of(job, 1)]
    if not job.key:
        return [(batch * job.rows + n, f"{batch}.{n}") for n in range(job.rows)]
    if job.kind == "delete" and batch > 0:
        return [(key, None) for key in dice.sample(range(KEYS), min(job.rows, KEYS))]
    return [(dice.randrange(KEYS), None if dice.random() < 0.2 else f"{batch}.{n}") for n in range(job.rows)]


def rewrite_row(batch: int, row: Row) -> Row | None:
    """Say what a batch makes of a row."""
    return None if row[0] % (BATCHES + 1) == batch else (row[0], f"{batch}.{row[0]}")


def verb_changes(job: Job, batch: int, rows: Mapping[int, str]) -> list[Change]:
    """Say what a batch of verbs does to the rows that there are: by condition, then to all."""
    if batch == 1:
        return [(key, None if key % 5 == 0 else f"1.{key}") for key in rows if key % 3 > 0 or key % 5 == 0]
    dice = random.Random(f"{job.seed}/overwrite")
    return [*((key, None) for key in rows), *((key, f"{batch}.{key}") for key in dice.sample(range(KEYS), job.rows))]


def _rewritten(job: Job, batch: int) -> list[Row]:
    """Give the rows that there are after a batch."""
    if batch == 0:
        return [(key, str(value)) for key, value in changes_of(job, 0)]
    after = (rewrite_row(batch, row) for row in _rewritten(job, batch - 1))
    return [row for row in after if row is not None]


def _rows_after(job: Job, batch: int) -> dict[int, str]:
    """Give the rows of a table with a key that there are after a batch."""
    rows: dict[int, str] = {}
    for number in range(batch + 1):
        fold_into(rows, changes_of(job, number))
    return rows
