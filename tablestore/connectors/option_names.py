"""The names of the connectors' options, and the check for unknown options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean

V = TypeVar("V")


class Connector(StrEnum):
    """The two connectors, by Flink's names."""

    KAFKA = "kafka"
    UPSERT = "upsert-kafka"


class Side(StrEnum):
    """Whether a table is read or written."""

    SOURCE = "source"
    SINK = "sink"


FORMATS: Final = {Connector.KAFKA: "kafka-table", Connector.UPSERT: "upsert-kafka"}
"""The names of the connectors' Spark formats."""
PROPERTIES: Final = "properties."
METADATA: Final = "metadata."
PRECISION: Final = "precision."
PRIMARY_KEY: Final = "primary-key"
ROWS_MAX: Final = "maxRowsPerTrigger"
STATE: Final = "stateLocation"
GUARANTEE: Final = "sink.delivery-guarantee"
SEMANTIC: Final = "sink.semantic"
"""The name of ``sink.delivery-guarantee`` until Flink 1.14."""

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
    "scan.parallelism",
    "scan.topic-partition-discovery.interval",
    "sink.parallelism",
    "sink.transaction-naming-strategy",
    GUARANTEE,
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
    "sink.partitioner",
    SEMANTIC,
)
_UPSERT: Final = ("sink.buffer-flush.max-rows", "sink.buffer-flush.interval", STATE)

SUPPORTED: Final[Mapping[Connector, tuple[str, ...]]] = {
    Connector.KAFKA: (*_BOTH, *_KAFKA),
    Connector.UPSERT: (*_BOTH, *_UPSERT),
}

#: Options that Spark adds itself. ``path``, from ``load(path)`` and ``save(path)``, is not among them: it has no
#: meaning here and is refused.
_OF_SPARK: Final = frozenset(
    {"numrows", "queryname", "owner", "provider", "comment", "external", "is_managed_location"}
)

_HINTS: Final[Mapping[tuple[Connector, str], str]] = {
    (Connector.UPSERT, "key.fields"): "The key of an upsert table is its PRIMARY KEY (option 'primary-key').",
    (Connector.UPSERT, "sink.partitioner"): "An upsert table is always partitioned by its key.",
    (Connector.UPSERT, "format"): "Give 'key.format' and 'value.format'.",
    (Connector.UPSERT, "topic-pattern"): "Give one 'topic': the rows of a key are those of one topic.",
    **{
        (Connector.UPSERT, name): "An upsert table is always read from its earliest offsets."
        for name in _KAFKA
        if name.startswith("scan.startup.")
    },
    (Connector.UPSERT, SEMANTIC): f"Use '{GUARANTEE}'.",
    **{(Connector.KAFKA, name): "Only 'upsert-kafka' has keys whose last row counts." for name in _UPSERT},
}


def refuse_unknown(connector: Connector, given: Collection[str], format_prefixes: Collection[str]) -> None:
    """Raise if any option is unknown to the connector.

    Args:
        connector: the connector.
        given: option names, in lower case.
        format_prefixes: prefixes of the options of the table's formats, such as ``value.json.``; the formats check the
            rest of the name.

    Raises:
        InvalidInputError: an option is unknown. The message names the unknown options, the closest known option, and
            all supported options.
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


def options_after(given: Mapping[str, V], prefix: str) -> dict[str, V]:
    """Return the options whose names start with the prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
