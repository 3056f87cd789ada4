"""An archive of a Java program's classes is complete or absent, and Java starts with it or without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from log_system.class_archive import archive_classes, sharing
from log_system.jars import find_java


def java(*options: str) -> str:
    answer = subprocess.run([find_java().command, *options, "-version"], capture_output=True, text=True, check=True)
    return answer.stdout + answer.stderr


def test_an_archive_is_made_once_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = tmp_path / "classes.jsa"
    assert sharing(archive) == []
    runs: list[bool] = []

    def run(options: list[str]) -> None:
        java(*options)
        runs.append(archive.exists())

    for _ in range(2):
        archive_classes(archive, "Java", run)
    assert runs == [False]
    assert archive.stat().st_size > 0
    assert "sharing" in java("-Xshare:on", *sharing(archive))


def test_a_program_that_fails_leaves_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = tmp_path / "classes.jsa"

    def run(options: list[str]) -> None:
        java(*options)
        message = "killed while it was writing"
        raise OSError(message)

    with pytest.raises(OSError, match="killed"):
        archive_classes(archive, "Java", run)
    assert not archive.exists()
    assert not list(tmp_path.glob("*.unfinished"))


def test_an_archive_that_does_not_match_is_ignored_in_silence(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(b"not an archive")
    assert java(*sharing(archive)).replace(", sharing", "") == java().replace(", sharing", "")
