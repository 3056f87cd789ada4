"""The librdkafka within a client of confluent-kafka, for calls that move many records at once (``bulk_*.py``).

confluent-kafka makes a Python object of every message, which costs more than all else that is done with it. Its
producer or consumer stays in charge (options, transactions, callbacks, errors, closing); only its librdkafka handle is
borrowed, by ctypes. Where the library, the Python or the object is not as known here, there is no handle, and whoever
asks goes message by message.

What this rests on: ``rd_kafka_message_t`` is part of librdkafka's public interface. A client of confluent-kafka begins
with the handle (of all versions since 0.9), and has told librdkafka its own address as the handle's opaque pointer.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, Producer, cimpl

MESSAGE: Final = np.dtype(
    [
        ("err", "i4"),
        ("topic", "u8"),
        ("partition", "i4"),
        ("payload", "u8"),
        ("size", "u8"),
        ("key", "u8"),
        ("key_size", "u8"),
        ("offset", "i8"),
        ("private", "u8"),
    ],
    align=True,
)
"""``rd_kafka_message_t`` on machines with 64 bits."""
_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_opaque": (c_void_p, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_last_error": (c_int, []),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
    "rd_kafka_queue_get_partition": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "rd_kafka_queue_forward": (None, [c_void_p, c_void_p]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "rd_kafka_message_errstr": (c_char_p, [c_void_p]),
    "rd_kafka_message_timestamp": (c_int64, [c_void_p, c_void_p]),
    "rd_kafka_message_destroy": (None, [c_void_p]),
}


def _library(load: Any) -> Any:
    """Find librdkafka's functions through the extension module that is linked to it; None where they are not there."""
    known = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    if not known or ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return None
    try:
        found = load(cimpl.__file__)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return found


rdkafka: Any = _library(ctypes.CDLL)
quick: Any = _library(ctypes.PyDLL)
"""The same functions called without letting go of Python's lock: cheaper for a call that takes no time."""


def handle(client: Any) -> int | None:
    """Borrow the handle of a producer or consumer; it is good for as long as that is open."""
    if rdkafka is None or quick is None or not isinstance(client, Producer | Consumer):
        return None
    found = c_void_p.from_address(id(client) + object.__basicsize__).value
    return found if found and rdkafka.rd_kafka_opaque(found) == id(client) else None
