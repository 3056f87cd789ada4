"""Typed access to the options of a row format; error messages show full option names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snapshot.errors import InvalidInputError
from snapshot.suggestions import did_you_mean

_ESCAPES = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\\": "\\", r"\0": "\0"}


class FormatOptionReader:
    """Checks the names of a format's options and parses their values."""

    def __init__(self, name: str, options: Mapping[str, str], known: Sequence[str], *, side: str) -> None:
        """Check the option names.

        Args:
            name: the format's name, such as ``json``.
            options: option values by name, without the prefix (``value.json.``).
            known: the option names that the format supports.
            side: ``key``, ``value``, or empty if the option names have no such prefix; used in error messages only.

        Raises:
            InvalidInputError: the format does not support an option.
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
        """Return an option's full name, as the user wrote it."""
        return f"{self._prefix}.{key}"

    def given(self, key: str) -> bool:
        """Return whether an option is set."""
        return key in self._options

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean option."""
        text = self._options.get(key)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            msg = f"{self.full(key)} must be 'true' or 'false', got {text!r}"
            raise InvalidInputError(msg)
        return text.strip().lower() == "true"

    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str:
        """Return an option that is one of a set of words, compared case-insensitively."""
        text = self._options.get(key, default)
        for word in choices:
            if text.strip().lower() == word.lower():
                return word
        msg = f"{self.full(key)} must be one of {', '.join(map(repr, choices))}, got {text!r}"
        raise InvalidInputError(msg)

    def text(self, key: str, *, default: str | None = None) -> str | None:
        """Return an option's text unchanged."""
        return self._options.get(key, default)

    def character(self, key: str, *, default: str | None = None) -> str | None:
        r"""Return a single-character option; as in Flink, it may be an escape sequence such as ``\t``."""
        text = self._options.get(key)
        if text is None:
            return default
        text = _ESCAPES.get(text, text)
        if len(text) != 1:
            msg = f"{self.full(key)} must be one character, got {text!r}"
            raise InvalidInputError(msg)
        return text
