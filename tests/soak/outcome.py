"""What came of a soak, as a row of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from tests.crash.matrix.audit import Expected, Verdict
from tests.soak.crew import Log


@dataclass
class Outcome:
    """What came of a soak.

    Attributes:
        what: which.
        seconds: how long faults came.
        writers: how many processes wrote.
        faults: kills, stops or rounds.
        snapshots: how many there are at the end.
        verdict: how often each promise was broken.
        held: for each batch, seconds until it was committed and published.
        interruptions: errors that were answered by trying again.
        troubles: errors that should not be.
        notes: anything else worth a line.
    """

    what: str
    seconds: float
    writers: int
    faults: int = 0
    snapshots: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    held: list[float] = field(default_factory=list)
    interruptions: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is broken."""
        return self.verdict.clean and not self.troubles

    def take_logs(self, logs: Iterable[Log]) -> None:
        """Add up what the processes have left."""
        for log in logs:
            self.held += log.held
            self.interruptions += log.interruptions
            for name, count in log.wrong.items():
                if not count:
                    continue
                if hasattr(self.verdict, name):
                    self.verdict += Verdict(**{name: count})
                else:
                    self.troubles.append(f"{log.name}: {count} {name}")


def not_once(expected: Expected, logs: Iterable[Log]) -> int:
    """Count changes that the table holds twice, and batches that it lacks or that nobody had under way.

    Deletes do not name their batch and are not counted.
    """
    held = Counter(change for part in expected for _, change in part if change[1] is not None)
    written = {tuple(str(value).split(".")[:2]) for _, value in held}
    numbers: dict[str, set[int]] = {}
    for name, number in written:
        numbers.setdefault(name, set()).add(int(number))
    wrong = sum(count > 1 for count in held.values())
    for log in logs:
        found = numbers.get(log.name, set())
        wrong += len(set(log.values) - found)
        # One batch may have been under way when the writer gave up.
        wrong += sum(number > log.batches for number in found)
    return wrong


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Show what came of each soak."""
    shown = Table(title="Soak")
    names = ("soak", "seconds", "writers", "faults", "snapshots", "lost", "doubled", "early", "torn", "order", "index")
    for name in (*names, "table", "p50", "p99", "longest", "tried again", "errors"):
        shown.add_column(name, justify="left" if name in {"soak", "tried again", "errors"} else "right")
    for one in outcomes:
        held, verdict = sorted(one.held), one.verdict
        times = [f"{held[int(share * (len(held) - 1))]:.2f} s" for share in (0.5, 0.99, 1)] if held else [""] * 3
        broken = (verdict.lost, verdict.doubled, verdict.early, verdict.torn, verdict.order, verdict.index)
        shown.add_row(
            one.what,
            f"{one.seconds:.0f}",
            *map(str, (one.writers, one.faults, one.snapshots, *broken, verdict.table + verdict.apart)),
            *times,
            ", ".join(f"{count} {name}" for name, count in sorted(one.interruptions.items())),
            "; ".join([f"{len(one.troubles)} errors" if one.troubles else "", *one.notes]).lstrip("; "),
        )
    return shown


def only_folder(path: Path) -> Path:
    """Make the folder of a table, so that files beside the table are its own."""
    path.parent.mkdir(parents=True)
    return path
