"""Where a read of topics begins and ends, in the words of Flink's connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StartupMode(StrEnum):
    """Where a read begins."""

    EARLIEST = "earliest-offset"
    LATEST = "latest-offset"
    GROUP = "group-offsets"
    TIMESTAMP = "timestamp"
    SPECIFIC = "specific-offsets"


class BoundedMode(StrEnum):
    """Where a read ends."""

    UNBOUNDED = "unbounded"
    LATEST = "latest-offset"
    GROUP = "group-offsets"
    TIMESTAMP = "timestamp"
    SPECIFIC = "specific-offsets"


@dataclass(frozen=True)
class Start:
    """Where a read begins: a mode, and what it needs."""

    mode: StartupMode
    timestamp_ms: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """Where a read ends: a mode, and what it needs."""

    mode: BoundedMode
    timestamp_ms: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
