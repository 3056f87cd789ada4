"""Writes docs/reference/connector_conformance.md: the test of each thing that Flink's pages say of the connectors.

The pages' statements have ids: O options, P names in prose, B behavior, M metadata, Q and I statements and fragments
of SQL, C contradictions and how they are settled, G gaps. A test anywhere under ``tests`` whose name starts with ids
(``test_o02_o13_...``) checks them, and its docstring says what it checks. The pairs of ``tests/sql/pages.sql``, whose
headings start with ids, check texts of SQL. So the page lists no statement without a test that runs, and cannot be
written while a statement has none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "reference" / "connector_conformance.md"
_COUNTS = {"O": 40, "P": 10, "B": 57, "M": 8, "Q": 15, "I": 8, "C": 27, "G": 23}
_HEADINGS = {
    "O": "Options",
    "P": "Names in prose and examples",
    "B": "Behavior",
    "M": "Metadata columns",
    "Q": "Statements of SQL",
    "I": "Fragments of SQL in prose",
    "C": "Contradictions between pages",
    "G": "Gaps: what no page says",
}
_NAME = re.compile(r"test_((?:[opbmqicg]\d\d_)+)")
_PAIRS = TESTS / "sql" / "pages.sql"
_PAIR = re.compile(r"^---- ((?:[QI]\d\d\b ?)+)(.*)\n(?:(?!---- ).*\n)*---- (becomes|error)\n(.*)", re.MULTILINE)
_OF_A_PAIR = "test_a_text_becomes_what_the_file_says"
_HEAD = """# Connector conformance

<!-- Made by `python -m tests.docs.connectors_page`; edit the docstrings of the tests instead. -->

What Flink's documentation says of its `kafka` and `upsert-kafka` connectors, as {count} statements, each with the test
that checks it. The ids are part of the names of the tests, which are in `tests/`. [The guide](../guide/connectors.md)
describes how to use the connectors.
"""


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
        what = f"{more or 'The text'}: {f'rejected, `{first}`' if kind == 'error' else 'parsed'}."
        name = f"{_OF_A_PAIR}[{f'{ids}{more}'.replace(' ', '-')}]"
        yield Held(tuple(ids.split()), name, "sql/test_parse.py", what)


def all_ids() -> list[str]:
    """List the ids of all statements."""
    return [f"{letter}{number:02}" for letter, count in _COUNTS.items() for number in range(1, count + 1)]


def page() -> str:
    """Return the page.

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
    lines = [_HEAD.format(count=len(all_ids())).rstrip()]
    for letter, heading in _HEADINGS.items():
        lines += ["", f"## {heading}", "", "| Id | What holds | Test |", "|---|---|---|"]
        # Statements with the same tests are one row.
        rows: dict[tuple[Held, ...], list[str]] = {}
        for name in (each for each in all_ids() if each.startswith(letter)):
            rows.setdefault(tuple(tests[name]), []).append(name)
        for found, names in rows.items():
            says = " ".join(dict.fromkeys(each.says for each in found)).replace("|", "\\|")
            where = "<br>".join(dict.fromkeys(f"`{each.file}` `{each.name}`" for each in found))
            lines.append(f"| {', '.join(names)} | {says} | {where} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
