"""The options that say where a read begins and ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from log_system.kafka.positions import Bound, BoundedMode, Start, StartupMode
from snapshot.errors import InvalidInputError
from tablestore.connectors.names import Connector, OptionReader
from tablestore.option_types import choice, integer

_OFFSETS: Final = re.compile(r"partition:([0-9]{1,9}),offset:([0-9]{1,18})")


def parse_start(connector: Connector, read: OptionReader, topics: tuple[str, ...], pattern: str | None) -> Start:
    """Read where a table's reader begins.

    Raises:
        InvalidInputError: a mode is unknown, or lacks what it needs.
    """
    if connector is Connector.UPSERT:
        # Only a reader of the whole topic knows the row of every key.
        return Start(StartupMode.EARLIEST)
    mode = read.value("scan.startup.mode", choice(StartupMode), StartupMode.GROUP)
    is_timestamp, is_specific = mode is StartupMode.TIMESTAMP, mode is StartupMode.SPECIFIC
    return Start(mode, *_mode_options(read, "startup", is_timestamp, is_specific, topics, pattern))


def parse_bound(read: OptionReader, topics: tuple[str, ...], pattern: str | None) -> Bound:
    """Read where a table's reader ends.

    Raises:
        InvalidInputError: a mode is unknown, or lacks what it needs.
    """
    mode = read.value("scan.bounded.mode", choice(BoundedMode), BoundedMode.UNBOUNDED)
    is_timestamp, is_specific = mode is BoundedMode.TIMESTAMP, mode is BoundedMode.SPECIFIC
    return Bound(mode, *_mode_options(read, "bounded", is_timestamp, is_specific, topics, pattern))


def _mode_options(
    read: OptionReader, which: str, is_timestamp: bool, is_specific: bool, topics: tuple[str, ...], pattern: str | None
) -> tuple[int | None, Mapping[int, int]]:
    """Read what the modes ``timestamp`` and ``specific-offsets`` need, of which each belongs to its mode only."""
    time_name, offsets_name = f"scan.{which}.timestamp-millis", f"scan.{which}.specific-offsets"
    for name, mode, wanted in ((time_name, "timestamp", is_timestamp), (offsets_name, "specific-offsets", is_specific)):
        if wanted and name not in read.given:
            msg = f"'{name}' is required in '{mode}' {which} mode but missing."
            raise InvalidInputError(msg)
        if not wanted and name in read.given:
            msg = f"Option '{name}' goes with 'scan.{which}.mode' = '{mode}' only. Set that mode, or leave it out."
            raise InvalidInputError(msg)
    if not is_specific:
        return (read.value(time_name, integer(0), None) if is_timestamp else None), {}
    if pattern is not None or len(topics) > 1:
        msg = f"Currently Kafka source only supports specific offset for single topic ('{offsets_name}')."
        raise InvalidInputError(msg)
    return None, _specific_offsets(offsets_name, read.given[offsets_name])


def _specific_offsets(name: str, text: str) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for pair in text.split(";"):
        match = _OFFSETS.fullmatch(pair)
        if match is None or int(match[1]) in found:
            msg = (
                f"Invalid properties '{name}' should follow the format "
                f"'partition:0,offset:42;partition:1,offset:300', each partition once, but is {text!r}."
            )
            raise InvalidInputError(msg)
        found[int(match[1])] = int(match[2])
    return found
