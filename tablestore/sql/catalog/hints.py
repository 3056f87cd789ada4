"""Dynamic table options: hints override the options of the tables that a query reads and writes, for that query.

A hinted table is a definition of its own, whose name in the query's tree is the table's with the hint. So one query may
read a table with several hints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlglot import exp

from log_system.kafka.client.secrets import ClientValue, holds_secret
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.unknown_options import WHEN_READ, instead
from tablestore.options.value_types import BOOLEAN, OptionType, choice, duration_or_ms, integer, text
from tablestore.sql.catalog.binding import (
    ADDS_REPLACED,
    CONNECTOR,
    DYNAMIC_PARTITION,
    LOOKUPS,
    PARTITIONS,
    REFRESH,
    REFRESH_ASYNC,
    check_table,
    connector_of,
    is_idle,
    is_reading,
)
from tablestore.sql.catalog.definitions import Definition
from tablestore.sql.catalog.partition_choice import PartitionChoice
from tablestore.sql.catalog.read_range import NEWEST_CHANGES, RANGE_OPTIONS, ReadRange
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.settings import HINTS, Mode
from tablestore.sql.catalog.table_references import TAKE_HINTS, is_change_table, is_inside
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.hints import detach, hints_of, lookups_of
from tablestore.sql.parser.qualify import read_instead
from tablestore.sql.parser.render import hint_text
from tablestore.sql.parser.statements import CreateTable, Options, Query

_BATCH: Final = ("snapshot", "timestamp", "tag")
"""Options of hints for store tables, as of ``TableStore.read``."""
SCHEMA: Final = "schema"
"""Option of hints for the columns of an old snapshot, as of ``TableStore.read``."""
_STREAM: Final = ("scan-mode", "snapshot", "timestamp", "tag", "consumer", "maxRowsPerTrigger", ADDS_REPLACED)
"""Options of hints for streams of store tables, as of ``TableStore.read_stream``."""
_NAMES: Final = {"scan-mode": "scan_mode", "maxRowsPerTrigger": "max_rows"}
_MODES: Final = ("scan.startup.mode", "scan.bounded.mode")
BOUNDED: Final = "scan.bounded"
"""Option of hints for a store table of which a continuous query reads the rows that there are, as of Paimon."""
_SPEED_OF_LOOKUPS: Final = tuple(
    f"{LOOKUPS}{name}"
    for name in (
        "async", "async-thread-number", "bootstrap-parallelism", "cache", "cache-file-retention",
        "cache-max-disk-size", "cache-max-memory-size", "cache-rows", "cache-spill-compression",
        "cache.bloom.filter.enabled", "cache.bloom.filter.fpp", "cache.high-priority-pool-ratio",
        "continuous.discovery-interval", "hash-load-factor", "merge-buffer-size", "merge-records-threshold",
        "refresh.async", "refresh.async.pending-snapshot-count", "refresh.full-load-threshold", "remote-file.enabled",
        "remote-file.level-threshold",
    )
)  # fmt: skip
_PAIMON: Final = {
    "scan.snapshot-id": "snapshot",
    "scan.timestamp-millis": "timestamp",
    "scan.timestamp": "timestamp",
    "scan.tag-name": "tag",
    "scan.mode": "scan-mode",
    "consumer-id": "consumer",
    **dict.fromkeys(("consumer.expiration-time", *_SPEED_OF_LOOKUPS), ""),
    DYNAMIC_PARTITION: PARTITIONS,
}
"""Options of Paimon, and what they are here; empty for one that changes nothing in a query."""
_OF_LOOKUPS: Final = (PARTITIONS, REFRESH, REFRESH_ASYNC)
"""Options for what lookup joins read of a table with partitions."""
_TYPES: Final[Mapping[str, OptionType[Any]]] = {
    ADDS_REPLACED: BOOLEAN,
    REFRESH: duration_or_ms(),
    REFRESH_ASYNC: BOOLEAN,
    "snapshot": integer(0),
    "maxRowsPerTrigger": integer(0),
}
"""The types of options other than texts."""
_NOT_HERE: Final = {
    f"{LOOKUPS}blob-as-descriptor": "a lookup returns the bytes themselves, not where they are stored",
    f"{LOOKUPS}refresh.time-periods-blacklist": "each micro-batch looks rows up in what the table is then",
}
"""Options of Paimon that would change what lookup joins find, with the reason why they are not supported."""
_POINTS: Final = frozenset(key for key in _PAIMON if not key.startswith(LOOKUPS))
"""Those that say which snapshot is read, or where a stream begins."""
_PAIMON_MODES: Final = {
    "default": "",
    "full": "full",
    "latest-full": "full",
    "latest": "latest",
    "from-snapshot": "from-snapshot",
    "from-snapshot-full": "from-snapshot-full",
    "from-timestamp": "from-timestamp",
    NEWEST_CHANGES: NEWEST_CHANGES,
}
"""Values of Paimon's ``scan.mode``, and what they are here; the default follows from the other options."""
_BATCH_MODES: Final = {
    "": "", "full": "", "latest": "", **{f"from-{name}": name for name in _BATCH}, "from-snapshot-full": "snapshot"
}  # fmt: skip
"""Values of ``scan-mode`` that say what a batch query reads, and the option that says which snapshot."""
_FROM_THE_START: Final = ("scan-mode", "full")
_WITH_ROWS: Final = ("scan-mode", "from-snapshot-full")
_OF_HINT: Final = " of a hint"
_PERFORMANCE: Final = ("async", "output-mode", "capacity", "timeout", "shuffle")
"""Options of LOOKUP that change how Flink asks for one row after another, and nothing here."""


