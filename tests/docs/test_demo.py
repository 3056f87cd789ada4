"""The demo, as ``make demo`` runs it, on the first two weeks of the year."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(400)
def test_the_demo_kills_a_writer_recovers_and_its_reads_agree(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "flights.py"), "--days", "14", "--out", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    told = ran.stdout + ran.stderr + (tmp_path / "demo.log").read_text(encoding="utf-8")
    assert ran.returncode == 0, told
    assert "Writer 1 is dead: kill -9 in batch 3, between commit and publish." in told
    assert re.search(r"table: ends with snapshot 3.*\n.*log: +ends with snapshot 2", told), told
    assert "it publishes snapshot 3." in told
    assert "It repeats batch 3, since nobody confirmed it: not written again." in told
    assert "All four agree, and the log has every change once." in told
    # 12,208 flights were planned in these weeks, 82 of them cancelled.
    assert (
        len(re.findall(r"^ +(?:read\(\)|read_stream\(\)|Kafka client|Delta, DuckDB) +12,126 .* = ", told, re.MULTILINE))
        == 4
    )
    published = re.search(r"the snapshot is in the log ([\d.]+) s after its commit, without another writer", told)
    assert published is not None, told
    assert "<svg" in (tmp_path / "service.html").read_text(encoding="utf-8")
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")
