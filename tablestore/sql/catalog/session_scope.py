"""``Scope``: the warehouse's definitions and a session's own temporary ones, its settings and its Spark session."""

from __future__ import annotations

import atexit
import copy
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import CLIENT_PREFIXES, ClientValue
from snapshot.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from snapshot.messages import did_you_mean
from snapshot.storage import Storage
from tablestore.context import TableContext
from tablestore.spark.connect import running
from tablestore.sql.catalog.binding import LOG_SERVERS
from tablestore.sql.catalog.definitions import CHECKPOINTS_FOLDER, STATES_FOLDER, Definition, Definitions, taken
from tablestore.sql.catalog.partition_choice import KeptPartitions
from tablestore.sql.catalog.settings import CHECKPOINTS, IN_SPARK, SPARK, Settings, shown
from tablestore.sql.catalog.store_tables import as_stored
from tablestore.sql.parser.statements import CreateTable

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_]")
GiveSpark = SparkSession | Callable[[], SparkSession]


def folder_name(table: str, suffix: str) -> str:
    """Return the name of a folder for a table or for a query that writes it, with a suffix that makes it unique."""
    return f"{_SPECIAL.sub('_', table)}-{suffix}"


class Scope:
    """One session's view of a warehouse."""

    def __init__(
        self, spark: GiveSpark, warehouse: Storage, options: Mapping[str, ClientValue], allowed: Allowed
    ) -> None:
        """Open a session's view of a warehouse.

        Args:
            spark: the Spark session, or a function that creates it when first needed; DDL needs none.
            warehouse: the warehouse folder.
            options: client options for every table, ``properties.*`` and ``kafka.*``.
            allowed: what stored options may refer to.

        Raises:
            InvalidInputError: an option is neither ``properties.*`` nor ``kafka.*``.
        """
        for name in options:
            if not name.startswith(CLIENT_PREFIXES):
                msg = (
                    f"option '{name}': expected a client option 'properties.*' (for tables of the connectors) or "
                    "'kafka.*' (for store tables), which hold for all tables; others go to table(name, options=...)."
                )
                raise InvalidInputError(msg)
        self._given = dict(options)
        self.allowed = allowed
        self._spark = spark
        self.warehouse = warehouse
        self.settings = Settings()
        self._definitions = Definitions(warehouse)
        self._temporary: dict[str, Definition] = {}
        self._hinted: dict[str, Definition] = {}
        self.kept_partitions: KeptPartitions | None = None
        self.reads_every_change = False
        self._is_momentary = False
        self._session_states: str | None = None
        self._before: dict[str, str | None] = {}
        """Values that Spark settings had before this session changed them, by Spark's name; None if unset."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the definitions and settings without the Spark session, which does not leave its process."""
        return {**self.__dict__, "_spark": None}

    def within(self, spark: SparkSession, kept: KeptPartitions | None = None) -> Scope:
        """Return the same scope over another Spark session, such as that of a micro-batch of a lookup join."""
        other = copy.copy(self)
        other._spark = spark  # noqa: SLF001 - a copy of this object
        other.kept_partitions = kept
        return other

    @property
    def checkpoints(self) -> str:
        """The folder of the checkpoints of queries."""
        return (self.settings.get(CHECKPOINTS) or self.warehouse.child(CHECKPOINTS_FOLDER).root).rstrip("/")

    @property
    def states(self) -> str:
        """The folder for the states of changelogs that queries read."""
        folder = Storage.at(self.checkpoints).child(STATES_FOLDER)
        if not self._is_momentary:
            return folder.root
        if self._session_states is None:
            name = f"session-{uuid.uuid4().hex}"
            self._session_states = folder.child(name).root
            atexit.register(_remove, folder, name, os.getpid())
        return self._session_states

    @contextmanager
    def without_checkpoint(self) -> Iterator[None]:
        """While a query is planned that will not be resumed, keep its state in a folder that is removed at exit."""
        before, self._is_momentary = self._is_momentary, True
        try:
            yield
        finally:
            self._is_momentary = before

    @contextmanager
    def with_every_change(self) -> Iterator[None]:
        """While a query is planned, read bounded topics as streams, which have every change and end with the topic."""
        self.reads_every_change = True
        try:
            yield
        finally:
            self.reads_every_change = False

    @property
    def spark(self) -> SparkSession:
        """The Spark session, created on first use."""
        if callable(self._spark):
            self._spark = self._spark()
            refused: list[InvalidInputError] = []
            for key, value in self.settings.given():
                try:
                    self._set_in_spark(self._spark, key, value)
                except InvalidInputError as error:
                    self.settings.reset(key)
                    refused.append(error)
            if refused:
                raise refused[0]
        return running(self._spark, "SQL", "make a new Catalog, in a session that runs")

    def set(self, key: str, value: str) -> None:
        """Set a setting of the session.

        Raises:
            InvalidInputError: there is no such setting, or it does not accept this value.
        """
        self.settings.check(key, value)
        if not callable(self._spark):
            self._set_in_spark(self._spark, key, value)
        self.settings.set(key, value)

    def reset(self, key: str | None) -> tuple[str, ...]:
        """Reset one setting, or all with None, and return the names of those that were set.

        Spark settings get the value that the Spark session had before.
        """
        names = self.settings.reset(key)
        for name in names:
            spark_key = _in_spark(name)
            if spark_key not in self._before or callable(self._spark):
                continue
            before = self._before.pop(spark_key)
            if before is None:
                self._spark.conf.unset(spark_key)
            else:
                self._spark.conf.set(spark_key, before)
        return names

    def _set_in_spark(self, spark: SparkSession, key: str, value: str) -> None:
        """Set a setting in Spark if Spark, or code below the catalog, reads it from Spark's configuration."""
        spark_key = _in_spark(key)
        if spark_key is None:
            return
        try:
            before = spark.conf.get(spark_key, None)
            spark.conf.set(spark_key, value)
            self._before.setdefault(spark_key, before)
        except (PySparkException, ValueError) as error:
            why = "" if shown(key, value) != value else f": {str(error).splitlines()[0]}"
            msg = f"SET '{key}': Spark does not accept {shown(key, value)!r}{why}"
            raise InvalidInputError(msg) from error

    def find(self, name: str, *, temporary: bool | None = None, stored: bool = True) -> Definition | None:
        """Return a definition, or None if there is none of that name.

        Args:
            name: name of the table or view.
            temporary: True to search the session's temporary definitions, False the warehouse's, None both, the
                session's first.
            stored: whether a store table's definition has its actual columns, for which its files are read.
        """
        if name in self._hinted:
            return self._hinted[name]
        if temporary is not False and name in self._temporary:
            return self._temporary[name]
        there = None if temporary else self._definitions.get(name)
        if not stored or there is None or there.path is None or not isinstance(there.made, CreateTable):
            return there
        return replace(there, made=as_stored(there.made, Storage.at(self.place_of(there))))

    def definition(self, name: str, *, stored: bool = True) -> Definition:
        """Return a definition; see `find`.

        Raises:
            NotFoundError: there is none of that name.
        """
        there = self.find(name, stored=stored)
        if there is None:
            raise self.missing(name)
        return there

    def all(self) -> list[Definition]:
        """Return all definitions, sorted by name; temporary ones hide the warehouse's of the same name."""
        found = {each.name: each for each in self._definitions.all()} | self._temporary
        return [found[name] for name in sorted(found)]

    def missing(self, name: str) -> NotFoundError:
        """Return the error for a name that does not exist, with a similar name or all names as a hint."""
        names = [each.name for each in self.all()]
        known = f"There are {', '.join(names)}." if names else "There are none."
        return NotFoundError(f"there is no table or view '{name}'. {did_you_mean(name, names, otherwise=known)}")

    def add(self, definition: Definition) -> None:
        """Store a new definition, in the session if it is temporary, else in the warehouse.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        if not definition.made.temporary:
            self._definitions.add(definition)
        elif definition.name in self._temporary:
            raise AlreadyExistsError(taken(definition.name))
        else:
            self._temporary[definition.name] = definition

    def keep_hinted(self, definition: Definition) -> str:
        """Keep a table with the options of a hint for the session's queries, and return the name it is found by."""
        self._hinted[definition.name] = definition
        return definition.name

    def change(self, there: Definition, change: Callable[[Definition], Definition]) -> None:
        """Replace a definition with ``change`` of its current version, which may be newer than ``there``.

        Raises:
            NotFoundError: another process dropped it in the meantime.
        """
        if there.made.temporary:
            self._temporary[there.name] = change(there)
        elif self._definitions.change(there.name, change) is None:
            raise self.missing(there.name)

    def remove(self, definition: Definition) -> None:
        """Remove a definition, which frees its name."""
        if definition.made.temporary:
            del self._temporary[definition.name]
        else:
            self._definitions.drop(definition)

    def others_at(self, definition: Definition) -> list[str]:
        """Return the other names of a store table, which a crash during RENAME can leave."""
        return [each.name for each in self.all() if each.path == definition.path and each.name != definition.name]

    def free_path(self, name: str) -> str:
        """Return a folder for a new store table: its name, unless a renamed table still uses that folder."""
        path = name
        if not _PLAIN.fullmatch(name):
            # Delta does not support every character in a path, nor a file system every name.
            path = folder_name(name, hashlib.sha256(name.encode()).hexdigest()[:8])
        return f"{path}-{uuid.uuid4().hex[:8]}" if any(each.path == path for each in self.all()) else path

    def place_of(self, definition: Definition) -> str:
        """Return the full path of a store table."""
        return self.warehouse.child(definition.path or "").root

    def context_of(self, definition: Definition) -> TableContext:
        """Open a store table without Spark.

        Raises:
            NotFoundError: no table is at its path.
        """
        return TableContext.open(self.place_of(definition), self.runtime_of(definition), self.allowed)

    @property
    def given_to_store(self) -> dict[str, ClientValue]:
        """Client options that the program passes to every store table with a log."""
        return {name: value for name, value in self._given.items() if name.startswith("kafka.")}

    @property
    def given_to_connectors(self) -> dict[str, ClientValue]:
        """Client options that the program passes to every connector table."""
        return {name: value for name, value in self._given.items() if name.startswith("properties.")}

    def runtime_of(self, definition: Definition) -> dict[str, ClientValue]:
        """Return the client options with which this session opens a store table."""
        if not isinstance(definition.made, CreateTable):
            return {}
        servers = dict(definition.made.options).get(LOG_SERVERS)
        if servers is None:
            return {}
        mapped = self.settings.servers(str(servers))
        return ({} if mapped == servers else {LOG_SERVERS: mapped}) | self.given_to_store


def _in_spark(key: str) -> str | None:
    """Return the Spark name of a setting, or None if it is not set in Spark."""
    return IN_SPARK.get(key, key if key.startswith(SPARK) else None)


def _remove(folder: Storage, name: str, process: int) -> None:
    """Remove a folder at the end of a process, but not of one that was forked from it."""
    if os.getpid() == process:
        folder.remove_tree(name)
