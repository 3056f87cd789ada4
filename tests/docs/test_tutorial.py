"""The tutorial runs from top to bottom and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "tutorial.md"
BLOCK = re.compile(r"^```(?P<language>python|text)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_tutorial_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "tutorial"}
    outputs = 0
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["language"] == "python":
            exec(compile(block["body"], PAGE.name, "exec"), scope)
        else:
            assert trimmed(capsys.readouterr().out) == trimmed(block["body"])
            outputs += 1
    assert outputs == 4
