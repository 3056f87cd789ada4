"""A folder that this process may not write: what reads works, and everything else says so and changes nothing."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, make_table, publisher_of, write

READS = {"read", "filter", "changes", "verify", "recover", "expire dry", "expire options dry", "remove_orphans dry"}
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_FOWNER = 1, 2, 3


def obey_permissions() -> None:
    """Let a process of the root user be refused what permissions forbid, from its start on."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_FOWNER):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Take away the permission to write anything in a folder."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    try:
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.skipif(sys.platform != "linux", reason="the root user of other systems obeys no permissions")
@pytest.mark.parametrize("kind", ["key", "append", "log"])
def test_every_verb_on_a_folder_that_cannot_be_written_says_so(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], kind: str
) -> None:
    if kind == "log":
        table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), **{"consumer__expiration-time": "1 h"})
        publisher = publisher_of(table)
    else:
        keys, publisher = ["id"] if kind == "key" else [], None
        table = create_drop.create(TableDefinition(str(tmp_path / "t"), SCHEMA, primary_key=keys))
    writer = Writer(table, publisher)
    for n in range(3):
        write(writer, [(1, f"{n}"), (2, "b")])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*")}
    with unwritable(tmp_path / "t"):
        command = [sys.executable, "-m", "tests.harness.read_only_verbs", table.path]
        ran = subprocess.run(
            command, check=True, capture_output=True, text=True, preexec_fn=obey_permissions,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    said: dict[str, str] = json.loads(ran.stdout)
    assert {verb for verb, text in said.items() if text == "OK"} == READS
    for verb in said.keys() - READS:
        assert said[verb].startswith("UnavailableError: "), verb
        assert "Permission denied" in said[verb], verb
        assert "This process may not do that: change the owner or the permissions" in said[verb], verb
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*")} == before
    assert TableContext.open(table.path).files.latest() == 3
    write(writer, [(3, "c")])
    writer.discard()
