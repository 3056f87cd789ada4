"""Times at the edges of what Python has: each is before or after all snapshots, and wrong ones are named."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore import LocalTable, create_local

FIRST = [datetime.min, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), datetime(1969, 12, 31)]
LAST = [datetime.max, datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5)))]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LocalTable]:
    with create_local(tmp_path / "t", "id int") as table:
        table.write([{"id": 1}])
        yield table


@pytest.mark.parametrize("written", [lambda time: time, datetime.isoformat])
def test_the_first_times_are_before_all_snapshots(table: LocalTable, written: Any) -> None:
    for time in map(written, FIRST):
        with pytest.raises(NotFoundError, match="no snapshot at that time"):
            table.to_arrow(timestamp=time)
        with pytest.raises(NotFoundError, match="no snapshot at that time"):
            table.maintenance.rollback(time)
        assert sum(batch.num_rows for batch in table.tail(timestamp=time, follow=False)) == 1
        assert table.maintenance.expire(older_than=time).snapshots == 0


@pytest.mark.parametrize("written", [lambda time: time, datetime.isoformat])
def test_the_last_times_are_after_all_snapshots(table: LocalTable, written: Any) -> None:
    for number, time in enumerate(map(written, LAST)):
        assert table.to_arrow(timestamp=time).num_rows == 1
        assert table.tags.create(f"t{number}", time).snapshot == table.snapshots(1)[0]
        assert list(table.tail(timestamp=time, follow=False)) == []
    assert table.tags.expire(datetime.max) == ["t0", "t1"]


def test_an_age_that_is_no_time_is_refused(table: LocalTable) -> None:
    wrong: Any = 20260101
    with pytest.raises(InvalidInputError, match=r"older_than=20260101: expected a timedelta, a datetime, or text"):
        table.maintenance.expire(older_than=wrong)
    with pytest.raises(InvalidInputError, match=r"option 'retained': expected a duration .* got '20260101'"):
        table.tags.create("t", retained=wrong)
