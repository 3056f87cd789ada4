"""The steps of writers and of a recovering process, named as in the code.

A step is what a process does between two moments at which another can notice. So reading a file is a step, and working
out what to send is none. A crash may come before each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.broker import commit_transaction, commit_version, init_transactions, late_steps, position_after
from tests.model.state import (
    FENCED_BY,
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


class Protocol:
    """The protocol in one scenario, with or without one of its guards."""

    def __init__(self, scenario: Scenario, removed: Guard | None = None) -> None:
        self.scenario = scenario
        self.removed = removed
        self.processes = len(scenario.writes) + scenario.recovers
        self.names = [f"writer {number}" for number in range(len(scenario.writes))] + ["recover"] * scenario.recovers
        self.tasks = TaskSteps(scenario, removed, self.processes)
        self._steps: dict[str, Callable[[State, int, Process], Steps]] = {
            "recover": self.recover,
            "log.version": self.version,
            "find_commit": self.find_commit,
            "log.commit": self.log_commit,
            "publish_through": self.publish_through,
            "register": self.register,
            "init_transactions": self.init_transactions,
            "tasks_token": self.tasks_token,
            "replace token": self.replace_token,
            "fence_tasks": self.fence_tasks,
            "clear token": self.clear_token,
            "send": self.send,
            "commit_transaction": self.commit_transaction,
            "send_offsets": self.send_offsets,
            "announce token": self.announce_token,
            "run_tasks": self.run_tasks,
            "withdraw token": self.withdraw_token,
            "index.put": self.index_put,
        }
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

    def start(self) -> State:
        """The first state: an empty table and nobody has done anything."""
        scenario, ids = self.scenario, self.processes + self.scenario.partitions
        first = "recover" if scenario.has_log else "log.version"
        nothing: tuple[None, ...] = (None,) * scenario.partitions
        return State(
            table=(),
            puts=frozenset(),
            log=((),) * scenario.partitions,
            group=nothing,
            token=NO_TOKEN,
            holders=(NOBODY,) * ids,
            open=(None,) * ids,
            late=(False,) * ids,
            entries=(),
            processes=(Process(first),) * self.processes,
            tasks=(None,) * scenario.slots,
            faults=scenario.faults,
            expiries=scenario.expiries,
        )

    def steps(self, state: State) -> Steps:
        """Give each step that is possible now."""
        for number, process in enumerate(state.processes):
            if process.step in {"done", "dead"}:
                continue
            for line, after in self._steps[process.step](state, number, process):
                yield f"{self.names[number]}: {line}", after
            if state.faults:
                yield f"{self.names[number]}: crash before {process.step}", self.crash(state, number, process)
        yield from self.tasks.steps(state)
        ids = [f"{name}'s publisher" for name in self.names] + [
            f"a task of partition {partition}" for partition in range(self.scenario.partitions)
        ]
        yield from late_steps(state, self.scenario.rows, ids, if_absent=self.keeps(Guard.PUT_IF_ABSENT))

    def alone(self, state: State, number: int, process: Process) -> Steps:
        """Give the next step of one process (or of its tasks), the others being dead and the broker well."""
        yield from self._steps[process.step](state, number, process)
        yield from self.tasks.steps(state)

    def crash(self, state: State, number: int, process: Process) -> State:
        """Kill a process. Its tasks live on, and what it has under way may still be carried out."""
        again = number in self.scenario.durable and process.life == 0
        first = "recover" if self.scenario.has_log else "log.version"
        after = Process(first, life=1, batch=process.batch) if again else Process("dead", batch=process.batch)
        state = self.tasks.orphan(state, number)._replace(faults=state.faults - 1)
        name = self.name(number)
        if state.holders[name] == number and not state.late[name]:
            state = init_transactions(state, name, NOBODY)
        return state.with_process(number, after)

    def name(self, number: int) -> int:
        """Which transactional id a publisher uses: all the same, or the guard is removed."""
        return 0 if self.keeps(Guard.FENCE_OWNER) else number

    # What a write does, as in snapshot/commit.py.

    def version(self, state: State, number: int, process: Process) -> Steps:
        """commit: ``newest = log.version()``."""
        read = process._replace(newest=len(state.table))
        line = f"log.version() is {len(state.table)}"
        if not self.keeps(Guard.LOOK_UP):
            yield line, state.with_process(number, read._replace(step="log.commit"))
        elif number in self.scenario.durable:
            yield line, state.with_process(number, read._replace(step="find_commit"))
        else:
            # What find_commit reads for such an id cannot change any more, so both are one step.
            for found, after in self.find_commit(state, number, read):
                yield f"{line}; {found}", after

    def find_commit(self, state: State, number: int, process: Process) -> Steps:
        """commit, step 1: look whether this write has landed."""
        commit_id = (number, process.batch)
        if commit_id in state.table[: process.newest]:
            landed = state.table.index(commit_id) + 1
            yield f"find_commit finds snapshot {landed}", self.committed(state, number, process, landed)
            return
        if number in self.scenario.durable and commit_id in state.table:
            # It landed after log.version(); only Delta's txn action, which is read now, tells so.
            landed = state.table.index(commit_id) + 1 if self.keeps(Guard.LOOK_AT_ALL) else process.newest
            line = f"find_commit reads that it has landed by now and takes it for snapshot {landed}"
            yield line, self.committed(state, number, process, landed)
            return
        if not self.keeps(Guard.COMMIT_FIRST):
            early = process._replace(step="publish_through", target=process.newest + 1)
            yield "find_commit finds nothing; publish before the commit", state.with_process(number, early)
            return
        yield "find_commit finds nothing", state.with_process(number, process._replace(step="log.commit"))

    def log_commit(self, state: State, number: int, process: Process) -> Steps:
        """commit, step 2: put the next Delta version."""
        version, commit_id = process.newest + 1, (number, process.batch)
        done = commit_version(state, version, commit_id, if_absent=self.keeps(Guard.PUT_IF_ABSENT))
        again = process._replace(step="log.version")
        if done is None:
            yield f"log.commit of version {version}: ConflictError", state.with_process(number, again)
            return
        yield f"log.commit makes snapshot {version}", self.committed(done, number, process, version)
        if state.faults:
            unknown = state._replace(puts=state.puts | {(version, commit_id)}, faults=state.faults - 1)
            yield f"log.commit of version {version}: no answer", unknown.with_process(number, again)

    def committed(self, state: State, number: int, process: Process, snapshot: int) -> State:
        """The write is snapshot ``snapshot``: see that it is published."""
        if not self.scenario.has_log:
            return state.with_process(number, self.written(number, process))
        return state.with_process(number, process._replace(step="publish_through", newest=0, target=snapshot))

    def written(self, number: int, process: Process) -> Process:
        """The write has returned; make the next."""
        batch = process.batch + 1
        more = batch < self.scenario.writes[number]
        return process._replace(step="log.version" if more else "done", batch=batch, newest=0, target=0, own=False)

    # What recovery does, as in tablestore/recover.py.

    def recover(self, state: State, number: int, process: Process) -> Steps:
        """recover: discard, then publish through the newest snapshot, as owner."""
        newest = len(state.table)
        after = process._replace(step="publish_through", target=newest, own=True, owns=False, register=())
        yield f"recover through snapshot {newest}", state.with_process(number, after)

    def publish_through(self, state: State, number: int, process: Process) -> Steps:
        """publish_through: read the index; return, take over or publish."""
        published = state.published()
        if published >= process.target and (process.owns or not process.own):
            yield f"the index ends at {published}: publish_through returns", self.returned(state, number, process)
            return
        first = published + 1 if self.keeps(Guard.IN_ORDER) else max(process.target, 1)
        process = process._replace(at=first)
        if process.owns:
            after = self.next_snapshot(process, self.latest(state, process))
            line = f"the index ends at {published}: publish on"
        else:
            step = "init_transactions" if self.keeps(Guard.REGISTER_LAST) else "register"
            line, after = f"the index ends at {published}: take_over", process._replace(step=step)
        yield line, state.with_process(number, after)

    def returned(self, state: State, number: int, process: Process) -> State:
        """publish_through has returned: after recover() the writes begin, after a write the next one."""
        process = process._replace(at=0, through=0, target=0)
        if number >= len(self.scenario.writes):
            return state.with_process(number, Process("done"))
        if process.own:
            more = process.batch < self.scenario.writes[number]
            step = "log.version" if more else "done"
            return state.with_process(number, process._replace(step=step, own=False))
        return state.with_process(number, self.written(number, process))

    def next_snapshot(self, process: Process, through: int) -> Process:
        """Begin to publish snapshot ``at``, or look again."""
        if process.at > through:
            return process._replace(step="publish_through", at=0, through=0)
        missing = self.missing(process)
        if not missing:
            step = "index.put"
        elif len(missing) * self.scenario.rows > self.scenario.driver_rows_max:
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
        step = self._fencing if state.token else "register"
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

    # What publishes a small snapshot, as in KafkaPublisher.publish.

    def send(self, state: State, number: int, process: Process) -> Steps:
        """_publish_here: begin, produce, flush, send_offsets_to_transaction."""
        name = self.name(number)
        if state.holders[name] != number:
            yield f"send snapshot {process.at}: FencedError", self.discard(state, number, process)
            return
        transaction = Transaction(
            tuple((p, self.records(process, p)) for p in self.missing(process)),
            moves=self.keeps(Guard.ONE_TRANSACTION),
        )
        sent = state._replace(open=put(state.open, name, transaction), late=put(state.late, name, False))
        after = process._replace(step="commit_transaction")
        yield f"send snapshot {process.at}", sent.with_process(number, after)

    def records(self, process: Process, partition: int) -> tuple[Record, ...]:
        """The records of a snapshot that a partition lacks."""
        held, rows = process.register[partition], self.scenario.rows
        first = held.rows_of(process.at) if held else 0
        return tuple(Record(process.at, row, headers=row == rows - 1) for row in range(first, rows))

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
    if token == NO_TOKEN:
        return "''"
    return f"'fenced-by-{token - FENCED_BY}'" if token >= FENCED_BY else f"'{token}'"
