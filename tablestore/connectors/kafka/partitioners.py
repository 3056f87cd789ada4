"""Which partition a sink's message goes to: Flink's ``sink.partitioner``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np

from snapshot.errors import InvalidInputError
from tablestore.connectors.kafka.message_codec import EncodedMessages

Choose: TypeAlias = Callable[[EncodedMessages], np.ndarray]
"""Gives the partition of each message, int32."""

OWN_PARTITIONERS: Final = ("default", "fixed", "round-robin")
"""Those that are no Python class."""

JAVA_COMPATIBLE: Final = "murmur2_random"
"""librdkafka's name for what Java's producers do: murmur2 of the key, any partition for a message without one."""


def make_partitioner(
    name: str, topic: str, partitions: Sequence[int], task: int, tasks: int | None, *, keyed: bool
) -> Choose | None:
    """Make the partitioner of one task.

    Args:
        name: ``default``, ``fixed``, ``round-robin``, or ``package.module.Class``: a class that is made without
            arguments and has ``partition(key, value, topic, partitions) -> int``, and ``open(task, tasks)`` if it
            likes, with the task's number and, where that is known, how many there are.
        topic: where messages go.
        partitions: the topic's partitions.
        task: the number of the task that writes.
        tasks: how many tasks there are; None where that is not known.
        keyed: whether messages have keys.

    Returns:
        The partitioner; None leaves it to the client, which does as Java's does. What has no keys goes, as Java's
        does, to one partition for a while and then to another: what is encoded at once goes to one.

    Raises:
        InvalidInputError: there is no such class.
    """
    there = list(partitions)
    if name == "default":
        return None if keyed else _by_batches(there)
    if name == "fixed":
        chosen = there[task % len(there)]
        return lambda messages: np.full(len(messages), chosen, np.int32)
    if name == "round-robin":
        return _in_turn(there, task)
    return _custom(name, load_class(name), topic, there, task, tasks)


def load_class(name: str) -> type[Any]:
    """Find a partitioner's class.

    Raises:
        InvalidInputError: there is none by that name, or it has no method ``partition``.
    """
    module, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), last)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"Could not find and instantiate partitioner class '{name}' (option 'sink.partitioner'): {error}. Expected "
            "'default', 'fixed', 'round-robin', or the import path of a Python class, such as 'package.module.Class', "
            "that the driver and the executors can import."
        )
        raise InvalidInputError(msg) from error
    if not isinstance(found, type) or not callable(getattr(found, "partition", None)):
        msg = f"Option 'sink.partitioner': '{name}' is no class with a method partition(key, value, topic, partitions)."
        raise InvalidInputError(msg)
    return found


def _by_batches(partitions: list[int]) -> Choose:
    # Not always from the first one: a micro-batch may be a single batch.
    turns = count(int(np.random.default_rng().integers(len(partitions))))
    return lambda messages: np.full(len(messages), partitions[next(turns) % len(partitions)], np.int32)


def _in_turn(partitions: list[int], task: int) -> Choose:
    there = np.array(partitions, np.int32)
    # Tasks begin at different partitions, lest the first ones get more.
    turn = task

    def choose(messages: EncodedMessages) -> np.ndarray:
        nonlocal turn
        turns = np.arange(turn, turn + len(messages))
        turn += len(messages)
        found: np.ndarray = there[turns % len(there)]
        return found

    return choose


def _custom(name: str, kind: type[Any], topic: str, partitions: list[int], task: int, tasks: int | None) -> Choose:
    made = kind()
    if callable(getattr(made, "open", None)):
        made.open(task, tasks)
    there = set(partitions)

    def choose(messages: EncodedMessages) -> np.ndarray:
        found = []
        for key, value in messages.pairs():
            chosen = made.partition(key, value, topic, partitions)
            if chosen not in there:
                msg = f"partitioner '{name}' chose partition {chosen!r} of topic {topic!r}, which has {partitions}."
                raise InvalidInputError(msg)
            found.append(chosen)
        return np.array(found, np.int32)

    return choose
