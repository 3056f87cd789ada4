"""The ``tablestore`` command-line application."""

from __future__ import annotations

import sys
from typing import Annotated

try:
    from typer import Option, Typer

    from tablestore.cli import audit, compact_drop, kafka, log, maintenance, prepare, read, recover, sql, warehouse
    from tablestore.cli.console import FriendlyGroup, set_debug
except KeyboardInterrupt:
    # The imports take half a second, in which Ctrl-C shows no traceback either.
    sys.exit(130)

app = Typer(
    name="tablestore",
    cls=FriendlyGroup,
    help="A table store on Spark: snapshots in Delta Lake, every change once and in order in Kafka.",
    no_args_is_help=True,
    add_completion=False,
    # Paragraphs of a docstring are wrapped to the width of the terminal.
    rich_markup_mode="markdown",
    # A local variable may contain a password.
    pretty_exceptions_show_locals=False,
)
sql.add_to(app)
warehouse.add_to(app)
read.add_to(app)
recover.add_to(app)
log.add_to(app)
compact_drop.add_to(app)
audit.add_to(app)
maintenance.add_to(app)
prepare.add_to(app)
app.add_typer(kafka.app, name="kafka")


@app.callback()
def main(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Apply the options that precede every command."""
    set_debug(debug)
