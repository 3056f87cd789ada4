"""``tablestore kafka``: a Kafka broker on this machine, for development and trials."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Exit, Option, Typer

from log_system.jars import waiting
from log_system.local_kafka import detached
from tablestore.cli.console import AsJson, console
from tablestore.cli.output import print_json, show_rows

app = Typer(help="Start, stop and look at a real Kafka broker on this machine (loopback only).", no_args_is_help=True)

NOT_RUNNING = 3

Port = Annotated[int, Option(help="Where it listens on 127.0.0.1.", min=1, max=65535)]
Data = Annotated[
    Path | None, Option(help="Folder of its data; kept when it stops.", show_default="~/.local/share/tablestore/kafka")
]


@app.command()
def start(port: Port = detached.DEFAULT_PORT, data: Data = None) -> None:
    """Start the broker in the background."""
    with waiting("Starting Kafka ..."):
        broker = detached.start(data, port)
    console.print(
        f"Kafka listens on [bold]{broker.bootstrap_servers}[/] (process {broker.pid}).", highlight=False, soft_wrap=True
    )
    console.print(
        f"Data and log: {broker.data_dir}. Stop it with 'tablestore kafka stop'.", highlight=False, soft_wrap=True
    )


@app.command()
def stop() -> None:
    """Stop the broker and keep its data."""
    broker = detached.stop()
    console.print(
        f"Stopped Kafka on {broker.bootstrap_servers}. Its data stays in {broker.data_dir}.",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the broker's status. Exits with code 3 if it is not running."""
    broker = detached.status()
    if as_json:
        running = {} if broker is None else {"bootstrap_servers": broker.bootstrap_servers, "answers": broker.answers}
        print_json(console, {"running": broker is not None, **running, **({} if broker is None else asdict(broker))})
        raise Exit(NOT_RUNNING if broker is None else 0)
    if broker is None:
        console.print(
            "No local Kafka broker is running. 'tablestore kafka start' starts one.", highlight=False, soft_wrap=True
        )
        raise Exit(NOT_RUNNING)
    up_minutes = (time.time() - broker.started) / 60
    answers = "yes" if broker.answers else "no"
    row = (broker.bootstrap_servers, broker.pid, f"{up_minutes:.0f} min", answers, broker.data_dir)
    show_rows(console, ("bootstrap servers", "process", "up", "answers", "data"), [row], as_json=False)
