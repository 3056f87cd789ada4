"""Follow a normalized stream for good, with a state in proportion to the keys that live.

Spark's aggregates forget no key. So a query is stopped when its state has twice the keys that it began with, those that
live are saved (``saved_state.py``), and the next query begins with them: as a garbage collector copies what lives when
the heap is full, and likewise at a cost that does not grow with the number of changes. Each of these queries is a
generation with a folder of its own::

    checkpoint/3/state    the saved state that it began with; generation 0 has none
    checkpoint/3/query    Spark's checkpoint

A generation is there when its saved state is whole, and then those before it are not needed. So a process may die
anywhere, and the next goes on.
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
"""Says where changes go, given them and the number of the generation."""

logger = logging.getLogger("tablestore")

_KEYS_MIN = 100_000
"""A state of fewer than twice these keys is small, whatever lives of it."""
_TIMES = 2
_LOOK_SECONDS = 1
_COUNTED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


@dataclass(frozen=True)
class Generation:
    """One of the queries that together are one stream.

    Attributes:
        root: folder of the generations.
        number: which it is.
        keys: how many it began with.
    """

    root: Storage
    number: int
    keys: int

    @property
    def checkpoint(self) -> str:
        """Spark's checkpoint."""
        return self.root.path(f"{self.number}/query")

    @property
    def state(self) -> str | None:
        """The saved state to begin with; None where there is none, and once the first micro-batch is done."""
        begun = highest(self.root.child(f"{self.number}/query/commits")) is not None
        return None if self.number == 0 or begun else state_folder(self.root, self.number)

    @property
    def began_ms(self) -> int:
        """When its query was first started, which may be now."""
        files = self.root.files(f"{self.number}/query", skip=lambda _: True)
        found = (file.modified_ms for file in files if file.name == f"{self.number}/query/metadata")
        return next(found, int(time.time() * 1000))


def state_folder(root: Storage, number: int) -> str:
    """Give the folder of the saved state that a generation begins with."""
    return root.path(f"{number}/state")


def newest(root: Storage) -> Generation:
    """Find the generation that goes on, and remove those before it.

    Raises:
        InvalidInputError: the folder is a query's own checkpoint.
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
        stream: gives the changes, those after a saved state where one is named.
        save: saves the state of a query's checkpoint in a folder.
        write: says where changes go.
        checkpoint: folder of the generations.
        ttl_ms: how old a generation may become.

    Raises:
        InvalidInputError: what ``write`` gives keeps a state of its own, Spark is told not to count keys, or the folder
            is a query's own checkpoint.
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
            # It stopped wherever it was; a state is that of a micro-batch that is done.
            _writer(stream, write, generation).trigger(availableNow=True).start().awaitTermination()
            saved = save(generation.checkpoint, state_folder(root, generation.number + 1))
            told = "%s: a new query begins with %d keys; %d were deleted, %d have not changed for the time-to-live."
            logger.info(told, checkpoint, saved.rows, saved.deleted, saved.expired)


def _writer(stream: Callable[[str | None], DataFrame], write: Write, generation: Generation) -> DataStreamWriter:
    changes = stream(generation.state)
    if changes.sparkSession.conf.get(_COUNTED, "true") == "false":
        msg = f"follow: {_COUNTED}=false: it has to be true, for keys are counted to know when there are too many."
        raise InvalidInputError(msg)
    writer = write(changes, generation.number).outputMode("update")
    return writer.option("checkpointLocation", generation.checkpoint)


def _wait(query: StreamingQuery, keys_max: int, until_ms: int | None) -> tuple[bool, bool]:
    """Wait until a query ends, has too many keys or is too old; say whether it is due for another, and has ended."""
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
