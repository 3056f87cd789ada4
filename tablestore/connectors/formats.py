"""The options that say which formats key and value have."""

from __future__ import annotations

from collections.abc import Mapping

from log_system.kafka.codec import FormatChoice
from snapshot.errors import InvalidInputError
from tablestore.connectors.names import Connector, options_after


def parse_formats(
    connector: Connector, given: Mapping[str, str]
) -> tuple[FormatChoice | None, FormatChoice, tuple[str, ...]]:
    """Find the formats of key and value, and what their options start with.

    ``format`` sets the value's format, and the key's too where there are key fields and no ``key.format``.

    Returns:
        The key's format, the value's, and the beginnings of option names that are the formats' own.

    Raises:
        InvalidInputError: a format is missing, or two options contradict each other.
    """
    both = given.get("format") if connector is Connector.KAFKA else None
    value, key = given.get("value.format", both), given.get("key.format")
    if both is not None and value != both:
        msg = f"options 'format'={both!r} and 'value.format'={value!r} contradict each other. Give one of them."
        raise InvalidInputError(msg)
    if value is None:
        also = " or 'format'" if connector is Connector.KAFKA else ""
        msg = f"Could not find required format option 'value.format'{also}: one of csv, json, avro, raw."
        raise InvalidInputError(msg)
    shared = options_after(given, f"{both}.") if both is not None else {}
    prefixes = [f"value.{value}."]
    prefixes += [f"{both}."] if both is not None else []
    key = key or (both if "key.fields" in given else None)
    if connector is Connector.UPSERT and key is None:
        msg = "Could not find required format option 'key.format': an upsert table needs it and 'value.format'."
        raise InvalidInputError(msg)
    side = "value" if both is None else ""
    value_choice = FormatChoice(value, {**shared, **options_after(given, f"value.{value}.")}, side)
    if key is None:
        return None, value_choice, tuple(prefixes)
    inherited = shared if key == both else {}
    key_choice = FormatChoice(key, {**inherited, **options_after(given, f"key.{key}.")}, "key" if key != both else "")
    return key_choice, value_choice, (*prefixes, f"key.{key}.")
