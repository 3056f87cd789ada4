"""The combinations of the crash matrix: which verb, at which point, who dies, what is written and how."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.crash.processes.batches import (
    ALTER,
    BROKER,
    DRIVER,
    EVENTUAL,
    EXPIRE,
    FOREACH_BATCH,
    NORMALIZE,
    ORPHAN,
    REWRITE,
    ROLLBACK,
    ROLLBACK_FILES,
    SETTLE,
    STREAMS,
    TASK,
    VERBS,
)

SIDES = ("before", "after")
SMALL, LARGE = "small", "large"
ONCE = ("init", "register", "token")
STAGE = ("stage", "file")
COMMIT = ("find", "commit", "read-commit")
PUBLISH = ("init", "token", "register", "read-file", "begin", "produce", "flush", "offsets", "end")
INDEX = ("rename", "index")
TASK_PUBLISH = PUBLISH
SEND = ("stage", "file", "produce", "flush", "sent")
"""What an eventual log's staging tasks pass."""
OWN = ("init", "token", "register", "repair", "begin", "offsets", "end")
MEND = ("read-file", "look-up", "produce", "flush", "mend")
QUERY = ("latest", "plan", "read", "segment", "state", "emit", "given")
"""What a normalized query passes: the source's end is asked for, a micro-batch planned, read and given on.

Before a task emits its changes, it writes the files of the state and the version that lists them.
"""
TWICE = {
    EVENTUAL: {*SEND, *COMMIT, "index", "begin", "end"},
    # There is one snapshot to settle, and an attempt.
    SETTLE: {"produce"},
    NORMALIZE: {"latest", "plan", "emit", "given"},
}
"""Points of tables with an eventual log that are reached more than once."""
CREATE = ("intent", "topic", "rename", "index", "make-delta", "delete-file")
DROP = ("intent", "remove-log", "delete-topic", "delete-groups", "remove-files", "delete-tree")
COMPACT = ("merge", "fold", "trim", "drop-folded")
EXPIRING = ("commit", "delete-file", "index-delete")
ALTERING = ("alter", "rename", "index", "commit", "end")
LATE = {"stage": (2, 3), "file": (3, 6), "commit": (2, 3), "flush": (2, 3), "index": (2, 3)}
"""At which times points are reached in the batches of a verb or a rollback, which are the second and the third."""


@dataclass(frozen=True)
class Case:
    """One combination.

    Attributes:
        verb: what is done when somebody dies.
        point: where.
        who: dies.
        kind: of write.
        log_format: of the log.
        size: ``small`` (the driver publishes, one transaction a snapshot) or ``large`` (tasks, several).
    """

    verb: str
    point: str
    who: str
    kind: str
    log_format: str
    size: str

    @property
    def name(self) -> str:
        """Name the case."""
        return "/".join((self.verb, self.point, self.who, self.kind, self.log_format, self.size))

    def dice(self, seed: int) -> random.Random:
        """Give all that is random in the case."""
        return random.Random(f"{seed}/{self.name}")

    def hit(self, dice: random.Random) -> int:
        """Choose at which time the point is reached; each is reached as often."""
        call = self.point.partition(":")[0]
        if self.verb in TWICE:
            return dice.randint(1, 2) if call in TWICE[self.verb] and self.who == DRIVER else 1
        if self.verb == EXPIRE and call == "delete-file":
            # Data files with a key, then entries of the index, then those of Delta's logs.
            return dice.randint(1, 20 if self.kind == "append" else 50)
        if self.verb not in {"write", "recover", FOREACH_BATCH} or call == "token":
            return 1
        if self.who in {TASK, ORPHAN}:
            # A task begins with its own connection; a large snapshot gives it two transactions at least.
            return dice.randint(1, 2) if call in {"begin", "produce", "flush", "offsets", "end"} else 1
        if self.size == SMALL and call in ONCE:
            return 1
        if self.kind in {VERBS, ROLLBACK} and self.size == SMALL and call in LATE:
            return dice.randint(*LATE[call])
        if self.kind == REWRITE and call in {*STAGE, *COMMIT}:
            # The first batch only appends: it stages twice, and writes two files.
            return dice.randint(3, 4) if call in STAGE else dice.randint(2, 3)
        if self.verb == "recover" and self.size == SMALL and call in {"begin", "flush", "offsets", "end"}:
            # All snapshots share one transaction, after the two of a new table.
            return 1 if call == "flush" else dice.randint(1, 3)
        if call in {"begin", "offsets", "end"}:
            # A new table's first two transactions say that there are no tasks; those of snapshots follow.
            return dice.randint(1, 5)
        return dice.randint(1, 2)


