"""Start and end positions of a read, with the modes of Flink's connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StartupMode(StrEnum):
    """Where a read starts (``scan.startup.mode``)."""

    EARLIEST = "earliest-offset"
    LATEST = "latest-offset"
    GROUP = "group-offsets"
    TIMESTAMP = "timestamp"
    SPECIFIC = "specific-offsets"


class BoundedMode(StrEnum):
    """Where a read ends (``scan.bounded.mode``)."""

    UNBOUNDED = "unbounded"
    LATEST = "latest-offset"
    GROUP = "group-offsets"
    TIMESTAMP = "timestamp"
    SPECIFIC = "specific-offsets"


@dataclass(frozen=True)
class Start:
    """Where a read starts: a mode, with the timestamp or the offsets by partition that it requires."""

    mode: StartupMode
    timestamp_ms: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """Where a read ends: a mode, with the timestamp or the offsets by partition that it requires."""

    mode: BoundedMode
    timestamp_ms: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
