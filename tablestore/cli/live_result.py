"""The current result of a continuous query, kept up to date from its changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from snapshot.errors import InvalidInputError
from tablestore.cli.output import text_of

ROWS_MAX = 10_000
"""Maximum number of rows kept in memory."""
_FRAME_LINES = 6
"""Screen lines taken by the table's heading and the progress lines."""


class LiveTable:
    """The rows of a query's current result.

    An append-only query keeps its last rows. A changelog retracts whole rows and adds new ones.
    """

    def __init__(self, names: Sequence[str], *, has_changes: bool) -> None:
        """Create an empty result with columns of these names; if the query ``has_changes``, they retract rows."""
        self._names = list(names)
        self._appends = not has_changes
        self._last: deque[tuple[object, ...]] = deque(maxlen=ROWS_MAX)
        self._rows: dict[str, list[tuple[object, ...]]] = {}
        self._count = 0

    def apply(self, changes: Iterable[tuple[object, ...]]) -> None:
        """Apply changes, each a sign (``+I``, ``-U``, ``+U`` or ``-D``) followed by the row's values.

        Raises:
            InvalidInputError: a change retracts a row that was never added, or there are too many rows.
        """
        taken_back = []
        for sign, *values in changes:
            row = tuple(values)
            if self._appends:
                self._last.append(row)
                self._count += 1
            elif sign in ("-U", "-D"):
                taken_back.append(row)
            else:
                self._put(row)
        # Changes of different groups arrive in any order: a group may retract a row that equals one which another
        # group adds in the same batch. So all additions come first.
        for row in taken_back:
            self._take_back(row)

    def rows(self) -> list[tuple[object, ...]]:
        """Return the current rows: the last ones of an append-only query, otherwise all, sorted by value."""
        if self._appends:
            return list(self._last)
        unsorted = [row for rows in self._rows.values() for row in rows]
        try:
            return sorted(unsorted, key=lambda row: [(value is None, value) for value in row])
        except TypeError:
            # Some values, such as maps, cannot be ordered.
            return sorted(unsorted, key=repr)

    def view(self, lines: int) -> Table:
        """Return a table of the rows that fit into ``lines`` of the screen: the last appended or the first sorted."""
        room = max(1, lines - _FRAME_LINES)
        all_rows = self.rows()
        shown = all_rows[-room:] if self._appends else all_rows[:room]
        left = (self._count if self._appends else len(all_rows)) - len(shown)
        caption = f"and {left:,} rows {'before' if self._appends else 'more'}" if left else None
        table = Table(caption=caption, caption_justify="left")
        for name in self._names:
            table.add_column(Text(name), overflow="fold")
        for row in shown:
            table.add_row(*(Text(text_of(value)) for value in row))
        return table

    def _put(self, row: tuple[object, ...]) -> None:
        self._rows.setdefault(repr(row), []).append(row)
        if len(self._rows) > ROWS_MAX:
            msg = f"--live keeps at most {ROWS_MAX:,} rows; this result has more. Leave --live out to see the changes."
            raise InvalidInputError(msg)

    def _take_back(self, row: tuple[object, ...]) -> None:
        key = repr(row)
        same_rows = self._rows.get(key)
        if not same_rows:
            msg = "--live: a change retracts a row that is not in the result. Leave --live out to see the changes."
            raise InvalidInputError(msg)
        same_rows.pop()
        if not same_rows:
            del self._rows[key]
