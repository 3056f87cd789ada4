"""The layouts of changelog messages, one for each change data capture tool, and the options of their formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tablestore.connectors.formats.changelog.metadata import (
    CANAL_METADATA,
    DEBEZIUM_METADATA,
    MAXWELL_METADATA,
    OGG_METADATA,
    MessageMetadata,
)
from tablestore.connectors.formats.json.format import CommonJsonOptions
from tablestore.options.declaration import option, optional
from tablestore.options.value_types import BOOLEAN, VERBATIM


class Operation(IntEnum):
    """The operation of a message on a row."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    SKIP = 3
    """Nothing: the message has no rows."""


@dataclass(frozen=True, kw_only=True)
class DebeziumJsonOptions(CommonJsonOptions):
    """The options of ``debezium-json``."""

    format = "debezium-json"
    schema_include: bool = option(
        "schema-include", BOOLEAN, "false", "Whether messages have their schema, and the change in field `payload`."
    )


@dataclass(frozen=True, kw_only=True)
class CanalJsonOptions(CommonJsonOptions):
    """The options of ``canal-json``."""

    format = "canal-json"
    database: str | None = optional("database.include", VERBATIM, "Java regex of the databases that are read.")
    table: str | None = optional("table.include", VERBATIM, "Java regex of the tables that are read.")


@dataclass(frozen=True, kw_only=True)
class MaxwellJsonOptions(CommonJsonOptions):
    """The options of ``maxwell-json``."""

    format = "maxwell-json"


@dataclass(frozen=True, kw_only=True)
class OggJsonOptions(CommonJsonOptions):
    """The options of ``ogg-json``."""

    format = "ogg-json"


@dataclass(frozen=True, kw_only=True)
class ChangelogLayout:
    """The layout of a tool's messages.

    Attributes:
        tool: the tool's name.
        options: the class of the format's options.
        op: the field that says what a message does.
        actions: what each value of that field means; the first of an action is the one that is written.
        before: the field of the row before an update.
        after: the field of the row that was inserted or is there after an update.
        is_partial: whether ``before`` has only the fields that an update changed, and ``after`` the deleted row.
        is_list: whether ``before`` and ``after`` are lists of rows.
        metadata: what columns can show of a message, by metadata key.
    """

    tool: str
    options: type[CommonJsonOptions]
    op: str
    actions: Mapping[str, Operation]
    before: str = "before"
    after: str = "after"
    is_partial: bool = False
    is_list: bool = False
    metadata: Mapping[str, MessageMetadata] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The format's name."""
        return self.options.format

    def written_op(self, action: Operation) -> str:
        """Return the value of ``op`` that is written for an action."""
        return next(value for value, found in self.actions.items() if found is action)


LAYOUTS: Mapping[str, ChangelogLayout] = {
    layout.name: layout
    for layout in (
        ChangelogLayout(
            tool="Debezium",
            options=DebeziumJsonOptions,
            op="op",
            # "r" is a row of a database's first snapshot.
            actions={"c": Operation.INSERT, "r": Operation.INSERT, "u": Operation.UPDATE, "d": Operation.DELETE},
            metadata=DEBEZIUM_METADATA,
        ),
        ChangelogLayout(
            tool="Canal",
            options=CanalJsonOptions,
            op="type",
            # "CREATE" is the creation of a table.
            actions={
                "INSERT": Operation.INSERT,
                "UPDATE": Operation.UPDATE,
                "DELETE": Operation.DELETE,
                "CREATE": Operation.SKIP,
            },
            before="old",
            after="data",
            is_partial=True,
            is_list=True,
            metadata=CANAL_METADATA,
        ),
        ChangelogLayout(
            tool="Maxwell",
            options=MaxwellJsonOptions,
            op="type",
            actions={"insert": Operation.INSERT, "update": Operation.UPDATE, "delete": Operation.DELETE},
            before="old",
            after="data",
            is_partial=True,
            metadata=MAXWELL_METADATA,
        ),
        ChangelogLayout(
            tool="Ogg",
            options=OggJsonOptions,
            op="op_type",
            actions={"I": Operation.INSERT, "U": Operation.UPDATE, "D": Operation.DELETE},
            metadata=OGG_METADATA,
        ),
    )
}
"""The layouts, by format."""
