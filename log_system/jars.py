"""Find Java, and download jars once into the user's cache folder.

Ivy, whose jar ships with PySpark, does the download, so only Java and this package's dependencies are needed.
Processes may download concurrently: one does, the others wait for it, and the finished folder appears atomically.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from snapshot.errors import UnavailableError
from snapshot.threads import Threads

JAVA_VERSION_MIN = 17
DIGESTS = Path(__file__).with_name("jars.sha256")
"""Lines in the format of ``sha256sum``; written by ``python -m tablestore.jar_digests``."""
FETCH_TIMEOUT_S = 900.0
HOW_TO_GET_JAVA = (
    "Install it with 'apt-get install openjdk-17-jre-headless' (Debian, Ubuntu) or 'brew install openjdk@17' (macOS), "
    "or set JAVA_HOME"
)


@dataclass(frozen=True)
class Java:
    """A Java installation of a supported version.

    Attributes:
        command: path of the ``java`` program.
        version: the full version, such as ``17.0.15``.
    """

    command: str
    version: str


def find_java() -> Java:
    """Return the Java that Spark would use: ``JAVA_HOME`` first, then the ``PATH``.

    Raises:
        UnavailableError: Java is missing, does not run, or is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "the PATH"
    if command is None:
        msg = f"Java {JAVA_VERSION_MIN} or newer is needed; no 'java' is on the PATH. {HOW_TO_GET_JAVA}."
        raise UnavailableError(msg)
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=60)
        printed = answer.stderr + answer.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        printed = str(error)
    found = re.search(r'version "([0-9][^"]*)"', printed)
    if found is None:
        msg = (
            f"Java {JAVA_VERSION_MIN} or newer is needed; '{command}' (from {where}) does not run: "
            f"{printed.strip()[:200]}. {HOW_TO_GET_JAVA}."
        )
        raise UnavailableError(msg)
    version = found.group(1)
    # Before Java 9 the first number was 1, as in 1.8.
    major = int(re.split(r"[.\-+_]", version.removeprefix("1."))[0])
    if major < JAVA_VERSION_MIN:
        msg = (
            f"Java {JAVA_VERSION_MIN} or newer is needed; '{command}' (from {where}) is Java {version}. "
            f"{HOW_TO_GET_JAVA}."
        )
        raise UnavailableError(msg)
    return Java(command, version)


def cache_home() -> Path:
    """Return the path of this program's cache folder, without creating it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tablestore"


def fetch_jars(name: str, modules: Sequence[str], *, excludes: Sequence[str] = ()) -> Path:
    """Return the folder with the jars of these modules and their dependencies; download them if it does not exist.

    Args:
        name: the name of the set of jars, such as ``kafka-4.1.0``; also the folder's name in the cache.
        modules: Maven coordinates, ``organisation:module:version``.
        excludes: what is left out of the dependencies: organisations, or ``organisation:module``.

    Raises:
        UnavailableError: Java is missing, the jars cannot be downloaded or stored, or `check_jars` rejects one.
    """
    folder = cache_home() / name
    if not folder.is_dir():
        java = find_java()
        try:
            with exclusive(cache_home() / f"{name}.lock"):
                if not folder.is_dir():
                    _fetch(java, name, modules, excludes, folder)
        except OSError as error:
            msg = f"{name}: cannot keep the jars in {folder}: {error}. "
            msg += "Set XDG_CACHE_HOME to a folder that can be written."
            raise UnavailableError(msg) from error
    check_jars(name, folder)
    return folder


def check_jars(name: str, folder: Path) -> None:
    """Check jars against the digests shipped with this package, wherever the jars came from.

    Args:
        name: the name of the set of jars, as for `fetch_jars`.
        folder: the folder that holds them.

    Raises:
        UnavailableError: a jar differs, is missing, or is unexpected; the message names it.
    """
    locked = locked_digests().get(name)
    if locked is None:
        msg = (
            f"{name}: {DIGESTS.name} of this package has no digests for these jars. Write them again with 'make lock'."
        )
        raise UnavailableError(msg)
    found = digests_of(folder)
    for jar in sorted(locked.keys() | found.keys()):
        expected, got = locked.get(jar, "no such jar"), found.get(jar, "no such jar")
        if expected != got:
            msg = (
                f"{folder / jar}: expected SHA-256 {expected}, got {got}: it is not the jar that this package was made "
                f"with. Remove the folder {folder}, so that it is fetched again; if that does not help, the network or "
                "a mirror gives another file than Maven Central."
            )
            raise UnavailableError(msg)


def locked_digests() -> dict[str, dict[str, str]]:
    """Return the digests shipped with this package: set of jars -> file name -> SHA-256."""
    locked: dict[str, dict[str, str]] = {}
    for line in DIGESTS.read_text(encoding="utf-8").splitlines():
        digest, _, path = line.partition("  ")
        name, _, jar = path.partition("/")
        locked.setdefault(name, {})[jar] = digest
    return locked


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar in a folder, by file name."""

    def digest(jar: Path) -> str:
        with jar.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    jars = sorted(folder.glob("*.jar"))
    with Threads(os.cpu_count() or 1, "digests") as threads:
        return dict(zip((jar.name for jar in jars), threads.map(digest, jars), strict=True))


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold an advisory lock between processes; the operating system releases it if the holder dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show a spinner during a slow operation, if stderr is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - most processes of Spark wait for nothing

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(message):
        yield


