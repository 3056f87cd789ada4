"""Staging files, which hold encoded messages until a transaction writes them to the topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapshot.storage import Storage, storage_errors
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.message_mapping import HEADERS
from tablestore.connectors.kafka.partitioners import Choose

_SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS),
        ("topic", pa.string()),
    ]
)
_KEYS, _TIMESTAMPS, _HEADERS = b"keys", b"timestamps", b"headers"


class StagingFile:
    """Writes a task's messages and their target partitions to a file; a task without messages creates no file."""

    def __init__(self, storage: Storage, name: str, choose: Choose | None) -> None:
        """Prepare to create the file ``name`` at the first message; ``choose`` returns the target partitions."""
        self._storage = storage
        self._name = name
        self._choose = choose
        self._stack = ExitStack()
        self._writer: pa.RecordBatchWriter | None = None
        self.rows = 0

    def send(self, messages: EncodedMessages) -> None:
        """Write messages, in order."""
        schema = _schema_of(messages)
        path = self._storage.path(self._name)
        with storage_errors(path, "written"):
            if self._writer is None:
                self._storage.filesystem.makedirs(self._storage.root, exist_ok=True)
                sink = self._stack.enter_context(self._storage.filesystem.open(path, "wb"))
                self._writer = self._stack.enter_context(pa.ipc.new_stream(sink, schema))
            self.rows += len(messages)
            self._writer.write_batch(_to_arrow(messages, self._choose, writer_schema=schema))

    def finish(self) -> None:
        """Close the completed file."""
        with storage_errors(self._storage.path(self._name), "written"):
            self._stack.close()

    def close(self) -> None:
        """Close the incomplete file after an error; a streaming write's files are deleted after its next commit."""
        self._stack.close()


def staged(storage: Storage, name: str) -> Iterator[EncodedMessages]:
    """Yield the messages of a staging file, in order."""
    path = storage.path(name)
    with storage_errors(path, "read"), storage.filesystem.open(path, "rb") as file:
        reader = pa.ipc.open_stream(file)
        has = reader.schema.metadata or {}
        for batch in reader:
            columns = {field: batch.column(field) for field in batch.schema.names}
            yield EncodedMessages(
                columns["key"] if _KEYS in has else None,
                columns["value"],
                columns["timestamp"].to_pylist() if _TIMESTAMPS in has else None,
                columns["headers"].to_pylist() if _HEADERS in has else None,
                columns["partition"].to_numpy(),
                columns["topic"][0].as_py(),
            )


def _schema_of(messages: EncodedMessages) -> pa.Schema:
    """Return the file schema; its metadata lists which optional parts of the messages are present."""
    there = {_KEYS: messages.keys, _TIMESTAMPS: messages.timestamps, _HEADERS: messages.headers}
    return _SCHEMA.with_metadata({name: b"" for name, part in there.items() if part is not None})


def _to_arrow(messages: EncodedMessages, choose: Choose | None, *, writer_schema: pa.Schema) -> pa.RecordBatch:
    count = len(messages)

    def column(part: Any, data_type: pa.DataType) -> pa.Array:
        return pa.nulls(count, data_type) if part is None else pa.array(part, data_type)

    partitions = np.full(count, -1, np.int32) if choose is None else choose(messages)
    arrays = [
        pa.nulls(count, pa.large_binary()) if messages.keys is None else messages.keys,
        messages.values,
        pa.array(partitions),
        column(messages.timestamps, pa.int64()),
        column(messages.headers, HEADERS),
        pa.repeat(messages.topic, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=writer_schema)
