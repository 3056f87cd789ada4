"""One option, and options that belong together: declared once, read from texts, and written back as texts."""

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
    """One option.

    Attributes:
        name: as the user writes it.
        type: how its text is read.
        default: the text taken when it is not given; ``None`` where there is none.
        doc: one or two sentences for ``docs/reference/options.md``.
        fixed: it describes what is stored, so it is kept with the table even where it is the default.
    """

    name: str
    type: OptionType[T]
    default: str | None
    doc: str
    fixed: bool = False

    @property
    def field(self) -> T:
        """A new dataclass field that is read from this option; typed as its value, as ``dataclasses.field`` is."""
        default = dataclasses.MISSING if self.default is None else self.parse(self.default)
        made: Any = dataclasses.field(default=default, metadata={"spec": self})
        return cast(T, made)

    def parse(self, text: str) -> T:
        """Return the value of a text.

        Raises:
            InvalidInputError: the text is not one of this option's.
        """
        try:
            return self.type.parse(text.strip())
        except ValueError:
            msg = f"option '{self.name}': expected {self.type.expected}, got '{text}'. Correct it or leave it out."
            raise InvalidInputError(msg) from None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Options that belong together: read from texts, and written back as the texts to store."""

    @classmethod
    def read(cls, given: Mapping[str, str], **more: object) -> Self:
        """Parse the options of this group out of all that were given."""
        values = dict(more)
        for part in dataclasses.fields(cls):
            spec = part.metadata.get("spec")
            if spec is not None and spec.name in given:
                values[part.name] = spec.parse(given[spec.name])
        return cls(**values)

    def to_properties(self) -> dict[str, str]:
        """Return the options to store, without any credential: parsing them gives an equal object.

        What is left at its default is left out, unless it describes stored data.
        """
        texts: dict[str, str] = {}
        for part in dataclasses.fields(self):
            value, spec = getattr(self, part.name), part.metadata.get("spec")
            if isinstance(value, Group):
                texts |= value.to_properties()
            elif spec is not None and value is not None and (spec.fixed or value != part.default):
                texts[spec.name] = spec.type.show(value)
        return texts
