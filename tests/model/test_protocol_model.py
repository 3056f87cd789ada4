"""The protocol as a model: no order of steps, lost answers and crashes breaks a promise, and each guard is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.explore import Found, explore
from tests.model.promises import Promises
from tests.model.protocol import Protocol
from tests.model.state import Guard, Scenario, State

COMMITS = Scenario("commits", (2, 1), durable=frozenset({0}), has_log=False, faults=3)
"""Two writers, one a streaming query that comes back after its death and repeats itself; no log."""

SMALL = Scenario("small snapshots", (1, 1), recovers=True, faults=1)
"""Two writers and a recovering process, each publishing in the driver."""

REPLAY = Scenario("a replayed batch", (1,), durable=frozenset({0}), recovers=True, faults=3, partitions=2)
"""A streaming query that comes back, a recovering process, two partitions."""

EXPIRY = Scenario("expired group", (2,), recovers=True, faults=2, expiries=1)
"""The broker forgets the register."""

TASKS = Scenario("several transactions", (1,), recovers=True, faults=1, rows=2, driver_rows_max=0, slots=2)
"""Tasks publish, in two transactions each; Spark runs them again while they live."""

MIXED = Scenario("tasks, then the driver", (1,), recovers=True, faults=1, partitions=2, driver_rows_max=1, slots=2)
"""Tasks publish two partitions. When only one is left, the driver publishes it, while the other's task may live."""

FORGOTTEN_REGISTER = TASKS._replace(name="expired register", recovers=False, faults=2, expiries=1)
"""The broker forgets the register, or the token, while a task is run again."""

FORGOTTEN_TOKEN = MIXED._replace(name="expired token", faults=0, expiries=1)
"""The broker forgets the token, or the register, while tasks publish that nobody has heard from."""

SCENARIOS = (COMMITS, SMALL, REPLAY, EXPIRY, TASKS, MIXED, FORGOTTEN_REGISTER, FORGOTTEN_TOKEN)

BREAKS = {
    Guard.COMMIT_FIRST: (SMALL, "early"),
    Guard.PUT_IF_ABSENT: (COMMITS, "lost"),
    Guard.LOOK_UP: (COMMITS, "committed twice"),
    Guard.LOOK_AT_ALL: (REPLAY, "not published"),
    Guard.FENCE_OWNER: (SMALL, "doubled"),
    Guard.REGISTER_LAST: (SMALL, "doubled"),
    Guard.ONE_TRANSACTION: (SMALL, "doubled"),
    Guard.DISCARD: (SMALL, "doubled"),
    Guard.IN_ORDER: (SMALL, "recover() alone does not come to its end"),
    Guard.INDEX_LAST: (SMALL, "torn"),
    Guard.HEADERS: (EXPIRY, "doubled"),
    Guard.INDEX_WITNESS: (EXPIRY, "doubled"),
    Guard.ANNOUNCE: (MIXED, "doubled"),
    Guard.FENCE_TASKS: (MIXED, "doubled"),
    Guard.FENCE_FORGOTTEN: (FORGOTTEN_TOKEN, "doubled"),
    Guard.TASK_HEADERS: (FORGOTTEN_REGISTER, "doubled"),
    Guard.TOKEN_FIRST: (MIXED, "doubled"),
    Guard.TOKEN_LAST: (MIXED, "doubled"),
    Guard.TASK_LOOKS_LAST: (MIXED, "doubled"),
    Guard.TASK_READS_LAST: (TASKS, "doubled"),
    Guard.OWN_GROUP: (TASKS, "doubled"),
}
"""The scenario in which a guard's absence shows, and how."""


def search(scenario: Scenario, removed: Guard | None = None) -> Found[State]:
    protocol = Protocol(scenario, removed)
    return explore(protocol.start(), protocol.steps, Promises(protocol).broken)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_order_of_steps_breaks_a_promise(scenario: Scenario, record_property: Callable[[str, object], None]) -> None:
    found = search(scenario)
    record_property("states", found.states)
    print(f"{scenario.name}: {found.states} states")  # noqa: T201 - shown by pytest -s
    assert found.violation is None, str(found)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name)
def test_without_this_guard_a_promise_breaks(guard: Guard) -> None:
    scenario, how = BREAKS[guard]
    found = search(scenario, guard)
    print(f"without {guard.value!r}: {found}")  # noqa: T201 - shown by pytest -s
    assert found.violation is not None, f"the model does not need the guard {guard.value!r}: {found}"
    assert found.violation.startswith(how), str(found)
