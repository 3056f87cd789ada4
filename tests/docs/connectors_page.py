"""Writes the second half of docs/guide/connectors.md: which test holds each thing that Flink's pages say.

The pages' statements have ids: O options, P names in prose, B behaviour, M metadata, Q and I statements and fragments
of SQL, C contradictions and how they are settled, G gaps. A test anywhere under ``tests`` whose name starts with ids
(``test_o02_o13_...``) holds them; what its docstring says is what holds. Texts of SQL are held by the pairs of
``tests/sql/pages.sql`` too, whose headings start with ids. So the page says of no statement that it works without a
test that runs, and cannot be written while a statement has none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "guide" / "connectors.md"
MARK = "<!-- What follows is written by tests/docs/connectors_page.py. -->\n"
_COUNTS = {"O": 40, "P": 10, "B": 57, "M": 8, "Q": 15, "I": 8, "C": 27, "G": 23}
_HEADINGS = {
    "O": "Options",
    "P": "Names in prose and examples",
    "B": "Behaviour",
    "M": "Metadata columns",
    "Q": "Statements of SQL",
    "I": "Fragments of SQL in prose",
    "C": "Where pages contradict each other",
    "G": "What no page says",
}
_NAME = re.compile(r"test_((?:[opbmqicg]\d\d_)+)")
_PAIRS = TESTS / "sql" / "pages.sql"
_PAIR = re.compile(r"^---- ((?:[QI]\d\d\b ?)+)(.*)\n(?:(?!---- ).*\n)*---- (becomes|error)\n(.*)", re.MULTILINE)
_OF_A_PAIR = "test_a_text_becomes_what_the_file_says"


@dataclass(frozen=True)
class Held:
    """A test and the ids it holds."""

    ids: tuple[str, ...]
    name: str
    file: str
    says: str


def held() -> Iterator[Held]:
    """Find the tests, without running or importing them; those that are skipped or expected to fail hold nothing."""
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in (each for body in bodies for each in body):
            if not isinstance(node, ast.FunctionDef) or not (found := _NAME.match(node.name)):
                continue
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            if "skip" in marks or "xfail" in marks:
                continue
            says = (ast.get_docstring(node) or "").replace("\n", " ")
            ids = tuple(each.upper() for each in found[1].strip("_").split("_"))
            yield Held(ids, node.name, path.relative_to(TESTS).as_posix(), re.sub(r"\s+", " ", says))
    yield from _pairs()


def _pairs() -> Iterator[Held]:
    """Find the texts of SQL that a test compares with what they become."""
    for ids, more, kind, first in _PAIR.findall(_PAIRS.read_text(encoding="utf-8")):
        what = f"The text is read{f' ({more})' if more else ''}."
        if kind == "error":
            what = f"The text is refused{f' ({more})' if more else ''}: {first}."
        name = f"{_OF_A_PAIR}[{f'{ids}{more}'.replace(' ', '-')}]"
        yield Held(tuple(ids.split()), name, "sql/test_parse.py", what)


def all_ids() -> list[str]:
    """List the ids of all statements."""
    return [f"{letter}{number:02}" for letter, count in _COUNTS.items() for number in range(1, count + 1)]


def generated() -> str:
    """Write the tables.

    Raises:
        LookupError: statements without a test; names them.
    """
    tests: dict[str, list[Held]] = {}
    for each in held():
        for name in each.ids:
            tests.setdefault(name, []).append(each)
    missing = [name for name in all_ids() if name not in tests]
    if missing:
        msg = f"no test holds {', '.join(missing)}: name one test_{missing[0].lower()}_..., and say what holds in it."
        raise LookupError(msg)
    lines = [f"All {len(all_ids())} statements are held by tests, which are named by the ids."]
    for letter, heading in _HEADINGS.items():
        lines += ["", f"### {heading}", "", "| Id | What holds | Test |", "|---|---|---|"]
        for name in (each for each in all_ids() if each.startswith(letter)):
            says = " ".join(dict.fromkeys(each.says for each in tests[name])).replace("|", "\\|")
            where = "<br>".join(dict.fromkeys(f"`{each.file}` `{each.name}`" for each in tests[name]))
            lines.append(f"| {name} | {says} | {where} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Give the whole page as it should be: what people wrote, then the tables."""
    written, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{written}{mark}\n{generated()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
