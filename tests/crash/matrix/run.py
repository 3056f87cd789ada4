"""The crash matrix: who dies, at which point of which verb, and what an auditor finds afterwards.

``python -m tests.crash.matrix.run [--seed N] [--only TEXT] [--every N] [--markdown]``; exit code 1 when a promise
broke. A combination is replayed by its seed and name: ``make crash SEED=7
ONLY=write/end:after/driver/upsert/json/small``.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from log_system.local_kafka.owned import LocalKafka
from tests.crash.matrix.audit import Verdict
from tests.crash.matrix.cases import Case, chosen
from tests.crash.matrix.runner import Result, run_case, run_fleet
from tests.crash.processes.batches import BROKER, DRIVER, EVENTUAL, NORMALIZE, ORPHAN, SETTLE, STREAMS, TASK
from tests.crash.processes.eventual import run_lives
from tests.crash.processes.normalized import run_query

WHO = (DRIVER, TASK, ORPHAN, BROKER)
AT_ONCE = 8
SPARKS = 2
"""How many sessions of Spark run at once."""
FLEET = 14


def run_all(cases: Sequence[Case], seed: int) -> Iterator[Result]:
    """Run combinations, several at once; those in which the broker dies on a broker of their own."""
    fleets = [case for case in cases if case.who == BROKER]
    streams = [case for case in cases if case.verb in STREAMS]
    lives = [case for case in cases if case.verb in {EVENTUAL, SETTLE}]
    queries = [case for case in cases if case.verb == NORMALIZE]
    apart = {EVENTUAL, SETTLE, NORMALIZE, *STREAMS}
    rest = [case for case in cases if case.who != BROKER and case.verb not in apart]
    with tempfile.TemporaryDirectory(prefix="crash-") as name, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        with LocalKafka() as kafka:
            running = [pool.submit(run_case, case, seed, folder, kafka.bootstrap_servers) for case in rest]
            for done in as_completed(running):
                yield done.result()
            with ThreadPoolExecutor(SPARKS) as few:
                running = [few.submit(run_case, case, seed, folder, kafka.bootstrap_servers) for case in streams]
                running += [few.submit(run_query, case, seed, folder, kafka.bootstrap_servers) for case in queries]
                for done in as_completed(running):
                    yield done.result()
            yield from run_lives(lives, seed, folder, kafka.bootstrap_servers)
        if fleets:
            with LocalKafka() as kafka, ThreadPoolExecutor(FLEET) as wide:
                for start in range(0, len(fleets), FLEET):
                    yield from run_fleet(fleets[start : start + FLEET], seed, folder, kafka, wide)


def matrix(results: Sequence[Result]) -> Table:
    """Count the combinations by point and who died."""
    table = Table(title="Crash matrix: combinations without a broken promise")
    table.add_column("verb")
    table.add_column("point")
    for who in WHO:
        table.add_column(who, justify="right")
    cells: dict[tuple[str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        cells[result.case.verb, result.case.point][result.case.who].append(result)
    for (verb, point), row in sorted(cells.items()):
        table.add_row(verb, point, *(_cell(row[who]) for who in WHO))
    return table


def totals(results: Sequence[Result]) -> Table:
    """Count broken promises by verb and who died."""
    names = [f.name for f in fields(Verdict)]
    table = Table(title="Totals")
    for name in ("verb", "who dies", "runs", *names, "trouble"):
        table.add_column(name, justify="left" if name in {"verb", "who dies"} else "right")
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.case.verb, result.case.who].append(result)
        groups["all", ""].append(result)
    for (verb, who), group in sorted(groups.items(), key=lambda item: item[0][0] == "all"):
        found = sum((r.verdict for r in group), Verdict())
        counts = [str(getattr(found, name)) for name in names]
        table.add_row(verb, who, str(len(group)), *counts, str(sum(bool(r.trouble) for r in group)))
    return table


def markdown(table: Table) -> str:
    """Write a table as a page wants it."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = [
        [str(column.header) for column in table.columns],
        ["---"] * len(columns),
        *map(list, zip(*columns, strict=True)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(results: Sequence[Result]) -> str:
    good = sum(r.good for r in results)
    return "" if not results else str(good) if good == len(results) else f"{good} of {len(results)}"


def main() -> int:
    """Run the matrix."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.matrix.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", help="only combinations whose name holds this")
    parser.add_argument("--every", type=int, default=1, help="about one combination in so many")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    given = parser.parse_args()
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    console = Console()
    wanted = chosen(given.seed, given.only, given.every)
    console.print(f"{len(wanted)} combinations, seed {given.seed}")
    began, results = time.monotonic(), []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("crashing", total=len(wanted))
        for result in run_all(wanted, given.seed):
            results.append(result)
            progress.advance(bar)
            if not result.good:
                found = f"{result.verdict} {result.trouble}"
                console.print(
                    f"make crash SEED={given.seed} ONLY={result.case.name}  (hit {result.hit})\n  {found}",
                    highlight=False,
                )
    for table in (matrix(results), totals(results)):
        console.print(markdown(table) if given.markdown else table, soft_wrap=given.markdown)
    bad = sum(not result.good for result in results)
    console.print(f"{len(results)} combinations in {time.monotonic() - began:.0f} s, {bad} bad; seed {given.seed}")
    return int(bad > 0 or not results)


if __name__ == "__main__":
    sys.exit(main())
