"""The examples of README and of guide pages run as they stand and print what is said there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
GUIDE = README.parent / "docs" / "guide"
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n+^```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "page", [README, *(GUIDE / name for name in ("eventual.md", "python.md"))], ids=lambda page: page.name
)
def test_the_example_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = EXAMPLE.search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no python block followed by a text block"
    monkeypatch.chdir(tmp_path)
    # The example's session() returns the session of the fixture; its broker is one of its own.
    exec(compile(found["code"], page.name, "exec"), {"__name__": "readme"})
    assert trimmed(capsys.readouterr().out) == trimmed(found["output"])


def test_the_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`((?:tests|examples|docs|benchmarks)/[\w./-]+)`", README.read_text(encoding="utf-8")))
    assert named
    assert [name for name in sorted(named) if not (README.parent / name).exists()] == []
