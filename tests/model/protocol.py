"""The steps of writers and of a recovering process, named as in the code.

A step is what a process does between two moments at which another can notice. So reading a file is a step, and working
out what to send is none. A crash may come before each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.broker import commit_version, init_transactions, late_steps
from tests.model.publisher import PublisherSteps
from tests.model.state import (
    FORGOTTEN,
    NO_TOKEN,
    NOBODY,
    Guard,
    Process,
    Scenario,
    State,
)

Steps = Iterator[tuple[str, State]]


class Protocol(PublisherSteps):
    """The protocol in one scenario, with or without one of its guards."""

    def __init__(self, scenario: Scenario, removed: Guard | None = None) -> None:
        super().__init__(scenario, removed)
        self.names = [f"writer {number}" for number in range(len(scenario.writes))] + ["recover"] * scenario.recovers
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
            token=FORGOTTEN if scenario.slots else NO_TOKEN,
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

    # What a write does, as in snapshot/store/commit.py.

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

    # What recovery does, as in tablestore/write/publish.py.

    def recover(self, state: State, number: int, process: Process) -> Steps:
        """recover: discard, then publish through the newest snapshot, as owner.

        What is read of the table here only says when to stop, so reading the index belongs to the same step.
        """
        newest = len(state.table)
        own = process._replace(step="publish_through", target=newest, own=True, owns=False, register=())
        for line, after in self.publish_through(state, number, own):
            yield f"recover through snapshot {newest}; {line}", after

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
