"""Declarations of options and option groups, which are parsed from text and written back as text.

Tables, reads, connectors, row formats and SQL settings all declare their options here: each option once, with its name,
its type (which includes the range of its values), its default and its description.
"""

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
        doc: the description; that of a table's option is in ``docs/reference/options.md``.
        fixed: whether the option describes stored data; then it is stored with the table even if it is the default.
    """

    name: str
    type: OptionType[T]
    default: str | None = None
    doc: str = ""
    fixed: bool = False

    def parse(self, text: str, prefix: str = "", what: str = "option") -> T:
        """Parse the option's text.

        For the message, ``prefix`` is what the user writes before the name, and ``what`` what the option is called.

        Raises:
            InvalidInputError: the text is not a valid value of this option.
        """
        try:
            return self.type.parse(text)
        except ValueError:
            name = f"{what} '{prefix}{self.name}'"
            msg = f"{name}: expected {self.type.expected}, got '{text}'. Correct it or leave it out."
            raise InvalidInputError(msg) from None


def option(name: str, kind: OptionType[T], default: str | None, doc: str = "", *, fixed: bool = False) -> T:
    """Return the dataclass field of an option, which is required if its default is None.

    Its static type is that of the value, as for ``dataclasses.field``.
    """
    spec = OptionSpec(name, kind, default, doc, fixed)
    result: Any = dataclasses.field(
        default=dataclasses.MISSING if default is None else spec.parse(default), metadata={"spec": spec}
    )
    return cast(T, result)


def optional(name: str, kind: OptionType[T], doc: str = "") -> T | None:
    """Return the dataclass field of an option that is None if it is not given."""
    return dataclasses.field(default=None, metadata={"spec": OptionSpec(name, kind, None, doc)})


@dataclass(frozen=True, kw_only=True)
class Group:
    """Base class of option groups, which are parsed from text and written back as the text to store."""

    @classmethod
    def specs(cls) -> tuple[OptionSpec[Any], ...]:
        """Return the declarations of the group's own options."""
        return tuple(part.metadata["spec"] for part in dataclasses.fields(cls) if "spec" in part.metadata)

    @classmethod
    def read(cls, given: Mapping[str, str], *, prefix: str = "", **more: object) -> Self:
        """Parse the options of this group.

        Args:
            given: the options of any groups by name, in lower case; those of other groups are ignored.
            prefix: put before an option's name in error messages.
            more: values of fields that are not parsed.

        Raises:
            InvalidInputError: a value is invalid.
        """
        values = dict(more)
        for part in dataclasses.fields(cls):
            spec = part.metadata.get("spec")
            if spec is not None and part.name not in more and spec.name.lower() in given:
                values[part.name] = spec.parse(given[spec.name.lower()], prefix)
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
