"""``tablestore tables`` and ``tablestore serve``: list the tables of a warehouse, and serve them without a writer."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from rich.text import Text
from typer import Argument, Option

from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.cli.console import AsJson, Client, client_options, console, result_console
from tablestore.cli.output import show_rows
from tablestore.tracing import trace

Warehouse = Annotated[str, Option("--warehouse", "-w", help="Folder of the tables and their definitions.")]


TOKEN = "TABLESTORE_SERVE_TOKEN"
_FILES_MAX = 65_536
"""Files that the service may have open, if the system permits as many."""


def tables(warehouse: Warehouse = "warehouse", as_json: AsJson = False) -> None:
    """List the tables and views of a warehouse, with the path and newest snapshot of each store table."""
    # PySpark takes a second to import.
    from tablestore.sql.catalog.definitions import Definition, Definitions  # noqa: PLC0415
    from tablestore.sql.catalog.show import kind_of  # noqa: PLC0415

    folder = Storage.at(warehouse)

    def row(found: Definition) -> tuple[object, ...]:
        place = None if found.path is None else folder.child(found.path)
        where = ("", None) if place is None else (place.root, _newest(place))
        return found.name, kind_of(found), *where

    found = list(Definitions(folder).all())
    if not found and not as_json:
        result_console().print(Text(f"There are no tables or views in warehouse {folder.root}."), soft_wrap=True)
        return
    show_rows(result_console(), ("name", "kind", "path", "snapshot"), map(row, found), as_json=as_json)


def serve(  # noqa: PLR0913, PLR0917 - every option of the command
    paths: Annotated[list[str] | None, Argument(help="Folders of tables.")] = None,
    warehouse: Annotated[
        str | None, Option("--warehouse", "-w", help="Serve all tables of a warehouse, also those created later.")
    ] = None,
    host: Annotated[str, Option(help=f"Address to listen on; one that is not loopback needs {TOKEN}.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 for a free one.", min=0, max=65_535)] = 9464,
    look_every: Annotated[
        float, Option(help="Look at each table every so many seconds; a look is four requests to its store.", min=0.05)
    ] = 0.2,
    verify_every: Annotated[
        float, Option(help="Compare new snapshots in log and table every so many seconds; 0 for never.", min=0)
    ] = 60.0,
    verify_whole_every: Annotated[
        float, Option(help="Compare the whole log with the table every so many seconds.", min=1)
    ] = 86_400.0,
    verify_rate: Annotated[
        float, Option(help="Most records per second read to compare, of all tables together; 0 for no limit.", min=0)
    ] = 50_000.0,
    otel: Annotated[
        bool, Option("--otel", help="Record OpenTelemetry spans, for the exporter in OTEL_TRACES_EXPORTER.")
    ] = False,
    option: Client = None,
) -> None:
    """Publish what crashed writers left, compact and expire by each table's options, and show metrics and a page.

    Needs neither Spark nor Java, except that --warehouse loads PySpark's Python code. Several may serve the same
    tables. Pages: /, /metrics (Prometheus), /healthz. Requests must present the token in TABLESTORE_SERVE_TOKEN, if it
    is set, as 'Authorization: Bearer TOKEN'.
    """
    if not paths and warehouse is None:
        msg = "serve: expected folders of tables, or --warehouse; got neither."
        raise InvalidInputError(msg)
    try:
        from tablestore.service.attempts import Schedule  # noqa: PLC0415
        from tablestore.service.service import Service  # noqa: PLC0415 - an extra of the package
        from tablestore.service.web import http_server  # noqa: PLC0415
    except ImportError as error:
        msg = "serve needs the package prometheus-client: pip install tablestore[serve]."
        raise InvalidInputError(msg) from error
    if otel:
        trace()
    service = Service(
        _lister(paths or [], warehouse),
        options=client_options(option),
        schedule=Schedule(poll=look_every, verify=verify_every or None, verify_whole=verify_whole_every),
        verify_rate=verify_rate or None,
    )
    _allow_open_files()
    token = os.environ.get(TOKEN)
    with http_server(service, host, port, token) as server, service:
        console.print(f"Serving on http://{host}:{server.server_port}/ until Ctrl-C.", highlight=False, soft_wrap=True)
        # ``shutdown`` waits for ``serve_forever``, which this thread runs.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            console.print("Stopping ...", highlight=False)


def _allow_open_files() -> None:
    """Let this process open as many files as the system permits: clients of Kafka take up to 24 for each table."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _newest(place: Storage) -> int | str:
    try:
        return TableFiles.open(place).latest()
    except TableStoreError as error:
        # Report a table that cannot be opened instead of failing for all of them.
        return error.kind


def _lister(paths: Iterable[str], warehouse: str | None) -> Callable[[], Iterable[str]]:
    """Return a function that lists the tables to serve; an error of one definition comes after the other tables."""
    fixed = [Storage.at(path).root for path in paths]
    if warehouse is None:
        return lambda: fixed
    # PySpark takes a second to import.
    from tablestore.sql.catalog.definitions import Definitions  # noqa: PLC0415

    folder = Storage.at(warehouse)

    def tables() -> Iterator[str]:
        yield from fixed
        definitions, failed = Definitions(folder), list[TableStoreError]()
        for name in definitions.names():
            try:
                found = definitions.get(name)
            except TableStoreError as error:
                failed.append(error)
                continue
            if found is not None and found.path is not None:
                yield folder.child(found.path).root
        if failed:
            raise failed[0]

    return tables