@dataclass(frozen=True, kw_only=True)
class LookupHint(Group):
    """The options of a LOOKUP hint: whether and how often rows without a match are looked up again."""

    table: str = option("table", text("the name or alias of a table that the query looks up"), None)
    predicate: str | None = optional("retry-predicate", choice(("lookup_miss",)))
    strategy: str | None = optional("retry-strategy", choice(("fixed_delay",)))
    delay_ms: int | None = optional("fixed-delay", duration_or_ms())
    attempts: int | None = optional("max-attempts", integer(1))

    def is_of(self, table: exp.Table) -> bool:
        """Return whether the hint is of a table, which it names by the name or the alias."""
        return self.table in (table.name, table.alias_or_name)

    @classmethod
    def of(cls, given: Options) -> LookupHint:
        """Parse a hint.

        Raises:
            InvalidInputError: an option is missing, unknown or invalid.
        """
        options = {key: str(value) for key, value in given}
        names = tuple(spec.name for spec in cls.specs())
        for key in options:
            if key not in (*names, *_PERFORMANCE):
                msg = f"hint LOOKUP: option '{key}': {did_you_mean(key, (*names, *_PERFORMANCE))}"
                raise InvalidInputError(msg)
        missing = [name for name in names if name not in options]
        if missing and (names[0] in missing or missing != list(names[1:])):
            rule = f"'{names[0]}' is required, and {', '.join(names[1:])} go together."
            msg = f"hint LOOKUP: option '{missing[0]}' is missing: {rule}"
            raise InvalidInputError(msg)
        return cls.read(options)


def lookup_hints(select: exp.Select) -> list[LookupHint]:
    """Return the LOOKUP hints of a SELECT.

    Raises:
        InvalidInputError: one is not valid.
    """
    return [LookupHint.of(given) for given in lookups_of(select)]


def with_hints(scope: Scope, query: Query) -> Query:
    """Return a query in which tables with a hint are replaced by tables with its options.

    Raises:
        InvalidInputError: a hint is of a view or of a lookup table, or its options are not valid.
    """
    for select in query.tree.find_all(exp.Select):
        try:
            _check_lookups(select)
        except InvalidInputError as error:
            raise placed(RefusedError(select.expressions[0], str(error)), query) from error
    if not any(map(hints_of, query.tree.find_all(exp.Table))):
        return query
    tree = query.tree.copy()
    own = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        options = hints_of(table)
        if options:
            try:
                _replace(scope, table, options, own)
            except InvalidInputError as error:
                raise placed(RefusedError(table, str(error)), query) from error
    return replace(query, tree=tree)


def _check_lookups(select: exp.Select) -> None:
    tables = [join.this for join in select.args.get("joins") or [] if join.this.args.get("version") is not None]
    for hint in lookup_hints(select):
        if not any(map(hint.is_of, tables)):
            names = tuple(dict.fromkeys(name for table in tables for name in (table.alias_or_name, table.name)))
            found = ", ".join(names) or "no table, which is JOIN t FOR SYSTEM_TIME AS OF"
            otherwise = f"the query looks up {found}."
            msg = f"hint LOOKUP: table '{hint.table}': {did_you_mean(hint.table, names, otherwise=otherwise)}"
            raise InvalidInputError(msg)


