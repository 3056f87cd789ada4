"""Messages of a micro-batch on disk, between the tasks that encode them and the transaction that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from log_system.kafka.codec import EncodedMessages
from log_system.kafka.layout import HEADERS
from log_system.kafka.partitioners import Choose
from snapshot.storage import Storage

_SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS),
    ]
)
_KEYS, _TIMESTAMPS, _HEADERS = b"keys", b"timestamps", b"headers"


def stage(storage: Storage, name: str, messages: Iterable[EncodedMessages], choose: Choose | None) -> int:
    """Write messages into a file, with the partitions they go to.

    Returns:
        How many there are; without any there is no file.
    """
    rows, writer, sink = 0, None, None
    try:
        for each in messages:
            if not len(each):
                continue
            if writer is None:
                storage.filesystem.makedirs(storage.root, exist_ok=True)
                sink = storage.filesystem.open(storage.path(name), "wb")
                writer = pa.ipc.new_stream(sink, _schema_of(each))
            rows += len(each)
            writer.write_batch(_to_arrow(each, choose, writer_schema=_schema_of(each)))
    finally:
        if writer is not None:
            writer.close()
        if sink is not None:
            sink.close()
    return rows


def staged(storage: Storage, name: str) -> Iterator[EncodedMessages]:
    """Read messages back, in order."""
    with storage.filesystem.open(storage.path(name), "rb") as file:
        reader = pa.ipc.open_stream(file)
        has = reader.schema.metadata or {}
        for batch in reader:
            columns = {field: batch.column(field) for field in batch.schema.names}
            yield EncodedMessages(
                columns["key"].to_pylist() if _KEYS in has else None,
                columns["value"].to_pylist(),
                columns["timestamp"].to_pylist() if _TIMESTAMPS in has else None,
                columns["headers"].to_pylist() if _HEADERS in has else None,
                columns["partition"].to_pylist(),
            )


def _schema_of(messages: EncodedMessages) -> pa.Schema:
    """Say in the schema's metadata which of the optional parts there are."""
    there = {_KEYS: messages.keys, _TIMESTAMPS: messages.timestamps, _HEADERS: messages.headers}
    return _SCHEMA.with_metadata({name: b"" for name, part in there.items() if part is not None})


def _to_arrow(messages: EncodedMessages, choose: Choose | None, *, writer_schema: pa.Schema) -> pa.RecordBatch:
    count = len(messages)

    def column(part: Any, kind: pa.DataType) -> pa.Array:
        return pa.nulls(count, kind) if part is None else pa.array(part, kind)

    partitions = pa.array([-1] * count, pa.int32()) if choose is None else pa.array(choose(messages), pa.int32())
    arrays = [
        column(messages.keys, pa.large_binary()),
        column(messages.values, pa.large_binary()),
        partitions,
        column(messages.timestamps, pa.int64()),
        column(messages.headers, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=writer_schema)
