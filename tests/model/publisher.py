"""The steps of a publisher, named as in ``log_system.kafka.publisher``."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.broker import commit_transaction, init_transactions, position_after
from tests.model.state import (
    FENCED_BY,
    FORGOTTEN,
    NO_TOKEN,
    NOBODY,
    Guard,
    Position,
    Process,
    Record,
    Scenario,
    State,
    Task,
    Transaction,
    put,
)
from tests.model.tasks import TaskSteps

Steps = Iterator[tuple[str, State]]


class PublisherSteps:
    """Takes the log over and publishes; what every writer and every recovering process does."""

    def __init__(self, scenario: Scenario, removed: Guard | None) -> None:
        self.scenario = scenario
        self.removed = removed
        self.processes = len(scenario.writes) + scenario.recovers
        self._rows_max = scenario.driver_rows_max
        self.tasks = TaskSteps(scenario, removed, self.processes)
        fencing = ["replace token", "fence_tasks", "clear token"]
        if removed is Guard.TOKEN_FIRST:
            fencing = ["fence_tasks", "replace token", "clear token"]
        elif removed is Guard.TOKEN_LAST:
            fencing = ["replace token", "clear token", "fence_tasks"]
        elif removed is Guard.FENCE_TASKS:
            fencing.remove("fence_tasks")
        self._after_token = dict(zip(fencing, [*fencing[1:], "register"], strict=True))
        self._fencing = fencing[0]

    def keeps(self, guard: Guard) -> bool:
        """Tell whether a guard is in its place."""
        return self.removed is not guard

    def name(self, number: int) -> int:
        """Which transactional id a publisher uses: all the same, or the guard is removed."""
        return 0 if self.keeps(Guard.FENCE_OWNER) else number

    def next_snapshot(self, process: Process, through: int) -> Process:
        """Begin to publish snapshot ``at``, or look again."""
        if process.at > through:
            return process._replace(step="publish_through", at=0, through=0)
        missing = self.missing(process)
        if not missing:
            step = "index.put"
        elif len(missing) * self.scenario.rows > self._rows_max:
            step = "announce token" if self.keeps(Guard.ANNOUNCE) else "run_tasks"
        else:
            step = "send" if self.keeps(Guard.INDEX_LAST) else "index.put"
        return process._replace(step=step, through=through)

    def missing(self, process: Process) -> list[int]:
        """The partitions that lack the snapshot, as far as this process knows."""
        return [p for p, held in enumerate(process.register) if held is None or not held.holds(process.at)]

    def discard(self, state: State, number: int, process: Process) -> State:
        """After an error: throw the producer away and begin anew."""
        if not self.keeps(Guard.DISCARD):
            again = process._replace(step="publish_through", at=0, through=0)
            return self.tasks.orphan(state, number).with_process(number, again)
        after = process._replace(step="publish_through", owns=False, register=(), at=0, through=0)
        return self.tasks.orphan(state, number).with_process(number, after)

    # What a new owner does, as in KafkaPublisher.take_over.

    def init_transactions(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 1: fence the owner before."""
        fenced = init_transactions(state, self.name(number), number)
        if not self.keeps(Guard.REGISTER_LAST):
            yield "take_over: init_transactions", self.own_log(fenced, number, process)
        else:
            step = "tasks_token" if self.scenario.slots else "register"
            yield "take_over: init_transactions", fenced.with_process(number, process._replace(step=step))
        if state.faults:
            lost = init_transactions(state, self.name(number), NOBODY)._replace(faults=state.faults - 1)
            yield "take_over: init_transactions: no answer", self.discard(lost, number, process)

    def tasks_token(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 2: see whether tasks of the owner before may be writing."""
        known = () if self.keeps(Guard.OWN_GROUP) else state.group
        none = (NO_TOKEN,) if self.keeps(Guard.FENCE_FORGOTTEN) else (NO_TOKEN, FORGOTTEN)
        step = "register" if state.token in none else self._fencing
        after = process._replace(step=step, register=known)
        yield f"take_over: tasks_token is {token_name(state.token)}", state.with_process(number, after)

    def announce(self, state: State, number: int, process: Process, token: int, then: str) -> Steps:
        """Move the token in a transaction of the owner."""
        name = self.name(number)
        what = f"announce_tasks({token_name(token)})"
        if state.holders[name] != number:
            yield f"{what}: FencedError", self.discard(state, number, process)
            return
        # In one group with the register, the token goes with a position for each partition.
        register = () if self.keeps(Guard.OWN_GROUP) else process.register
        for answer, after in commit_transaction(
            state, name, Transaction(token=token, register=register), self.scenario.rows
        ):
            if answer == "done":
                yield f"{what}: done", after.with_process(number, process._replace(step=then))
            else:
                yield f"{what}: {answer}", self.discard(after, number, process)

    def replace_token(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 2: tasks that look from here on stop."""
        token = FENCED_BY + self.token(number, process)
        yield from self.announce(state, number, process, token, self._after_token["replace token"])

    def fence_tasks(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 2: tasks that have looked before are fenced. Each partition apart, for a crash in between."""
        after = state
        for partition in range(self.scenario.partitions):
            after = init_transactions(after, self.processes + partition, NOBODY)
        yield "fence_tasks", after.with_process(number, process._replace(step=self._after_token["fence_tasks"]))

    def clear_token(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 2: no tasks are left."""
        yield from self.announce(state, number, process, NO_TOKEN, self._after_token["clear token"])

    def register(self, state: State, number: int, process: Process) -> Steps:
        """take_over, step 3: read what is published."""
        read = process._replace(register=self.witnesses(state))
        if not self.keeps(Guard.REGISTER_LAST):
            yield "take_over: register", state.with_process(number, read._replace(step="init_transactions"))
        else:
            yield "take_over: register", self.own_log(state, number, read)

    def own_log(self, state: State, number: int, process: Process) -> State:
        """take_over has returned; ``newest = table.latest()``."""
        owner = process._replace(owns=True)
        return state.with_process(number, self.next_snapshot(owner, self.latest(state, owner)))

    def latest(self, state: State, process: Process) -> int:
        """The newest snapshot that may be published."""
        return len(state.table) if self.keeps(Guard.COMMIT_FIRST) else max(len(state.table), process.target)

    def witnesses(self, state: State) -> tuple[Position, ...]:
        """register: the group, else the headers of the last records, else the index."""
        latest = state.published()
        ends = [end for _, end in state.entries[latest - 1] or ()] if latest else [0] * self.scenario.partitions
        found = []
        for partition, told in enumerate(state.group):
            if told is not None:
                found.append(told)
                continue
            records = state.log[partition]
            known = latest if self.keeps(Guard.INDEX_WITNESS) else 0
            position = Position(known, 0, done=True, end=ends[partition])
            if self.keeps(Guard.HEADERS):
                for offset in range(ends[partition], len(records)):
                    if records[offset].headers:
                        position = position_after(records[offset], offset + 1, self.scenario.rows)
            found.append(position)
        return tuple(found)

    # What publishes small snapshots, as in KafkaPublisher.publish.

    def send(self, state: State, number: int, process: Process) -> Steps:
        """_publish_here: begin, produce, flush, send_offsets_to_transaction."""
        name = self.name(number)
        if state.holders[name] != number:
            yield f"send snapshot {process.at}: FencedError", self.discard(state, number, process)
            return
        missing = self.missing(process)
        for last in range(process.at, process.through + 1):
            if last > process.at and len(missing) * self.scenario.rows * (last - process.at + 1) > self._rows_max:
                break
            records = tuple((p, self.records(process, p, last)) for p in missing)
            transaction = Transaction(records, moves=self.keeps(Guard.ONE_TRANSACTION))
            sent = state._replace(open=put(state.open, name, transaction), late=put(state.late, name, False))
            after = process._replace(step="commit_transaction")
            yield f"send snapshots {process.at} to {last}", sent.with_process(number, after)

    def records(self, process: Process, partition: int, last: int) -> tuple[Record, ...]:
        """The records that a partition lacks of the next snapshot, and those of later ones to the last."""
        held, rows = process.register[partition], self.scenario.rows
        first = held.rows_of(process.at) if held else 0
        return tuple(
            Record(snapshot, row, headers=row == rows - 1)
            for snapshot in range(process.at, last + 1)
            for row in range(first if snapshot == process.at else 0, rows)
        )

    def commit_transaction(self, state: State, number: int, process: Process) -> Steps:
        """_publish_here: commit_transaction."""
        name, transaction = self.name(number), state.open[self.name(number)]
        what = f"commit_transaction of snapshot {process.at}"
        if state.holders[name] != number or transaction is None:
            yield f"{what}: FencedError", self.discard(state, number, process)
            return
        for answer, after in commit_transaction(state, name, transaction, self.scenario.rows):
            if answer != "done":
                yield f"{what}: {answer}", self.discard(after, number, process)
                continue
            register = process.register
            for partition, records in transaction.records:
                moved = position_after(records[-1], len(after.log[partition]), self.scenario.rows)
                register = put(register, partition, moved)
            known = process._replace(step="index.put", register=register)
            if not self.keeps(Guard.ONE_TRANSACTION):
                known = known._replace(step="send_offsets")
            elif not self.keeps(Guard.INDEX_LAST):
                known = self.next_snapshot(known._replace(at=known.at + 1), known.through)
            yield f"{what}: done", after.with_process(number, known)

    def send_offsets(self, state: State, number: int, process: Process) -> Steps:
        """Only where the register does not move in the transaction."""
        moved = state._replace(group=process.register)
        yield "move the register", moved.with_process(number, process._replace(step="index.put"))

    def index_put(self, state: State, number: int, process: Process) -> Steps:
        """publish, step 2: write the index entry; the gate opens."""
        snapshot, line = process.at, f"index.put({process.at})"
        before = state.entries[snapshot - 2] if snapshot > 1 else None
        entry = []
        for partition in range(self.scenario.partitions):
            start = before[partition][1] if before else 0
            held = process.register[partition]
            if held is not None and held.snapshot == snapshot:
                end = held.end
            elif self.missing(process):
                end = start + self.scenario.rows
            else:
                end = self.snapshot_end(state, partition, start, snapshot)
            entry.append((start, end))
        after = state._replace(entries=put(state.entries, snapshot - 1, tuple(entry)))
        if not self.keeps(Guard.INDEX_LAST) and self.missing(process):
            yield line, after.with_process(number, process._replace(step="send"))
        else:
            following = self.next_snapshot(process._replace(at=snapshot + 1), process.through)
            yield line, after.with_process(number, following)

    def snapshot_end(self, state: State, partition: int, start: int, snapshot: int) -> int:
        """witness.snapshot_end: find where a published snapshot ends."""
        for offset in range(start, len(state.log[partition])):
            record = state.log[partition][offset]
            if record.headers and record.snapshot >= snapshot:
                position = position_after(record, offset + 1, self.scenario.rows)
                if record.snapshot == snapshot and not position.done:
                    continue
                return position.end if record.snapshot == snapshot else start
        return start

    # What publishes a large snapshot, as in KafkaPublisher._publish_by_tasks.

    def token(self, number: int, process: Process) -> int:
        """Each publisher has a token of its own; so has a process that was started again."""
        return 1 + number + process.life * self.processes

    def announce_token(self, state: State, number: int, process: Process) -> Steps:
        """_publish_by_tasks: say that tasks may be writing."""
        yield from self.announce(state, number, process, self.token(number, process), "run_tasks")

    def run_tasks(self, state: State, number: int, process: Process) -> Steps:
        """_publish_by_tasks: send the tasks, then wait for one result for each partition."""
        mine = [(slot, task) for slot, task in enumerate(state.tasks) if task is not None and task.sender == number]
        missing = self.missing(process)
        if not mine:
            free = [slot for slot, task in enumerate(state.tasks) if task is None]
            if len(free) >= len(missing):
                for slot, partition in zip(free, missing, strict=False):
                    held = process.register[partition]
                    first, token = self.tasks.first, self.token(number, process)
                    state = state.with_task(slot, Task(number, token, partition, process.at, held, first))
                yield f"run_tasks sends tasks for snapshot {process.at}", state
            return
        done = {task.partition: task.position for _, task in mine if task.step == "done"}
        if set(done) == {task.partition for _, task in mine}:
            register = process.register
            for partition, position in done.items():
                register = put(register, partition, position)
            step = "withdraw token" if self.keeps(Guard.ANNOUNCE) else "index.put"
            after = process._replace(step=step, register=register)
            yield "run_tasks returns", self.tasks.orphan(state, number).with_process(number, after)
        elif any(task.step == "failed" for _, task in mine):
            yield "run_tasks: a task has failed", self.discard(state, number, process)
        if state.faults:
            yield from self.tasks.again(state, mine)

    def withdraw_token(self, state: State, number: int, process: Process) -> Steps:
        """_publish_by_tasks: say that there are no tasks any more."""
        yield from self.announce(state, number, process, NO_TOKEN, "index.put")


def token_name(token: int) -> str:
    """A token as it reads in a path."""
    if token in {NO_TOKEN, FORGOTTEN}:
        return "''" if token == NO_TOKEN else "forgotten"
    return f"'fenced-by-{token - FENCED_BY}'" if token >= FENCED_BY else f"'{token}'"
