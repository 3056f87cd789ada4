"""The names of the connectors' options, and what is said about an option that is not one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from snapshot.errors import InvalidInputError
from snapshot.suggestions import did_you_mean
from tablestore.options.value_types import OptionType

T = TypeVar("T")
V = TypeVar("V")


class Connector(StrEnum):
    """The two connectors, by the names of their pages."""

    KAFKA = "kafka"
    UPSERT = "upsert-kafka"


class Side(StrEnum):
    """What a table is used for."""

    SOURCE = "source"
    SINK = "sink"


PROPERTIES: Final = "properties."
METADATA: Final = "metadata."
PRECISION: Final = "precision."
PRIMARY_KEY: Final = "primary-key"
ROWS_MAX: Final = "maxRowsPerTrigger"

_BOTH: Final = (
    "connector",
    "topic",
    "properties.bootstrap.servers",
    "key.format",
    "key.fields-prefix",
    "value.format",
    "value.fields-include",
    "scan.bounded.mode",
    "scan.bounded.timestamp-millis",
    "scan.bounded.specific-offsets",
    "sink.parallelism",
    "sink.delivery-guarantee",
    "sink.transactional-id-prefix",
    PRIMARY_KEY,
    "table.name",
    ROWS_MAX,
    "checkpointLocation",
)
_KAFKA: Final = (
    "topic-pattern",
    "format",
    "key.fields",
    "scan.startup.mode",
    "scan.startup.timestamp-millis",
    "scan.startup.specific-offsets",
    "scan.topic-partition-discovery.interval",
    "sink.partitioner",
)
_UPSERT: Final = ("sink.buffer-flush.max-rows", "sink.buffer-flush.interval")

SUPPORTED: Final[Mapping[Connector, tuple[str, ...]]] = {
    Connector.KAFKA: (*_BOTH, *_KAFKA),
    Connector.UPSERT: (*_BOTH, *_UPSERT),
}

#: Spark adds these by itself; a path is what ``load(path)`` and ``save(path)`` say, which mean nothing here.
_OF_SPARK: Final = frozenset(
    {"numrows", "queryname", "owner", "provider", "comment", "external", "is_managed_location"}
)

_HINTS: Final[Mapping[tuple[Connector, str], str]] = {
    (Connector.UPSERT, "key.fields"): "The key of an upsert table is its PRIMARY KEY (option 'primary-key').",
    (Connector.UPSERT, "sink.partitioner"): "An upsert table is always partitioned by its key.",
    (Connector.UPSERT, "format"): "Give 'key.format' and 'value.format'.",
    (Connector.UPSERT, "topic-pattern"): "Give one 'topic'.",
    **{
        (Connector.UPSERT, name): "An upsert table is always read from its earliest offsets."
        for name in _KAFKA
        if name.startswith("scan.startup.")
    },
    **{(Connector.KAFKA, name): "Only 'upsert-kafka' has keys whose last row counts." for name in _UPSERT},
}


def refuse_unknown(connector: Connector, given: Collection[str], format_prefixes: Collection[str]) -> None:
    """Refuse options that the connector does not have.

    Args:
        connector: whose options they are.
        given: names, in lower case.
        format_prefixes: what the options of the table's formats start with, such as ``value.json.``; the formats
            check what follows.

    Raises:
        InvalidInputError: naming the unknown options, the nearest known one and all that are supported.
    """
    known = {name.lower(): name for name in SUPPORTED[connector]}
    open_ended = (PROPERTIES, METADATA, PRECISION, *format_prefixes)
    unknown = [
        name for name in given if name not in known and name not in _OF_SPARK and not name.startswith(open_ended)
    ]
    if not unknown:
        return
    first = unknown[0]
    hint = _HINTS.get((connector, first), "")
    if not hint:
        hint = did_you_mean(first, known.values())
    families = ", ".join(f"{prefix}*" for prefix in open_ended)
    msg = (
        f"Unsupported options found for {connector.value!r}: {', '.join(sorted(unknown))}. {hint}{' ' if hint else ''}"
        f"Supported options are: {', '.join(sorted(known.values()))}, {families}."
    )
    raise InvalidInputError(msg)


class OptionReader:
    """Reads single options as values."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read from options by lower-case name."""
        self.given = given

    def value(self, name: str, kind: OptionType[T], default: T | None) -> T:
        """Read one option.

        Raises:
            InvalidInputError: its text is not what is expected.
        """
        text = self.given.get(name.lower())
        if text is None:
            return default  # type: ignore[return-value]  # a default of None is the caller's own type
        try:
            return kind.parse(text.strip())
        except ValueError:
            msg = f"Invalid value for option '{name}'. Expected {kind.expected}, got {text!r}."
            raise InvalidInputError(msg) from None


def options_after(given: Mapping[str, V], prefix: str) -> dict[str, V]:
    """Give the options whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
