"""Partitioners of a sink's messages (Flink's ``sink.partitioner``)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np

from snapshot.errors import InvalidInputError
from tablestore.connectors.kafka.message_codec import EncodedMessages

Choose: TypeAlias = Callable[[EncodedMessages], np.ndarray]
"""Returns the partition of each message, int32."""

OWN_PARTITIONERS: Final = ("default", "fixed", "round-robin")
"""The built-in partitioners; any other name is the import path of a Python class."""

JAVA_COMPATIBLE: Final = "murmur2_random"
"""librdkafka's partitioner that matches the Java producer: murmur2 of the key, a random partition without a key."""


def make_partitioner(
    name: str, topic: str, partitions: Sequence[int], task: int, tasks: int | None, *, keyed: bool
) -> Choose | None:
    """Return the partitioner of one task.

    Args:
        name: ``default``, ``fixed``, ``round-robin``, or ``package.module.Class``. Such a class is created without
            arguments and has a method ``partition(key, value, topic, partitions) -> int``. It may also have a method
            ``open(task, tasks)``, which gets the task's number and the number of tasks, or None if that is unknown.
        topic: the target topic.
        partitions: the topic's partitions.
        task: the number of the writing task.
        tasks: the number of tasks; None if unknown.
        keyed: whether messages have keys.

    Returns:
        The partitioner; None leaves the choice to the client, which partitions like the Java producer. Messages without
        keys are partitioned in turn by batch, similar to the Java producer's sticky partitioner: all messages encoded
        together go to one partition, the next batch goes to the next partition.

    Raises:
        InvalidInputError: the class does not exist, or has no method ``partition``.
    """
    there = list(partitions)
    if name == "default":
        return None if keyed else _by_batches(there)
    if name == "fixed":
        chosen = there[task % len(there)]
        return lambda messages: np.full(len(messages), chosen, np.int32)
    if name == "round-robin":
        return _in_turn(there)
    return _custom(name, load_class(name), topic, there, task, tasks)


def load_class(name: str) -> type[Any]:
    """Import and return a partitioner class.

    Raises:
        InvalidInputError: the class does not exist, or has no method ``partition``.
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
        method = "partition(key, value, topic, partitions)"
        msg = f"Option 'sink.partitioner': expected a class with a method {method}, got '{name}'."
        raise InvalidInputError(msg)
    return found


def _by_batches(partitions: list[int]) -> Choose:
    # Start at a random partition. Otherwise micro-batches of a single batch would all go to the first partition.
    turns = count(int(np.random.default_rng().integers(len(partitions))))
    return lambda messages: np.full(len(messages), partitions[next(turns) % len(partitions)], np.int32)


def _in_turn(partitions: list[int]) -> Choose:
    there = np.array(partitions, np.int32)
    # Start at a random partition: a micro-batch may have fewer messages than there are partitions.
    turn = int(np.random.default_rng().integers(len(partitions)))

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
