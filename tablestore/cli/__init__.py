"""The command line: ``tablestore``."""

from __future__ import annotations

from typer import Typer

from tablestore.cli import audit, kafka, life, sql, table
from tablestore.cli.base import FriendlyGroup

app = Typer(
    name="tablestore",
    cls=FriendlyGroup,
    help="A table store on Spark: snapshots in Delta Lake, every change once and in order in Kafka.",
    no_args_is_help=True,
    add_completion=False,
    # Locals may hold a password.
    pretty_exceptions_show_locals=False,
)
app.add_typer(kafka.app, name="kafka")
table.add_to(app)
audit.add_to(app)
life.add_to(app)
sql.add_to(app)


@app.callback()
def main() -> None:
    """Keep the sub-commands sub-commands, however few there are."""