def _replace(scope: Scope, table: exp.Table, options: Options, own: set[str]) -> None:
    is_looked_up = table.args.get("version") is not None
    if is_looked_up:
        # As in Paimon, the current rows are looked up, whatever the hint says of a snapshot.
        options = tuple(pair for pair in options if pair[0] not in _POINTS and not is_idle(pair[0]))
    if table.name in own or (is_looked_up and not all(is_reading(key) for key, _ in options)):
        what = "a query of WITH" if table.name in own else "a lookup table, of which the current rows are read"
        msg = f"a hint for '{table.name}', {what}, is not supported. Remove it."
        raise InvalidInputError(msg)
    check_hints_allowed(scope)
    read_by(scope, table, options)
    detach(table)


def read_by(scope: Scope, table: exp.Table, options: Options) -> None:
    """Replace a table in a query by the table with options, in place.

    Raises:
        InvalidInputError: it is not a table, or the options are not valid.
    """
    read_instead(table, _with_options(scope, table.name, options))


def check_hints_allowed(scope: Scope) -> None:
    """Check that hints are not switched off.

    Raises:
        InvalidInputError: they are.
    """
    if scope.settings.get(HINTS) != "true":
        msg = f"hint OPTIONS is allowed only while setting '{HINTS}' is 'true'. SET it, or remove the hint."
        raise InvalidInputError(msg)


def hinted(scope: Scope, name: str, options: Options) -> str:
    """Return the name, in this session, of a table with the options of a hint.

    Raises:
        InvalidInputError: hints are switched off, there is no such table, or the options are not valid.
    """
    check_hints_allowed(scope)
    return _with_options(scope, name, options)


def _with_options(scope: Scope, name: str, options: Options) -> str:
    if is_inside(scope, name):
        return _inside_with_options(scope, name, options)
    there = scope.definition(name)
    if not isinstance(there.made, CreateTable):
        msg = f"'{name}' is a view, which has no options. Put the hint after a table in the view's query."
        raise InvalidInputError(msg)
    hint = hint_text(options)
    if any(key == CONNECTOR for key, _ in options):
        msg = f"'{name}' {hint}: a hint cannot change option '{CONNECTOR}'. Leave it out."
        raise InvalidInputError(msg)
    made = replace(there.made, name=f"{name} {hint}")
    if connector_of(made) is None:
        options = _own(name, options)
        is_bounded = OptionSpec(BOUNDED, BOOLEAN).parse(str(dict(options).get(BOUNDED, "false")))
        options = tuple(pair for pair in options if pair[0] != BOUNDED)
        _check_store(name, options, made)
        if is_bounded:
            made = replace(made, options=(*made.options, (BOUNDED, "true")))
        definition = Definition(made, there.path, there.version, options)
        if is_bounded or scope.settings.mode is Mode.BATCH:
            batch_read(definition)
            range_read(definition)
        return scope.keep_hinted(definition)
    made = replace(made, options=_overridden(made.options, options))
    # A credential in a query is not stored, as in a temporary table.
    check_table(replace(made, temporary=True), scope.allowed)
    return scope.keep_hinted(Definition(made, there.path, there.version, options))


def _inside_with_options(scope: Scope, name: str, options: Options) -> str:
    """Return the name of a metadata table of a table with the options of a hint."""
    table, _, what = name.rpartition("$")
    if what not in TAKE_HINTS:
        those = ", ".join(f"${each}" for each in TAKE_HINTS)
        msg = f"'{name}' takes no hint; of metadata tables, {those} do."
        raise InvalidInputError(msg)
    others = [key for key, value in _own(name, options) if key not in (*_BATCH, "scan-mode") or value == NEWEST_CHANGES]
    if not is_change_table(scope, name) and others:
        msg = f"'{name}': expected a hint with option 'snapshot', 'timestamp' or 'tag', got '{others[0]}'."
        raise InvalidInputError(msg)
    if is_change_table(scope, name) and BOUNDED in dict(options):
        msg = f"'{name}': option '{BOUNDED}' of a hint is for tables. In batch mode, the changes of a range are read."
        raise InvalidInputError(msg)
    return f"{_with_options(scope, table, options)}${what}"


def _overridden(defined: Options, given: Options) -> Options:
    """Return options with those of a hint; a mode of the hint replaces all that belongs to the table's mode."""
    replaced = tuple(key.removesuffix("mode") for key, _ in given if key in _MODES)
    kept = {key: value for key, value in defined if not (replaced and key.startswith(replaced))}
    return tuple((kept | dict(given)).items())


