"""The promises, as what must hold in every state, and what must hold when everybody has died and recover() has run."""

from __future__ import annotations

from collections import Counter

from tests.model.protocol import Protocol
from tests.model.state import FORGOTTEN, NO_TOKEN, NOBODY, Process, State

RECOVERY_STEPS_MAX = 200


class Promises:
    """Checks states. What it has checked once it does not check again: most states differ in what processes know."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._rows = protocol.scenario.rows
        self._seen: set[object] = set()
        self._mended: set[object] = set()

    def broken(self, state: State) -> list[str]:
        """Say which promise a state breaks, then the steps of the recovery that shows it."""
        finished = tuple(process.batch for process in state.processes)
        seen = (state.table, state.log, state.entries, finished)
        if seen not in self._seen:
            violation = self._broken_table(state) or self._broken_log(state) or self._broken_index(state)
            if violation is not None:
                return [violation]
            self._seen.add(seen)
        if not self._protocol.scenario.has_log:
            return []
        left = (state.table, state.log, state.entries, state.group, state.token)
        if left not in self._mended:
            violations = self._not_mended(state)
            if violations:
                return violations
            self._mended.add(left)
        return []

    def _broken_table(self, state: State) -> str | None:
        for commit_id, times in Counter(state.table).items():
            if times > 1:
                return f"committed twice: write {commit_id[1]} of writer {commit_id[0]}"
        for writer in range(len(self._protocol.scenario.writes)):
            for batch in range(state.processes[writer].batch):
                if (writer, batch) not in state.table:
                    return f"lost: write {batch} of writer {writer} has returned and is in no snapshot"
                if self._protocol.scenario.has_log and state.entries[state.table.index((writer, batch))] is None:
                    return f"not published: write {batch} of writer {writer} has returned and is not in the index"
        return None

    def _broken_log(self, state: State) -> str | None:
        """Promises 1 to 3: each partition is a prefix of what is committed."""
        for partition, records in enumerate(state.log):
            rows = [(record.snapshot, record.row) for record in records]
            early = [snapshot for snapshot, _ in rows if snapshot > len(state.table)]
            if early:
                return f"early: partition {partition} shows snapshot {early[0]}, which is not committed"
            doubled = [row for row, times in Counter(rows).items() if times > 1]
            if doubled:
                return f"doubled: partition {partition} holds row {doubled[0][1]} of snapshot {doubled[0][0]} twice"
            expected = [(1 + number // self._rows, number % self._rows) for number in range(len(rows))]
            if rows != expected:
                return f"out of order or lost: partition {partition} holds {rows} (snapshot, row)"
        return None

    def _broken_index(self, state: State) -> str | None:
        """Promise 4: an entry means that the snapshot is there, whole, and nothing else in its ranges."""
        for snapshot, entry in enumerate(state.entries, 1):
            for partition, (start, end) in enumerate(entry or ()):
                rows = [(record.snapshot, record.row) for record in state.log[partition][start:end]]
                if rows != [(snapshot, row) for row in range(self._rows)]:
                    return f"torn: the index says that snapshot {snapshot} is at {start}:{end} of partition {partition}"
        return None

    def _not_mended(self, state: State) -> list[str]:
        """Kill everybody, run recover() alone: all that is committed is in the log, and the index says so."""
        protocol, last = self._protocol, len(state.processes) - 1
        dead = tuple(Process("dead", batch=process.batch) for process in state.processes[:-1])
        ids = len(state.holders)
        state = state._replace(
            puts=frozenset(),
            holders=(NOBODY,) * ids,
            open=(None,) * ids,
            late=(False,) * ids,
            processes=(*dead, Process("recover", life=2, batch=state.processes[-1].batch)),
            tasks=(None,) * len(state.tasks),
            faults=0,
            expiries=0,
        )
        story = ["all processes die"]
        for _ in range(RECOVERY_STEPS_MAX):
            process = state.processes[last]
            # A writer in the last place has recovered when it goes on to write.
            if process.step in {"done", "log.version"}:
                break
            line, state = next(iter(protocol.alone(state, last, process)))
            story.append(f"recover alone: {line}")
        else:
            return ["recover() alone does not come to its end", "all processes die", *story[:12], "... and so on"]
        whole = len(state.table) * self._rows
        problem = self._broken_log(state) or self._broken_index(state)
        if problem is None and any(len(records) != whole for records in state.log):
            problem = "lost: not all that is committed is in the log"
        if problem is None and (None in state.entries or state.token not in {NO_TOKEN, FORGOTTEN}):
            problem = "the index has a gap, or a token is left"
        return [] if problem is None else [problem, *story]
