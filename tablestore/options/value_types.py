"""Types of option values (integers, durations, sizes, words), which parse text and write it back.

A type ignores blanks around the text, except for ``VERBATIM`` and types whose values are single characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Word = TypeVar("Word", bound=str)

FOREVER: Final = -1


def names_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names that may be given as one name or as several; None is none."""
    return (names,) if isinstance(names, str) else tuple(names or ())


@dataclass(frozen=True)
class OptionType(Generic[T]):
    """The type of an option: converts its text to a value and back.

    Attributes:
        name: the name of the type in the documentation.
        expected: a description of valid values, for error messages.
        parse: converts text to a value; raises ``ValueError`` if the text is invalid.
        show: converts a value to text that parses to the same value.
    """

    name: str
    expected: str
    parse: Callable[[str], T]
    show: Callable[[T], str] = str


def _units(*groups: tuple[int, str]) -> dict[str, int]:
    return {word: factor for factor, words in groups for word in words.split()}


_MILLISECONDS: Final = _units(
    (86_400_000, "d day days"),
    (3_600_000, "h hour hours"),
    (60_000, "min m minute minutes"),
    (1_000, "s sec second seconds"),
    (1, "ms milli millis millisecond milliseconds"),
)
_BYTES: Final = _units((1 << 30, "gb g gib"), (1 << 20, "mb m mib"), (1 << 10, "kb k kib"), (1, "b byte bytes")) | {
    "": 1
}


def _measure(text: str, units: Mapping[str, int], minimum: int = 0) -> int:
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in units or int(match[1]) * units[match[2]] < minimum:
        raise ValueError(text)
    return int(match[1]) * units[match[2]]


def _show_measure(value: int, units: Mapping[str, int]) -> str:
    """Return a number with the largest unit that divides it; a unit's first word is its short form."""
    short = {factor: word for word, factor in reversed(list(units.items())) if word}
    return next(
        f"{value // factor} {word}" for factor, word in sorted(short.items(), reverse=True) if not value % factor
    )


def _show_ms(value: int) -> str:
    return _show_measure(value, _MILLISECONDS)


def _or_special(special: int, other: OptionType[int], expected: str) -> OptionType[int]:
    """Return a type with one more value, written as a number, that is outside of its range."""

    def parse(text: str) -> int:
        return special if text.strip() == str(special) else other.parse(text)

    return OptionType(other.name, expected, parse, lambda value: str(value) if value == special else other.show(value))


def integer(minimum: int, maximum: int | None = None, expected: str = "") -> OptionType[int]:
    """Return the type of integers with a lower bound, and maybe an upper one."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
            raise ValueError(text)
        if int(text) < minimum or (maximum is not None and int(text) > maximum):
            raise ValueError(text)
        return int(text)

    return OptionType("integer", expected or f"a whole number of {minimum} or more", parse)


def choice(words: Iterable[Word]) -> OptionType[Word]:
    """Return the type of a word from an enumeration or a list, in upper or lower case."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> Word:
        if text.strip().lower() not in known:
            raise ValueError(text)
        return known[text.strip().lower()]

    return OptionType("word", " or ".join(f"'{word}'" for word in known.values()), parse)


def duration(minimum_ms: int) -> OptionType[int]:
    """Return the type of durations with a lower bound, in milliseconds."""
    expected = f"a duration with a unit of d, h, min, s or ms such as '7 d', and {_show_ms(minimum_ms)} or more"
    return OptionType("duration", expected, lambda text: _measure(text, _MILLISECONDS, minimum_ms), _show_ms)


def duration_or_ms() -> OptionType[int]:
    """Return the type of durations as Flink parses them: a number without a unit is in milliseconds."""
    expected = "a duration such as '1 s', '500 ms' or '1 min' (a number alone is milliseconds), 0 for off"
    units = _MILLISECONDS | {"": 1}
    return OptionType("duration", expected, lambda text: _measure(text, units), _show_ms)


def text(expected: str, pattern: str = "(?s:.+)", name: str = "text") -> OptionType[str]:
    """Return the type of texts that match a pattern as a whole, by default of all that are not empty."""

    def parse(given: str) -> str:
        if not re.fullmatch(pattern, given.strip()):
            raise ValueError(given)
        return given.strip()

    return OptionType(name, expected, parse)


def _parse_ratio(given: str) -> float:
    value = float(given)
    # Written so that NaN, for which every comparison is false, is rejected too.
    if not 0 <= value < float("inf"):
        raise ValueError(given)
    return value


def _parse_columns(given: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(","))
    if not all(names):
        raise ValueError(given)
    return names


_WORDS: Final = choice(("true", "false"))
BOOLEAN: Final = OptionType(
    "boolean", _WORDS.expected, lambda given: _WORDS.parse(given) == "true", lambda value: str(value).lower()
)
RETENTION: Final = _or_special(
    FOREVER, duration(1), "a duration with a unit of d, h, min, s or ms such as '7 d', or -1 for ever"
)
REPLICATION: Final = _or_special(-1, integer(1), "a whole number of 1 or more, or -1 for the broker's default")
RATIO: Final = OptionType("number", "a number of 0 or more", _parse_ratio, repr)
SIZE: Final = OptionType(
    "size",
    "a size in bytes with an optional unit of b, kb, mb or gb such as '128 mb', and 1 kb or more",
    lambda given: _measure(given, _BYTES, 1 << 10),
    lambda value: _show_measure(value, _BYTES),
)
COLUMNS: Final = OptionType("columns", "names of columns separated by commas", _parse_columns, ",".join)
VERBATIM: Final = OptionType("text", "a text", str)
TEXT: Final = text("a non-empty text")
TOPIC: Final = text("a topic name of 1 to 249 letters, digits, '.', '_' or '-'", r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
SERVERS: Final = text("addresses such as 'broker1:9092,broker2:9092'")
DIGITS: Final = integer(0, 6, "a number of digits from 0 to 6")
