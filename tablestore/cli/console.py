"""What every command shares: one console, options that mean the same everywhere, and errors told in one line.

Exit codes are those of ``docs/guide/cli.md``; they are named here.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from typer import Exit, Option
from typer.core import TyperGroup

from snapshot.errors import TableStoreError

console = Console()

FAILED = 1
"""It failed, and one line says why; of ``verify`` and ``repair`` also: log and table differ."""
MISTAKE = 70
"""The program itself is wrong."""

AsJson = Annotated[bool, Option("--json", help="One JSON object a line instead of tables.")]


def name_values(given: list[str] | None) -> dict[str, str]:
    """Return pairs that are given as ``NAME=VALUE``."""
    return dict(pair.partition("=")[::2] for pair in given or [])


class _Shown:
    """What ``--debug`` asks for; of the command that runs."""

    origin = False


class FriendlyGroup(TyperGroup):
    """The group of all commands: an error becomes one red line and an exit code, never a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        _Shown.origin = False
        with friendly():
            return super().main(*args, **kwargs)


def set_debug(debug: bool) -> None:
    """Say whether errors show where they come from."""
    _Shown.origin = debug


@contextmanager
def friendly() -> Iterator[None]:
    """Turn an error into one red line on standard error and an exit code."""
    try:
        yield
    except Exception as error:
        # What typer ends a command with is no error.
        if isinstance(error, Exit):
            raise
        sys.exit(show_error(error))


def show_error(error: Exception) -> int:
    """Tell an error in one line, or with ``--debug`` where it comes from too; give the exit code that it means."""
    if _Shown.origin:
        traceback.print_exception(error)
    known = isinstance(error, TableStoreError)
    text = str(error) if known else f"{_in_one_line(error)} (a mistake in this program; --debug shows where)"
    # Text, not markup: a message may hold brackets.
    Console(stderr=True).print(Text(f"Error: {text}", style="bold red"), soft_wrap=True)
    return FAILED if known else MISTAKE


def _in_one_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