def cases() -> Iterator[Case]:
    """Give all combinations."""
    for size, log_format in ((s, f) for s in (SMALL, LARGE) for f in ("json", "arrow")):
        for kind in ("append", "upsert", "delete"):
            yield from _cross("write", (*STAGE, *COMMIT, *PUBLISH, *INDEX), DRIVER, kind, log_format, size)
        yield from _cross("recover", (*PUBLISH, *INDEX), DRIVER, "upsert", log_format, size)
        yield from _cross("write", (*COMMIT, *PUBLISH, *INDEX), BROKER, "upsert", log_format, size)
        yield from _cross("compact", COMPACT, DRIVER, "upsert", log_format, size)
    for size in (SMALL, LARGE):
        for kind in (REWRITE, ROLLBACK_FILES):
            yield from _cross("write", (*STAGE, *COMMIT, *PUBLISH, *INDEX), DRIVER, kind, "arrow", size)
        for kind in (VERBS, ROLLBACK):
            yield from _cross("write", ("stage", "file", "commit", *PUBLISH, *INDEX), DRIVER, kind, "json", size)
    for log_format in ("json", "arrow"):
        for kind in ("append", "upsert"):
            yield from _cross("write", (*STAGE, *TASK_PUBLISH), TASK, kind, log_format, LARGE)
            yield from _cross("write", TASK_PUBLISH, ORPHAN, kind, log_format, LARGE)
        yield from _cross("compact", ("merge",), TASK, "upsert", log_format, SMALL)
    yield from _by_spark()
    yield from _other_verbs()


def _by_spark() -> Iterator[Case]:
    for verb in STREAMS:
        for kind, log_format in (("append", "arrow"), ("upsert", "json")):
            yield from _cross(verb, (*COMMIT, *PUBLISH, *INDEX), DRIVER, kind, log_format, SMALL)
        yield from _cross(
            verb, ("commit", "token", "begin", "offsets", "end", "index"), DRIVER, "upsert", "json", LARGE
        )


def _other_verbs() -> Iterator[Case]:
    yield from _eventual()
    for kind, log_format in (("append", "json"), ("append", "arrow"), ("upsert", "json"), ("upsert", "arrow")):
        yield from _cross(EXPIRE, EXPIRING, DRIVER, kind, log_format, SMALL)
        yield from _cross(ALTER, ALTERING, DRIVER, kind, log_format, SMALL)
    for kind in ("append", "upsert"):
        yield from _cross("create", CREATE, DRIVER, kind, "json", SMALL)
        yield from _cross("drop", DROP, DRIVER, kind, "json", SMALL)


def _eventual() -> Iterator[Case]:
    """Give those of tables with an eventual log."""
    for size, log_format in ((SMALL, "json"), (LARGE, "arrow")):
        # An entry of an eventual log is linked, not renamed.
        yield from _cross(EVENTUAL, (*SEND, *COMMIT, *OWN, "index"), DRIVER, "upsert", log_format, size)
        yield from _cross(EVENTUAL, SEND, TASK, "upsert", log_format, size)
        yield from _cross(SETTLE, (*OWN, *MEND, "index"), DRIVER, "upsert", log_format, size)
    yield from _cross(EVENTUAL, SEND, ORPHAN, "upsert", "json", SMALL)
    yield from _cross(NORMALIZE, QUERY, DRIVER, "upsert", "json", SMALL)


def _cross(verb: str, calls: tuple[str, ...], who: str, kind: str, log_format: str, size: str) -> Iterator[Case]:
    for call in calls:
        for side in SIDES:
            yield Case(verb, f"{call}:{side}", who, kind, log_format, size)


def chosen(seed: int, only: str, every: int) -> list[Case]:
    """Choose the combinations of a run: those whose name holds ``only``; of them, by the seed, one in ``every``."""
    found = [case for case in cases() if only in case.name]
    if every > 1:
        found = [case for case in found if random.Random(f"{seed}/{case.name}/chosen").random() < 1 / every]
    return found
