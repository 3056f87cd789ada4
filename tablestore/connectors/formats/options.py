"""The options of row formats, which are declared as those of tables are; messages show their full names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.options.declaration import Group
from tablestore.options.value_types import OptionType

_ESCAPES: Final = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\\": "\\", r"\0": "\0"}


def _character(text: str) -> str:
    character = _ESCAPES.get(text, text)
    if len(character) != 1:
        raise ValueError(text)
    return character


CHARACTER: Final = OptionType("character", r"one character, or an escape sequence such as '\t'", _character)


@dataclass(frozen=True, kw_only=True)
class FormatOptions(Group):
    """Base class of the options of a row format.

    Attributes:
        format: the format's name, such as ``json``.
        option_prefix: what users write before the options' names, such as ``value.json.``.
    """

    format: ClassVar[str]
    option_prefix: str

    @classmethod
    def of(cls, options: Mapping[str, str], *, side: str) -> Self:
        """Parse a format's options.

        Args:
            options: option values by name, without the prefix.
            side: ``key``, ``value``, or empty if the option names have no such prefix; used in error messages only.

        Raises:
            InvalidInputError: the format does not support an option, or a value is invalid.
        """
        prefix = f"{side}.{cls.format}." if side else f"{cls.format}."
        known = [spec.name for spec in cls.specs()]
        for name in options:
            if name not in known:
                has = f"Format {cls.format!r} has {', '.join(known)}."
                msg = f"unsupported option '{prefix}{name}'. {did_you_mean(name, known, prefix=prefix, otherwise=has)}"
                raise InvalidInputError(msg)
        return cls.read(options, prefix=prefix, option_prefix=prefix)