def pyspark_jars() -> Path:
    """Return the folder of the jars that ship with PySpark.

    Raises:
        UnavailableError: PySpark is not installed, or is installed without its jars (``pyspark-client``).
    """
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "jars").is_dir():
            return Path(place) / "jars"
    msg = (
        "jars are fetched with the Ivy that PySpark ships; PySpark's jars are not installed. Run 'pip install pyspark'."
    )
    raise UnavailableError(msg)


def fetch_unchecked(name: str, modules: Sequence[str], folder: Path, *, excludes: Sequence[str] = ()) -> None:
    """Download modules and their dependencies into a new folder without checking digests, in order to lock them."""
    _fetch(find_java(), name, modules, excludes, folder, check=False)


def _fetch(
    java: Java, name: str, modules: Sequence[str], excludes: Sequence[str], folder: Path, *, check: bool = True
) -> None:
    ivy = next(iter(sorted(pyspark_jars().glob("ivy-*.jar"))), None)
    if ivy is None:
        msg = f"{name}: no ivy-*.jar is among PySpark's jars in {pyspark_jars()}. Reinstall pyspark."
        raise UnavailableError(msg)
    # Use the folder's own parent: a rename is atomic only within one file system.
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        (work / "ivy.xml").write_text(_ivy_file(modules, excludes), encoding="utf-8")
        # Use a separate cache: Ivy does not lock the one in the home folder, which Spark may be using.
        command = [java.command, "-jar", str(ivy), "-ivy", "ivy.xml", "-confs", "default", "-cache", str(work / "ivy")]
        command += ["-retrieve", "jars/[artifact]-[revision](-[classifier]).[ext]"]
        with waiting(f"Fetching {name} (once; about half a minute) ..."):
            answer = subprocess.run(
                command, cwd=work, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S
            )
        if answer.returncode != 0 or not any((work / "jars").glob("*.jar")):
            raise UnavailableError(_fetch_failed(name, modules, answer.stdout + answer.stderr, folder))
        if check:
            check_jars(name, work / "jars")
        (work / "jars").rename(folder)
    except subprocess.TimeoutExpired as error:
        msg = _fetch_failed(name, modules, f"not finished after {FETCH_TIMEOUT_S:.0f} s", folder)
        raise UnavailableError(msg) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _ivy_file(modules: Sequence[str], excludes: Sequence[str]) -> str:
    dependencies = [
        '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'.format(*module.split(":"))
        for module in modules
    ]
    excluded = ['<exclude org="{}" module="{}"/>'.format(*f"{each}:*".split(":")[:2]) for each in excludes]
    return "\n".join(
        [
            '<ivy-module version="2.0"><info organisation="tablestore" module="jars"/>',
            '<configurations><conf name="default"/></configurations><dependencies>',
            *dependencies,
            *excluded,
            "</dependencies></ivy-module>",
        ]
    )


def _fetch_failed(name: str, modules: Sequence[str], printed: str, folder: Path) -> str:
    telling = [
        line.strip() for line in printed.splitlines() if re.search(r"ERROR|WARN|UNRESOLVED|Exception|no end", line)
    ]
    said = "; ".join(telling[:5]) or printed.strip()[-300:]
    return (
        f"{name}: cannot fetch {', '.join(modules)} from Maven Central: {said}. "
        f"Check the network or the proxy (JAVA_TOOL_OPTIONS), or copy the folder {folder} from a machine that has it."
    )
