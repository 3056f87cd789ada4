"""The cases of a file: SQL, one a line, with what is expected of the two answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.peers.outcomes import Failure, Outcome


@dataclass(frozen=True)
class Case:
    """An expression or a query.

    Attributes:
        section: the heading that it is under.
        sql: its text.
        expected: ``same``; ``fails``, by both sides; or ``differs``.
        reason: why the answers differ.
    """

    section: str
    sql: str
    expected: str = "same"
    reason: str = ""

    def __str__(self) -> str:
        return self.sql

    def check(self, theirs: Outcome, ours: Outcome) -> None:
        """Compare two answers. A difference that is listed and is none is an error, too."""
        if self.expected == "differs":
            assert ours != theirs, f"no longer: {self.reason}"
            return
        assert ours == theirs
        assert isinstance(ours, Failure) == (self.expected == "fails")


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file, whose lines are ``---- heading``, ``-- comment``, or SQL with a note of its own.

    The notes are ``-- fails`` and ``-- differs: why``.
    """
    section, cases = "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("----"):
            section = line.strip("- ")
        elif line.strip() and not line.startswith("--"):
            sql, _, note = line.partition(" -- ")
            expected, _, reason = note.partition(": ")
            assert expected in ("", "fails", "differs"), line
            cases.append(Case(section, sql.strip(), expected or "same", reason))
    assert len({case.sql for case in cases}) == len(cases), f"{path}: a case is there twice"
    return cases
