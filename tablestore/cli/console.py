"""Shared by all commands: the console, common options, and one-line error messages.

The constants are exit codes, which ``docs/guide/cli.md`` documents.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from typer import Argument, Exit, Option
from typer.core import TyperGroup

from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.errors import InvalidInputError, TableStoreError

_UNBOUNDED = 100_000


def result_console(*, soft_wrap: bool = False) -> Console:
    """Return a console for results; what does not go to a terminal has each row on one line, however wide it is."""
    made = Console(highlight=False, soft_wrap=soft_wrap)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNBOUNDED
    return made


console = result_console()

FAILED = 1
"""The command failed and printed the reason on one line; for ``verify`` and ``repair`` also: log and table differ."""
MISTAKE = 70
"""An internal error: a bug in the program."""
INTERRUPTED = 130
"""Ctrl-C ended the command."""

AsJson = Annotated[bool, Option("--json", help="Print one JSON object per line instead of tables.")]
Path = Annotated[str, Argument(help="Folder of the table.")]
Point = Annotated[
    str | None, Option("--snapshot", "-s", help="A snapshot id, a tag or a time. Default: the newest snapshot.")
]
Client = Annotated[
    list[str] | None, Option("--option", "-o", help="Kafka client option that is not stored: kafka.NAME=VALUE.")
]


def client_options(given: list[str] | None) -> dict[str, ClientValue]:
    """Parse the values of option ``Client``."""
    return wrap(name_values(given, "--option"))


def name_values(given: list[str] | None, option: str) -> dict[str, str]:
    """Parse the values of an option, each ``NAME=VALUE``, into a dictionary.

    Raises:
        InvalidInputError: a value has another form; the message does not show it, since it may be a credential.
    """
    pairs = [text.partition("=") for text in given or []]
    if not all(name and equals for name, equals, _ in pairs):
        msg = f"{option}: expected NAME=VALUE, got something else (not shown: it may be a credential)."
        raise InvalidInputError(msg)
    return {name: value for name, _, value in pairs}


class _Shown:
    """Whether the running command was started with ``--debug``."""

    origin = False


class FriendlyGroup(TyperGroup):
    """The top-level command group, which reports an error as one red line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        _Shown.origin = False
        with friendly():
            return super().main(*args, **kwargs)


def set_debug(debug: bool) -> None:
    """Set whether errors print their traceback."""
    _Shown.origin = debug


@contextmanager
def friendly() -> Iterator[None]:
    """Exit with one red line on standard error when the block raises."""
    try:
        yield
    except Exception as error:
        # Typer ends a command with ``Exit``, which is not an error.
        if isinstance(error, Exit):
            raise
        sys.exit(show_error(error))


def show_error(error: Exception) -> int:
    """Print an error on one line, with ``--debug`` also its traceback, and return its exit code."""
    if _Shown.origin:
        traceback.print_exception(error)
    known = isinstance(error, TableStoreError)
    text = str(error) if known else f"{_in_one_line(error)} (a bug in this program; --debug shows the traceback)"
    # ``Text`` is not parsed as markup; a message may contain brackets.
    Console(stderr=True).print(Text(f"Error: {text}", style="bold red"), soft_wrap=True)
    return FAILED if known else MISTAKE


def _in_one_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
