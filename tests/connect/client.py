"""A client of a Connect server that tests kill: writes once, or starts a stream and waits."""

from __future__ import annotations

import sys

from tablestore import TableStore, session
from tests.crash.kill_points import KillPoint, set_trap


def main() -> None:
    """Do what the arguments say: the server, the table, then a point or the source and checkpoint of a stream."""
    remote, path, *how = sys.argv[1:]
    remote = session(remote=remote)
    table = TableStore.open(remote, path)
    if len(how) == 1:
        set_trap(KillPoint(how[0], 1))
        table.write(remote.range(4, 6).selectExpr("id", "'d' AS v"))
    else:
        source, checkpoint = how
        stream = TableStore.open(remote, source).read_stream()
        table.write_stream(stream, checkpoint=checkpoint, trigger={"processingTime": "0 seconds"})
        print("started", flush=True)  # noqa: T201 - to the test
        sys.stdin.read()


if __name__ == "__main__":
    main()
