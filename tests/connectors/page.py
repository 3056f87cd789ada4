"""Writes the second half of docs/connectors.md: which test holds each thing that Flink's pages say.

The pages' statements have ids: O options, P names in prose, B behaviour, M metadata, C contradictions and how they are
settled, G gaps. A test whose name starts with ids (``test_o02_o13_...``) holds them; what its docstring says is what
holds. So the page says of no statement that it works without a test that runs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "connectors.md"
MARK = "<!-- What follows is written by tests/connectors/page.py. -->\n"
_COUNTS = {"O": 40, "P": 10, "B": 57, "M": 8, "C": 27, "G": 23}
_HEADINGS = {
    "O": "Options",
    "P": "Names in prose and examples",
    "B": "Behaviour",
    "M": "Metadata columns",
    "C": "Where pages contradict each other",
    "G": "What no page says",
}
_STORE = "of the table store; see [guarantees.md](guarantees.md)"
_SQL = "of the SQL front end, which is not part of the connectors"
ELSEWHERE: Mapping[str, str] = {
    **{f"O{n}": _STORE for n in range(21, 25)},
    **{f"B{n}": _STORE for n in range(45, 55)},
    **{f"G{n}": _STORE for n in range(14, 21)},
    **{f"C{n}": _SQL for n in range(16, 19)},
    "G01": "no meaning outside Flink's catalog: an option means the same wherever it is given",
}
NOT_YET: Mapping[str, str] = {}
"""What is not built, and why."""
_NAME = re.compile(r"test_((?:[opbmcg]\d\d_)+)")


@dataclass(frozen=True)
class Held:
    """A test and the ids it holds."""

    ids: tuple[str, ...]
    name: str
    file: str
    says: str


def held() -> Iterator[Held]:
    """Find the tests, without running or importing them; those that are skipped or expected to fail hold nothing."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not (found := _NAME.match(node.name)):
                continue
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            if "skip" in marks or "xfail" in marks:
                continue
            says = (ast.get_docstring(node) or "").replace("\n", " ")
            ids = tuple(each.upper() for each in found[1].strip("_").split("_"))
            yield Held(ids, node.name, path.name, re.sub(r"\s+", " ", says))


def all_ids() -> list[str]:
    """List the ids of all statements."""
    return [f"{letter}{number:02}" for letter, count in _COUNTS.items() for number in range(1, count + 1)]


def generated() -> str:
    """Write the tables."""
    tests: dict[str, list[Held]] = {}
    for each in held():
        for name in each.ids:
            tests.setdefault(name, []).append(each)
    works = sum(name in tests for name in all_ids())
    elsewhere = sum(name in ELSEWHERE and name not in tests for name in all_ids())
    lines = [
        f"Of {len(all_ids())} statements {works} are held by tests of the connectors, {elsewhere} belong elsewhere, "
        f"{len(all_ids()) - works - elsewhere} are not built yet.",
    ]
    for letter, heading in _HEADINGS.items():
        lines += ["", f"### {heading}", "", "| Id | What holds | Test |", "|---|---|---|"]
        for name in (each for each in all_ids() if each.startswith(letter)):
            if name in tests:
                says = " ".join(dict.fromkeys(each.says for each in tests[name])).replace("|", "\\|")
                where = "<br>".join(f"`{each.file}` `{each.name}`" for each in tests[name])
                lines.append(f"| {name} | {says} | {where} |")
            elif name in ELSEWHERE:
                lines.append(f"| {name} | - | {ELSEWHERE[name]} |")
            else:
                lines.append(f"| {name} | **not yet** | {NOT_YET.get(name, 'no test')} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Give the whole page as it should be: what people wrote, then the tables."""
    written, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{written}{mark}\n{generated()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