def _own(name: str, options: Options, of: str = _OF_HINT) -> Options:
    """Return the hint of a store table with Paimon's options translated to the names and values used here.

    Raises:
        InvalidInputError: an option is given twice, or there is no such mode.
    """
    found: dict[str, ClientValue] = {}
    for key, value in options:
        own = _PAIMON.get(key, key)
        if not own or is_idle(key) or (key in _NOT_HERE and _says_nothing(str(value))):
            continue
        if key in _NOT_HERE:
            msg = f"'{name}': option '{key}'{of} = '{value}' is not supported: {_NOT_HERE[key]}. Leave it out."
            raise InvalidInputError(msg)
        if own in found:
            msg = f"'{name}': option '{own}'{of} is given twice, once as '{key}'."
            raise InvalidInputError(msg)
        if key == "scan.mode" and str(value) not in _PAIMON_MODES:
            msg = f"'{name}': option '{key}'{of}: expected one of {', '.join(_PAIMON_MODES)}, got '{value}'."
            msg += f" '{name}$ro' has the rows of the last compaction." if value == "compacted-full" else ""
            raise InvalidInputError(msg)
        found[own] = _PAIMON_MODES[str(value)] if key == "scan.mode" else value
    return tuple((key, value) for key, value in found.items() if (key, value) != ("scan-mode", ""))


def _says_nothing(value: str) -> bool:
    """Return whether a value of one of `_NOT_HERE` is ``false``, or consists of periods that are over."""
    ends = [period.partition("->")[2].strip() for period in value.split(",")]
    try:
        return value.strip().lower() == "false" or all(datetime.fromisoformat(end) < datetime.now() for end in ends)
    except (TypeError, ValueError):
        return False


def _check_store(name: str, options: Options, made: CreateTable, of: str = _OF_HINT) -> None:
    known = tuple(dict.fromkeys((*_BATCH, SCHEMA, *_OF_LOOKUPS, *RANGE_OPTIONS, *_STREAM, BOUNDED)))
    for key, value in options:
        if key in _TYPES:
            OptionSpec(key, _TYPES[key]).parse(str(value))
        if key == ADDS_REPLACED and made.primary_key:
            msg = f"'{name}': option '{key}'{of}: the table has a PRIMARY KEY, so its queries read every change."
            raise InvalidInputError(msg)
        if key in _OF_LOOKUPS and not made.partitioned_by:
            msg = f"'{name}': option '{key}'{of}: the table has no partitions: it has no PARTITIONED BY."
            raise InvalidInputError(msg)
        if key == PARTITIONS:
            try:
                PartitionChoice.of(str(value), made.partitioned_by)
            except InvalidInputError as error:
                msg = f"'{name}': option '{key}'{of}: {error}"
                raise InvalidInputError(msg) from error
        if key not in known:
            rule = f"A store table's hints are {', '.join(known)}; other options are set by ALTER TABLE ... SET."
            why = instead(key, known)
            why = f"{why}." if why not in ("", WHEN_READ) else did_you_mean(key, known, otherwise=rule)
            msg = f"'{name}': option '{key}'{of}: {why}"
            raise InvalidInputError(msg)


def batch_read(definition: Definition) -> dict[str, Any]:
    """Return the arguments of ``TableStore.read`` that a hint sets.

    Raises:
        InvalidInputError: the hint has options of a stream.
    """
    own = ("consumer", *_OF_LOOKUPS, *RANGE_OPTIONS)  # as in Paimon, a batch query ignores a consumer
    arguments = _arguments(definition, (*_BATCH, SCHEMA, "scan-mode", *own), "batch")
    for name in own:
        arguments.pop(name, None)
    between = range_read(definition)
    if arguments.get("scan_mode") == NEWEST_CHANGES:
        del arguments["scan_mode"]
    if arguments and between is not None:
        msg = f"'{definition.name}': a range and '{next(iter(arguments))}' exclude each other. Leave one out."
        raise InvalidInputError(msg)
    mode = arguments.pop("scan_mode", "")
    needed = _BATCH_MODES.get(mode)
    if needed is None or (mode and arguments.keys() - {SCHEMA} != ({needed} if needed else set())):
        rule = ", ".join(f"'{each}' with option '{name}'" if name else f"'{each}'" for each, name in _BATCH_MODES.items() if each)  # fmt: skip  # noqa: E501
        msg = f"'{definition.name}': a batch query reads one snapshot: 'scan-mode' is {rule}; got '{mode}'."
        raise InvalidInputError(msg)
    return arguments


def partitions_read(definition: Definition) -> PartitionChoice | None:
    """Return the partitions that are read, as a hint or else the table's definition says; None for all."""
    assert isinstance(definition.made, CreateTable), "a view has no hints"
    given = dict(read_options(definition.made)) | dict(definition.hints)
    if PARTITIONS not in given:
        return None
    return replace(
        PartitionChoice.of(str(given[PARTITIONS]), definition.made.partitioned_by),
        refresh_ms=OptionSpec(REFRESH, _TYPES[REFRESH]).parse(str(given.get(REFRESH, 0))),
        refresh_async=OptionSpec(REFRESH_ASYNC, BOOLEAN).parse(str(given.get(REFRESH_ASYNC, "false"))),
    )


