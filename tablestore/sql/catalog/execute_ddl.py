"""Runs ``CREATE``, ``ALTER`` and ``DROP`` on definitions and on the store tables behind them.

Nothing here starts Spark, and DDL on connector tables contacts no broker.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from log_system.kafka.client.secrets import ClientValue, reveal
from snapshot.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from snapshot.storage import Storage
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter as change_table
from tablestore.ddl.table_definition import TableDefinition
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import BOOLEAN, COLUMNS
from tablestore.sql.catalog.alter_table import Altered, StoreChanges, altered, store_changes
from tablestore.sql.catalog.binding import (
    LOG_SERVERS,
    LOG_SYSTEM,
    check_table,
    connector_of,
    is_kept_apart,
    schema_of,
    stored_columns,
)
from tablestore.sql.catalog.create_like import merged
from tablestore.sql.catalog.definitions import CHECKPOINTS_FOLDER, FOLDER, Definition, taken
from tablestore.sql.catalog.hints import read_options, refuse_stored_secrets
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.store_tables import as_stored
from tablestore.sql.catalog.table_references import METADATA_TABLES, check_there, tables_in
from tablestore.sql.parser.statements import (
    AlterRename,
    AlterSet,
    CreateTable,
    CreateView,
    Drop,
    Options,
    PhysicalColumn,
)
from tablestore.write.writer import Writer

_WRITE_ONLY: Final = ("write-only", "compaction.auto", "snapshot.expire-auto", "partition.expire-auto")
"""Paimon's option for tables that others maintain, and the options that say so here."""
_RESERVED: Final = (FOLDER, CHECKPOINTS_FOLDER)
Definer = CreateTable | CreateView | Drop | AlterRename | Altered


def create_table(scope: Scope, made: CreateTable) -> bool:
    """Create a table; return False if it exists and the statement has ``IF NOT EXISTS``.

    1. Check everything that can be checked.
    2. Write the definition. A crash after this step leaves a store table's name without a table; the next CREATE of
       that name creates it.
    3. Create the store table's files and its topic.
    """
    _check_name(made.name)
    if made.like is not None:
        source = scope.definition(made.like.source)
        if not isinstance(source.made, CreateTable):
            msg = f"LIKE '{made.like.source}': this is a view; a table can only be like a table."
            raise InvalidInputError(msg)
        made = merged(made, source.made)
    made = _with_key_not_null(_with_key_options(replace(made, like=None)))
    # Step 1.
    check_table(made, scope.allowed)
    read_options(made)
    there = scope.find(made.name, temporary=made.temporary)
    if there is not None and not _is_unfinished(scope, there):
        if made.if_not_exists:
            return False
        raise AlreadyExistsError(taken(made.name))
    made = replace(made, if_not_exists=False)
    is_store = connector_of(made) is None
    # Creating the store table removes whatever a crash left at the path of an unfinished one.
    path = there.path if there is not None else scope.free_path(made.name)
    definition = Definition(made, path if is_store else None)
    # Step 2.
    if there is not None:
        scope.remove(there)
    scope.add(definition)
    # Step 3.
    if is_store:
        try:
            _make_store_table(scope, definition, made)
        except Exception:
            # If an unfinished definition was there, the files at the path may be another creator's: keep the name.
            if there is None:
                scope.remove(scope.definition(made.name))
            raise
    return True


def create_view(scope: Scope, made: CreateView) -> bool:
    """Create a view; see `create_table` for the return value."""
    _check_name(made.name)
    if scope.find(made.name, temporary=made.temporary, stored=False) is not None:
        if made.if_not_exists:
            return False
        raise AlreadyExistsError(taken(made.name))
    for name in tables_in(made.query):
        if name == made.name:
            msg = f"view '{made.name}' would read itself. Choose another name."
            raise InvalidInputError(msg)
    check_there(scope, made.query)
    refuse_stored_secrets(made.query, made.name)
    scope.add(Definition(replace(made, if_not_exists=False)))
    return True


def drop(scope: Scope, dropped: Drop) -> bool:
    """Drop a table or view; return whether it existed.

    A store table's files and topic are removed first, then its name: a crash in between leaves a name without a table,
    which can be dropped again.
    """
    there = _find(scope, dropped, temporary=dropped.temporary)
    if there is None:
        return False
    _check_kind(there, dropped, "DROP")
    # A crash during RENAME leaves two names for one store table; it is removed with the last of them.
    if there.path is not None and not scope.others_at(there):
        _drop_store_table(scope, there)
    scope.remove(there)
    return True


def alter(scope: Scope, statement: Altered) -> bool:
    """Alter a table; return whether it existed.

    A store table itself is changed first, then its definition. A crash in between leaves a definition without the
    table's latest columns; `Scope.find` takes the columns from the table.
    """
    there = _find(scope, statement)
    if there is None:
        return False
    if not isinstance(there.made, CreateTable):
        msg = f"'{statement.name}' is a view: use DROP VIEW and CREATE VIEW to change it."
        raise InvalidInputError(msg)
    if there.path is not None:
        if isinstance(statement, AlterSet):
            statement = replace(statement, options=_of_write_only(statement.options))
        after = altered(there.made, statement)
        check_table(after, scope.allowed)
        read_options(after)
        _alter_store_table(scope, there, store_changes(there.made, statement))
        scope.change(there, lambda before: _in_words(scope, before, statement, after))
        return True

    def change(before: Definition) -> Definition:
        assert isinstance(before.made, CreateTable)
        changed = altered(before.made, statement)
        check_table(changed, scope.allowed)
        return replace(before, made=changed)

    scope.change(there, change)
    return True


