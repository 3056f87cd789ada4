"""How far a service has compared a table's log with the table, stored beside the log index."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from log_system.index import INDEX
from log_system.report import Compared, Difference, DifferenceKind, Report
from snapshot.storage import Storage

FILE = "_verified.json"
_PATH = f"{INDEX}/{FILE}"
_KEPT_MAX = 200
"""Maximum number of differences that are stored; further ones are only counted."""


@dataclass(frozen=True)
class Pass:
    """The progress and result of a comparison of log and table, snapshot by snapshot.

    Attributes:
        compared: where the next step starts; None before the first one.
        differences: the differences found.
        more: number of further differences, which are not stored.
    """

    compared: Compared | None = None
    differences: tuple[Difference, ...] = ()
    more: int = 0

    @property
    def snapshot(self) -> int:
        """The last snapshot compared."""
        return 0 if self.compared is None else self.compared.snapshot

    def then(self, report: Report, *, at_end: bool) -> Pass:
        """Return the pass after one more step.

        At the end of the log, a report repeats the differences that are in no snapshot, so earlier reports of these are
        dropped.
        """
        if report.after != self.snapshot:
            # The log was compared whole, because its compared part has changed.
            return _found(Pass(report.compared), (), report)
        kept = [each for each in self.differences if each.snapshot is not None or not at_end]
        return _found(replace(self, compared=report.compared), kept, report)

    def again(self, snapshot: int, report: Report) -> Pass:
        """Return the pass after a snapshot with differences was compared again."""
        others = [each for each in self.differences if each.snapshot != snapshot]
        found = tuple(each for each in report.differences if each.snapshot == snapshot)
        return _found(self, others, replace(report, differences=found, more=0))


@dataclass(frozen=True)
class Verified:
    """The state of the comparisons of one table, which services share.

    Attributes:
        table: the table's id.
        latest: the comparison of new snapshots.
        whole: the comparison of the whole log that is under way; None if there is none.
        whole_ms: when the last comparison of the whole log ended, in milliseconds since the epoch; 0 for never.
        at_ms: when this was stored.
    """

    table: str
    latest: Pass = Pass()
    whole: Pass | None = None
    whole_ms: int = 0
    at_ms: int = 0

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences that are known."""
        return merged(self.latest.differences, () if self.whole is None else self.whole.differences)

    @property
    def count(self) -> int:
        """The number of known differences, including those that are counted but not stored."""
        return len(self.differences) + self.latest.more + (0 if self.whole is None else self.whole.more)

    def to_json(self) -> bytes:
        """Return the state as JSON that ``from_json`` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Verified:
        """Parse a state.

        Raises:
            ValueError: the text is not a state.
        """
        try:
            raw = json.loads(text)
            whole = None if raw["whole"] is None else _pass(raw["whole"])
            return cls(str(raw["table"]), _pass(raw["latest"]), whole, int(raw["whole_ms"]), int(raw["at_ms"]))
        except (KeyError, TypeError) as error:
            msg = f"not a state of verify: {error}"
            raise ValueError(msg) from error


class VerifiedFile:
    """The file of a table's ``Verified``. Several services may replace it: each state is true by itself."""

    def __init__(self, table: Storage) -> None:
        """Refer to the file of the table in folder ``table``."""
        self._table = table

    def read(self, table_id: str) -> Verified:
        """Return the state; an empty state if there is none, or it is damaged or belongs to another table."""
        text = self._table.read(_PATH)
        try:
            found = None if text is None else Verified.from_json(text)
        except ValueError:
            found = None
        return found if found is not None and found.table == table_id else Verified(table_id)

    def write(self, state: Verified) -> Verified:
        """Replace the state atomically and return it.

        Raises:
            NotFoundError: the table was dropped.
            UnavailableError: the file system failed.
        """
        state = replace(state, at_ms=int(time.time() * 1000))
        with self._table.opened() as folder:
            self._table.put(_PATH, state.to_json(), folder)
        return state

    def delete(self) -> None:
        """Delete the file."""
        self._table.delete(_PATH)


def merged(kept: Iterable[Difference], found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return one difference for each place, the latest."""
    by_place: dict[tuple[Any, ...], Difference] = {}
    for each in (*kept, *found):
        # A record at the end of the log belongs to the next snapshot as soon as there is one.
        snapshot = None if each.offset is not None else each.snapshot
        by_place[each.kind, snapshot, each.partition, each.offset, each.key] = each
    return tuple(by_place.values())


def _found(so_far: Pass, kept: Iterable[Difference], report: Report) -> Pass:
    found = merged(kept, report.differences)
    more = so_far.more + report.more + max(0, len(found) - _KEPT_MAX)
    return replace(so_far, differences=found[:_KEPT_MAX], more=more)


def _pass(raw: Mapping[str, Any]) -> Pass:
    compared = raw["compared"]
    differences = tuple(Difference(**{**each, "kind": DifferenceKind(each["kind"])}) for each in raw["differences"])
    listed = {} if compared is None else {name: tuple(compared.get(name, ())) for name in ("ends", "epochs")}
    found = None if compared is None else Compared(**{**compared, **listed})
    return Pass(found, differences, int(raw["more"]))
