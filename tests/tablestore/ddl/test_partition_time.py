"""The time of a partition is read out of its values, in any of the ways people write it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from snapshot.errors import InvalidInputError
from tablestore.options.partition_time import PartitionTime, check_time

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "formatter", "values", "time"),
    [
        ("$dt", None, {"dt": date(2026, 1, 31)}, DAY),
        ("$dt", None, {"dt": "2026-01-31"}, DAY),
        ("$dt", None, {"dt": "20260131"}, DAY),
        ("$dt", "yyyyMMdd", {"dt": 20260131}, DAY),
        ("$dt $hour:00:00", None, {"dt": "2026-01-31", "hour": "12"}, NOON),
        ("$y/$m/$d", "yyyy/MM/dd", {"y": 2026, "m": 1, "d": 31}, DAY),
        ("$dt", "yyyy-MM-dd'T'HH", {"dt": "2026-01-31T12"}, NOON),
        ("$dt", "'100%'yyyyMMdd", {"dt": "100%20260131"}, DAY),
        ("$dt", None, {"dt": "2026-01-31T14:00:00+02:00"}, NOON),
        ("$dt", None, {"dt": None}, None),
        ("$dt", None, {"dt": "yesterday"}, None),
        ("$dt", "yyyyMMdd", {"dt": "2026-01-31"}, None),
    ],
)
def test_a_partition_says_its_time(pattern: str, formatter: str | None, values: dict[str, Any], time: Any) -> None:
    assert PartitionTime(pattern, formatter).of(values) == time


@pytest.mark.parametrize(
    ("pattern", "formatter", "says"),
    [
        ("$day", None, r"expected '\$name' of partition columns \(dt, hour\), got '\$day'"),
        ("dt", None, "got 'dt'"),
        (None, "yyyy-DD", "got 'yyyy-DD'"),
        (None, "yyyyMMddTHH", "single quotes"),
    ],
)
def test_what_cannot_be_read_is_refused(pattern: str | None, formatter: str | None, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        check_time(pattern, formatter, ["dt", "hour"])
    check_time("$dt $hour", "yyyyMMdd HH", ["dt", "hour"])
