"""Check what keeps the tree easy to find one's way in: ``python tests/check_structure.py``.

Folders stay small, modules and classes have distinct names, docstrings open with what is returned or done, and words
that no reader knows from Delta, Kafka, Spark or Flink stay out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

PACKAGES = ("snapshot", "log_system", "tablestore")
MODULES_MAX = 16
LINES_MAX = 500
OPENINGS = re.compile(r"(Give|Tell|Say)s?\b")
HOME_MADE = re.compile(r"\b(whoever|anew|a stranger's?|strangers|is told|was told|came '|came \{)")


def modules() -> list[Path]:
    """Return the modules of the packages, without ``__init__``."""
    return [path for name in PACKAGES for path in sorted(Path(name).rglob("*.py")) if path.stem != "__init__"]


def crowded(paths: list[Path]) -> Iterator[str]:
    """Yield folders with too many modules, and modules with too many lines."""
    folders: dict[Path, int] = defaultdict(int)
    for path in paths:
        folders[path.parent] += 1
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LINES_MAX:
            yield f"{path}: {lines} lines; at most {LINES_MAX}"
    for folder, count in folders.items():
        if count > MODULES_MAX:
            yield f"{folder}/: {count} modules; at most {MODULES_MAX}"


def twins(paths: list[Path]) -> Iterator[str]:
    """Yield modules of a folder whose names differ by a short suffix only."""
    folders: dict[Path, list[str]] = defaultdict(list)
    for path in paths:
        folders[path.parent].append(path.stem)
    for folder, stems in folders.items():
        for one, other in combinations(sorted(stems), 2):
            if (
                len(one) > 3
                and other.startswith(one[:-1])
                and len(other) <= len(one) + 3
                and "_" not in other[len(one) :]
            ):
                yield f"{folder}/: the names {one!r} and {other!r} differ by a suffix only"


def definitions(paths: list[Path]) -> Iterator[str]:
    """Yield classes that are defined twice and docstrings that open in a home-made way."""
    classes: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(path)
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = (ast.get_docstring(node) or "").strip()
                if OPENINGS.match(text):
                    line = getattr(node, "lineno", 1)
                    yield f"{path}:{line}: the docstring opens with {text.split()[0]!r}; say what is returned or done"
    for name, places in classes.items():
        if len(places) > 1:
            yield f"class {name} is defined in {', '.join(map(str, places))}"


def words(paths: list[Path]) -> Iterator[str]:
    """Yield lines with words that only this project would use."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = HOME_MADE.search(line)
            if found:
                yield f"{path}:{number}: {found[0]!r}: use the standard word"


def main() -> int:
    """Print what was found; return 1 if there is anything."""
    paths = modules()
    lines = [line for check in (crowded, twins, definitions, words) for line in check(paths)]
    if lines:
        print("\n".join(lines))  # noqa: T201 - it is a command
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
