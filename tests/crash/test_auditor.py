"""The auditor of the crash matrix counts what is broken: each promise is broken on purpose in what it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.matrix.audit import Expected, Seen, Verdict, judge
from tests.harness.local_writes import Change

EXPECTED: Expected = [
    [(1, (1, "a")), (1, (2, "b")), (2, (1, None)), (3, (1, "c"))],
    [(1, (5, "x")), (2, (5, "y")), (2, (6, "z"))],
]
Index = dict[int, Any]


def log_of(expected: Expected) -> Seen:
    """Lay the changes out as records, one each, with a marker after each snapshot."""
    return [[(n + s - 1, [change]) for n, (s, change) in enumerate(part)] for part in expected]


def index_of(seen: Seen) -> Index:
    """Say where each snapshot is."""
    ends = [[0, 0], *([0, 0] for _ in range(3))]
    entries: Index = {0: {"partitions": [_range(0, 0, 0), _range(0, 0, 0)]}}
    for snapshot in (1, 2, 3):
        partitions = []
        for partition, part in enumerate(seen):
            offsets = [o for (o, _), (s, _) in zip(part, EXPECTED[partition], strict=True) if s == snapshot]
            start = ends[snapshot - 1][partition]
            ends[snapshot][partition] = offsets[-1] + 1 if offsets else start
            partitions.append(_range(start, ends[snapshot][partition], len(offsets)))
        entries[snapshot] = {"partitions": partitions}
    return entries


def _range(start: int, end: int, records: int) -> dict[str, int]:
    return {"start": start, "end": end, "records": records, "rows": records}


def lose(seen: Seen, index: Index) -> None:
    """The last change of partition 0, with its snapshot."""
    del seen[0][-1]
    del index[3]


def double(seen: Seen, index: Index) -> None:
    seen[0].append((9, [(1, "c")]))


def show_early(seen: Seen, index: Index) -> None:
    seen[1].append((9, [(7, "of a snapshot that is not committed")]))


def tear(seen: Seen, index: Index) -> None:
    """Of snapshot 2, partition 1 has nothing yet."""
    del seen[1][1:], seen[0][3:], index[3], index[2]


def swap(seen: Seen, index: Index) -> None:
    part = seen[0]
    part[0], part[1] = (part[0][0], part[1][1]), (part[1][0], part[0][1])


def forget_entry(seen: Seen, index: Index) -> None:
    del index[3]


def shift_entry(seen: Seen, index: Index) -> None:
    index[2]["partitions"][1]["end"] += 1


def miscount(seen: Seen, index: Index) -> None:
    index[2]["partitions"][1]["rows"] += 1


def change_value(seen: Seen, index: Index) -> None:
    seen[1][0] = (0, [(5, "other")])


@pytest.mark.parametrize(
    ("damage", "complete", "found"),
    [
        (lose, True, Verdict(lost=1, index=1)),
        (double, True, Verdict(doubled=1, order=1)),
        (show_early, False, Verdict(early=1, order=1)),
        (tear, False, Verdict(torn=1)),
        (swap, True, Verdict(order=1, index=1)),
        (forget_entry, True, Verdict(index=1)),
        (shift_entry, True, Verdict(index=1)),
        (miscount, True, Verdict(index=1)),
        (change_value, True, Verdict(lost=1, early=1, order=1, index=1)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_auditor_counts(damage: Callable[[Seen, Index], None], complete: bool, found: Verdict) -> None:
    seen = log_of(EXPECTED)
    index = index_of(seen)
    assert judge(index, seen, EXPECTED, small=True, complete=True) == Verdict()
    broken, entries = copy.deepcopy(seen), copy.deepcopy(index)
    damage(broken, entries)
    assert judge(entries, broken, EXPECTED, small=True, complete=complete) == found


def test_a_large_snapshot_that_is_partly_there_is_torn_only_once_the_index_lists_it() -> None:
    seen = log_of(EXPECTED)
    index = index_of(seen)
    del seen[1][1:], seen[0][3:], index[3]
    without: Index = {snapshot: entry for snapshot, entry in index.items() if snapshot < 2}
    assert judge(without, seen, EXPECTED, small=False, complete=False).torn == 0
    assert judge(index, seen, EXPECTED, small=False, complete=False).torn == 1


def test_what_is_not_published_yet_is_lost_only_where_all_should_be_there() -> None:
    nothing: Seen = [[], []]
    index = {0: index_of(log_of(EXPECTED))[0]}
    assert judge(index, nothing, EXPECTED, small=True, complete=False) == Verdict()
    assert judge(index, nothing, EXPECTED, small=True, complete=True) == Verdict(lost=7, index=3)


def test_a_batch_in_one_arrow_record_counts_each_of_its_changes() -> None:
    changes: list[Change] = [(1, "a"), (2, "b")]
    expected: Expected = [[(1, change) for change in changes]]
    index: Index = {
        0: {"partitions": [_range(0, 0, 0)]},
        1: {"partitions": [{"start": 0, "end": 1, "records": 1, "rows": 2}]},
    }
    assert judge(index, [[(0, changes)]], expected, small=True, complete=True) == Verdict()
    doubled = judge(index, [[(0, changes), (2, changes)]], expected, small=True, complete=True)
    assert doubled == Verdict(doubled=2, order=1)
