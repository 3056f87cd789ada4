"""``tablestore tables``: list the tables and views of a warehouse."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from typer import Option, Typer

from snapshot.errors import TableStoreError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.cli.console import AsJson
from tablestore.cli.output import show_rows

Warehouse = Annotated[str, Option("--warehouse", "-w", help="Folder of the tables and their definitions.")]


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

    names = ("name", "kind", "path", "snapshot")
    show_rows(Console(highlight=False), names, map(row, Definitions(folder).all()), as_json=as_json)


def add_to(app: Typer) -> None:
    """Add the command to the application."""
    app.command()(tables)


def _newest(place: Storage) -> int | str:
    try:
        return TableFiles.open(place).latest()
    except TableStoreError as error:
        # Report a table that cannot be opened instead of failing for all of them.
        return error.kind
