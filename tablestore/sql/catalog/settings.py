"""The settings of a session, as ``SET`` changes them; none is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from log_system.kafka.client.secrets import MASK, holds_secret
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.connectors.spark.partition_watermarks import IDLE_TIMEOUT
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import BOOLEAN, OptionType, choice, duration_or_ms, text

ADDRESSES: Final = "tablestore.addresses"
MODE: Final = "execution.runtime-mode"
CHECKPOINTS: Final = "execution.checkpointing.dir"
INTERVAL: Final = "execution.checkpointing.interval"
NAME: Final = "pipeline.name"
ZONE: Final = "table.local-time-zone"
TRIGGER: Final = "tablestore.trigger"
HINTS: Final = "table.dynamic-table-options.enabled"
NULLS: Final = "table.exec.sink.not-null-enforcer"
LENGTHS: Final = "table.exec.sink.type-length-enforcer"
SPARK: Final = "spark."

#: Flink settings that do not exist here, by their names or first parts of them, with what there is instead.
_OF_FLINK: Final[Mapping[str, str]] = {
    "table.exec.sink.upsert-materialize": (
        "an INSERT is refused where several rows of its query could have one PRIMARY KEY, so that no sink has to "
        "choose among them. Flink's is a state of all of them, of which the last one is written."
    ),
    "table.exec.source.cdc-events-duplicate": (
        "changes of a changelog format are taken as they are, each once. Where a tool may have sent some twice, INSERT "
        "them INTO an 'upsert-kafka' table by their PRIMARY KEY, and read that."
    ),
    "table.exec.state.ttl": (
        "results would be wrong once state has expired. Windows, and joins with bounds of time, drop theirs."
    ),
    "table.dml-sync": (
        f"an INSERT of bounded tables is complete when it returns. In mode 'streaming', '{TRIGGER}' = 'available-now' "
        "ends a query where its sources end."
    ),
    "table.optimizer": "Spark plans the queries, by settings 'spark.sql.*'.",
    "execution.checkpointing": (
        f"each micro-batch is a checkpoint. '{INTERVAL}' is the interval between them, '{CHECKPOINTS}' the place."
    ),
    "state": (
        f"state is in '{CHECKPOINTS}', kept by Spark: 'spark.sql.streaming.stateStore.providerClass' is its backend."
    ),
    "restart-strategy": "a query that fails ends. Start the same INSERT again, and it continues where it was.",
    "parallelism.default": (
        "use 'spark.sql.shuffle.partitions', and the options 'scan.parallelism' and 'sink.parallelism' of tables."
    ),
    "pipeline": f"of these, only '{NAME}' exists; Spark has 'spark.*'.",
    "sql-client": "the options of 'tablestore sql' choose how results are shown.",
    "jobmanager": "there is no Flink cluster; Spark has 'spark.*'.",
    "taskmanager": "there is no Flink cluster; Spark has 'spark.*'.",
}
_AS_HERE: Final[Mapping[str, str | None]] = {
    "table.exec.sink.upsert-materialize": "none",
    "execution.checkpointing.mode": "exactly_once",
    "sql-client.execution.result-mode": "tableau",
    "table.dml-sync": "true",
    "table.exec.mini-batch.enabled": None,
    "table.exec.mini-batch.allow-latency": None,
    "table.exec.mini-batch.size": None,
}
"""Settings of Flink that are accepted and change nothing, with the value that says what is so here; None is any."""
_WORD: Final = re.compile(r"[^,=\s]+=[^,=\s]+")


#: Settings that Spark, or code below the catalog, reads from Spark's configuration.
IN_SPARK: Final[Mapping[str, str]] = {ZONE: "spark.sql.session.timeZone", IDLE_TIMEOUT: IDLE_TIMEOUT}


def shown(key: str, value: str) -> str:
    """Return a setting's value for display, masked if it is a credential."""
    return MASK if holds_secret(key, value) else value


class Mode(StrEnum):
    """How queries run."""

    STREAMING = "streaming"
    BATCH = "batch"


def _addresses(text: str) -> Mapping[str, str]:
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    if not all(_WORD.fullmatch(pair) for pair in pairs):
        raise ValueError(text)
    return dict(pair.split("=", 1) for pair in pairs)


def _trigger(text: str) -> Mapping[str, Any]:
    if text == "available-now":
        return {"availableNow": True}
    return {"processingTime": f"{duration_or_ms().parse(text)} milliseconds"}