def read_options(made: CreateTable) -> Options:
    """Return the options in a store table's definition that say how SQL reads it.

    Raises:
        InvalidInputError: one is not valid.
    """
    given = tuple((key, value) for key, value in made.options if is_reading(key))
    if connector_of(made) is not None or not given:
        return ()
    options = _own(made.name, given, of="")
    _check_store(made.name, options, made, of="")
    return options


def range_read(definition: Definition) -> ReadRange | None:
    """Return the range of which only the changes are read, as a hint says; None for the rows of a snapshot.

    Raises:
        InvalidInputError: the hint is not valid.
    """
    try:
        return ReadRange.of({key: str(value) for key, value in definition.hints})
    except InvalidInputError as error:
        msg = f"'{definition.name}': {error}"
        raise InvalidInputError(msg) from error


def stream_read(definition: Definition, *, anywhere: bool = False) -> dict[str, Any]:
    """Return the arguments of ``TableStore.read_stream`` that a hint sets.

    With ``anywhere``, the stream of a table with a key may begin with changes of rows that it never had.

    Raises:
        InvalidInputError: the hint has options that a stream of the table does not take.
    """
    assert isinstance(definition.made, CreateTable), "a view has no hints"
    if PARTITIONS in dict(read_options(definition.made)):
        msg = (
            f"'{definition.name}': a continuous query reads all partitions, not those of the table's option "
            f"'{PARTITIONS}', which is for lookup joins and batch queries. Say in WHERE what is read of another table "
            "without the option."
        )
        raise InvalidInputError(msg)
    arguments = _arguments(definition, _STREAM, "streaming")
    arguments.pop(ADDS_REPLACED, None)
    if arguments.get("scan_mode") == NEWEST_CHANGES:
        msg = f"'{definition.name}': 'scan-mode'='{NEWEST_CHANGES}' is for batch queries. In a stream, use 'latest'."
        raise InvalidInputError(msg)
    for name in arguments.keys() & set(_BATCH):
        arguments.setdefault("scan_mode", f"from-{name}")
    late = _late(definition)
    if definition.made.primary_key and late and not anywhere:
        msg = (
            f"'{definition.name}': option '{late[0]}' is not supported in a continuous query of a table with a PRIMARY "
            "KEY and log.consistency='eventual': the rows that later changes replace would be missing. Put the hint "
            f"after {definition.made.name.partition(' ')[0]}$audit_log, the changes as rows, or read the table in "
            "batch mode."
        )
        raise InvalidInputError(msg)
    return arguments


def since(definition: Definition) -> str:
    """Return the table, with its hint, if a hint says that its stream begins with later changes; else empty."""
    return definition.name if _late(definition) else ""


def _late(definition: Definition) -> list[str]:
    """Return the options of a hint that may begin a stream with later changes than those of the first rows."""
    begins = (_FROM_THE_START, _WITH_ROWS)
    harmless = {"maxRowsPerTrigger", "snapshot"} if _WITH_ROWS in definition.hints else {"maxRowsPerTrigger"}
    return [key for key, value in definition.hints if key not in harmless and (key, value) not in begins]


def adds_replaced(definition: Definition) -> bool:
    """Return whether a stream takes rows that replace others for further ones, as a hint or the definition says."""
    assert isinstance(definition.made, CreateTable), "a view has no hints"
    given = dict(read_options(definition.made)) | dict(definition.hints)
    return OptionSpec(ADDS_REPLACED, BOOLEAN).parse(str(given.get(ADDS_REPLACED, "false")))


def _arguments(definition: Definition, names: tuple[str, ...], mode: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for key, value in definition.hints:
        if key not in names:
            msg = f"'{definition.name}': option '{key}' is not one of a {mode} read, which takes {', '.join(names)}."
            raise InvalidInputError(msg)
        kind = _TYPES.get(key)
        arguments[_NAMES.get(key, key)] = str(value) if kind is None else OptionSpec(key, kind).parse(str(value))
    return arguments


def refuse_stored_secrets(query: Query, view: str) -> None:
    """Check that the hints of a view's query, which is stored, hold no credential.

    Raises:
        InvalidInputError: one does.
    """
    for table in query.tree.find_all(exp.Table):
        for key, value in hints_of(table):
            if holds_secret(key, value):
                msg = f"view '{view}': option '{key}' of a hint holds a credential, and views are stored. Remove it."
                raise InvalidInputError(msg)
