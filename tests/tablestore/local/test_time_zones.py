"""Conditions on instants have the same rows in any time zone of the machine."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

from tablestore import create_local

CONDITIONS = """
import sys
from tablestore import open_local

table = open_local(sys.argv[1])
print(table.to_arrow(filter="at > '2026-03-29 01:30:00' AND extract(hour FROM at) = 2").num_rows)
table.delete("at <= TIMESTAMP '2026-03-29 00:30:00'")
table.update("at = '2026-03-29 02:00:00'", {"at": "TIMESTAMPTZ '2026-03-29 05:00:00'"})
print([row["at"].hour for row in table.to_arrow().sort_by("id").to_pylist()])
"""


def test_conditions_are_of_the_clock_of_utc(tmp_path: Path) -> None:
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        table = create_local(tmp_path / zone.replace("/", "-"), "id bigint, at timestamp", primary_key="id")
        table.write([{"id": hour, "at": dt.datetime(2026, 3, 29, hour, tzinfo=dt.UTC)} for hour in range(4)])
        command = [sys.executable, "-c", CONDITIONS, table.path]
        said = subprocess.run(command, env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=False)
        assert (said.stdout.splitlines(), said.stderr) == (["1", "[1, 5, 3]"], ""), zone
