"""The Delta features that a table requires, and which of them this program supports.

A table lists required features in its ``protocol`` action, by name or, in older protocols, by version; its ``metaData``
shows whether a listed feature is in use. Another Delta writer can enable a feature at any time. An unsupported feature
is rejected by name; otherwise, for example, rows deleted by deletion vectors would reappear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from snapshot.delta.entries import FEATURES_READER, FEATURES_WRITER
from snapshot.errors import InvalidInputError

CLEANUP = "delta.enableExpiredLogCleanup"
"""Property of tables whose log entries each Delta writer removes when they are old (``delta.logRetentionDuration``)."""
_READER_IMPLIES: Mapping[int, tuple[str, ...]] = {2: ("columnMapping",)}
_WRITER_IMPLIES: Mapping[int, tuple[str, ...]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_REMEDIES = {
    "deletionVectors": "REORG TABLE {0} APPLY (PURGE); ALTER TABLE {0} DROP FEATURE deletionVectors",
    "checkConstraints": "ALTER TABLE {0} DROP CONSTRAINT <name>",
    "changeDataFeed": "ALTER TABLE {0} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
    "invariants": "RESTORE TABLE {0} TO VERSION AS OF <the version before>",
    "generatedColumns": "RESTORE TABLE {0} TO VERSION AS OF <the version before>",
    "identityColumns": "ALTER TABLE {0} DROP FEATURE identityColumns",
    "allowColumnDefaults": "ALTER TABLE {0} ALTER COLUMN <column> DROP DEFAULT",
    "appendOnly": "ALTER TABLE {0} SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
}
_NEEDED_BY_OTHERS = ("domainMetadata",)
"""Features that Delta drops only after those that need them."""
_NEVER_DROPPED = ("clustering",)
"""Features that Delta cannot drop."""
_UNKNOWN_TO_DELTA_RS = re.compile(r"Feature '([^']+)' is not supported|(catalog-managed)")


@dataclass(frozen=True)
class Protocol:
    """A Delta table's ``protocol`` action, and the related parts of its ``metaData``.

    Attributes:
        reader_version: ``minReaderVersion``.
        writer_version: ``minWriterVersion``.
        reader_features: ``readerFeatures``; empty in protocols without feature names.
        writer_features: ``writerFeatures``; empty in protocols without feature names.
        configuration: the table's properties.
        schema_json: the table's columns, as Delta's schema JSON.
    """

    reader_version: int
    writer_version: int
    reader_features: frozenset[str]
    writer_features: frozenset[str]
    configuration: Mapping[str, str]
    schema_json: str

    @cached_property
    def unreadable(self) -> tuple[str, ...]:
        """Required reader features that this program does not support."""
        asked = set(_asked(self.reader_version, self.reader_features, _READER_IMPLIES, FEATURES_READER))
        if _uses_column_mapping(self):
            asked.add("columnMapping")
        return self._unknown(asked, "reader", self.reader_version, FEATURES_READER)

    @cached_property
    def unwritable(self) -> tuple[str, ...]:
        """Required writer features that this program does not support, including those in ``unreadable``."""
        asked = set(_asked(self.writer_version, self.writer_features, _WRITER_IMPLIES, FEATURES_WRITER))
        asked |= {name for name, in_use in _KNOWN.items() if in_use(self)}
        unsupported = self._unknown(asked, "writer", self.writer_version, FEATURES_WRITER)
        return tuple(dict.fromkeys([*self.unreadable, *unsupported]))

    @property
    def is_append_only(self) -> bool:
        """Whether commits must not remove rows (``delta.appendOnly``)."""
        return self.is_on("delta.appendOnly")

    def is_on(self, name: str) -> bool:
        """Return whether a table property is ``true``."""
        return self.configuration.get(name, "").lower() == "true"

    def fields(self) -> Iterator[Mapping[str, Any]]:
        """Yield all columns and the fields of nested structs."""
        waiting: list[Any] = [json.loads(self.schema_json)]
        while waiting:
            kind = waiting.pop()
            if isinstance(kind, dict):
                fields = kind.get("fields", ())
                yield from fields
                waiting += [field["type"] for field in fields]
                waiting += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]

    def _unknown(self, asked: set[str], role: str, version: int, most: int) -> tuple[str, ...]:
        beyond = [f"{role} version {version}"] if version > most else []
        return (*beyond, *sorted(name for name in asked if name not in _KNOWN or _KNOWN[name](self)))


def check_readable(path: str, protocol: Protocol) -> None:
    """Check that this program supports all features required to read a table.

    Raises:
        InvalidInputError: it does not support one of them.
    """
    if protocol.unreadable:
        raise refused(path, protocol.unreadable, "readers")


def check_writable(path: str, protocol: Protocol, *, removes: bool) -> None:
    """Check that this program supports all features required to write to a table and, if ``removes``, to remove rows.

    Raises:
        InvalidInputError: it does not support one of them, or other Delta writers are to clean the log up.
    """
    if protocol.unwritable:
        raise refused(path, protocol.unwritable, "writers")
    if removes and protocol.is_append_only:
        raise refused(path, ("appendOnly",), "writers")
    if protocol.is_on(CLEANUP):
        msg = (
            f"{path}: property {CLEANUP}: expected 'false', as the store sets it, got 'true', by another Delta writer. "
            "Such writers would remove entries of the log that the store needs; nothing was changed. Set it back, in "
            f"Spark by ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{CLEANUP}' = 'false'); then try again."
        )
        raise InvalidInputError(msg)


def refused(path: str, features: tuple[str, ...], role: str) -> InvalidInputError:
    """Return an error that names unsupported features and says how to disable them."""
    table = f"delta.`{path}`"
    names = sorted(features, key=lambda name: name in _NEEDED_BY_OTHERS)
    remedies = (_REMEDIES.get(name, f"ALTER TABLE {{0}} DROP FEATURE {name}").format(table) for name in names)
    lasting = [name for name in features if name in _NEVER_DROPPED]
    remedy = f"Disable it with that writer, in Spark by {'; '.join(remedies)}; then try again."
    if lasting:
        remedy = f"Delta cannot drop {', '.join(lasting)}: write the rows to a new table of the store."
    msg = (
        f"{path}: the Delta table requires its {role} to support {', '.join(features)}, which another Delta writer has "
        f"enabled and the store does not support; nothing was changed. {remedy}"
    )
    return InvalidInputError(msg)


def unknown_to_delta_rs(error: Exception) -> tuple[str, ...]:
    """Return the features for which delta-rs refuses to open a table; empty if it failed for another reason."""
    match = _UNKNOWN_TO_DELTA_RS.search(str(error))
    return () if match is None else ("catalogManaged" if match[2] else match[1],)


def _asked(
    version: int, listed: frozenset[str], implied: Mapping[int, tuple[str, ...]], lists_features: int
) -> Iterator[str]:
    if version >= lists_features:
        yield from listed
    else:
        for number, names in implied.items():
            yield from names if number <= version else ()


def _never(_: Protocol) -> bool:
    return False


def _has_metadata(*prefixes: str) -> Callable[[Protocol], bool]:
    def found(protocol: Protocol) -> bool:
        return any(key.startswith(prefixes) for field in protocol.fields() for key in field.get("metadata") or ())

    return found


def _uses_column_mapping(protocol: Protocol) -> bool:
    return protocol.configuration.get("delta.columnMapping.mode", "none").lower() != "none"


def _has_constraints(protocol: Protocol) -> bool:
    return any(name.lower().startswith("delta.constraints.") for name in protocol.configuration)


_KNOWN: Mapping[str, Callable[[Protocol], bool]] = {
    # Timestamps without a zone are supported.
    "timestampNtz": _never,
    # delta-rs reads and writes the checkpoints.
    "v2Checkpoint": _never,
    # The protocol must be checked before files are removed; expiry commits first, which checks it.
    "vacuumProtocolCheck": _never,
    # Expiry keeps the checkpoints of versions with dropped features (``entries_below``).
    "checkpointProtection": _never,
    # Commits that only add files are allowed; ``check_writable`` rejects others.
    "appendOnly": _never,
    # Staging checks NOT NULL, but not the expression of an invariant.
    "invariants": _has_metadata("delta.invariants"),
    "checkConstraints": _has_constraints,
    "changeDataFeed": lambda protocol: protocol.is_on("delta.enableChangeDataFeed"),
    "generatedColumns": _has_metadata("delta.generationExpression"),
    "identityColumns": _has_metadata("delta.identity."),
    "columnMapping": _uses_column_mapping,
    # Delta cannot drop the feature, only the columns' defaults, which a writer would have to fill in.
    "allowColumnDefaults": _has_metadata("CURRENT_DEFAULT"),
}
"""Known features, each with a function that returns whether it is in use in an unsupported way."""


def without_invariants(schema: pa.Schema) -> pa.Schema:
    """Return nullable columns if Spark would otherwise refuse to open the table.

    A column of timestamps without zone makes a table of writer version 7, whose protocol must list each feature used.
    delta-rs lists ``timestampNtz`` but not ``invariants``, which NOT NULL requires.
    """
    if not any(map(has_local_time, schema.types)):
        return schema
    return pa.schema([field.with_nullable(True) for field in schema])


def has_local_time(data_type: pa.DataType, *, in_map: bool = False) -> bool:
    """Return whether a type contains a timestamp without a zone; with ``in_map``, only whether a map does."""
    if pa.types.is_timestamp(data_type):
        return data_type.tz is None and not in_map
    in_map = in_map and not pa.types.is_map(data_type)
    return any(has_local_time(data_type.field(number).type, in_map=in_map) for number in range(data_type.num_fields))
