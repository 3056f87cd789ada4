"""What a session sees: the warehouse's definitions, its own temporary ones, its settings, Spark."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue
from snapshot.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from snapshot.storage import Storage
from snapshot.suggestions import did_you_mean
from tablestore.sql.catalog.binding import LOG_SERVERS
from tablestore.sql.catalog.definitions import Definition, Definitions, taken
from tablestore.sql.catalog.settings import IN_SPARK, SPARK, Settings, shown
from tablestore.sql.catalog.store_tables import as_stored
from tablestore.sql.parser.statements import CreateTable

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_OF_CLIENTS: Final = ("properties.", "kafka.")
_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_]")
GiveSpark = SparkSession | Callable[[], SparkSession]


class Scope:
    """One session's view of a warehouse."""

    def __init__(
        self,
        spark: GiveSpark,
        warehouse: Storage,
        options: Mapping[str, ClientValue] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        """See a warehouse.

        Args:
            spark: the session, or what makes it when it is first needed: definitions need none.
            warehouse: the folder.
            options: client options for every table, ``properties.*`` and ``kafka.*``.
            allowed: what stored options may refer to; None for what the environment says.

        Raises:
            InvalidInputError: an option is neither.
        """
        for name in options or {}:
            if not name.startswith(_OF_CLIENTS):
                msg = (
                    f"option '{name}': expected a client option 'properties.*' (for tables of the connectors) or "
                    "'kafka.*' (for store tables), which hold for all tables; others go to table(name, options=...)."
                )
                raise InvalidInputError(msg)
        self._given = dict(options or {})
        self.allowed = allowed or Allowed.of()
        self._spark = spark
        self.warehouse = warehouse
        self.settings = Settings()
        self._definitions = Definitions(warehouse)
        self._temporary: dict[str, Definition] = {}
        self._before: dict[str, str | None] = {}
        """What Spark's session had, before this one set it, of each of Spark's settings; None where it had nothing."""

    @property
    def spark(self) -> SparkSession:
        """Spark's session, started if it is not there."""
        if callable(self._spark):
            self._spark = self._spark()
            refused: list[InvalidInputError] = []
            for key, value in self.settings.given():
                try:
                    self._tell(self._spark, key, value)
                except InvalidInputError as error:
                    self.settings.reset(key)
                    refused.append(error)
            if refused:
                raise refused[0]
        return self._spark

    def set(self, key: str, value: str) -> None:
        """Set a setting of the session.

        Raises:
            InvalidInputError: there is no such setting, or it does not take this value.
        """
        self.settings.check(key, value)
        if not callable(self._spark):
            self._tell(self._spark, key, value)
        self.settings.set(key, value)

    def reset(self, key: str | None) -> tuple[str, ...]:
        """Take a setting back, or all; Spark's become what its session had. Gives the names of those that were set."""
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

    def _tell(self, spark: SparkSession, key: str, value: str) -> None:
        """Set in Spark what Spark, or code below the catalog, reads there."""
        spark_key = _in_spark(key)
        if spark_key is None:
            return
        try:
            before = spark.conf.get(spark_key, None)
            spark.conf.set(spark_key, value)
            self._before.setdefault(spark_key, before)
        except (PySparkException, ValueError) as error:
            why = "" if shown(key, value) != value else f": {str(error).splitlines()[0]}"
            msg = f"SET '{key}': Spark does not take {shown(key, value)!r}{why}"
            raise InvalidInputError(msg) from error

    def find(self, name: str, *, temporary: bool | None = None) -> Definition | None:
        """Give a definition; None where there is none.

        Args:
            name: of the table or view.
            temporary: whether to look among the session's own or the warehouse's; None is both, the session's first.
        """
        if temporary is not False and name in self._temporary:
            return self._temporary[name]
        there = None if temporary else self._definitions.get(name)
        if there is None or there.path is None or not isinstance(there.made, CreateTable):
            return there
        return replace(there, made=as_stored(there.made, Storage.at(self.place_of(there))))

    def definition(self, name: str) -> Definition:
        """Give a definition.

        Raises:
            NotFoundError: there is none.
        """
        there = self.find(name)
        if there is None:
            raise self.missing(name)
        return there

    def all(self) -> list[Definition]:
        """Give all definitions, by name; the session's own hide those of the warehouse."""
        found = {each.name: each for each in self._definitions.all()} | self._temporary
        return [found[name] for name in sorted(found)]

    def missing(self, name: str) -> NotFoundError:
        """Say that there is no table of a name, and which one may be meant."""
        names = [each.name for each in self.all()]
        known = f"There are {', '.join(names)}." if names else "There are none."
        return NotFoundError(f"there is no table or view '{name}'. {did_you_mean(name, names, otherwise=known)}")

    def add(self, definition: Definition) -> None:
        """Keep a definition where it says.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        if not definition.made.temporary:
            self._definitions.add(definition)
        elif definition.name in self._temporary:
            raise AlreadyExistsError(taken(definition.name))
        else:
            self._temporary[definition.name] = definition

    def change(self, there: Definition, change: Callable[[Definition], Definition]) -> None:
        """Change a definition, by what it is when it is written.

        Raises:
            NotFoundError: somebody dropped it meanwhile.
        """
        if there.made.temporary:
            self._temporary[there.name] = change(there)
        elif self._definitions.change(there.name, change) is None:
            raise self.missing(there.name)

    def remove(self, definition: Definition) -> None:
        """Free a name."""
        if definition.made.temporary:
            del self._temporary[definition.name]
        else:
            self._definitions.drop(definition)

    def others_at(self, definition: Definition) -> list[str]:
        """Give the other names of a store table."""
        return [each.name for each in self.all() if each.path == definition.path and each.name != definition.name]

    def free_path(self, name: str) -> str:
        """Give a folder for a new store table: its name, unless a table that was renamed has it."""
        path = name
        if not _PLAIN.fullmatch(name):
            # Delta tables do not like all characters in their paths, nor file systems all names.
            path = f"{_SPECIAL.sub('_', name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return f"{path}-{uuid.uuid4().hex[:8]}" if any(each.path == path for each in self.all()) else path

    def place_of(self, definition: Definition) -> str:
        """Give the full path of a store table."""
        return self.warehouse.child(definition.path or "").root

    @property
    def given_to_store(self) -> dict[str, ClientValue]:
        """Client options that the program gives to every store table with a log."""
        return {name: value for name, value in self._given.items() if name.startswith("kafka.")}

    @property
    def given_to_connectors(self) -> dict[str, ClientValue]:
        """Client options that the program gives to every table of the connectors."""
        return {name: value for name, value in self._given.items() if name.startswith("properties.")}

    def runtime_of(self, definition: Definition) -> dict[str, ClientValue]:
        """Give the client options with which this session opens a store table."""
        if not isinstance(definition.made, CreateTable):
            return {}
        servers = dict(definition.made.options).get(LOG_SERVERS)
        if servers is None:
            return {}
        mapped = self.settings.servers(str(servers))
        return ({} if mapped == servers else {LOG_SERVERS: mapped}) | self.given_to_store


def _in_spark(key: str) -> str | None:
    """Give the name that a setting has in Spark; None of one that Spark has nothing to do with."""
    return IN_SPARK.get(key, key if key.startswith(SPARK) else None)
