"""The Python of README and of the pages under docs/ runs as it stands, and prints what the pages show.

The blocks of a page run from top to bottom as a program, in an empty folder, with the packages that ``pip install``
brings and the extras that the page names. Pages with the same extras run one after another in one process, since each
start of Spark is dear. What a ``text`` block after a ``python`` block shows is compared with what was printed since the
text block before. A ``py`` block is a fragment, which is only compiled.
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
from collections import defaultdict
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
RUN_PAGES = """
import contextlib, os, runpy, shutil, sys, traceback
from pathlib import Path

for folder in map(Path, sys.argv[1:]):
    with (folder / "stdout").open("w") as printed, contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(folder / "page.py"), run_name="__main__")
        except BaseException:
            (folder / "error").write_text(traceback.format_exc())
        if "pyspark.sql" in sys.modules and (spark := sys.modules["pyspark.sql"].SparkSession.getActiveSession()):
            # As the end of a program would.
            for query in spark.streams.active:
                query.stop()
    for left in os.scandir():
        shutil.rmtree(left) if left.is_dir() else os.remove(left)
"""
"""The program that runs the pages of some folders, which then have what was printed and, if it failed, the error."""
NAMED_BROKER = "localhost:9092"
CODE = re.compile(r"`(tablestore [a-z-]+(?: [^`]+)?)`")
PATHS = re.compile(r"`((?:tests|examples|docs|benchmarks|tablestore|log_system|snapshot)/[\w./-]*\w)`")


def blocks(page: str, *languages: str) -> list[re.Match[str]]:
    return [found for found in BLOCK.finditer(PAGES[page]) if found["language"] in languages]


RUNNABLE = [page for page in PAGES if blocks(page, "python") and page not in ELSEWHERE]


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


def lay_out(page: str, folder: Path, servers: str) -> list[str]:
    """Write a page's program into a folder, and return its text blocks, each of which the program marks."""
    program, shown, end = [], [], 0
    for block in blocks(page, "python", "text"):
        if block["language"] == "python":
            program.append(block["body"].replace(NAMED_BROKER, servers))
            end = block.end()
        elif end and not PAGES[page][end : block.start()].strip():
            program.append(f"print({MARK!r})\n")
            shown.append(block["body"])
    folder.mkdir(parents=True)
    (folder / "page.py").write_text("\n".join(program), encoding="utf-8")
    return shown


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, kafka: Any) -> dict[str, tuple[Path, list[str]]]:
    """Run all pages; return the folder of each, with what it printed, and what it shows."""
    root, alike = tmp_path_factory.mktemp("pages"), defaultdict(list)
    for page in RUNNABLE:
        alike[tuple(modules_of_extras(page))].append(page)
    made = {page: root / page for page in RUNNABLE}
    shown = {page: lay_out(page, folder, kafka.bootstrap_servers) for page, folder in made.items()}
    for number, (hidden, pages) in enumerate(alike.items()):
        assert {"pytest", "matplotlib"} <= set(hidden)
        masked, empty = root / f"masked-{number}", root / f"empty-{number}"
        masked.mkdir()
        empty.mkdir()
        # An import of these raises ModuleNotFoundError, in Spark's Python processes too.
        (masked / "sitecustomize.py").write_text(f"import sys; sys.modules.update({dict.fromkeys(hidden)})")
        ran = subprocess.run(
            [sys.executable, "-c", RUN_PAGES, *(str(made[page]) for page in pages)], capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(masked), *sys.path])}, timeout=PATIENCE_SECONDS,
            cwd=empty, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    return {page: (made[page], shown[page]) for page in RUNNABLE}


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_python_of_a_page_runs_as_it_stands(page: str, folders: dict[str, tuple[Path, list[str]]]) -> None:
    folder, shown = folders[page]
    error = folder / "error"
    assert not error.exists(), error.read_text()
    printed = (folder / "stdout").read_text().split(f"{MARK}\n")[: len(shown)]
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
