"""The states of the model: a table, a broker, an index, the processes, and the guards that keep them honest.

All of it is tuples, so that a state is its own key. What a process knows is put back to its default when it is no
longer needed: fewer states are different then.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
NOBODY = -1
NO_TOKEN = 0
FORGOTTEN = -1
"""The broker knows of no token: there never was one, or its group has expired."""
FENCED_BY = 900
"""Tokens from here on are those that a take-over puts in the place of another: ``fenced-by-...``."""


class Guard(Enum):
    """What the protocol rests on; the search is to find a bug when any one of these is removed."""

    COMMIT_FIRST = "publish only what is committed"
    PUT_IF_ABSENT = "put the Delta version only if nobody has"
    LOOK_UP = "look the commit id up before each try to commit"
    LOOK_AT_ALL = "look for the commit in all versions that the record of a durable id has been read from"
    FENCE_OWNER = "take_over fences the owner before"
    REGISTER_LAST = "take_over reads the register after it has fenced the owner before"
    ONE_TRANSACTION = "the register moves in the transaction of the records"
    DISCARD = "a producer is thrown away after an error"
    IN_ORDER = "publish in snapshot order"
    INDEX_LAST = "write the index entry only after the transaction is committed"
    HEADERS = "where the group has expired, read the headers of the last records"
    INDEX_WITNESS = "where no header is left to read, what the index lists is published"
    ANNOUNCE = "a token says that tasks may be writing, so that take_over fences them"
    FENCE_TASKS = "take_over fences the tasks of the owner before"
    FENCE_FORGOTTEN = "where the token has expired, take_over fences tasks as if there were one"
    TASK_HEADERS = "where the register has expired, a task reads the headers of the last records"
    TOKEN_FIRST = "take_over replaces the token before it fences tasks"
    TOKEN_LAST = "take_over clears the token only after it has fenced tasks"
    TASK_LOOKS_LAST = "a task looks for its token after it has fenced others"
    TASK_READS_LAST = "a task reads the register after it has fenced others"
    OWN_GROUP = "the token has a consumer group of its own, apart from the register"


class Position(NamedTuple):
    """How far a partition is published; ``log_system.kafka.register.RegisterPosition`` in small."""

    snapshot: int
    rows: int
    done: bool
    end: int

    def holds(self, snapshot: int) -> bool:
        return self.snapshot > snapshot or (self.snapshot == snapshot and self.done)

    def rows_of(self, snapshot: int) -> int:
        """Rows of a snapshot that are there (the code's ``part_of``)."""
        return self.rows if self.snapshot == snapshot else 0


class Record(NamedTuple):
    """A committed record. Only the last one of a transaction has headers."""

    snapshot: int
    row: int
    headers: bool


class Transaction(NamedTuple):
    """An open transaction: records by partition, and what it does to the register and the token."""

    records: tuple[tuple[int, tuple[Record, ...]], ...] = ()
    moves: bool = True
    token: int | None = None
    register: tuple[Position | None, ...] = ()


class Process(NamedTuple):
    """A writer or a recovering process: its next step and what it remembers.

    Attributes:
        step: the next step; ``done`` and ``dead`` have none.
        life: how often it has been started again.
        batch: how many writes it has finished.
        newest: the version that it takes for the newest.
        target: the snapshot that has to be in the log before it goes on.
        own: it takes the log over even if there is nothing to publish.
        owns: it has a producer, so it takes itself for the owner.
        register: the register as it knows it.
        at: the snapshot that it publishes now.
        through: the last that it will publish before it looks again.
    """

    step: str
    life: int = 0
    batch: int = 0
    newest: int = 0
    target: int = 0
    own: bool = False
    owns: bool = False
    register: tuple[Position | None, ...] = ()
    at: int = 0
    through: int = 0


class Task(NamedTuple):
    """One attempt of a publishing task. It outlives the process that sent it.

    Attributes:
        sender: the process that waits for it; ``NOBODY`` when that is dead or has given up.
        token: of the sender.
        partition: where it publishes.
        snapshot: what it publishes.
        position: how far the partition was when the task was made, then as it knows.
        step: the next step.
    """

    sender: int
    token: int
    partition: int
    snapshot: int
    position: Position | None
    step: str


class State(NamedTuple):
    """The whole world.

    Attributes:
        table: who committed each snapshot: (process, batch); the first is snapshot 1.
        puts: commits of the table that are under way without a caller: (snapshot, (process, batch)).
        log: the committed records of each partition. Records of aborted transactions take no offset here.
        group: the register.
        token: whose tasks may be writing.
        holders: who may use each transactional id: the last one that called ``init_transactions``.
        open: the open transaction of each transactional id.
        late: whether a commit of it is under way without a caller.
        entries: of the index: (start, end) for each partition, by snapshot.
        processes: the processes.
        tasks: attempts of tasks, in slots.
        faults: how many crashes and lost answers may still come.
        expiries: how often a group may still expire.
    """

    table: tuple[tuple[int, int], ...]
    puts: frozenset[tuple[int, tuple[int, int]]]
    log: tuple[tuple[Record, ...], ...]
    group: tuple[Position | None, ...]
    token: int
    holders: tuple[int, ...]
    open: tuple[Transaction | None, ...]
    late: tuple[bool, ...]
    entries: tuple[tuple[tuple[int, int], ...] | None, ...]
    processes: tuple[Process, ...]
    tasks: tuple[Task | None, ...]
    faults: int
    expiries: int

    def with_process(self, number: int, process: Process) -> State:
        return self._replace(processes=put(self.processes, number, process))

    def with_task(self, slot: int, task: Task | None) -> State:
        return self._replace(tasks=put(self.tasks, slot, task))

    def published(self) -> int:
        """The newest snapshot in the index, counted without gaps."""
        for count, entry in enumerate(self.entries):
            if entry is None:
                return count
        return len(self.entries)


class Scenario(NamedTuple):
    """Who takes part and what may go wrong.

    Attributes:
        name: for messages.
        writes: how many each writer makes.
        durable: the writers whose commit ids are durable: each is started again once after a crash, and repeats itself.
        recovers: whether another process calls ``recover()``.
        has_log: whether there is a log; without one only commits are looked at.
        partitions: log partitions; each snapshot has rows in all of them.
        rows: rows of a snapshot in a partition.
        driver_rows_max: more rows than these are published by tasks, one row a transaction.
        slots: task attempts alive at once.
        faults: crashes and lost answers in one history.
        expiries: how often a group, the register's or the token's, may expire in one history.
    """

    name: str
    writes: tuple[int, ...]
    durable: frozenset[int] = frozenset()
    recovers: bool = False
    has_log: bool = True
    partitions: int = 1
    rows: int = 1
    driver_rows_max: int = 9
    slots: int = 0
    faults: int = 2
    expiries: int = 0


def put(items: tuple[Item, ...], number: int, item: Item) -> tuple[Item, ...]:
    """Replace one item."""
    return (*items[:number], item, *items[number + 1 :])
