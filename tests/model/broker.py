"""The broker and the table's file system, as far as the protocol can tell.

A call that ends a transaction, or puts a Delta version, is answered or not. When no answer comes, the call is under
way: it may be carried out at any later time, or never. That is all four answers in one: ``failed`` is a call that is
never carried out (the code treats each error alike: the producer goes), ``unknown`` one of which nobody can tell, and
``late`` one that is carried out after the caller has gone on. What stops a late call is only what stops it in reality:
another ``init_transactions`` with the same id, or another commit of the same version.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.state import FORGOTTEN, NOBODY, Position, Record, State, Transaction, put


def position_after(record: Record, end: int, rows: int) -> Position:
    """The position that a transaction's last record carries in its headers."""
    return Position(record.snapshot, record.row + 1, record.row + 1 == rows, end)


def init_transactions(state: State, name: int, who: int) -> State:
    """Take a transactional id over: its open transaction is aborted, and what is under way for it is refused."""
    return state._replace(
        holders=put(state.holders, name, who),
        open=put(state.open, name, None),
        late=put(state.late, name, False),
    )


def carry_out(state: State, name: int, rows: int) -> State:
    """Commit the open transaction of a transactional id."""
    transaction = state.open[name]
    assert transaction is not None
    log, group = state.log, transaction.register or state.group
    for partition, records in transaction.records:
        log = put(log, partition, log[partition] + records)
        if transaction.moves:
            group = put(group, partition, position_after(records[-1], len(log[partition]), rows))
    return state._replace(
        log=log,
        group=group,
        token=state.token if transaction.token is None else transaction.token,
        open=put(state.open, name, None),
        late=put(state.late, name, False),
    )


def commit_transaction(state: State, name: int, transaction: Transaction, rows: int) -> Iterator[tuple[str, State]]:
    """End a transaction; the answers are ``done`` and, while faults are left, ``no answer``."""
    opened = state._replace(open=put(state.open, name, transaction), late=put(state.late, name, False))
    yield "done", carry_out(opened, name, rows)
    if state.faults:
        yield "no answer", opened._replace(late=put(opened.late, name, True), faults=state.faults - 1)


def commit_version(state: State, version: int, commit_id: tuple[int, int], *, if_absent: bool) -> State | None:
    """Put a Delta version; None when somebody has."""
    if version == len(state.table) + 1:
        return state._replace(table=(*state.table, commit_id), entries=(*state.entries, None))
    return None if if_absent else state._replace(table=put(state.table, version - 1, commit_id))


def late_steps(state: State, rows: int, names: list[str], *, if_absent: bool) -> Iterator[tuple[str, State]]:
    """What is under way is carried out, and the groups expire."""
    for name, late in enumerate(state.late):
        if late:
            yield f"broker: a late commit_transaction of {names[name]} is carried out", carry_out(state, name, rows)
    for late_put in state.puts:
        version, commit_id = late_put
        left = state._replace(puts=state.puts - {late_put})
        done = commit_version(left, version, commit_id, if_absent=if_absent)
        if done is not None:
            yield f"file system: a late log.commit of version {version} is carried out", done
    if state.expiries and not any(state.open) and any(state.group):
        expired: tuple[None, ...] = (None,) * len(state.group)
        yield "broker: the register expires", state._replace(group=expired, expiries=state.expiries - 1)
    if state.expiries and not any(state.open) and state.tasks and state.token != FORGOTTEN:
        yield "broker: the token expires", state._replace(token=FORGOTTEN, expiries=state.expiries - 1)


def forget(state: State, who: int) -> State:
    """Nobody may use the producers of a task attempt that is gone; what is under way stays so."""
    return state._replace(holders=tuple(NOBODY if holder == who else holder for holder in state.holders))
