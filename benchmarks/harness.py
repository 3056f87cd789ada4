"""The benchmarks' common parts: a Spark session and a broker, timing in turns, and results with targets.

Absolute figures depend on the machine's load, ratios hardly do. So contestants take turns in one run, after a warm-up
round, and the median of one is divided by the median of the other.
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
from tablestore.table.store import TableStore

CORES = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """One line of the results table.

    Attributes:
        what: what was measured.
        ours: our figure, with its unit.
        baseline: the figure that it is compared with; empty if there is none.
        ratio: our figure relative to the baseline; empty without a baseline.
        target: the required ratio or figure; empty if it is only reported.
        met: whether the target is met; None without a target.
    """

    what: str
    ours: str
    baseline: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Timed:
    """The seconds of each round of one contestant, and the number of rows per round."""

    seconds: tuple[float, ...]
    rows: int | None = None

    @property
    def median(self) -> float:
        """The median of the rounds, in seconds."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        """Return the median as rows per second if rows are counted, else as seconds."""
        if self.rows is None:
            return seconds_text(self.median)
        return f"{self.rows / self.median:,.0f} rows/s"


class Bench:
    """A context manager with a Spark session, a broker and a folder; session and broker start on first use."""

    def __init__(self, *, small: bool, say: Say) -> None:
        """Create a bench for small or full sizes; ``say`` displays progress."""
        self.small = small
        self.say = say
        self._stack = ExitStack()
        self._names = 0

    def __enter__(self) -> Self:
        """Create the folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="tablestore-bench-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the session and the broker, and remove the folder."""
        self._stack.close()

    def size(self, full: int, small: int) -> int:
        """Return the number for the size of this run."""
        return small if self.small else full

    @cached_property
    def spark(self) -> SparkSession:
        """A Spark session on ``CORES`` cores."""
        self.say("starting Spark")
        spark = session("benchmarks", master=f"local[{CORES}]", warehouse=self.folder / "warehouse")
        self._stack.callback(spark.stop)
        return spark

    @cached_property
    def kafka(self) -> LocalKafka:
        """A local Kafka broker."""
        self.say("starting Kafka")
        return self._stack.enter_context(LocalKafka())

    def path(self, name: str) -> str:
        """Return a new path in the folder."""
        self._names += 1
        return str(self.folder / f"{name}-{self._names}")

    def table(
        self, name: str, schema: str, *, key: Sequence[str] = (), log: str | None = None, **options: object
    ) -> TableStore:
        """Create a table, with a log if ``log`` is a log format. In option names ``__`` stands for a dot."""
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
        """Run contestants in turns after a warm-up round; each prepares its round and returns the seconds to count."""
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
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def at_least(what: str, ours: Timed, baseline: Timed, times: float, name: str) -> Result:
    """Return a result with the target of at least ``times`` the speed of the baseline called ``name``."""
    ratio = _speed(ours) / _speed(baseline)
    return Result(what, str(ours), f"{name}: {baseline}", f"{ratio:.2f}x as fast", f">= {times:g}", ratio >= times)


def at_most(what: str, ours: Timed, baseline: Timed, times: float, name: str) -> Result:
    """Return a result with the target of at most ``times`` the seconds of the baseline called ``name``."""
    ratio = ours.median / baseline.median
    return Result(what, str(ours), f"{name}: {baseline}", f"{ratio:.2f}x the time", f"<= {times:g}", ratio <= times)


def limit(what: str, figure: float, most: float | None, show: Callable[[float], str]) -> Result:
    """Return a result whose figure must not exceed ``most``; None only reports it."""
    if most is None:
        return Result(what, show(figure))
    return Result(what, show(figure), "", "", f"<= {show(most)}", figure <= most)


def reach(what: str, rate: float, least: float | None) -> Result:
    """Return a result whose rows per second must reach ``least``; None only reports them."""
    if least is None:
        return Result(what, f"{rate:,.0f} rows/s")
    return Result(what, f"{rate:,.0f} rows/s", "", "", f">= {least:,.0f} rows/s", rate >= least)


def seconds_text(seconds: float) -> str:
    """Return seconds as text, in milliseconds if less than one second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def count_text(rows: int) -> str:
    """Return a row count as text, in millions if large."""
    return f"{rows / 1e6:g} M" if rows >= 1_000_000 else f"{rows:,}"


def show(console: Console, results: Sequence[Result], *, small: bool) -> None:
    """Print the results table."""
    size = "small sizes: for a first look, the targets are meant for the full ones" if small else "full sizes"
    table = Table(title=f"Benchmarks, {CORES} cores, medians, {size}", title_justify="left")
    for heading in ("what", "ours", "baseline", "ratio", "target", "met"):
        table.add_column(heading, justify="left" if heading in ("what", "baseline") else "right", overflow="fold")
    for r in results:
        met = "" if r.met is None else "[green]yes[/]" if r.met else "[red]no[/]"
        table.add_row(r.what, r.ours, r.baseline, r.ratio, r.target, met)
    console.print(table)


def main(run: Callable[[Bench], list[Result]]) -> None:
    """Run a single benchmark group from the command line."""

    def command(*, small: Annotated[bool, typer.Option("--small", help="smaller sizes")] = False) -> None:
        console = Console()
        with Bench(small=small, say=lambda text: console.print(f"[dim]{text}[/]")) as bench:
            results = run(bench)
        show(console, results, small=small)

    typer.run(command)


def _speed(contestant: Timed) -> float:
    return (contestant.rows or 1) / contestant.median
