"""The steps of tasks that publish a large snapshot, named as in ``log_system/kafka/publisher/partition_tasks.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.model.broker import commit_transaction, forget, init_transactions, position_after
from tests.model.state import NOBODY, Guard, Position, Record, Scenario, State, Task, Transaction

ATTEMPT = 100
"""Holders from here on are task attempts, by slot."""


class TaskSteps:
    """What task attempts do. Attempts of one task may run at once, and after the process that sent them is dead."""

    def __init__(self, scenario: Scenario, removed: Guard | None, processes: int) -> None:
        self._rows = scenario.rows
        self._looks = removed is not Guard.ANNOUNCE
        self._reads_headers = removed is not Guard.TASK_HEADERS
        self._processes = processes
        plan = ["init_transactions", "group_positions", "tasks_token"]
        if removed is Guard.TASK_LOOKS_LAST:
            plan = ["tasks_token", "init_transactions", "group_positions"]
        elif removed is Guard.TASK_READS_LAST:
            plan = ["group_positions", "init_transactions", "tasks_token"]
        self.first = plan[0]
        self._after = dict(zip(plan, [*plan[1:], "commit_transaction"], strict=True))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Give each step that an attempt can take now."""
        for slot, task in enumerate(state.tasks):
            if task is not None and task.step not in {"done", "failed"}:
                for line, after in self._step(state, slot, task):
                    yield f"task {slot} (snapshot {task.snapshot}, partition {task.partition}): {line}", after

    def again(self, state: State, mine: Sequence[tuple[int, Task]]) -> Iterator[tuple[str, State]]:
        """Spark runs a task again, because it has not heard from the attempt before; that one may live on."""
        if None not in state.tasks:
            return
        free = state.tasks.index(None)
        for slot, task in mine:
            attempts = sum(other.partition == task.partition for _, other in mine)
            if task.step in {self.first, "done"} or attempts > 1:
                continue
            after = state.with_task(free, task._replace(step=self.first))
            yield f"Spark runs task {slot} again, as task {free}", after._replace(faults=state.faults - 1)

    def orphan(self, state: State, sender: int) -> State:
        """Nobody waits for these attempts any more; those that are still running go on."""
        for slot, task in enumerate(state.tasks):
            if task is None or task.sender != sender:
                continue
            if task.step in {"done", "failed"}:
                state = forget(state, ATTEMPT + slot).with_task(slot, None)
            else:
                state = state.with_task(slot, task._replace(sender=NOBODY))
        return state

    def _step(self, state: State, slot: int, task: Task) -> Iterator[tuple[str, State]]:
        name, me = self._processes + task.partition, ATTEMPT + slot
        if task.step == "init_transactions":
            after = init_transactions(state, name, me)
            yield "init_transactions", after.with_task(slot, task._replace(step=self._after[task.step]))
        elif task.step == "group_positions":
            held = state.group[task.partition] or self._last_position(state, task) or task.position
            after = state.with_task(slot, task._replace(step=self._after[task.step], position=held))
            yield "group_positions", after
        elif task.step == "tasks_token":
            if self._looks and state.token != task.token:
                yield "tasks_token is another's: FencedError", self._end(state, slot, task, "failed")
            else:
                yield "tasks_token is its own", state.with_task(slot, task._replace(step=self._after[task.step]))
        elif state.holders[name] != me:
            yield "send: FencedError", self._end(state, slot, task, "failed")
        else:
            yield from self._commit_transaction(state, slot, task, name)

    def _last_position(self, state: State, task: Task) -> Position | None:
        """witness.last_position: what the last record says that came after the task was made."""
        records, start = state.log[task.partition], task.position.end if task.position else 0
        if not self._reads_headers or len(records) <= start or not records[-1].headers:
            return None
        return position_after(records[-1], len(records), self._rows)

    def _commit_transaction(self, state: State, slot: int, task: Task, name: int) -> Iterator[tuple[str, State]]:
        """One transaction of one row."""
        position = task.position
        if position is not None and position.holds(task.snapshot):
            yield "the partition holds the snapshot", self._end(state, slot, task, "done")
            return
        row = position.rows_of(task.snapshot) if position else 0
        records = ((task.partition, (Record(task.snapshot, row, headers=True),)),)
        for answer, after in commit_transaction(state, name, Transaction(records), self._rows):
            if answer == "done":
                last = after.log[task.partition][-1]
                moved = position_after(last, len(after.log[task.partition]), self._rows)
                following = task._replace(position=moved)
                ended = self._end(after, slot, following, "done") if moved.done else after.with_task(slot, following)
                yield f"commit_transaction of row {row}: done", ended
            else:
                yield f"commit_transaction of row {row}: {answer}", self._end(after, slot, task, "failed")

    def _end(self, state: State, slot: int, task: Task, step: str) -> State:
        """The attempt has ended; its slot is free unless somebody waits for the result."""
        if task.sender == NOBODY:
            return forget(state, ATTEMPT + slot).with_task(slot, None)
        return state.with_task(slot, task._replace(step=step))
