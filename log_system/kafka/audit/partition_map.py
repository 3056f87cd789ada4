"""Locate each snapshot in a log partition from the positions in its records, without I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from log_system.index import OffsetRange
from log_system.kafka.audit.log_scan import PartitionScan
from log_system.kafka.register import RegisterPosition


@dataclass(frozen=True)
class PartitionMap:
    """The snapshots of one log partition.

    Attributes:
        scan: the scan from which this map was made.
        found: the range of each snapshot whose end was found, in order. ``rows`` is taken from the log.
        first: the first snapshot that can be compared; retention has removed earlier ones completely or partly.
        cut: whether retention has removed anything.
        start: the offset of the first record that can be compared.
        known_from: the first snapshot whose ``start`` is known for certain.
        part: the position within a partly published snapshot after all others; None if there is none.
        early: offset and snapshot id of each position that names a snapshot that is not committed.
        commit: identifies the commit of the last snapshot whose end was found; empty if its record does not name it.
        after: the snapshot after which the map begins; 0 if it begins with the log.
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
    after: int = 0

    @property
    def last(self) -> int:
        """The last snapshot whose end was found; for none, the one after which the map begins."""
        return next(reversed(self.found), self.after)

    @property
    def end(self) -> int:
        """The offset at which the last found snapshot ends."""
        return self.found[self.last].end if self.found else self.start

    def end_before(self, snapshot: int) -> int | None:
        """Return the offset at which the snapshots before ``snapshot`` end; None if retention makes it unknown."""
        number = bisect_left(self._ids, snapshot)
        if number:
            return self.found[self._ids[number - 1]].end
        return self.start if snapshot >= self.known_from else None

    @cached_property
    def _ids(self) -> list[int]:
        return list(self.found)

    def position(self) -> RegisterPosition | None:
        """Return the position that the register must hold; None if unknown, because nothing was found."""
        if self.part is not None:
            return self.part
        if self.found:
            newest = self.found[self.last]
            return RegisterPosition(
                self.last, newest.rows, newest.records, done=True, end=newest.end, commit=self.commit
            )
        return None if self.cut or self.after else RegisterPosition(0, 0, 0, done=True, end=self.start)


def lay_out(scan: PartitionScan, base: int, newest: int, published: int, after: int = 0) -> PartitionMap:
    """Return the ranges of the snapshots in a scanned partition.

    A snapshot starts where the previous one ends, and ends after the record whose position marks it as complete. A
    position of a snapshot that has already ended belongs to a duplicate record, and a position of a snapshot that is
    not committed belongs to no snapshot: neither ends a range.

    Args:
        scan: the scan of the partition.
        base: the offset at which the table's log began, or at which snapshot ``after`` ends.
        newest: the newest committed snapshot.
        published: the newest snapshot that is in the partition according to index or register; used if the partition
            has no records left.
        after: only later snapshots are located; 0 for all.
    """
    cut = scan.low > base
    done, start, first, known_from = after, max(base, scan.low), after + 1, after + 1
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
    return PartitionMap(scan, found, first, cut, begin, known_from, part, tuple(early), commit if found else "", after)
