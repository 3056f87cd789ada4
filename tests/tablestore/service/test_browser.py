"""The pages in a headless Chromium, if one is installed: the script runs without errors, and curves are drawn."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from tablestore import create_local
from tablestore.service.attempts import Schedule
from tablestore.service.service import Service
from tests.harness.waiting import PATIENCE_SECONDS, until
from tests.tablestore.service.serving import served, state_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=2000",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")


def rendered(url: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """Return a page as it is after its script has run, and what the console says."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={folder}", "--dump-dom", url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_draws_its_curves_and_the_console_is_silent(tmp_path: Path, width: int) -> None:
    table = create_local(tmp_path / "t", "id int, v string", primary_key="id")
    for n in range(4):
        table.write([{"id": n, "v": f"value {n}"}])
    with Service(lambda: [table.path], schedule=Schedule(poll=0.05)) as service, served(service) as web:
        until(lambda: state_of(service).newest == 4)
        flags = (f"--window-size={width},900", "--blink-settings=preferredColorScheme=0")
        address = f"{web.address}/table?path={quote(table.path, safe='')}"
        page, console = rendered(address, tmp_path / "chromium", *flags)
        overview, more = rendered(f"{web.address}/", tmp_path / "chromium", *flags)
    assert console + more == []
    points = re.findall(r'<polyline class="committed" points="([^"]+)"', page)
    assert [len(each.split()) for each in points] == [10, 10], "a step for each of five snapshots, and the end"
    assert '<span id="live">live</span>' in page
    assert "value 3" in page, "the script has loaded the log tail"
    assert table.path in overview
