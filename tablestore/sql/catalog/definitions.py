"""The definitions of tables and views, as files in the warehouse.

::

    <warehouse>/_catalog/<name>/00000001.json     the first definition of that name
                                00000002.json     the next one, or a marker that the definition was dropped

A file is never changed or replaced. A writer changes a definition by creating the file with the number after the one it
read, if absent. So one of several concurrent writers wins, on a local disk as on an object store, and the others know
that they lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from snapshot.errors import AlreadyExistsError, ConflictError, CorruptedError
from snapshot.storage import Storage
from tablestore.sql.parser.errors import SqlError
from tablestore.sql.parser.parse import parse
from tablestore.sql.parser.render import render
from tablestore.sql.parser.statements import CreateTable, CreateView, Options

FOLDER: Final = "_catalog"
CHECKPOINTS_FOLDER: Final = "_checkpoints"
STATES_FOLDER: Final = "_streams"
"""The folder in that of the checkpoints for the states of changelogs."""
_FORMAT: Final = 1
_FILE: Final = re.compile(r"(\d{8})\.json")
_TRIES_MAX: Final = 20

Made = CreateTable | CreateView


@dataclass(frozen=True)
class Definition:
    """The definition of a table or view.

    Attributes:
        made: the statement that creates it.
        path: folder of a store table, relative to the warehouse; None for views and connector tables.
        version: number of the definition's file; 0 before it is stored, and for a temporary definition.
        hints: options of a hint in a query, which are never stored.
    """

    made: Made
    path: str | None = None
    version: int = 0
    hints: Options = ()

    @property
    def name(self) -> str:
        """The name of the table or view."""
        return self.made.name


class Definitions:
    """The definitions of a warehouse."""

    def __init__(self, warehouse: Storage) -> None:
        """Open the warehouse's ``_catalog`` folder."""
        self._storage = warehouse.child(FOLDER)

    def get(self, name: str) -> Definition | None:
        """Return the newest definition of a name, or None if there is none or it was dropped."""
        return self._newest(name)[1]

    def names(self) -> list[str]:
        """Return the names that have or had a definition, sorted."""
        return sorted(unquote(folder) for folder in self._storage.names())

    def all(self) -> list[Definition]:
        """Return all definitions, sorted by name."""
        return [found for found in map(self.get, self.names()) if found is not None]

    def add(self, definition: Definition) -> None:
        """Store a definition under a name that is free.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        version, there = self._newest(definition.name)
        if there is not None or not self._put(definition.name, version + 1, _written(definition)):
            raise AlreadyExistsError(taken(definition.name))

    def change(self, name: str, change: Callable[[Definition], Definition]) -> Definition | None:
        """Replace a definition by what ``change`` returns for it, again each time another writer has changed it first.

        Returns:
            The new definition; None if there is none of that name.

        Raises:
            ConflictError: every try lost to another writer.
        """
        for _ in range(_TRIES_MAX):
            version, there = self._newest(name)
            if there is None:
                return None
            changed = change(there)
            if self._put(name, version + 1, _written(changed)):
                return replace(changed, version=version + 1)
        msg = f"'{name}': other programs changed its definition {_TRIES_MAX} times in the meantime. Try again."
        raise ConflictError(msg)

    def drop(self, definition: Definition) -> None:
        """Drop a definition, which frees its name.

        Raises:
            ConflictError: the definition is no longer the newest of its name.
        """
        if not self._put(definition.name, definition.version + 1, {"format": _FORMAT, "dropped": True}):
            msg = f"'{definition.name}': another program has changed its definition. Check it, and try again."
            raise ConflictError(msg)

    def _put(self, name: str, version: int, content: dict[str, object]) -> bool:
        # Two programs may put the same content; the id makes it that of one of them.
        text = json.dumps({**content, "id": uuid.uuid4().hex}, indent=1, ensure_ascii=False)
        return self._storage.put_new(f"{_folder(name)}/{version:08d}.json", text.encode())

    def _newest(self, name: str) -> tuple[int, Definition | None]:
        versions = [int(found[1]) for file in self._storage.names(_folder(name)) if (found := _FILE.fullmatch(file))]
        if not versions:
            return 0, None
        version = max(versions)
        file = f"{_folder(name)}/{version:08d}.json"
        return version, _read(self._storage.path(file), self._storage.read(file) or b"", version)


def taken(name: str) -> str:
    """Return the message for a name that is taken."""
    return f"'{name}': a table or view of this name exists. Choose another, or use IF NOT EXISTS."


def _folder(name: str) -> str:
    # `quote` leaves dots as they are, but a name '..' must not leave the folder.
    return quote(name, safe="").replace(".", "%2E")


def _written(definition: Definition) -> dict[str, object]:
    return {"format": _FORMAT, "ddl": render(definition.made), "path": definition.path}


def _read(where: str, data: bytes, version: int) -> Definition | None:
    try:
        content = json.loads(data)
        if content.get("format") != _FORMAT:
            msg = f"{where}: expected format {_FORMAT}, got {content.get('format')!r}: a newer version wrote it."
            raise CorruptedError(msg)
        if content.get("dropped"):
            return None
        (made,) = parse(content["ddl"])
    except (ValueError, KeyError, TypeError, AttributeError, SqlError) as error:
        msg = f"{where}: this is not a definition of a table or view: {error}. Restore the file or remove its folder."
        raise CorruptedError(msg) from error
    if not isinstance(made, CreateTable | CreateView):
        msg = f"{where}: expected CREATE TABLE or CREATE VIEW, got {type(made).__name__}. Restore the file."
        raise CorruptedError(msg)
    return Definition(made, content.get("path"), version)
