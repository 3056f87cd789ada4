"""The page of benchmarks is short, names groups that exist, and its picture shows its table."""

from __future__ import annotations

import re

from benchmarks.__main__ import Group
from benchmarks.chart import CHART, PAGE, bars, draw


def test_the_table_is_short_and_names_groups_that_there_are() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^|]+ \| `", line)]
    assert 0 < len(rows) <= 27
    assert {line.split("|")[2].strip(" `") for line in rows} <= set(Group)


def test_the_picture_is_that_of_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = bars(page)
    assert len(found) == len(re.findall(r"(?m)^\| [^|]+ \| `.* \| [\d.]+x \|$", page)) > 10
    assert CHART.read_text(encoding="utf-8") == draw(found), "run `python -m benchmarks.chart`"
