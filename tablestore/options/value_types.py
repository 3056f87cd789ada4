"""Types of option values (integers, durations, sizes, words), which parse text and write it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

FOREVER: Final = -1


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
    show: Callable[[T], str]


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


def _measure(text: str, units: Mapping[str, int]) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.lower())
    if not found or found[2] not in units:
        raise ValueError(text)
    return int(found[1]) * units[found[2]]


def _show_measure(value: int, units: Mapping[str, int]) -> str:
    """Return a number with the largest unit that divides it; a unit's first word is its short form."""
    short = {factor: word for word, factor in reversed(list(units.items())) if word}
    return next(
        f"{value // factor} {word}" for factor, word in sorted(short.items(), reverse=True) if not value % factor
    )


def _at_least(minimum: int, parse: Callable[[str], int]) -> Callable[[str], int]:
    def checked(text: str) -> int:
        value = parse(text)
        if value < minimum:
            raise ValueError(text)
        return value

    return checked


def _parse_ratio(text: str) -> float:
    value = float(text)
    # Written so that NaN, for which every comparison is false, is rejected too.
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def integer(minimum: int) -> OptionType[int]:
    """Return the type of integers with a lower bound."""
    return OptionType("integer", f"a whole number of {minimum} or more", _at_least(minimum, _parse_integer), str)


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def choice(words: type[E]) -> OptionType[E]:
    """Return the type of a word from an enumeration."""
    names = [f"'{word.value}'" for word in words]
    return OptionType("word", " or ".join(names), lambda text: words(text.lower()), lambda word: word.value)


def word(words: Collection[str]) -> OptionType[str]:
    """Return the type of a word from a list."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return OptionType("word", " or ".join(f"'{each}'" for each in words), parse, str)


def duration(minimum_ms: int) -> OptionType[int]:
    """Return the type of durations with a lower bound, in milliseconds."""
    parse = _at_least(minimum_ms, lambda text: _measure(text, _MILLISECONDS))
    expected = f"a duration with a unit of d, h, min, s or ms such as '7 d', and {_show_ms(minimum_ms)} or more"
    return OptionType("duration", expected, parse, _show_ms)


def duration_or_ms() -> OptionType[int]:
    """Return the type of durations as Flink parses them: a number without a unit is in milliseconds."""
    expected = "a duration such as '1 s', '500 ms' or '1 min' (a number alone is milliseconds), 0 for off"
    units = _MILLISECONDS | {"": 1}
    return OptionType("duration", expected, lambda text: _measure(text, units), _show_ms)


def _show_ms(value: int) -> str:
    return _show_measure(value, _MILLISECONDS)


def _parse_retention(text: str) -> int:
    return FOREVER if text == str(FOREVER) else duration(1).parse(text)


BOOLEAN: Final = OptionType("boolean", "'true' or 'false'", _parse_boolean, lambda value: str(value).lower())
RETENTION: Final = OptionType(
    "duration",
    "a duration with a unit of d, h, min, s or ms such as '7 d', or -1 for ever",
    _parse_retention,
    lambda value: str(FOREVER) if value == FOREVER else _show_ms(value),
)
RATIO: Final = OptionType("number", "a number of 0 or more", _parse_ratio, repr)
SIZE: Final = OptionType(
    "size",
    "a size in bytes with an optional unit of b, kb, mb or gb such as '128 mb', and 1 kb or more",
    _at_least(1 << 10, lambda text: _measure(text, _BYTES)),
    lambda value: _show_measure(value, _BYTES),
)
REPLICATION: Final = OptionType(
    "integer",
    "a whole number of 1 or more, or -1 for the broker's default",
    lambda text: -1 if text == "-1" else integer(1).parse(text),
    str,
)


def _parse_columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


COLUMNS: Final = OptionType("columns", "names of columns separated by commas", _parse_columns, ",".join)


def _parse_topic(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) or text in (".", ".."):
        raise ValueError(text)
    return text


def _parse_servers(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


TEXT: Final = OptionType("text", "a text that is not empty", _parse_servers, str)
TOPIC: Final = OptionType("text", "a topic name of 1 to 249 letters, digits, '.', '_' or '-'", _parse_topic, str)
SERVERS: Final = OptionType("text", "addresses such as 'broker1:9092,broker2:9092'", _parse_servers, str)


def _parse_digits(text: str) -> int:
    if text not in tuple("0123456"):
        raise ValueError(text)
    return int(text)


DIGITS: Final = OptionType("integer", "a number of digits from 0 to 6", _parse_digits, str)
