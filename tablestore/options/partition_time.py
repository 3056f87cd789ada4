"""Reads the time of a partition from its column values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from snapshot.errors import InvalidInputError

_FIELDS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_PARTS = re.compile(r"([a-zA-Z]+)|'([^']*)'|([^a-zA-Z']+)")
_COLUMN = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class PartitionTime:
    """Reads a partition's time from its column values.

    Attributes:
        pattern: text in which ``$name`` stands for the value of a column, such as ``$day $hour:00:00``.
        formatter: a Java date format of that text, such as ``yyyy-MM-dd HH:mm:ss``; None for ISO-8601.
    """

    pattern: str
    formatter: str | None

    def of(self, values: Mapping[str, object]) -> datetime | None:
        """Return the time (in UTC) of a partition with these values; None if they do not yield a time."""
        texts = {name: _text(value) for name, value in values.items()}
        if any(texts.get(name) is None for name in columns_in(self.pattern)):
            return None
        text = _COLUMN.sub(lambda found: str(texts[found[1]]), self.pattern)
        try:
            if self.formatter is None:
                moment = datetime.fromisoformat(text)
            else:
                moment = datetime.strptime(text, strptime_of(self.formatter))
        except ValueError:
            return None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def columns_in(pattern: str) -> list[str]:
    """Return the columns that a pattern reads."""
    return _COLUMN.findall(pattern)


def check_time(pattern: str | None, formatter: str | None, partition_by: Sequence[str]) -> None:
    """Check that a pattern reads only partition columns, and that a formatter can be converted.

    Raises:
        InvalidInputError: the pattern or the formatter is invalid.
    """
    unknown = [name for name in columns_in(pattern or "") if name not in partition_by]
    if unknown or (pattern and not columns_in(pattern)):
        msg = (
            f"option 'partition.timestamp-pattern': expected '$name' of partition columns ({', '.join(partition_by)}), "
            f"got '{pattern}'."
        )
        raise InvalidInputError(msg)
    strptime_of(formatter or "")


def strptime_of(formatter: str) -> str:
    """Convert a Java date format to a ``strptime`` format.

    Raises:
        InvalidInputError: the format contains an unsupported letter.
    """
    said = ""
    for letters, quoted, plain in _PARTS.findall(formatter):
        if letters and not _split(letters):
            msg = (
                f"option 'partition.timestamp-formatter': expected a format of {', '.join(_FIELDS)} and other "
                f"characters, got '{formatter}'. Put literal letters in single quotes."
            )
            raise InvalidInputError(msg)
        said += "".join(_FIELDS[each] for each in _split(letters)) if letters else (quoted or plain).replace("%", "%%")
    return said


def _split(letters: str) -> list[str]:
    """Split adjacent format letters, such as ``yyyyMMdd``, into fields; empty if a field is unsupported."""
    found = [match[0] for match in re.finditer(r"(.)\1*", letters)]
    return found if all(each in _FIELDS for each in found) else []


def _text(value: object) -> str | None:
    if value is None:
        return None
    return value.isoformat() if isinstance(value, date) else str(value)
