"""Check rows against what the log accepts while they are staged, before anything is committed.

Otherwise a row whose record cannot be encoded, or that the broker rejects, would be committed and would block every
later snapshot from the log. The broker is asked for its limit only if a row might reach it, and asked again before a
row is rejected.
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
from log_system.formats.record_sizes import ESCAPED, field_count, largest_row, row_sizes
from log_system.kafka.client.admin_requests import answered
from log_system.kafka.client.connect import PRODUCER_DEFAULTS, KafkaClient, kafka_errors
from log_system.kafka.client.errors import codes
from log_system.kafka.log import ROOM, KafkaLog
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.python_values import printable
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import kind_column

_ALWAYS_FITS: Final = 16_384
"""Rows up to this size are not checked: every topic is assumed to accept them."""
_FIELD_BYTES: Final = 512
_SHOWN: Final = 120
_NOT_TOLD: Final = codes("UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC TOPIC_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED")
_KNOWN: Final[dict[tuple[KafkaClient, str], RecordLimit]] = {}


@dataclass(frozen=True)
class RecordLimit:
    """The size limits of a topic's records.

    Attributes:
        batch_bytes: the largest record batch that the topic accepts.
        record_bytes: the most bytes of a record's key and value.
        setting: the setting that causes the limit, its value, and how to raise it.
    """

    batch_bytes: int
    record_bytes: int
    setting: str


def record_limit(client: KafkaClient, topic: str, *, fresh: bool = False) -> RecordLimit | None:
    """Return how large a record of a topic may be; unless ``fresh``, the broker's cached answer is good enough.

    Returns:
        The limit; None if it is not available: the topic does not exist, or this user may not describe it.

    Raises:
        UnavailableError: the broker does not respond.
        InvalidInputError: the broker rejects this client.
    """
    if fresh or (client, topic) not in _KNOWN:
        found = _ask(client, topic)
        if found is None:
            return None
        _KNOWN[client, topic] = found
    return _KNOWN[client, topic]


def _ask(client: KafkaClient, topic: str) -> RecordLimit | None:
    doing, resource = f"look up the settings of topic '{topic}'", ConfigResource(ResourceType.TOPIC, topic)
    with kafka_errors(doing, client):
        asked = answered(
            client, doing, lambda admin, seconds: admin.describe_configs([resource], request_timeout=seconds)
        )
        try:
            found = asked[resource].result()["max.message.bytes"]
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
    """Rejects rows that the log cannot hold. Picklable, for staging tasks.

    Attributes:
        log: the log.
    """

    log: KafkaLog

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that the log's format can hold the rows, and that none of them is too large for the log.

        Args:
            rows: the table's columns, then ``_kind`` if the rows are changes.

        Raises:
            InvalidInputError: the format cannot hold a value, or a row's record is larger than the topic, the broker or
                the client accepts.
        """
        self.log.traits.check(rows)
        percent, more = self._spread
        most = largest_row(rows, self._text) * percent // 100 + more
        if most <= _ALWAYS_FITS:
            return
        try:
            limit = record_limit(self.log.client, self.log.topic)
        except TableStoreError:
            # The publisher will meet the same broker and raise the error that the user should see.
            return
        if limit is None or most <= limit.record_bytes:
            return
        sizes = row_sizes(rows, self._text)
        large = rows.filter(pa.array(sizes * percent // 100 + more > limit.record_bytes))
        if large.num_rows:
            self._check_exactly(large, limit)

    @property
    def _text(self) -> int:
        """The most bytes that one byte of text takes in a record."""
        return 1 if self.log.traits.packs_rows else ESCAPED

    @property
    def _spread(self) -> tuple[int, int]:
        """The upper bound of a record's size with its key: a percentage of the row's size, and additional bytes."""
        if self.log.traits.packs_rows:
            # The stream contains the schema, and compression may slightly enlarge incompressible data.
            return 102, _FIELD_BYTES * (field_count(self.log.schema) + 2)
        return 200, _FIELD_BYTES

    def _check_exactly(self, rows: pa.RecordBatch, limit: RecordLimit) -> None:
        """Encode rows and reject the first one that is too large, after asking the broker for its limit again."""
        codec = self.log.kept_codec()
        if KIND not in rows.schema.names:
            rows = rows.append_column(KIND, kind_column(RowKind.INSERT, rows.num_rows))
        # A record may hold several rows, so encode each row separately.
        parts = [rows.slice(n, 1) for n in range(rows.num_rows)] if self.log.traits.packs_rows else [rows]
        sizes = np.concatenate([_record_bytes(codec.encode(part)) for part in parts])
        if sizes.max() > limit.record_bytes:
            limit = record_limit(self.log.client, self.log.topic, fresh=True) or limit
        if sizes.max() > limit.record_bytes:
            first = int(np.argmax(sizes > limit.record_bytes))
            msg = (
                f"{self._named(rows.slice(first, 1))}: its log record would have {sizes[first]:,} bytes before "
                f"compression; expected at most {max(limit.record_bytes, 0):,}. The limit is {limit.setting}, or make "
                "the row smaller."
            )
            raise InvalidInputError(msg)

    def _named(self, row: pa.RecordBatch) -> str:
        """Return a description of a row for messages: its key or, without a key, its columns, all shortened."""
        names = [name for name in self.log.primary_key if name in row.schema.names]
        names = names or [name for name in row.schema.names if name != KIND]
        texts = [f"{name}={_short(printable(row.column(name))[0])}" for name in names]
        shown = ", ".join(texts)
        return f"row with {shown if len(shown) <= 4 * _SHOWN else shown[: 4 * _SHOWN] + '...'}"


def _record_bytes(records: EncodedRecords) -> np.ndarray:
    """Return the sizes of records, including keys."""
    key, value = (
        pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        for column in (records.key_column, records.value_column)
    )
    sizes: np.ndarray = key.astype(np.int64) + value
    return sizes


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
