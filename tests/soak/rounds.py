"""What came of a round of random queries."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

SHOWN = 2_000


@dataclass
class Round:
    """What came of a round.

    Attributes:
        queries: the queries that ran.
        refused: how many were refused, by the construct that the message names.
        batches: how many micro-batches were compared.
        wrong: what was wrong with them; empty if nothing.
    """

    queries: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    wrong: str = ""

    def refuse(self, error: Exception) -> None:
        """Count a query that was refused."""
        self.refused[re.sub(r"line \d+, column \d+: |'[^']*'", "", str(error).splitlines()[0])[:80]] += 1
