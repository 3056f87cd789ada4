"""Runs a normalized stream indefinitely, with state that stays proportional to the number of live keys.

Spark's aggregates never drop a key. So when a query's state has twice the keys that it started with, the query is
stopped, its live keys are saved (``saved_state.py``), and the next query starts with them. This works like a copying
garbage collector, and its cost likewise does not grow with the number of changes. Each of these queries is a generation
with its own folder::

    checkpoint/3/state    the saved state that it started with; generation 0 has none
    checkpoint/3/query    Spark's checkpoint

A generation exists as soon as its saved state is complete; earlier generations are no longer needed then. So a process
may crash at any point, and the next one continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore.streaming.saved_state import SavedState, find_saved_state, highest

Write = Callable[[DataFrame, int], DataStreamWriter]
"""Returns the stream writer to start, given the changes and the number of the generation."""

logger = logging.getLogger("tablestore")

_KEYS_MIN = 100_000
"""A state of fewer than twice this many keys is small enough to keep, however few of the keys are live."""
_TIMES = 2
_LOOK_SECONDS = 1
_COUNTED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


@dataclass(frozen=True)
class Generation:
    """One of the queries that together form one stream.

    Attributes:
        root: folder of the generations.
        number: number of the generation.
        keys: number of keys that it started with.
    """

    root: Storage
    number: int
    keys: int

    @property
    def checkpoint(self) -> str:
        """The folder of Spark's checkpoint."""
        return self.root.path(f"{self.number}/query")

    @property
    def state(self) -> str | None:
        """The saved state to start with; None if there is none, or if the first micro-batch is already done."""
        begun = highest(self.root.child(f"{self.number}/query/commits")) is not None
        return None if self.number == 0 or begun else state_folder(self.root, self.number)

    @property
    def began_ms(self) -> int:
        """When the generation's query was first started, in milliseconds since the epoch; now, if it has not been."""
        files = self.root.files(f"{self.number}/query", skip=lambda _: True)
        found = (file.modified_ms for file in files if file.name == f"{self.number}/query/metadata")
        return next(found, int(time.time() * 1000))


def state_folder(root: Storage, number: int) -> str:
    """Return the folder of the saved state that a generation starts with."""
    return root.path(f"{number}/state")


def newest(root: Storage) -> Generation:
    """Return the newest generation, which the stream continues with, and remove earlier ones.

    Raises:
        InvalidInputError: the folder is the checkpoint of a query.
    """
    names = root.names()
    if "offsets" in names:
        msg = (
            f"follow: checkpoint={root.root!r} is the checkpoint of one query; name a new folder. To go on where that "
            f"query is, save_state({root.root!r}, into='<the new folder>/1/state') first."
        )
        raise InvalidInputError(msg)
    numbers = sorted(int(name) for name in names if name.isdigit())
    for number in reversed(numbers):
        saved = find_saved_state(state_folder(root, number))
        if saved is not None:
            for before in numbers[: numbers.index(number)]:
                root.remove_tree(str(before))
            return Generation(root, number, saved.rows)
    return Generation(root, 0, 0)


def follow(
    stream: Callable[[str | None], DataFrame],
    save: Callable[[str, str], SavedState],
    write: Write,
    checkpoint: str,
    ttl_ms: int | None,
) -> None:
    """Run the queries of a stream one after the other; see ``TableStore.follow``.

    Args:
        stream: returns the changes; given the folder of a saved state, the changes after it.
        save: saves the state in a query's checkpoint to a folder.
        write: returns the stream writer for the changes.
        checkpoint: folder of the generations.
        ttl_ms: maximum age of a generation; None for no limit.

    Raises:
        InvalidInputError: the query that ``write`` returns has state of its own, Spark is configured not to count keys,
            or the folder is the checkpoint of a query.
        StreamingQueryException: a query failed.
    """
    root = Storage.at(checkpoint)
    has_ended = False
    while not has_ended:
        generation = newest(root)
        until = None if ttl_ms is None else generation.began_ms + ttl_ms
        query = _writer(stream, write, generation).start()
        try:
            is_due, has_ended = _wait(query, _TIMES * max(generation.keys, _KEYS_MIN), until)
        finally:
            query.stop()
        if is_due:
            # The query may have stopped within a micro-batch, but only the state of a complete one can be saved.
            _writer(stream, write, generation).trigger(availableNow=True).start().awaitTermination()
            saved = save(generation.checkpoint, state_folder(root, generation.number + 1))
            text = "%s: a new query begins with %d keys; %d were deleted, %d have not changed for the time-to-live."
            logger.info(text, checkpoint, saved.rows, saved.deleted, saved.expired)


def _writer(stream: Callable[[str | None], DataFrame], write: Write, generation: Generation) -> DataStreamWriter:
    changes = stream(generation.state)
    if changes.sparkSession.conf.get(_COUNTED, "true") == "false":
        msg = f"follow: {_COUNTED}=false: it has to be true, for keys are counted to know when there are too many."
        raise InvalidInputError(msg)
    writer = write(changes, generation.number).outputMode("update")
    return writer.option("checkpointLocation", generation.checkpoint)


def _wait(query: StreamingQuery, keys_max: int, until_ms: int | None) -> tuple[bool, bool]:
    """Wait until a query ends, has too many keys or is too old; return whether it is due for renewal and has ended."""
    while True:
        has_ended = bool(query.awaitTermination(_LOOK_SECONDS))
        operators = [] if query.lastProgress is None else query.lastProgress.stateOperators
        if len(operators) > 1:
            msg = (
                "follow: what write() gives has an aggregate, a join of streams or dropDuplicates of its own, whose "
                "state would not go on with the next query. Do that in foreachBatch, or in a query over its output."
            )
            raise InvalidInputError(msg)
        is_old = until_ms is not None and time.time() * 1000 >= until_ms
        is_due = is_old or any(each.numRowsTotal > keys_max for each in operators)
        if is_due or has_ended:
            return is_due, has_ended
