"""Random queries of event time over the streams ``a`` and ``b``: windows, joins by them and by time, OVER."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WINDOWS = (
    "TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '10' SECOND)",
    "HOP(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)",
    "CUMULATE(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)",
)
AGGREGATES = ("SUM(n)", "COUNT(*)", "MAX(n)", "COUNT(DISTINCT n)", "SUM(DISTINCT n)", "MIN(n) FILTER (WHERE n > 1)")
FRAMES = ("", " RANGE INTERVAL '6' SECOND PRECEDING", " RANGE BETWEEN INTERVAL '0' SECOND PRECEDING AND CURRENT ROW")
KEPT = ("n > 1", "k <> 'b'", "n IS NOT NULL")


@dataclass
class _Maker:
    """Makes common table expressions, each over those before it.

    Attributes:
        chance: decides.
        made: name and text of each.
    """

    chance: random.Random
    made: list[tuple[str, str]] = field(default_factory=list)

    def named(self, text: str) -> str:
        """Add a query; return its name."""
        self.made.append((f"q{len(self.made)}", text))
        return self.made[-1][0]

    def any_of(self, makers: Sequence[Callable[[], str]]) -> str:
        return self.chance.choice(makers)()

    def rows(self, depth: int) -> str:
        """Add a query with the columns ``k``, ``n`` and ``ts``, an event time."""
        if depth == 0:
            return self.named(f"SELECT k, n, ts FROM {self.chance.choice('ab')}")

        def filtered() -> str:
            return f"SELECT k, n, ts FROM {self.rows(depth - 1)} WHERE {self.chance.choice(KEPT)}"

        def preceded() -> str:
            group = self.chance.choice(["PARTITION BY k ", "PARTITION BY n > 1 ", ""])
            over = f"{self.chance.choice(AGGREGATES)} OVER ({group}ORDER BY ts{self.chance.choice(FRAMES)})"
            if over.startswith("SUM(DISTINCT"):
                over = over.replace("DISTINCT ", "")
            return f"SELECT k, CAST({over} AS BIGINT) AS n, ts FROM {self.rows(depth - 1)}"

        def united() -> str:
            one, other = self.rows(depth - 1), self.rows(0)
            return f"SELECT k, n, ts FROM {one} UNION ALL SELECT k, n + 1, ts FROM {other}"

        def of_windows() -> str:
            windows = self.chance.choice(WINDOWS).format(self.rows(depth - 1))
            columns = "k, CAST(SUM(n) AS BIGINT) AS n, window_time AS ts"
            return f"SELECT {columns} FROM TABLE({windows}) GROUP BY k, window_start, window_end, window_time"

        def joined() -> str:
            return f"SELECT k, n, t AS ts FROM ({self.joined_by_time(depth)})"

        return self.named(self.any_of([filtered, preceded, preceded, united, of_windows, joined, joined]))

    def joined_by_time(self, depth: int) -> str:
        """Return an interval join with the columns ``k``, ``n`` and ``t``."""
        one, other = self.rows(depth - 1), self.rows(self.chance.randrange(depth))
        side = self.chance.choice(["", "LEFT "])
        between = "x.ts BETWEEN y.ts - INTERVAL '4' SECOND AND y.ts + INTERVAL '3' SECOND"
        columns = "x.k, x.n + COALESCE(y.n, 7) AS n, x.ts AS t"
        return f"SELECT {columns} FROM {one} x {side}JOIN {other} y ON x.k = y.k AND {between}"

    def windowed(self, depth: int) -> str:
        """Add a query with the columns ``k``, ``n``, ``ws`` and ``we``, the ends of windows."""

        def plain() -> str:
            windows = self.chance.choice(WINDOWS).format(self.rows(max(depth - 1, 0)))
            return f"SELECT k, n, window_start AS ws, window_end AS we FROM TABLE({windows})"

        def grouped() -> str:
            windows = self.chance.choice(WINDOWS).format(self.rows(max(depth - 1, 0)))
            columns = f"k, CAST({self.chance.choice(AGGREGATES)} AS BIGINT) AS n, window_start AS ws, window_end AS we"
            return f"SELECT {columns} FROM TABLE({windows}) GROUP BY k, window_start, window_end"

        if depth == 0:
            return self.named(self.any_of([plain, grouped]))

        def again() -> str:
            key, by = self.chance.choice([("k", "k, "), ("'all' AS k", "")])
            columns = f"{key}, CAST({self.chance.choice(AGGREGATES)} AS BIGINT) AS n, ws, we"
            return f"SELECT {columns} FROM {self.windowed(depth - 1)} GROUP BY {by}ws, we"

        def filtered() -> str:
            return f"SELECT k, n, ws, we FROM {self.windowed(depth - 1)} WHERE {self.chance.choice(KEPT)}"

        def distinct() -> str:
            return f"SELECT DISTINCT k, n, ws, we FROM {self.windowed(depth - 1)}"

        def joined() -> str:
            side, own = self.chance.choice([("", "x"), ("LEFT ", "x"), ("RIGHT ", "y")])
            on = self.chance.choice(["x.k = y.k", "x.k = y.k AND x.n <> y.n", "x.n = y.n"])
            one, other = self.windowed(depth - 1), self.windowed(self.chance.randrange(depth))
            columns = f"{own}.k, COALESCE(x.n, 0) + COALESCE(y.n, 100) AS n, {own}.ws, {own}.we"
            return f"SELECT {columns} FROM {one} x {side}JOIN {other} y ON {on} AND x.ws = y.ws AND x.we = y.we"

        def existing() -> str:
            one, other = self.windowed(depth - 1), self.windowed(self.chance.randrange(depth))
            word = self.chance.choice(["", "NOT "])
            within = f"SELECT 1 FROM {other} y WHERE x.k = y.k AND x.ws = y.ws AND x.we = y.we"
            return f"SELECT k, n, ws, we FROM {one} x WHERE {word}EXISTS ({within})"

        return self.named(self.any_of([plain, grouped, again, filtered, distinct, joined, joined, existing]))


def random_timed_query(chance: random.Random, depth: int) -> str:
    """Make a query with the columns ``k``, ``n`` and ``t``, the time or the end of the window of a row.

    Its result does not depend on the order of rows of one time.
    """
    maker = _Maker(chance)
    kind = chance.randrange(6)
    if kind == 0:
        last = f"SELECT k, n, ts AS t FROM {maker.rows(depth)}"
    elif kind == 1:
        last = maker.joined_by_time(depth)
    else:
        last = f"SELECT k, n, we AS t FROM {maker.windowed(depth)}"
    return f"WITH {', '.join(f'{name} AS ({text})' for name, text in maker.made)} {last}"
