"""Calls on a table in an object store that answers every request 20 ms late, beside deltalake, without Spark.

The store is moto's server of the S3 protocol on loopback, in a process of its own, behind a proxy that waits and
counts requests; the server itself takes some milliseconds for each. Ours is a table with a key, two buckets and no
log: rows, a compaction, then writes of a thousand keys each. deltalake's is one file with the same rows, and nothing to
merge. A read opens the table first, as a new process does; so do ``count`` and ``get``. A write of one row is one on an
open handle, and an append of one row by ``write_deltalake``.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Callable

from deltalake import DeltaTable, write_deltalake

from benchmarks.harness import Bench, Result, at_least, count_text, main, seconds_text, timed
from benchmarks.local_write import SCHEMA, rows
from tablestore import create_local, open_local
from tests.harness.lossy_proxy import faulty, requests_since
from tests.harness.s3_server import aws_variables, s3_server

_LATE_SECONDS = 0.02
_WRITES, _KEYS = 8, 1000
_NEEDED = ("moto", "s3fs")


def run(bench: Bench) -> list[Result]:
    """Measure calls, and count their requests."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return [
            Result("object_store: skipped", f"not installed: {', '.join(missing)}. Run: pip install 'moto[s3]' s3fs")
        ]
    with s3_server() as endpoint:
        os.environ.update(aws_variables(endpoint))
        import s3fs  # noqa: PLC0415 - an extra of the package

        s3fs.S3FileSystem().mkdir("lake")
        return _measured(bench, endpoint)


def _measured(bench: Bench, endpoint: str) -> list[Result]:
    size = bench.size(200_000, 50_000)
    bench.say(f"making two tables of {count_text(size)} rows")
    ours, theirs, appended, data = "s3://lake/ours", "s3://lake/theirs", "s3://lake/appended", rows(size)
    options = {"bucket": 2, "compaction.auto": "false"}
    table = create_local(ours, SCHEMA, primary_key=["id"], options=options)
    table.write(data)
    table.compact()
    for number in range(_WRITES):
        table.write(data.slice(number * _KEYS, _KEYS))
    write_deltalake(theirs, data)
    written = create_local("s3://lake/written", SCHEMA, primary_key=["id"], options=options)
    row = data.slice(0, 1)

    calls: dict[str, Callable[[], object]] = {
        "deltalake, read": lambda: DeltaTable(theirs).to_pyarrow_table(),
        "to_arrow": lambda: open_local(ours).to_arrow(),
        "count": lambda: open_local(ours).count(),
        "get": lambda: open_local(ours).get(size // 2),
        "get, open": lambda: table.get(size // 2),
        "deltalake, write": lambda: write_deltalake(appended, row, mode="append"),
        "write, open": lambda: written.write(row),
    }
    made: dict[str, list[int]] = {name: [] for name in calls}

    def round_of(name: str) -> Callable[[], float]:
        def run_call() -> float:
            requests_since(endpoint)
            taken = timed(calls[name])
            made[name].append(len(requests_since(endpoint)))
            return taken

        return run_call

    with faulty(endpoint, late_seconds=_LATE_SECONDS):
        turns = bench.take_turns("calls", {name: round_of(name) for name in calls}, rounds=bench.size(9, 3))
    counted = {name: f"{statistics.median(made[name][1:]):.0f} requests" for name in calls}
    what = f"a table of {count_text(size)} rows and {_WRITES} writes since, 20 ms for an answer"
    compared = {"to_arrow": "deltalake, read", "write, open": "deltalake, write"}
    found = []
    for name in ("to_arrow", "count", "get", "get, open", "write, open"):
        text = f"{name}: {what} ({counted[name]})"
        if name in compared:
            other = compared[name]
            found.append(at_least(text, turns[name], turns[other], 0.5, f"{other} ({counted[other]})"))
        else:
            found.append(Result(text, seconds_text(turns[name].median)))
    return found


if __name__ == "__main__":
    main(run)
