"""Declarations of options and option groups, which are parsed from text and written back as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

from snapshot.errors import InvalidInputError
from tablestore.options.value_types import OptionType

T = TypeVar("T")


@dataclass(frozen=True)
class OptionSpec(Generic[T]):
    """The declaration of one option.

    Attributes:
        name: the name that the user writes.
        type: how the option's text is parsed.
        default: the text of the default value; None if there is none.
        doc: the description in ``docs/reference/options.md``.
        fixed: whether the option describes stored data; then it is stored with the table even if it is the default.
    """

    name: str
    type: OptionType[T]
    default: str | None
    doc: str
    fixed: bool = False

    @property
    def field(self) -> T:
        """A new dataclass field for this option; its static type is the value's type, as for ``dataclasses.field``."""
        default = dataclasses.MISSING if self.default is None else self.parse(self.default)
        made: Any = dataclasses.field(default=default, metadata={"spec": self})
        return cast(T, made)

    def parse(self, text: str) -> T:
        """Parse the option's text.

        Raises:
            InvalidInputError: the text is not a valid value of this option.
        """
        try:
            return self.type.parse(text.strip())
        except ValueError:
            msg = f"option '{self.name}': expected {self.type.expected}, got '{text}'. Correct it or leave it out."
            raise InvalidInputError(msg) from None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Base class of option groups, which are parsed from text and written back as the text to store."""

    @classmethod
    def read(cls, given: Mapping[str, str], **more: object) -> Self:
        """Parse the options of this group and ignore the others; ``more`` sets further fields."""
        values = dict(more)
        for part in dataclasses.fields(cls):
            spec = part.metadata.get("spec")
            if spec is not None and spec.name in given:
                values[part.name] = spec.parse(given[spec.name])
        return cls(**values)

    def to_properties(self) -> dict[str, str]:
        """Return the options to store, without credentials; parsing them returns an equal object.

        An option at its default is omitted unless it describes stored data.
        """
        texts: dict[str, str] = {}
        for part in dataclasses.fields(self):
            value, spec = getattr(self, part.name), part.metadata.get("spec")
            if isinstance(value, Group):
                texts |= value.to_properties()
            elif spec is not None and value is not None and (spec.fixed or value != part.default):
                texts[spec.name] = spec.type.show(value)
        return texts
