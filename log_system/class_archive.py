"""Class data sharing archives (JEP 350): a Java program's classes, parsed once and mapped into memory at each start.

They cut about half of the time that Spark's or Kafka's JVM takes to start. Java checks an archive against its own
version and the jars on the class path, and ignores one that does not match.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from log_system.jars import cache_home, exclusive, waiting

# Java would warn about an archive that does not match, and about each class that cannot be archived.
_QUIET = ["-Xlog:disable", "-Xlog:all=error:stderr"]


def sharing(archive: Path) -> list[str]:
    """Return the Java options that use an archive; none if it does not exist."""
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.exists() else []


def archive_classes(archive: Path, program: str, run: Callable[[list[str]], object]) -> None:
    """Create an archive, unless it exists. One process at a time does this; the others wait for it.

    Args:
        archive: path of the archive. It appears there when it is complete.
        program: name of the program, for the message on a terminal.
        run: runs the program with the Java options that it is given, until the program has ended normally.

    Raises:
        OSError: the cache folder cannot be written.
    """
    if archive.exists():
        return
    unfinished = archive.with_suffix(".unfinished")
    with exclusive(cache_home() / "classes.lock"), waiting(f"Preparing {program} (once) ..."):
        if archive.exists():
            return
        unfinished.unlink(missing_ok=True)
        try:
            run([f"-XX:ArchiveClassesAtExit={unfinished}", *_QUIET])
            if unfinished.exists():
                unfinished.rename(archive)
        finally:
            unfinished.unlink(missing_ok=True)
