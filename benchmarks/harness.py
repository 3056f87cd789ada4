"""What the measurements share: a session and a broker of their own, taking turns, and results with their targets.

Figures of a busy machine mean little, ratios a lot: contestants take turns in one run, after a warm-up round, and the
median of one is divided by the median of the other.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from log_system.local_kafka.owned import LocalKafka
from tablestore.session import session
from tablestore.table import TableStore

CORES = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        what: what was measured.
        ours: our figure, with its unit.
        baseline: what it is compared to; empty where there is only a limit.
        ratio: ours against the baseline; empty likewise.
        target: what the ratio or the figure must be; empty where it is only reported.
        met: whether it is; None without a target.
    """

    what: str
    ours: str
    baseline: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Timed:
    """Seconds of one contestant's rounds, and how many rows each round had."""

    seconds: tuple[float, ...]
    rows: int | None = None

    @property
    def median(self) -> float:
        """The median of the rounds, in seconds."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        """Show rows per second where rows are counted, else seconds."""
        if self.rows is None:
            return seconds_text(self.median)
        return f"{self.rows / self.median:,.0f} rows/s"


class Bench:
    """A session and a broker in folders of their own, made when first asked for. A context manager."""

    def __init__(self, *, small: bool, say: Say) -> None:
        """Measure with small sizes or full ones; ``say`` shows what is going on."""
        self.small = small
        self.say = say
        self._stack = ExitStack()
        self._names = 0

    def __enter__(self) -> Self:
        """Make the folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="tablestore-bench-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what was started and remove the folder."""
        self._stack.close()

    def size(self, full: int, small: int) -> int:
        """Choose a number by the size of the run."""
        return small if self.small else full

    @cached_property
    def spark(self) -> SparkSession:
        """A session on two cores."""
        self.say("starting Spark")
        spark = session("benchmarks", master=f"local[{CORES}]", warehouse=self.folder / "warehouse")
        self._stack.callback(spark.stop)
        return spark

    @cached_property
    def kafka(self) -> LocalKafka:
        """A broker."""
        self.say("starting Kafka")
        return self._stack.enter_context(LocalKafka())

    def path(self, name: str) -> str:
        """Give a new path in the folder."""
        self._names += 1
        return str(self.folder / f"{name}-{self._names}")

    def table(
        self, name: str, schema: str, *, key: Sequence[str] = (), log: str | None = None, **options: object
    ) -> TableStore:
        """Make a table; with ``log`` (a format) also its log. In option names ``__`` stands for a dot."""
        path = self.path(name)
        named: dict[str, Any] = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
        if log is not None:
            named |= {
                "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
                "kafka.topic": Path(path).name,
                "log.format": log,
            }
        system = None if log is None else "kafka"
        return TableStore.create(self.spark, path, schema, primary_key=key, log_system=system, options=named)

    def take_turns(
        self, what: str, contestants: Mapping[str, Callable[[], float]], *, rounds: int, rows: int | None = None
    ) -> dict[str, Timed]:
        """Run contestants by turns, a warm-up round first. Each prepares its round and gives the seconds that count."""
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds + 1):
            for name, run in contestants.items():
                self.say(f"{what}: {name}, {f'round {number} of {rounds}' if number else 'warm-up'}")
                taken = run()
                if number:
                    seconds[name].append(taken)
        found = {name: Timed(tuple(taken), rows) for name, taken in seconds.items()}
        self.say(f"{what}: {', '.join(f'{name} {taken}' for name, taken in found.items())}")
        return found


def timed(work: Callable[[], object]) -> float:
    """Give the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def at_least(what: str, ours: Timed, baseline: Timed, times: float, name: str) -> Result:
    """Ours must be at least so many times as fast as the baseline called ``name``."""
    ratio = _speed(ours) / _speed(baseline)
    return Result(what, str(ours), f"{name}: {baseline}", f"{ratio:.2f}x as fast", f">= {times:g}", ratio >= times)


def at_most(what: str, ours: Timed, baseline: Timed, times: float, name: str) -> Result:
    """Ours must take at most so many times the baseline's seconds."""
    ratio = ours.median / baseline.median
    return Result(what, str(ours), f"{name}: {baseline}", f"{ratio:.2f}x the time", f"<= {times:g}", ratio <= times)


def limit(what: str, figure: float, most: float | None, show: Callable[[float], str]) -> Result:
    """A figure that must not exceed a limit; without one it is only reported."""
    if most is None:
        return Result(what, show(figure))
    return Result(what, show(figure), "", "", f"<= {show(most)}", figure <= most)


def reach(what: str, rate: float, least: float | None) -> Result:
    """Rows a second that must be reached; without a limit only reported."""
    if least is None:
        return Result(what, f"{rate:,.0f} rows/s")
    return Result(what, f"{rate:,.0f} rows/s", "", "", f">= {least:,.0f} rows/s", rate >= least)


def seconds_text(seconds: float) -> str:
    """Show seconds, short ones in milliseconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def percentile(values: Sequence[float], percent: float) -> float:
    """Give a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def count_text(rows: int) -> str:
    """Show a number of rows as people say it."""
    return f"{rows / 1e6:g} M" if rows >= 1_000_000 else f"{rows:,}"


def show(console: Console, results: Sequence[Result], *, small: bool) -> None:
    """Print the table."""
    size = "small sizes: for a first look, the targets are meant for the full ones" if small else "full sizes"
    table = Table(title=f"Benchmarks, {CORES} cores, medians, {size}", title_justify="left")
    for heading in ("what", "ours", "baseline", "ratio", "target", "met"):
        table.add_column(heading, justify="left" if heading in ("what", "baseline") else "right", overflow="fold")
    for r in results:
        met = "" if r.met is None else "[green]yes[/]" if r.met else "[red]no[/]"
        table.add_row(r.what, r.ours, r.baseline, r.ratio, r.target, met)
    console.print(table)


def main(run: Callable[[Bench], list[Result]]) -> None:
    """Run one group on its own, from the command line."""

    def command(*, small: Annotated[bool, typer.Option("--small", help="smaller sizes")] = False) -> None:
        console = Console()
        with Bench(small=small, say=lambda text: console.print(f"[dim]{text}[/]")) as bench:
            results = run(bench)
        show(console, results, small=small)

    typer.run(command)


def _speed(contestant: Timed) -> float:
    return (contestant.rows or 1) / contestant.median
