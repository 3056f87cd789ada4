"""How large a record may be, and the check of rows against it while they are staged, before anything is committed.

A row whose record the broker refuses would be committed and block every later snapshot from the log. What a record may
measure is asked of the broker only where a row could come near it, and again before a row is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not listed in its __all__
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from log_system.formats import EncodedRecords
from log_system.formats.record_sizes import ESCAPED, largest_row, row_sizes
from log_system.kafka.client.admin_requests import one
from log_system.kafka.client.connect import PRODUCER_DEFAULTS, KafkaClient, kafka_errors
from log_system.kafka.client.errors import codes
from log_system.kafka.log import ROOM, KafkaLog
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.row_kind import KIND, RowKind

_ALWAYS_FITS: Final = 16_384
"""Rows up to this size are not checked: no topic is taken to accept less."""
_FIELD_BYTES: Final = 512
_SHOWN: Final = 120
_NOT_TOLD: Final = codes("UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC TOPIC_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED")
_KNOWN: Final[dict[tuple[KafkaClient, str], RecordLimit]] = {}


@dataclass(frozen=True)
class RecordLimit:
    """How large a record may be.

    Attributes:
        batch_bytes: the largest batch of records that the topic accepts.
        record_bytes: the most bytes of a record's key and value.
        setting: the setting that limits it, with its value, and how to raise it.
    """

    batch_bytes: int
    record_bytes: int
    setting: str


def record_limit(client: KafkaClient, topic: str, *, fresh: bool = False) -> RecordLimit | None:
    """Ask how large a record of a topic may be; the answer is kept for this process.

    Args:
        client: the cluster.
        topic: the topic.
        fresh: ask even where an answer is kept.

    Returns:
        The limit; None where the broker does not tell: there is no such topic, or this user may not describe it.

    Raises:
        UnavailableError: the broker does not answer.
        InvalidInputError: it refuses this client.
    """
    if fresh or (client, topic) not in _KNOWN:
        found = _ask(client, topic)
        if found is None:
            return None
        _KNOWN[client, topic] = found
    return _KNOWN[client, topic]


def _ask(client: KafkaClient, topic: str) -> RecordLimit | None:
    admin = client.admin()
    with kafka_errors(f"look up the settings of topic '{topic}'", client, handle=admin):
        asked = admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=client.request_seconds
        )
        try:
            found = one(asked)["max.message.bytes"]
        except KafkaException as error:
            if error.args[0].code() in _NOT_TOLD:
                return None
            raise
    batch_bytes = int(found.value)
    if found.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value:
        setting = f"max.message.bytes={batch_bytes} of topic '{topic}'"
    else:
        setting = f"message.max.bytes={batch_bytes} of the broker, which holds for topic '{topic}'"
    raised = (
        f"{setting}; raise it with kafka-configs.sh --alter --entity-type topics --entity-name {topic} "
        "--add-config max.message.bytes=..."
    )
    limits = [RecordLimit(batch_bytes, batch_bytes - ROOM, raised)]
    for name, unit in (("message.max.bytes", 1), ("queue.buffering.max.kbytes", 1024)):
        value = client.config.get(name, PRODUCER_DEFAULTS[name])
        most = int(str(value)) * unit - ROOM
        option = f"option '{client.prefix}{name}'={value}; raise it with set_options()"
        limits.append(RecordLimit(batch_bytes, most, option))
    return min(limits, key=lambda limit: limit.record_bytes)


@dataclass(frozen=True)
class RecordCheck:
    """Refuses rows whose record the log would not take. Picklable, for staging tasks.

    Attributes:
        log: the log.
    """

    log: KafkaLog

    def check(self, rows: pa.RecordBatch) -> None:
        """Refuse rows that are too large for the log.

        Args:
            rows: the table's columns, and ``_kind`` where they are changes.

        Raises:
            InvalidInputError: a row's record is larger than the topic, the broker or the client accepts.
        """
        percent, more = self._spread
        most = largest_row(rows, self._text) * percent // 100 + more
        if most <= _ALWAYS_FITS:
            return
        try:
            limit = record_limit(self.log.client, self.log.topic)
        except TableStoreError:
            # Whoever publishes meets the same broker, and its error is the one to see.
            return
        if limit is None or most <= limit.record_bytes:
            return
        sizes = row_sizes(rows, self._text)
        large = rows.filter(pa.array(sizes * percent // 100 + more > limit.record_bytes))
        if large.num_rows:
            self._check_exactly(large, limit)

    @property
    def _text(self) -> int:
        """Most bytes that one byte of text becomes."""
        return 1 if self.log.format == "arrow" else ESCAPED

    @property
    def _spread(self) -> tuple[int, int]:
        """How large a record is at most, its key included: this many percent of the row, and this many bytes more."""
        if self.log.format == "arrow":
            # A stream's schema, and what little compressed data may be larger by.
            return 102, _FIELD_BYTES * (len(self.log.schema) + 2)
        return 200, _FIELD_BYTES

    def _check_exactly(self, rows: pa.RecordBatch, limit: RecordLimit) -> None:
        """Encode rows, and refuse the first that is too large; the broker is asked again before."""
        codec = self.log.kept_codec()
        if KIND not in rows.schema.names:
            rows = rows.append_column(KIND, pa.repeat(pa.scalar(int(RowKind.INSERT), pa.int8()), rows.num_rows))
        # A record of ``arrow`` may hold several rows.
        parts = [rows.slice(n, 1) for n in range(rows.num_rows)] if self.log.format == "arrow" else [rows]
        sizes = np.concatenate([_record_bytes(codec.encode(part)) for part in parts])
        if sizes.max() > limit.record_bytes:
            limit = record_limit(self.log.client, self.log.topic, fresh=True) or limit
        if sizes.max() > limit.record_bytes:
            first = int(np.argmax(sizes > limit.record_bytes))
            msg = (
                f"{self._named(rows.slice(first, 1))}: its log record would have {sizes[first]:,} bytes before "
                f"compression; expected at most {limit.record_bytes:,}. The limit is {limit.setting}, or make the row "
                "smaller."
            )
            raise InvalidInputError(msg)

    def _named(self, row: pa.RecordBatch) -> str:
        """Name a row by its key or, without one, by what is short in it."""
        names = [name for name in self.log.primary_key if name in row.schema.names]
        names = names or [name for name in row.schema.names if name != KIND]
        texts = [f"{name}={_short(row.column(row.schema.get_field_index(name))[0].as_py())}" for name in names]
        shown = ", ".join(texts)
        return f"row with {shown if len(shown) <= 4 * _SHOWN else shown[: 4 * _SHOWN] + '...'}"


def _record_bytes(records: EncodedRecords) -> np.ndarray:
    """Return the sizes of records, keys included."""
    key, value = (
        pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        for column in (records.key_column, records.value_column)
    )
    sizes: np.ndarray = key.astype(np.int64) + value
    return sizes


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
