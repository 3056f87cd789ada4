"""``tablestore prepare`` makes an archive of Spark's classes, with which later sessions start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from log_system.jars import cache_home, find_java
from log_system.local_kafka import installation
from tablestore.session import delta_jars
from tablestore.spark.class_archive import spark_archive
from tests.harness.waiting import PATIENCE_SECONDS

SESSION = """
from pathlib import Path
from tablestore.session import session
spark = session(master="local[1]")
java = spark._jvm.java.lang.ProcessHandle.current().pid()
print(spark.range(3).count(), [line.split(maxsplit=5)[5].strip() for line in Path(f"/proc/{java}/maps").open()
                               if ".jsa" in line])
"""


def test_a_session_starts_with_the_archive_that_prepare_has_made(tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / "a cache"
    (home / "tablestore").mkdir(parents=True)
    # The jars are those of this machine, so that only the archives are made.
    installation.kafka_command("512m")
    for jars in (Path(delta_jars()[0]).parent, cache_home() / installation.JARS):
        if jars.exists():
            (home / "tablestore" / jars.name).symlink_to(jars)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    command = [sys.executable, "-m", "tablestore", "prepare"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    archive = spark_archive(find_java())
    assert archive.parent == home / "tablestore"
    assert done.stdout.strip() == f"Prepared. Spark's classes are in {archive}."
    mapped = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert mapped.stdout.startswith("3 ")
    assert str(archive) in mapped.stdout
