"""Direct ctypes access to the librdkafka of a confluent-kafka client, for bulk calls (``bulk_*.py``).

confluent-kafka creates a Python object for every message, which costs more than all other processing of the message.
Its producer or consumer stays in charge of options, transactions, callbacks, errors and closing; this module only
borrows its librdkafka handle. If the library, the Python implementation or the object is not as expected, no handle is
returned, and callers process records message by message.

This relies on three facts: ``rd_kafka_message_t`` is part of librdkafka's public interface; the struct of a
confluent-kafka client starts with the handle (in all versions since 0.9); and the client registers its own address as
the handle's opaque pointer.
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
"""The layout of ``rd_kafka_message_t`` on 64-bit machines."""
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
    """Load librdkafka's functions through the extension module linked to it; None if they are not available."""
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
"""The same functions called without releasing the GIL, which is cheaper for very short calls."""


def handle(client: Any) -> int | None:
    """Return the handle of a producer or consumer, valid while that is open; None if it is not accessible."""
    if rdkafka is None or quick is None or not isinstance(client, Producer | Consumer):
        return None
    found = c_void_p.from_address(id(client) + object.__basicsize__).value
    return found if found and rdkafka.rd_kafka_opaque(found) == id(client) else None
