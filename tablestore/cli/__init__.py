"""The ``tablestore`` command-line application."""

from __future__ import annotations

import sys
from typing import Annotated, Final

try:
    from typer import Exit, Option, Typer, echo

    from snapshot.messages import version_of
    from tablestore.cli import audit, compact_drop, kafka, log, maintenance, prepare, read, recover, sql, warehouse
    from tablestore.cli.console import FriendlyGroup, set_debug
except KeyboardInterrupt:
    # The imports take half a second, in which Ctrl-C shows no traceback either.
    sys.exit(130)

_REPORTED: Final = ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow", "duckdb")
"""Packages whose versions matter in a bug report."""

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
for command in (
    sql.sql,
    warehouse.tables,
    warehouse.serve,
    read.describe,
    read.read,
    read.changes,
    read.tail,
    recover.snapshots,
    recover.recover,
    log.log,
    compact_drop.compact,
    compact_drop.drop,
    audit.verify,
    audit.repair,
    maintenance.expire,
    maintenance.rollback,
    maintenance.tag,
    maintenance.tags,
    maintenance.consumers,
    maintenance.inspect,
    maintenance.delete_tag,
    maintenance.remove_orphans,
    maintenance.expire_partitions,
    maintenance.reset_consumer,
    prepare.prepare,
    prepare.pack,
):
    app.command()(command)
app.add_typer(kafka.app, name="kafka")


def _show_versions(asked: bool) -> None:
    if asked:
        echo(f"tablestore {version_of('tablestore')}")
        echo(", ".join(f"{name} {version_of(name)}" for name in _REPORTED) + f", Python {sys.version.split()[0]}")
        raise Exit


@app.callback()
def main(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        Option("--version", is_eager=True, callback=_show_versions, help="Show the version, and that of packages."),
    ] = False,
) -> None:
    """Apply the options that precede every command."""
    set_debug(debug)