_ADDRESSES: Final = OptionType("pairs", "pairs such as 'localhost:9092=broker:9092, ...=broker:9092'", _addresses)
_TRIGGER: Final = OptionType("trigger", "'available-now', or a duration such as '1 s'", _trigger)
_SETTINGS: Final[Mapping[str, OptionSpec[Any]]] = {
    spec.name: spec
    for spec in (
        OptionSpec(MODE, choice(Mode), Mode.STREAMING),
        OptionSpec(ADDRESSES, _ADDRESSES, ""),
        OptionSpec(CHECKPOINTS, text("a folder"), ""),
        OptionSpec(NAME, text("a name"), ""),
        OptionSpec(ZONE, text("a time zone such as 'Europe/Berlin'"), ""),
        OptionSpec(IDLE_TIMEOUT, duration_or_ms(), "0"),
        OptionSpec(INTERVAL, duration_or_ms(), "0"),
        OptionSpec(TRIGGER, _TRIGGER, ""),
        OptionSpec(HINTS, BOOLEAN, "true"),
        OptionSpec(NULLS, choice(("ERROR", "DROP")), "ERROR"),
        OptionSpec(LENGTHS, choice(("IGNORE", "TRIM_PAD")), "IGNORE"),
    )
}


@dataclass(frozen=True)
class Enforcers:
    """What INSERT does with values that a column does not take, as Flink's enforcers.

    Attributes:
        drops_nulls: whether rows with NULL in a NOT NULL column are left out; otherwise they are an error.
        fits_lengths: whether text and bytes are cut and padded to the lengths of their columns' types.
    """

    drops_nulls: bool = False
    fits_lengths: bool = False


class Settings:
    """The settings of one session."""

    def __init__(self) -> None:
        """Start with the defaults."""
        self._given: dict[str, str] = {}

    def check(self, key: str, value: str) -> None:
        """Check that a setting exists and accepts a value; ``spark.*`` settings are left to Spark to check.

        Raises:
            InvalidInputError: there is no such setting, or it does not accept this value.
        """
        is_here = key in _AS_HERE and _AS_HERE[key] in (None, value.lower())
        if not key.startswith(SPARK) and not is_here:
            _SETTINGS[self._known(key)].parse(value, what="SET")

    def set(self, key: str, value: str) -> None:
        """Set a setting that has been checked."""
        self._given[key] = value

    def reset(self, key: str | None) -> tuple[str, ...]:
        """Reset one setting, or all with None, to the default; return the names of those that had been set."""
        if key is not None and not key.startswith(SPARK) and key not in _AS_HERE:
            self._known(key)
        names = tuple(self._given) if key is None else tuple(name for name in (key,) if name in self._given)
        for name in names:
            del self._given[name]
        return names

    def get(self, key: str) -> str:
        """Return a setting's value as text, or its default."""
        return self._given.get(key) or _SETTINGS[key].default or ""

    def given(self) -> tuple[tuple[str, str], ...]:
        """Return the settings that are set, with their values."""
        return tuple(self._given.items())

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all known or set settings for display, with credentials masked."""
        found = {**{name: each.default or "" for name, each in _SETTINGS.items()}, **self._given}
        return tuple((name, shown(name, found[name])) for name in sorted(found))

    @property
    def mode(self) -> Mode:
        """How queries run."""
        return choice(Mode).parse(self.get(MODE))

    @property
    def enforcers(self) -> Enforcers:
        """What INSERT does with values that a column does not take."""
        return Enforcers(self.get(NULLS).upper() == "DROP", self.get(LENGTHS).upper() == "TRIM_PAD")

    @property
    def trigger(self) -> Mapping[str, Any]:
        """The keyword arguments for Spark's ``trigger``."""
        return _trigger(self.get(TRIGGER) or self.get(INTERVAL))

    def servers(self, text: str) -> str:
        """Return a list of broker addresses with each replaced by the one the session maps it to."""
        mapped = _addresses(self.get(ADDRESSES))
        return ",".join(mapped.get(each.strip(), each.strip()) for each in text.split(","))

    def _known(self, key: str) -> str:
        if key in _SETTINGS:
            return key
        instead = next((why for name, why in _OF_FLINK.items() if f"{key}.".startswith(f"{name}.")), None)
        if instead is not None:
            msg = f"SET '{key}': not supported: {instead}"
            raise InvalidInputError(msg)
        known = f"Known settings are {', '.join(_SETTINGS)} and '{SPARK}*'."
        msg = f"SET '{key}': unknown setting. {did_you_mean(key, _SETTINGS, otherwise=known)}"
        raise InvalidInputError(msg)
