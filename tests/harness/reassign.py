"""Reassigns the replicas of a partition, by a request that the Python client of Kafka does not have."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_ALTER_PARTITION_REASSIGNMENTS, _VERSION, _CORRELATION = 45, 0, 7
_TIMEOUT_S = 20.0


def reassign(address: tuple[str, int], topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Ask a broker to place a partition on these brokers, of which the first is its preferred leader.

    Raises:
        OSError: the broker does not answer.
        AssertionError: it refuses.
    """
    request = _header() + struct.pack(">i", int(_TIMEOUT_S * 1000)) + _array(_topic(topic, partition, replicas)) + _TAGS
    with socket.create_connection(address, _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, length)
    correlation, _, _, code = struct.unpack_from(">ibih", answer)
    assert (correlation, code) == (_CORRELATION, 0), f"reassignment of {topic}-{partition} refused: {answer!r}"


_TAGS = b"\0"


def _header() -> bytes:
    client = b"tests"
    return struct.pack(">hhih", _ALTER_PARTITION_REASSIGNMENTS, _VERSION, _CORRELATION, len(client)) + client + _TAGS


def _topic(name: str, partition: int, replicas: Sequence[int]) -> bytes:
    placed = b"".join(struct.pack(">i", number) for number in replicas)
    one = struct.pack(">i", partition) + bytes([len(replicas) + 1]) + placed + _TAGS
    text = name.encode()
    # Lengths are one byte here: below 128, Kafka's variable-length numbers are.
    assert len(text) < 127, name
    return bytes([len(text) + 1]) + text + _array(one) + _TAGS


def _array(one: bytes) -> bytes:
    return bytes([2]) + one


def _read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            msg = "the broker closed the connection"
            raise ConnectionError(msg)
        found += more
    return found
