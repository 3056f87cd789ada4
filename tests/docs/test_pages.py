"""The Python of README and of the pages under docs/ runs as it stands, and prints what the pages show.

The blocks of a page run from top to bottom in a process of their own, in an empty folder, with the packages that
``pip install`` brings and the extras that the page names. What a ``text`` block after a ``python`` block shows is
compared with what was printed since the text block before. A ``py`` block is a fragment, which is only compiled.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer

import tablestore
from tablestore import connectors
from tablestore.cli import app
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
}
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "docs/guide/connect.md": "needs a Connect server; tests/connect runs all of it",
    "docs/guide/deploy.md": "needs a cluster; tests/cluster runs all of it",
    "docs/guide/object_stores.md": "needs a store; tests/crash/test_spark_on_s3.py runs all of it",
}
"""Pages whose Python is not run here."""
MARK = "---- the next text block ----"
NAMED_BROKER = "localhost:9092"
CODE = re.compile(r"`(tablestore [a-z-]+(?: [^`]+)?)`")
PATHS = re.compile(r"`((?:tests|examples|docs|benchmarks|tablestore|log_system|snapshot)/[\w./-]*\w)`")


def blocks(page: str, *languages: str) -> list[re.Match[str]]:
    return [found for found in BLOCK.finditer(PAGES[page]) if found["language"] in languages]


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def modules_of_extras(page: str) -> list[str]:
    """Name the modules that are installed here only for extras that the page does not tell the reader to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = set(re.findall(r"pip install [^\n]*tablestore\[(\w+)\]", PAGES[page]))

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w.-]", each)[0].lower() for each in requirements}

    extras = project["optional-dependencies"]
    wanted = set().union(names(project["dependencies"]), *(names(extras[extra]) for extra in named))
    spared = set().union(*map(names, extras.values())) - wanted
    return [module for module, of in packages_distributions().items() if {name.lower() for name in of} <= spared]


def test_each_page_with_python_is_run_or_says_where_it_is() -> None:
    assert set(ELSEWHERE) <= {page for page in PAGES if blocks(page, "python")}
    for page in PAGES:
        for block in blocks(page, "python", "py"):
            compile(block["body"], page, "exec")
            for node in ast.walk(ast.parse(block["body"])):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tablestore"):
                    module = importlib.import_module(str(node.module))
                    assert [each.name for each in node.names if not hasattr(module, each.name)] == [], page


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in ELSEWHERE])
def test_the_python_of_a_page_runs_as_it_stands(page: str, tmp_path: Path, kafka: Any) -> None:
    program, shown, end = [], [], 0
    for block in blocks(page, "python", "text"):
        if block["language"] == "python":
            program.append(block["body"].replace(NAMED_BROKER, kafka.bootstrap_servers))
            end = block.end()
        elif end and not PAGES[page][end : block.start()].strip():
            program.append(f"print({MARK!r})\n")
            shown.append(block["body"])
    masked, folder = tmp_path / "masked", tmp_path / "empty"
    masked.mkdir()
    folder.mkdir()
    # An import of these raises ModuleNotFoundError, in Spark's Python processes too.
    hidden = dict.fromkeys(modules_of_extras(page))
    assert {"pytest", "matplotlib"} <= set(hidden)
    (masked / "sitecustomize.py").write_text(f"import sys; sys.modules.update({hidden})")
    (tmp_path / "page.py").write_text("\n".join(program), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "page.py")], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(masked), *sys.path])}, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.split(f"{MARK}\n")[: len(shown)]
    assert list(map(trimmed, printed)) == list(map(trimmed, shown))


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of the commands of this program in a page's blocks and text."""
    lines = [line for block in blocks(page, "sh") for line in block["body"].replace("\\\n", " ").splitlines()]
    for line in lines + CODE.findall(PAGES[page]):
        words = shlex.split(line, comments=True)
        if words[:1] == ["tablestore"] and "..." not in words:
            yield words[1:]


def test_the_commands_and_options_that_pages_name_exist() -> None:
    group: Any = typer.main.get_command(app)
    seen = set()
    for page in PAGES:
        for words in commands(page):
            command: Any = group
            for word in words:
                if word in getattr(command, "commands", {}):
                    command = command.commands[word]
                elif word.startswith("-"):
                    known = {each for option in command.params for each in option.opts} | {"--help"}
                    assert word.partition("=")[0] in known, f"{page}: tablestore {' '.join(words)}"
            assert command is not group or words[0].startswith("-"), f"{page}: tablestore {' '.join(words)}"
            seen.add(command.name)
    table = PAGES["docs/guide/cli.md"]
    assert [name for name in group.commands if f"`{name}" not in table] == []
    assert len(seen) > 10


def test_the_files_that_pages_name_exist() -> None:
    named = {(page, path) for page, text in PAGES.items() for path in PATHS.findall(text)}
    assert len(named) > 20
    places = [ROOT, ROOT / "tablestore", ROOT / "tests"]
    assert [each for each in sorted(named) if not any((place / each[1]).exists() for place in places)] == []


def test_the_reference_has_every_public_name() -> None:
    page = PAGES["docs/reference/api.md"]
    names = [f"tablestore.{name}" for name in tablestore.__all__]
    names += [f"tablestore.connectors.{name}" for name in connectors.__all__]
    assert [name for name in names if f":: {name}\n" not in page] == []
