"""Maintains the state of normalize in the driver: removes files that are no longer needed, and measures the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from snapshot.storage import Storage
from tablestore.normalize.keyed_state import StateSpec
from tablestore.normalize.segments import ENDING, version_offsets

_VERSIONS_KEPT: Final = 3
"""Spark repeats at most the last micro-batch; one more is kept in case its record of that is lost."""
_SECONDS: Final = 10.0
"""How often a query cleans and measures its state."""


class StateUpkeep:
    """Cleans and measures the state of one query, every ten seconds. Runs on the driver."""

    def __init__(self) -> None:
        """Clean and measure at the first call, and then when ten seconds have passed."""
        self._cleaned = _Interval()
        self._measured = _Interval()
        self._found: dict[str, int] = {}

    def clean(self, spec: StateSpec, done: Mapping[str, int]) -> None:
        """Remove files that are no longer needed once micro-batches are complete up to these offsets; see ``clean``."""
        if self._cleaned.is_over():
            for partition, offset in done.items():
                clean(spec.folder.child(partition), offset)

    def measure(self, spec: StateSpec, partitions: Iterable[str]) -> dict[str, int]:
        """Return ``stateRows`` and ``stateBytes``; a key counts once for each segment that has it."""
        if self._measured.is_over():
            segments = [each for partition in partitions for each in _newest_segments(spec, partition)]
            self._found = {f"state{name.title()}": sum(each[name] for each in segments) for name in ("rows", "bytes")}
        return self._found


class _Interval:
    def __init__(self) -> None:
        self._since = 0.0

    def is_over(self) -> bool:
        """Return whether this is the first call or the interval is over, and begin the next one."""
        now = time.monotonic()
        if self._since and now - self._since < _SECONDS:
            return False
        self._since = now
        return True


def clean(storage: Storage, done: int) -> None:
    """Remove all but the last versions of a partition's state, and the segments that only they list.

    An attempt that still runs may be about to list a segment in a version. But a version at or before the newest one
    that is kept here is read by nobody, so segments for such versions can go once no version lists them. ``done`` is
    the offset at which the last complete micro-batch ended.
    """
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


def _newest_segments(spec: StateSpec, partition: str) -> list[dict[str, Any]]:
    versions = spec.versions(partition)
    text = spec.folder.child(partition).read(f"{versions[-1]}.json") if versions else None
    found: list[dict[str, Any]] = json.loads(text)["segments"] if text else []
    return found
