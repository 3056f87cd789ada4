"""Class data sharing archives (JEP 350): a Java program's classes, parsed once and mapped into memory at each start.

They cut about half of the time that Spark's or Kafka's JVM takes to start. Java checks an archive against its own
version and the jars on the class path, and ignores one that does not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from log_system.jars import cache_home, exclusive, waiting

# Java would warn about an archive that does not match, and about each class that cannot be archived.
_QUIET = ["-Xlog:disable", "-Xlog:all=error:stderr"]


def sharing(archive: Path) -> list[str]:
    """Return the Java options that use an archive; none if it does not exist."""
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.exists() else []


@contextmanager
def archiving(archive: Path, program: str) -> Iterator[list[str] | None]:
    """Create an archive if it does not exist: yield the Java options with which the program has to run, and exit, once.

    One process at a time does this; the others wait for it.

    Args:
        archive: path of the archive.
        program: name of the program, for the message on a terminal.

    Yields:
        The options, or None if the archive exists. The archive appears at its path if the program wrote it and the
        context ends without an error.
    """
    if archive.exists():
        yield None
        return
    unfinished = archive.with_suffix(".unfinished")
    with exclusive(cache_home() / "classes.lock"), waiting(f"Preparing {program} (once) ..."):
        if archive.exists():
            yield None
            return
        unfinished.unlink(missing_ok=True)
        try:
            yield [f"-XX:ArchiveClassesAtExit={unfinished}", *_QUIET]
            if unfinished.exists():
                unfinished.rename(archive)
        finally:
            unfinished.unlink(missing_ok=True)
