"""``tablestore sql``: run SQL from files, arguments, standard input or a prompt.

The modules that run SQL are imported inside the command, since PySpark takes a second to import.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from log_system.kafka.client.secrets import wrap
from tablestore.cli.console import AsJson, name_values
from tablestore.cli.warehouse import Warehouse


def sql(
    file: Annotated[
        list[Path] | None,
        Option("--file", "-f", exists=True, dir_okay=False, readable=True, help="Run the statements of a file."),
    ] = None,
    text: Annotated[list[str] | None, Option("--execute", "-e", help="Run these statements.")] = None,
    warehouse: Warehouse = "warehouse",
    setting: Annotated[
        list[str] | None, Option("--set", "-s", help="A setting made before all statements: KEY=VALUE.")
    ] = None,
    option: Annotated[
        list[str] | None,
        Option(
            "--option",
            "-o",
            help="Kafka client option for all tables, not stored: kafka.NAME=VALUE or properties.NAME=VALUE.",
        ),
    ] = None,
    live: Annotated[bool, Option("--live", help="Show the result of a continuous SELECT as a live table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run SQL: first files, then -e texts. With neither, read standard input or, in a terminal, open a prompt."""
    from tablestore.cli.statement_runner import Runner, statements_in, statements_of, text_of  # noqa: PLC0415 - as the module says

    settings, options = name_values(setting, "--set"), wrap(name_values(option, "--option"))
    if not file and not text and sys.stdin.isatty():
        from tablestore.cli.prompt import converse  # noqa: PLC0415 - as above

        converse(Runner.of(warehouse, settings, options, as_json=as_json, live=live))
        return
    # Parse all texts before running any, so that a syntax error in the last one stops the first one.
    texts = list(text or []) if file or text else [text_of(sys.stdin.buffer.read(), "standard input")]
    statements = [statement for each in file or [] for statement in statements_in(each)] + statements_of(texts)
    Runner.of(warehouse, settings, options, as_json=as_json, live=live).run_all(statements)
