"""A table's definition: columns, key, partitions and options, stored in the commit table's Delta properties.

A table whose columns were changed also stores its earlier columns, with the snapshot from which each set applied, so
that files and log records with those columns stay readable. Versions of the program without schema evolution reject
such a table.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapshot.column_json import VOID, Path, extends, parts, paths, with_others
from snapshot.errors import CorruptedError, InvalidInputError
from snapshot.schema.defaults import defaults_in
from snapshot.schema.json_types import arrow_columns
from snapshot.schema.physical_names import (
    PHYSICAL_NAME,
    Columns,
    both_names_json,
    compact,
    physical_json,
    visible_json,
    with_dropped,
)
from snapshot.schema.system_columns import free_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPEC_PROPERTY = "tablestore.spec"
BUCKET_KEY = "bucket-key"
"""The option that names the bucket key of an append table."""
BLOB_FIELD = "blob-field"
ROWKIND_FIELD = "rowkind.field"
IGNORE_DELETE = "ignore-delete"
IGNORE_PREIMAGES = "ignore-update-before"
MERGE_ENGINE = "merge-engine"
KEEPS_LAST = "deduplicate"
_FORMAT = 1
_FORMAT_ALTERED = 2


@dataclass(frozen=True)
class PastSchema:
    """Earlier columns of a table.

    Attributes:
        since: the first snapshot with these columns.
        schema_json: the columns, as ``TableSpec.schema_json``.
    """

    since: int
    schema_json: str


@dataclass(frozen=True)
class TableSpec:
    """The definition of a table.

    Attributes:
        table_id: unique for each ``create``; part of the log's transactional ids and consumer groups.
        schema_json: the user's columns, as Spark's schema JSON, with their physical names.
        primary_key: key columns in the order they were declared; empty for an append table.
        partition_by: the user's partition columns.
        properties: the options as text, without credentials.
        owns_topic: whether ``create`` created the log's topic, so that ``drop`` deletes it.
        topic_id: Kafka's id of the log's topic, as of ``create`` or the last ``repair``; empty in older tables, and if
            the brokers have no topic ids.
        cluster_id: Kafka's id of the topic's cluster; empty in the same cases.
        since: the first snapshot with these columns; 0 if they are those of ``create``.
        past: the earlier columns, oldest first.
    """

    table_id: str
    schema_json: str
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)
    owns_topic: bool = False
    since: int = 0
    past: tuple[PastSchema, ...] = ()
    topic_id: str = ""
    cluster_id: str = ""

    @cached_property
    def schema(self) -> StructType:
        """The user's columns as Spark types."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - reading without Spark does not import PySpark

        return StructType.fromJson(json.loads(visible_json(self.schema_json)))

    @cached_property
    def columns(self) -> Columns:
        """The user's columns as Arrow types, by name and by physical name."""
        return Columns.of(self.schema_json)

    @property
    def arrow(self) -> pa.Schema:
        """The user's columns as Arrow types."""
        return self.columns.named

    @property
    def physical(self) -> pa.Schema:
        """The same columns by physical name, including struct fields."""
        return self.columns.physical

    @cached_property
    def scanned(self) -> pa.Schema:
        """``physical`` as it is scanned from files of any age: structs also have dropped fields, see `with_dropped`."""
        return with_dropped(self.physical, [Columns.of(each.schema_json).physical for each in self.past])

    @cached_property
    def change_columns(self) -> Columns:
        """The same columns in changes: a delete may have only its key, so all other columns are nullable."""
        return self.columns.loosened(self.primary_key) if self.has_key else self.columns

    @cached_property
    def added(self) -> frozenset[str]:
        """The names of columns added after ``create``; writers that do not know them may leave them out."""
        first = set(self.at(0).physical.names)
        return frozenset(
            name
            for name, physical_name in zip(self.arrow.names, self.physical.names, strict=True)
            if physical_name not in first
        )

    def at(self, snapshot: int) -> TableSpec:
        """Return the definition with the columns of a snapshot and the current options."""
        if snapshot >= self.since:
            return self
        number = max((n for n, past in enumerate(self.past) if past.since <= snapshot), default=0)
        earlier = self.past[number]
        return replace(self, schema_json=earlier.schema_json, since=earlier.since, past=self.past[:number])

    def changed_since(self, earlier: TableSpec) -> list[str]:
        """Return the names of earlier columns that are not as they were, but for added and moved fields in them."""
        own, theirs = (json.loads(both_names_json(each.schema_json))["fields"] for each in (self, earlier))
        found = {field["name"]: field for field in own}

        def is_kept(field: dict[str, Any]) -> bool:
            held = found.get(field["name"], {})
            return held.get("nullable") == field["nullable"] and extends(held["type"], field["type"])

        return [name for name, field in zip(earlier.arrow.names, theirs, strict=True) if not is_kept(field)]

    @property
    def stored_paths(self) -> set[Path]:
        """The paths that columns and fields have or had in files, in lower case."""
        schemas = (self.schema_json, *(each.schema_json for each in self.past))
        return {path for each in schemas for path in paths(json.loads(physical_json(each)))}

    def with_columns_of_others(self, delta_json: str) -> TableSpec:
        """Return the definition with what other Delta writers have added, as further columns.

        A column that they have added gets a name that no user gives. So does a column in which they have added fields:
        it is there twice, as the store has it and, under that name, as it is in files. The definition with each column
        as it is in files is ``in_files`` of the result.

        Args:
            delta_json: all columns, as Delta's schema JSON.

        Raises:
            InvalidInputError: such a column or field has a type that tables do not support.
        """
        own = json.loads(physical_json(self.schema_json))
        found = with_others(own, json.loads(delta_json), lambda _, kind: kind == VOID)
        assert not isinstance(found, str)
        added = [
            each
            for each, mine in zip_longest(found["fields"], own["fields"])
            if mine is None or each["type"] != mine["type"]
        ]
        if not added:
            return self
        _check_types({"fields": added}, paths(own))
        schema, names = json.loads(self.schema_json), self.arrow.names
        for each in added:
            names.append(free_name(f"_other_{each['name']}", names))
            schema["fields"].append(
                {**each, "name": names[-1], "nullable": True, "metadata": {PHYSICAL_NAME: each["name"]}}
            )
        return replace(self, schema_json=compact(schema))

    @cached_property
    def in_files(self) -> TableSpec:
        """Of a definition from ``with_columns_of_others``: each column once, with the fields of other writers."""
        columns = list(zip(self.physical.names, json.loads(self.schema_json)["fields"], strict=True))
        last, first = dict(columns), dict(reversed(columns))
        fields = [{**first[name], "type": last[name]["type"]} for name in dict.fromkeys(self.physical.names)]
        return replace(self, schema_json=compact({"type": "struct", "fields": fields}))

    def with_columns(self, schema_json: str, since: int) -> TableSpec:
        """Return the definition with new columns as of a snapshot."""
        past = (*self.past, PastSchema(self.since, self.schema_json))
        return replace(self, schema_json=schema_json, since=since, past=past)

    @property
    def has_key(self) -> bool:
        """Whether the table has a primary key."""
        return bool(self.primary_key)

    @property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns that the option `BUCKET_KEY` names: some of the primary key, or any without one; or none."""
        return tuple(filter(None, self.properties.get(BUCKET_KEY, "").split(",")))

    @property
    def hashed(self) -> tuple[str, ...]:
        """The columns whose hash is the bucket of a row; empty if the rows of an append table have no bucket."""
        return self.bucket_key or self.primary_key

    @property
    def rowkind_field(self) -> str | None:
        """The column whose value is the kind of a written row, such as ``-D``; None if there is none."""
        return self.properties.get(ROWKIND_FIELD)

    @property
    def merges(self) -> bool:
        """Whether a merge engine makes one row of several; otherwise the last row of a key is kept."""
        return self.properties.get(MERGE_ENGINE, KEEPS_LAST) != KEEPS_LAST

    @cached_property
    def ignores_preimages(self) -> bool:
        """Whether the rows before updates are dropped from writes."""
        return self.properties.get(IGNORE_PREIMAGES) == "true"

    @cached_property
    def defaults(self) -> dict[str, pa.Scalar]:
        """The values that take the place of NULL in the rows of a write, by column."""
        return defaults_in(self.properties, self.arrow)

    def to_json(self) -> str:
        """Return the definition as JSON, which ``from_json`` parses."""
        content = {
            "format": _FORMAT_ALTERED if self.past else _FORMAT,
            "table_id": self.table_id,
            "schema": json.loads(self.schema_json),
            "primary_key": list(self.primary_key),
            "partition_by": list(self.partition_by),
            "properties": self.properties,
            "owns_topic": self.owns_topic,
        }
        if self.topic_id or self.cluster_id:
            content |= {"topic_id": self.topic_id, "cluster_id": self.cluster_id}
        if self.past:
            content["since"] = self.since
            content["past"] = [{"since": p.since, "schema": json.loads(p.schema_json)} for p in self.past]
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str, path: str) -> TableSpec:
        """Parse a definition.

        Raises:
            CorruptedError: this version cannot parse the text.
        """
        try:
            raw = json.loads(text)
            if raw["format"] not in (_FORMAT, _FORMAT_ALTERED):
                known = f"{_FORMAT} or {_FORMAT_ALTERED}"
                msg = f"{path}: expected table format {known}, got {raw['format']}. Open it with a newer version."
                raise CorruptedError(msg)
            return cls(
                table_id=raw["table_id"],
                schema_json=compact(raw["schema"]),
                primary_key=tuple(raw["primary_key"]),
                partition_by=tuple(raw["partition_by"]),
                properties=dict(raw["properties"]),
                owns_topic=bool(raw["owns_topic"]),
                since=int(raw.get("since", 0)),
                past=tuple(PastSchema(int(p["since"]), compact(p["schema"])) for p in raw.get("past", ())),
                topic_id=str(raw.get("topic_id", "")),
                cluster_id=str(raw.get("cluster_id", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: Delta property {SPEC_PROPERTY!r} is not a table definition: {error}."
            raise CorruptedError(msg) from error


def _check_types(added: dict[str, Any], own: Collection[Path]) -> None:
    """Check that tables support the types of what other Delta writers have added."""
    for path, kind in parts({"type": "struct", **added}):
        if isinstance(kind, str) and tuple(map(str.lower, path)) not in own:
            try:
                arrow_columns(compact({"fields": [{"name": path[-1], "type": kind}]}))
            except ValueError as error:
                name = ".".join(path)
                msg = (
                    f"files with {name!r}, a column or field of another Delta writer, cannot be rewritten: {error}. "
                    "Copy the rows elsewhere."
                )
                raise InvalidInputError(msg) from error
