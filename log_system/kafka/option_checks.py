"""Checks of a Kafka log's options against each other and against the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from log_system.formats import FORMATS, Format
from snapshot.errors import InvalidInputError


class Consistency(StrEnum):
    """When a change becomes visible in the log."""

    TRANSACTIONAL = "transactional"
    EVENTUAL = "eventual"


class Headers(StrEnum):
    """Which records carry the snapshot id in a header."""

    LAST = "last"
    ALL = "all"


class LogChoices(Protocol):
    """The parsed options of a Kafka log that depend on each other or on the table."""

    @property
    def consistency(self) -> Consistency:
        """``log.consistency``."""
        ...

    @property
    def format(self) -> str:
        """``log.format``."""
        ...

    @property
    def traits(self) -> Format:
        """The capabilities of the format."""
        ...

    @property
    def compacted(self) -> bool:
        """``log.compacted``."""
        ...

    @property
    def headers(self) -> Headers:
        """``log.headers``."""
        ...

    @property
    def truncate_record(self) -> bool:
        """``log.truncate-record``."""
        ...


def check_choices(log: LogChoices, primary_key: Sequence[str], *, looks_up: bool) -> None:
    """Check that a log's options fit together and that the log can hold the table's changes.

    If the table ``looks_up``, each change includes the row that it replaces (``changelog-producer=lookup``).

    Raises:
        InvalidInputError: two options exclude each other, or one needs a primary key.
    """
    why = _why_not(log, has_key=bool(primary_key), looks_up=looks_up)
    if why:
        raise InvalidInputError(why)


def creation_warnings(log: LogChoices, primary_key: Sequence[str]) -> Iterator[str]:
    """Yield warnings about options of a log that are valid but costly or unsafe for a table with this key."""
    if log.consistency is Consistency.EVENTUAL and not primary_key:
        yield (
            "log.consistency='eventual' without a primary key is at least once: streaming reads are given each "
            "committed row once or several times, and rows of writes that failed, which nothing takes back. Use "
            "'transactional', the default, unless readers must see rows before they are committed and tolerate that."
        )
    elif log.consistency is Consistency.EVENTUAL:
        yield (
            "log.consistency='eventual' is costly: streaming reads normalize, which keeps the values of each key in "
            "state. Use 'transactional', the default, unless readers must see rows before they are committed."
        )


def _why_not(log: LogChoices, *, has_key: bool, looks_up: bool) -> str:
    """Return why a log cannot have these options; empty if it can."""
    is_eventual = log.consistency is Consistency.EVENTUAL
    if log.compacted and not has_key:
        return (
            "log.compacted=true needs a primary key, by which the broker compacts; this table has none. Declare one, "
            "or leave log.compacted out."
        )
    if log.compacted and log.traits.why_not_compacted:
        formats = " or ".join(f"'{each.name}'" for each in FORMATS.values() if not each.why_not_compacted)
        return (
            f"log.compacted=true needs log.format={formats}, one record per key; {log.traits.why_not_compacted}. Use "
            f"{formats}, or leave log.compacted out."
        )
    if looks_up and is_eventual:
        return (
            "changelog-producer='lookup' needs log.consistency='transactional': records sent before the commit cannot "
            "contain the rows that they will replace. A reader of an 'eventual' log normalizes instead."
        )
    if looks_up and not log.traits.keeps_replaced_rows:
        formats = " or ".join(f"'{each.name}'" for each in FORMATS.values() if each.keeps_replaced_rows)
        return (
            f"changelog-producer='lookup' needs log.format={formats}: '{log.format}' has no place for the row before a "
            "change."
        )
    why = _why_no_truncate_record(log, looks_up=looks_up) if log.truncate_record else ""
    return f"log.truncate-record=true: {why}. Leave one of the two out." if why else ""


def _why_no_truncate_record(log: LogChoices, *, looks_up: bool) -> str:
    """Return what excludes ``log.truncate-record``; empty if nothing does."""
    if log.consistency is Consistency.EVENTUAL:
        return "an 'eventual' log is sent before the commit, and a truncate record cannot be reverted"
    if log.compacted:
        return "with log.compacted, the broker needs a null value for each deleted key"
    return "changelog-producer='lookup' publishes each deleted row" if looks_up else ""
