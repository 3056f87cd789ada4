"""Pairs of SQL and what it becomes, in files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

_HEAD = re.compile(r"^---- (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Pair:
    """One text, and what is expected of it: ``becomes``, ``spark`` or ``error``."""

    name: str
    text: str
    kind: str
    expected: str


def pairs(file: str) -> list[pytest.param]:
    """Read a file: ``---- name``, the text, ``---- becomes`` (or ``spark``, ``error``), what it becomes."""
    _, *parts = _HEAD.split(Path(__file__).with_name(file).read_text())
    found = list(zip(parts[::2], (part.strip("\n") for part in parts[1::2]), strict=True))
    assert len(found) % 2 == 0, "each text has what it becomes"
    return [
        pytest.param(Pair(name, text, kind, expected), id=name.replace(" ", "-"))
        for (name, text), (kind, expected) in zip(found[::2], found[1::2], strict=True)
    ]
