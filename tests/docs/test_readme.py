"""The examples of README and of guide pages run as they stand and print what is said there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from tests.harness.waiting import PATIENCE_SECONDS

README = Path(__file__).parents[2] / "README.md"
GUIDE = README.parent / "docs" / "guide"
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n+^```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def example_of(page: Path) -> re.Match[str]:
    found = EXAMPLE.search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no python block followed by a text block"
    return found


def modules_of_extras() -> list[str]:
    """Name the modules that are installed here for an extra only, such as ``dev``."""
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: Iterable[str]) -> set[str]:
        return {re.split(r"[^\w.-]", each)[0].lower() for each in requirements}

    extras = names(chain.from_iterable(project["optional-dependencies"].values())) - names(project["dependencies"])
    return [module for module, of in packages_distributions().items() if {name.lower() for name in of} <= extras]


@pytest.mark.slow
def test_the_readmes_example_needs_what_pip_installs_with_the_package_only(tmp_path: Path) -> None:
    extras = modules_of_extras()
    assert {"matplotlib", "polars", "pytest"} <= set(extras)
    # An import of these raises ModuleNotFoundError, in Spark's Python processes too.
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({extras}))")
    found = example_of(README)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", found["code"]], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert trimmed(ran.stdout) == trimmed(found["output"])


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", [GUIDE / "eventual.md", GUIDE / "python.md"], ids=lambda page: page.name)
def test_the_example_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = example_of(page)
    monkeypatch.chdir(tmp_path)
    # The example's session() returns the session of the fixture; its broker is one of its own.
    exec(compile(found["code"], page.name, "exec"), {"__name__": "readme"})
    assert trimmed(capsys.readouterr().out) == trimmed(found["output"])


def test_the_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`((?:tests|examples|docs|benchmarks)/[\w./-]+)`", README.read_text(encoding="utf-8")))
    assert named
    assert [name for name in sorted(named) if not (README.parent / name).exists()] == []
