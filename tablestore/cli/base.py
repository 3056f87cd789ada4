"""What every command shares: one console, and errors told in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from snapshot.errors import TableStoreError

console = Console()


class FriendlyGroup(TyperGroup):
    """The group of all commands: an error raised on purpose becomes one red line and exit code 1, never a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        with friendly():
            return super().main(*args, **kwargs)


@contextmanager
def friendly() -> Iterator[None]:
    """Turn an error raised on purpose into one red line on standard error and exit code 1."""
    try:
        yield
    except TableStoreError as error:
        # Text, not markup: a message may hold brackets.
        Console(stderr=True).print(Text(f"Error: {error}", style="bold red"), soft_wrap=True)
        sys.exit(1)
