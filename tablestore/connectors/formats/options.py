"""The options of a row format, read once: names are checked, and messages give the full name of an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snapshot.errors import InvalidInputError
from snapshot.suggestions import did_you_mean

_ESCAPES = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\\": "\\", r"\0": "\0"}


class FormatOptionReader:
    """Reads options by type. Whoever reads them keeps the result; no option name is used past that."""

    def __init__(self, name: str, options: Mapping[str, str], known: Sequence[str], *, side: str) -> None:
        """Check the names.

        Args:
            name: the format, ``json`` for instance.
            options: values by name, the prefix (``value.json.``) already cut.
            known: the names the format has.
            side: ``key``, ``value``, or empty where the format has no side; for messages only.

        Raises:
            InvalidInputError: an option that the format does not have.
        """
        self._prefix = ".".join(part for part in (side, name) if part)
        self._options = options
        for key in options:
            if key not in known:
                has = f"Format {name!r} has {', '.join(known) if known else 'no options'}."
                hint = did_you_mean(key, known, prefix=self.full(""), otherwise=has)
                msg = f"unsupported option {self.full(key)!r}. {hint}"
                raise InvalidInputError(msg)

    def full(self, key: str) -> str:
        """Give an option's full name, as the user wrote it."""
        return f"{self._prefix}.{key}"

    def given(self, key: str) -> bool:
        """Tell whether an option is set."""
        return key in self._options

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean."""
        text = self._options.get(key)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            msg = f"{self.full(key)} must be 'true' or 'false', got {text!r}"
            raise InvalidInputError(msg)
        return text.strip().lower() == "true"

    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str:
        """Read one of some words; case does not matter."""
        text = self._options.get(key, default)
        for word in choices:
            if text.strip().lower() == word.lower():
                return word
        msg = f"{self.full(key)} must be one of {', '.join(map(repr, choices))}, got {text!r}"
        raise InvalidInputError(msg)

    def text(self, key: str, *, default: str | None = None) -> str | None:
        """Read a text as it is."""
        return self._options.get(key, default)

    def character(self, key: str, *, default: str | None = None) -> str | None:
        r"""Read one character; as in Flink it may be written as an escape, ``\t`` for instance."""
        text = self._options.get(key)
        if text is None:
            return default
        text = _ESCAPES.get(text, text)
        if len(text) != 1:
            msg = f"{self.full(key)} must be one character, got {text!r}"
            raise InvalidInputError(msg)
        return text
