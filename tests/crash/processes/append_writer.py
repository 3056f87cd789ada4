"""A local writer that may be killed: appends numbered batches, each committed once however often it is started."""

from __future__ import annotations

from tablestore import open_local
from tests.crash.kill_points import KillPoint, set_trap
from tests.harness.local_writes import Row

_ROWS = 8


def rows_in(batch: int) -> list[Row]:
    """Return a batch's rows, which occur in no other batch."""
    return [(number, f"{batch}") for number in range(_ROWS)]


def run(path: str, name: str, batches: range, point: str, hit: int) -> None:
    """Append batches until done or dead."""
    set_trap(KillPoint(point, hit, None))
    with open_local(path) as table:
        for batch in batches:
            table.write([{"id": number, "v": value} for number, value in rows_in(batch)], batch=(name, batch))
