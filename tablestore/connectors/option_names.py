"""The names of the connectors' options, and the check for unknown options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean

V = TypeVar("V")


class Connector(StrEnum):
    """The connectors, by Flink's names."""

    KAFKA = "kafka"
    UPSERT = "upsert-kafka"
    DATAGEN = "datagen"
    """In SQL only, as are the next two."""
    PRINT = "print"
    BLACKHOLE = "blackhole"


class Side(StrEnum):
    """Whether a table is read or written."""

    SOURCE = "source"
    SINK = "sink"


FORMATS: Final = {Connector.KAFKA: "kafka-table", Connector.UPSERT: "upsert-kafka"}
"""The names of the Spark formats of the connectors to Kafka; ``kafka`` is that of Spark's own source."""
PROPERTIES: Final = "properties."
METADATA: Final = "metadata."
PRECISION: Final = "precision."
PRIMARY_KEY: Final = "primary-key"
ROWS_MAX: Final = "maxRowsPerTrigger"
STATE: Final = "stateLocation"
GUARANTEE: Final = "sink.delivery-guarantee"
SEMANTIC: Final = "sink.semantic"
"""The name of ``sink.delivery-guarantee`` until Flink 1.14."""
IDLE: Final = "scan.watermark.idle-timeout"

_BOTH: Final = (
    "connector",
    "topic",
    "topic-pattern",
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
    IDLE,
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
    **{
        (Connector.UPSERT, name): "An upsert table is always read from its earliest offsets."
        for name in _KAFKA
        if name.startswith("scan.startup.")
    },
    (Connector.UPSERT, SEMANTIC): f"Use '{GUARANTEE}'.",
    **{
        (each, f"scan.watermark.{name}"): why
        for each in (Connector.KAFKA, Connector.UPSERT)
        for names, why in (
            (("emit.strategy", "emit.on-event.gap"), "Watermarks move with each micro-batch."),
            (
                ("alignment.group", "alignment.max-drift", "alignment.update-interval"),
                f"Each micro-batch reads all partitions, with up to '{ROWS_MAX}' messages.",
            ),
        )
        for name in names
    },
    **{(Connector.KAFKA, name): "Only 'upsert-kafka' has keys whose last row counts." for name in _UPSERT},
}


def kafka_connector(name: str) -> Connector:
    """Return the connector to Kafka of a name.

    Raises:
        InvalidInputError: there is none.
    """
    if name not in FORMATS:
        msg = f"connector: expected {' or '.join(repr(each.value) for each in FORMATS)}, got {name!r}."
        raise InvalidInputError(msg)
    return Connector(name)


def refuse_unknown(
    connector: Connector,
    given: Collection[str],
    open_ended: Collection[str],
    *,
    further: Collection[str] = (),
    hints: Mapping[str, str] | None = None,
) -> None:
    """Raise if any option is unknown to the connector.

    Args:
        connector: the connector.
        given: option names, in lower case.
        open_ended: prefixes of options that are checked elsewhere, such as ``properties.``, and ``value.json.`` of a
            format.
        further: names of options that are not in `SUPPORTED`.
        hints: what to say about an option, by its name, besides the hints of the connector.

    Raises:
        InvalidInputError: an option is unknown. The message names the unknown options, the closest known option, and
            all supported options.
    """
    known = {name.lower(): name for name in (*SUPPORTED.get(connector, ()), *further)}
    unknown = [
        name for name in given if name not in known and name not in _OF_SPARK and not name.startswith(tuple(open_ended))
    ]
    if not unknown:
        return
    first = unknown[0]
    hint = (hints or {}).get(first) or _HINTS.get((connector, first), "")
    if not hint:
        hint = did_you_mean(first, known.values())
    shown = [*sorted(known.values()), *(f"{prefix}*" for prefix in open_ended)]
    msg = (
        f"Unsupported options found for {connector.value!r}: {', '.join(sorted(unknown))}. {hint}{' ' if hint else ''}"
        f"Supported options are: {', '.join(shown)}."
    )
    raise InvalidInputError(msg)


def options_after(given: Mapping[str, V], prefix: str) -> dict[str, V]:
    """Return the options whose names start with the prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
