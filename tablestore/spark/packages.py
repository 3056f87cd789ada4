"""The archive that brings this package and its dependencies to Spark's executors."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from log_system.jars import cache_home, exclusive, waiting
from snapshot.errors import InvalidInputError, UnavailableError

ARCHIVES: Final = "spark.archives"
"""Spark's setting for archives that executors unpack."""
OURS: Final = "tablestore"
FOLDER: Final = "tablestore-packages"
"""The folder in an executor's working folder into which Spark unpacks the archive. No module can have such a name."""
_IN_SPARK = ("pyspark", "py4j")
"""Spark brings these to its executors."""
_IN_DRIVER = ("pandas",)
"""PySpark asks for these in the process that makes a plan, not in tasks."""
_EXTRAS = ("s3", "sketches")
"""The extras that executors use, where they are installed."""
_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_QUICK = 1
"""gzip's level: the default of 6 takes seven times as long for a tenth less (measured)."""


@dataclass(frozen=True)
class Packed:
    """An archive for executors.

    Attributes:
        path: where it is.
        names: the distributions in it.
    """

    path: Path
    names: tuple[str, ...]

    @property
    def setting(self) -> str:
        """The value of ``spark.archives`` that has Spark unpack it into `FOLDER`."""
        return f"{self.path}#{FOLDER}"


def python_name() -> str:
    """Return the name of this interpreter without a folder, such as ``python3.11``."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def pack(target: Path, extra: Sequence[str] = ()) -> Packed:
    """Write the archive of the packages that executors need, from those that are installed here.

    It holds this package, its dependencies without Spark's own, and the ``extra`` distributions with theirs. It is
    unpacked into a folder for the ``PYTHONPATH`` of another Python of the same version, system and processor.

    Args:
        target: the file to write; ``.tar`` is not compressed, ``.tar.gz`` and ``.tgz`` are.
        extra: names of further distributions, such as those of a user's functions.

    Raises:
        InvalidInputError: the file has another suffix, or a distribution is not installed, or not as files.
        UnavailableError: the file cannot be written.
    """
    suffix = next((each for each in _SUFFIXES if target.name.endswith(each)), None)
    if suffix is None:
        msg = f"{target}: expected a name that ends with {', '.join(_SUFFIXES)}, which Spark can unpack."
        raise InvalidInputError(msg)
    found = _closure(extra)
    draft = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        level = {} if suffix == ".tar" else {"compresslevel": _QUICK}
        with tarfile.open(draft, "w" if suffix == ".tar" else "w:gz", **level) as archive:  # type: ignore[call-overload]
            for file, name in _files(found):
                archive.add(file, name, recursive=False, filter=_anonymous)
        draft.replace(target)
    except OSError as error:
        msg = f"{target}: cannot be written: {error}. Name a folder that you may write to, with room for about 600 MB."
        raise UnavailableError(msg) from error
    finally:
        draft.unlink(missing_ok=True)
    return Packed(target.absolute(), tuple(sorted(each.name for each in found)))


def cached_pack(*, compressed: bool) -> Packed:
    """Return the archive of the installed packages from the user's cache folder; create it if it is missing.

    Args:
        compressed: whether executors fetch it over a network; on one machine compression costs more than it saves.

    Raises:
        InvalidInputError: a dependency is not installed as files.
        UnavailableError: the cache folder cannot be written.
    """
    found = _closure(())
    content = hashlib.sha256(python_name().encode())
    for file, name in _files(found):
        facts = file.stat()
        content.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    suffix = ".tar.gz" if compressed else ".tar"
    target = cache_home() / "packages" / f"{FOLDER}-{content.hexdigest()[:16]}{suffix}"
    names = tuple(sorted(each.name for each in found))
    if target.exists():
        os.utime(target)
        return Packed(target, names)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(cache_home() / "packages.lock"):
            if not target.exists():
                with waiting("Packing the packages for executors (once) ..."):
                    pack(target)
                _drop_others(target)
    except OSError as error:
        msg = f"{target}: cannot be written: {error}. Set XDG_CACHE_HOME to a folder that can be written."
        raise UnavailableError(msg) from error
    return Packed(target, names)


_KEPT = 4
"""Archives that stay in the cache: those of other environments, and of programs that still run with an older one."""


def _drop_others(target: Path) -> None:
    archives = sorted(target.parent.glob(f"{FOLDER}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[_KEPT:]:
        path.unlink(missing_ok=True)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _closure(extra: Sequence[str]) -> list[Distribution]:
    """Return this distribution, the extra ones, and everything installed that they require.

    Raises:
        InvalidInputError: an extra distribution is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting_for = [(OURS, _EXTRAS), *((name, ()) for name in extra)]
    while waiting_for:
        name, extras = waiting_for.pop()
        key = _normal(name)
        if key in _IN_SPARK or key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError as error:
            if name in extra or name == OURS:
                msg = f"pack: {name!r} is not installed in {sys.prefix}. Install it there, or leave it out."
                raise InvalidInputError(msg) from error
            # Of another system or Python, or of an extra that is not installed.
            continue
        left_out = _IN_DRIVER if key == OURS else ()
        waiting_for += [(each, ()) for each in _required(found[key], extras) if each not in left_out]
    return list(found.values())


def _required(of: Distribution, extras: Sequence[str]) -> Iterator[str]:
    """Yield the names of a distribution's requirements; requirements for other systems are not installed."""
    for text in of.requires or ():
        needed, _, marker = text.partition(";")
        asked = re.search(r"""extra\s*==\s*['"]([^'"]+)""", marker)
        if asked is None or asked.group(1) in extras:
            name = re.match(r"[\w.-]+", needed.strip())
            if name is not None:
                yield name.group()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(found: Sequence[Distribution]) -> Iterator[tuple[Path, str]]:
    """Yield the files of distributions and their names in the archive.

    Raises:
        InvalidInputError: a distribution is installed in editable mode, so its files are elsewhere.
    """
    for each in found:
        if _normal(each.name) == OURS:
            yield from _own_files()
            continue
        # Scripts and manual pages are beside the packages.
        files = [file for file in each.files or () if ".." not in file.parts]
        if any(re.search(r"__editable__|\.pth$|\.egg-link$", str(file)) for file in files):
            msg = f"pack: {each.name!r} is installed in editable mode; expected its files. Install it without -e."
            raise InvalidInputError(msg)
        for file in files:
            path = Path(str(file.locate()))
            if path.is_file():
                yield path, file.as_posix()


def _own_files() -> Iterator[tuple[Path, str]]:
    """Yield this package's files, wherever it is imported from."""
    for name in (OURS, "log_system", "snapshot"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield path, f"{name}/{path.relative_to(root).as_posix()}"
    # Programs ask for the version.
    for file in distribution(OURS).files or ():
        path = Path(str(file.locate()))
        if ".dist-info" in str(file) and path.is_file() and path.name in ("METADATA", "RECORD", "entry_points.txt"):
            yield path, file.as_posix()