def _in_words(scope: Scope, before: Definition, statement: Altered, after: CreateTable) -> Definition:
    """Return a store table's definition with the table's current columns, and types as the statement declares them."""
    assert isinstance(before.made, CreateTable)
    try:
        made = altered(before.made, statement)
    except (InvalidInputError, NotFoundError):
        # The stored definition lags behind the table's columns; the statement did apply to those.
        made = after
    return replace(before, made=as_stored(made, Storage.at(scope.place_of(before))))


def rename(scope: Scope, renamed: AlterRename) -> bool:
    """Rename a table or view, whose files stay where they are; return whether it existed.

    The new name is written first: a crash before the old one is removed leaves two names for the same table.
    """
    there = _find(scope, renamed)
    if there is None:
        return False
    _check_kind(there, renamed, "ALTER")
    _check_name(renamed.to)
    scope.add(Definition(replace(there.made, name=renamed.to), there.path))
    scope.remove(there)
    return True


def _find(scope: Scope, statement: Drop | Altered | AlterRename, *, temporary: bool | None = None) -> Definition | None:
    """Return the definition that a statement names; None if there is none and the statement has IF EXISTS.

    Raises:
        NotFoundError: there is none.
    """
    there = scope.find(statement.name, temporary=temporary)
    if there is None and not statement.if_exists:
        raise scope.missing(statement.name)
    return there


def _check_kind(there: Definition, statement: Drop | AlterRename, verb: str) -> None:
    """Check that a statement on a view names a view, and one on a table a table."""
    if statement.is_view is isinstance(there.made, CreateTable):
        kind = "table" if statement.is_view else "view"
        msg = f"'{statement.name}' is a {kind}: use {verb} {kind.upper()}."
        raise InvalidInputError(msg)


def _check_name(name: str) -> None:
    if name in _RESERVED:
        msg = f"'{name}': the name is reserved by the warehouse. Choose another."
        raise InvalidInputError(msg)
    table, _, what = name.rpartition("$")
    if table and what in METADATA_TABLES:
        msg = f"'{name}' is the name of a metadata table of '{table}'. Choose another."
        raise InvalidInputError(msg)


def _with_key_options(made: CreateTable) -> CreateTable:
    """Return a store table's definition with the key and partitions that its options name, as Paimon's CTAS has it.

    Raises:
        InvalidInputError: they are declared, too, or an option names no columns.
    """
    if connector_of(made) is not None:
        return made
    found: dict[str, tuple[str, ...]] = {}
    for option, clause, declared in (
        ("primary-key", "PRIMARY KEY", made.primary_key),
        ("partition", "PARTITIONED BY", made.partitioned_by),
    ):
        given = reveal(dict(made.options)).get(option)
        found[option] = declared if given is None else OptionSpec(option, COLUMNS).parse(given)
        if given is not None and declared:
            msg = f"table '{made.name}': option '{option}' and {clause} say the same. Leave one of them out."
            raise InvalidInputError(msg)
    kept = tuple((key, value) for key, value in _of_write_only(made.options) if key not in found)
    return replace(made, primary_key=found["primary-key"], partitioned_by=found["partition"], options=kept)


def _of_write_only(options: Options) -> Options:
    """Return options with those that do what Paimon's ``write-only`` says in its place: writes do no maintenance."""
    found: dict[str, ClientValue] = {}
    for key, value in options:
        is_own = key != _WRITE_ONLY[0]
        text = value if is_own else str(not OptionSpec(key, BOOLEAN).parse(str(value))).lower()
        found |= dict.fromkeys((key,) if is_own else _WRITE_ONLY[1:], text)
    return tuple(found.items())


def _with_key_not_null(made: CreateTable) -> CreateTable:
    columns = tuple(
        replace(column, type=replace(column.type, nullable=False))
        if isinstance(column, PhysicalColumn) and column.name in made.primary_key
        else column
        for column in made.columns
    )
    return replace(made, columns=columns)


def _make_store_table(scope: Scope, definition: Definition, made: CreateTable) -> None:
    given = reveal({key: value for key, value in made.options if not is_kept_apart(key)})
    log_system = given.pop(LOG_SYSTEM, None)
    if LOG_SERVERS in given:
        given[LOG_SERVERS] = scope.settings.servers(given[LOG_SERVERS])
    store_table = TableDefinition(
        scope.place_of(definition),
        schema_of(stored_columns(made)),
        primary_key=made.primary_key,
        partition_by=made.partitioned_by,
        log_system=log_system,
        options=given,
    )
    create_drop.create(store_table, scope.given_to_store if log_system else {}, scope.allowed)


def _alter_store_table(scope: Scope, there: Definition, changes: StoreChanges) -> None:
    table = scope.context_of(there)
    options = {
        key: scope.settings.servers(value) if key == LOG_SERVERS else value
        for key, value in reveal(changes.options).items()
    }
    with table.open_publisher() as publisher:
        change_table(
            table,
            changes.columns,
            set_options=options,
            reset_options=changes.reset,
            publish=Writer(table, publisher).publish,
        )


def _is_unfinished(scope: Scope, there: Definition) -> bool:
    """Return whether a definition has a store table's path but no table is there, as after a crash."""
    if there.path is None:
        return False
    try:
        scope.context_of(there)
    except NotFoundError:
        return True
    return False


def _drop_store_table(scope: Scope, there: Definition) -> None:
    # The files are already gone if an earlier DROP, or the CREATE, was interrupted.
    with suppress(NotFoundError):
        create_drop.drop_at(scope.place_of(there), scope.runtime_of(there), scope.allowed)
