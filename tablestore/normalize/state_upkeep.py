"""What the driver does about the state of normalize: removes files that are no longer needed, and measures the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Final

from snapshot.storage import Storage
from tablestore.normalize.keyed_state import ENDING, StateSpec, version_offsets

_VERSIONS_KEPT: Final = 3
"""Spark repeats at most the last micro-batch; one more is kept in case its record of that is lost."""
CLEAN_SECONDS: Final = 10.0
"""How often a query removes files that its state no longer needs."""


class StateCleaner:
    """Removes versions that a query no longer needs, and the segments that only they list. Runs on the driver."""

    def __init__(self, folder: Storage) -> None:
        """Clean the state of one query."""
        self._folder = folder

    def clean(self, partition: str, done: int) -> None:
        """Remove all but the last versions up to the offset at which the last complete micro-batch ended.

        An attempt that still runs may be about to list a segment in a version. But a version at or before the newest
        one that is kept here is read by nobody, so segments for such versions can go once no version lists them.
        """
        storage = self._folder.child(partition)
        names = storage.names()
        versions = version_offsets(names)
        complete = [offset for offset in versions if offset <= done]
        if len(complete) <= _VERSIONS_KEPT:
            return
        kept = complete[-_VERSIONS_KEPT]
        storage.delete(*(f"{offset}.json" for offset in versions if offset < kept))
        listed: set[str] = set()
        for offset in versions:
            text = storage.read(f"{offset}.json") if offset >= kept else None
            listed |= {each["file"] for each in json.loads(text)["segments"]} if text else set()
        segments = [name for name in names if name.endswith(ENDING) and int(name.partition("-")[0]) <= kept]
        storage.delete(*(name for name in segments if name not in listed))


class StateMeter:
    """Measures a query's state for the query's progress. Runs on the driver."""

    def __init__(self) -> None:
        """Measure at the first call, and then every ``CLEAN_SECONDS``."""
        self._read_at = 0.0
        self._found: dict[str, int] = {}

    def measured(self, spec: StateSpec, partitions: Iterable[str]) -> dict[str, int]:
        """Return ``stateRows``, which counts keys that segments repeat or delete more than once, and ``stateBytes``."""
        now = time.monotonic()
        if not self._read_at or now - self._read_at >= CLEAN_SECONDS:
            self._read_at = now
            segments = [each for partition in partitions for each in _newest_segments(spec, partition)]
            self._found = {f"state{name.title()}": sum(each[name] for each in segments) for name in ("rows", "bytes")}
        return self._found


def _newest_segments(spec: StateSpec, partition: str) -> list[dict[str, Any]]:
    versions = spec.versions(partition)
    text = spec.folder.child(partition).read(f"{versions[-1]}.json") if versions else None
    found: list[dict[str, Any]] = json.loads(text)["segments"] if text else []
    return found
