"""``Catalog``: tables by name, and SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore.sql import ddl, show
from tablestore.sql.parse import parse
from tablestore.sql.render import render
from tablestore.sql.results import Result
from tablestore.sql.scope import GiveSpark, Scope
from tablestore.sql.statements import (
    AlterAdd,
    AlterRename,
    AlterRenameColumn,
    AlterReset,
    AlterSet,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    ResetOption,
    SetOption,
    ShowCreate,
    ShowTables,
    Statement,
)
from tablestore.sql.tables import ConnectorTable
from tablestore.store import TableStore


class Catalog:
    """Tables of a warehouse, and SQL over them.

    The definitions are files in the warehouse, so any number of processes may use it at once. Temporary tables and
    settings are of this object alone. Statements that only define need no Spark.
    """

    def __init__(
        self, spark: GiveSpark, warehouse: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None
    ) -> None:
        """Open a warehouse.

        Args:
            spark: a session (see ``tablestore.session``), or what makes one when it is first needed.
            warehouse: folder of definitions and store tables; a local path or the URL of an object store.
            settings: as ``SET`` takes them.
        """
        self._scope = Scope(spark, Storage.at(warehouse))
        for key, value in (settings or {}).items():
            self._set(SetOption(key, value))

    def sql(self, text: str) -> Result:
        """Run a text, and give what its last statement gives.

        Raises:
            SqlError: the text cannot be read; none of it was run.
        """
        result: Result | None = None
        for result in self.run(text):  # noqa: B007 - the last one is wanted
            pass
        if result is None:
            msg = "expected a statement, came a text without any."
            raise InvalidInputError(msg)
        return result

    def run(self, text: str) -> Iterator[Result]:
        """Run a text statement by statement, as they are asked for; all of it is read first.

        Raises:
            SqlError: the text cannot be read; none of it was run.
        """
        statements = parse(text)
        return map(self.execute, statements)

    def execute(self, statement: Statement) -> Result:
        """Run a statement that has been read."""
        scope = self._scope
        match statement:
            case CreateTable():
                done = ddl.create_table(scope, statement)
                return Result(statement, _done(done, f"table '{statement.name}' was made", "it is there already"))
            case CreateView():
                done = ddl.create_view(scope, statement)
                return Result(statement, _done(done, f"view '{statement.name}' was made", "it is there already"))
            case Drop():
                return Result(statement, _done(ddl.drop(scope, statement), f"'{statement.name}' was dropped"))
            case AlterRename():
                done = ddl.rename(scope, statement)
                return Result(statement, _done(done, f"'{statement.name}' is called '{statement.to}' now"))
            case AlterSet() | AlterReset() | AlterAdd() | AlterRenameColumn():
                return Result(statement, _done(ddl.alter(scope, statement), f"table '{statement.name}' was changed"))
            case ShowTables():
                return show.show_tables(scope, statement)
            case ShowCreate():
                return show.show_create(scope, statement)
            case Describe():
                return show.describe(scope, statement)
            case SetOption():
                return self._set(statement)
            case ResetOption():
                return self._reset(statement)
        msg = f"not supported yet: {render(statement).split(maxsplit=1)[0]}. Read tables with catalog.table(name)."
        raise InvalidInputError(msg)

    def table(self, name: str, *, options: Mapping[str, str] | None = None) -> ConnectorTable | TableStore:
        """Give a table, to be read and written in Python.

        Args:
            name: of the table.
            options: what is not stored with it, such as ``properties.sasl.password`` (``kafka.*`` of a store table).

        Returns:
            A `TableStore`, or the table of a connector, which has ``read``, ``read_stream``, ``write`` and
            ``write_stream`` too.

        Raises:
            NotFoundError: there is no such table.
            InvalidInputError: this is a view.
        """
        definition = self._scope.definition(name)
        if isinstance(definition.made, CreateView):
            msg = f"'{name}' is a view: read it by catalog.sql('SELECT * FROM `{name}`')."
            raise InvalidInputError(msg)
        if definition.path is None:
            return ConnectorTable(self._scope, definition.made, options)
        runtime = self._scope.runtime_of(definition) | dict(options or {})
        return TableStore.open(self._scope.spark, self._scope.place_of(definition), options=runtime)

    def tables(self) -> list[str]:
        """Give the names of all tables and views."""
        return [each.name for each in self._scope.all()]

    def _set(self, statement: SetOption) -> Result:
        if statement.key is None:
            return show.show_settings(self._scope, statement)
        self._scope.set(statement.key, statement.value or "")
        return Result(statement, f"'{statement.key}' is set")

    def _reset(self, statement: ResetOption) -> Result:
        names = self._scope.reset(statement.key)
        return Result(statement, f"taken back: {', '.join(names) or 'nothing'}")


def _done(done: bool, what: str, otherwise: str = "there is none") -> str:
    return what if done else otherwise
