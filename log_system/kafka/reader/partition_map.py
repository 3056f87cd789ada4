"""Where each snapshot lies in a log partition, as the positions in its records tell. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from log_system.index import OffsetRange
from log_system.kafka.reader.log_scan import PartitionScan
from log_system.kafka.register import RegisterPosition


@dataclass(frozen=True)
class PartitionMap:
    """The snapshots of one log partition.

    Attributes:
        scan: what it was made from.
        found: for each snapshot whose end was found, in order: its range. ``rows`` is what the log says.
        first: the first snapshot that can be compared; retention has removed those before, in whole or in part.
        cut: whether retention has removed anything.
        start: where the records that can be compared begin; None where all are gone.
        known_from: the first snapshot whose ``start`` is known for sure.
        part: the position within a snapshot that is only partly published, behind all others.
        early: offset and id of each position that names a snapshot that is not committed.
        commit: identifies the commit of the last snapshot whose end was found; empty where its record does not name it.
    """

    scan: PartitionScan
    found: dict[int, OffsetRange]
    first: int
    cut: bool
    start: int
    known_from: int
    part: RegisterPosition | None
    early: tuple[tuple[int, int], ...]
    commit: str = ""

    @property
    def last(self) -> int:
        """The last snapshot whose end was found; 0 for none."""
        return next(reversed(self.found), 0)

    @property
    def end(self) -> int:
        """Where the last snapshot that was found ends."""
        return self.found[self.last].end if self.found else self.start

    def end_before(self, snapshot: int) -> int | None:
        """Give where the snapshots before one end; None where retention hides it."""
        number = bisect_left(self._ids, snapshot)
        if number:
            return self.found[self._ids[number - 1]].end
        return self.start if snapshot >= self.known_from else None

    @cached_property
    def _ids(self) -> list[int]:
        return list(self.found)

    def position(self) -> RegisterPosition | None:
        """Give what the register must say; None where the log cannot tell, as retention has removed everything."""
        if self.part is not None:
            return self.part
        if self.found:
            told = self.found[self.last]
            return RegisterPosition(self.last, told.rows, told.records, done=True, end=told.end, commit=self.commit)
        return None if self.cut else RegisterPosition(0, 0, 0, done=True, end=self.start)


def lay_out(scan: PartitionScan, base: int, newest: int, published: int) -> PartitionMap:
    """Find where each snapshot lies.

    A snapshot begins where the one before ends and ends after the record whose position says that it is whole. A
    position of a snapshot that has ended already is a repeated record, and one of a snapshot that is not committed is
    nobody's: neither ends anything.

    Args:
        scan: what the partition holds.
        base: where the log of the table began.
        newest: the newest committed snapshot.
        published: the newest snapshot that index or register say is in the partition, for a partition with nothing
            left in it.
    """
    cut = scan.low > base
    done, start, first, known_from = 0, max(base, scan.low), 1, 1
    commit = ""
    part: RegisterPosition | None = None
    found: dict[int, OffsetRange] = {}
    early: list[tuple[int, int]] = []
    waiting = cut
    for mark in scan.marks:
        position = mark.position
        if position.snapshot > newest:
            early.append((position.end - 1, position.snapshot))
        elif position.snapshot > done and not position.done:
            part = position
        elif position.snapshot > done:
            done, part, commit = position.snapshot, None, position.commit
            if waiting:
                waiting = False
                whole = mark.before >= position.records
                first, known_from = (done if whole else done + 1), done + 1
                if not whole:
                    start = position.end
                    continue
            found[done] = OffsetRange(start, position.end, position.records, position.rows)
            start = position.end
    if waiting:
        first = known_from = published + 1
    begin = next(iter(found.values())).start if found else start
    return PartitionMap(scan, found, first, cut, begin, known_from, part, tuple(early), commit if found else "")
