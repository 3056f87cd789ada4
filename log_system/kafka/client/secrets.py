"""Credentials: kept as references, resolved at use, masked in every text.

A stored option holds ``env:NAME`` or ``file:PATH`` in place of a credential. Whether it may is decided once, where the
table is opened (``access_policy.py``). The driver and every executor resolve it when they make a client, so the
variable or file has to exist on each of them. A credential that is given when a table is opened is wrapped in
:class:`Secret` and never stored. A pickled :class:`Secret` does hold its value, since a task on another machine needs
it: pickles of a client belong to the running job only, never into a checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from snapshot.errors import InvalidInputError

MASK = "***"

#: The longest credential file that is read, in bytes; a certificate chain with its key is far below it.
_FILE_BYTES_MAX = 1 << 20

#: Lines of a longer credential are masked one by one from this length on; shorter ones say nothing.
_LINE_LENGTH_MIN = 8

_SECRET_KEYS = frozenset({"ssl.key.pem", "sasl.oauthbearer.config", "sasl.jaas.config", "ssl.keystore.key"})
_SECRET_WORDS = r"password|passphrase|passwd|secret|token|private|api[._-]?key|credentials?$"
_SECRET_WORD = re.compile(_SECRET_WORDS)
REDACTION = "|".join(
    [_SECRET_WORDS, *(re.escape(name) for name in sorted(_SECRET_KEYS)), "PRIVATE KEY-----", "://[^/]*:[^/]*@"]
)
"""A pattern for Spark, which redacts options whose name or value it finds; its own finds passwords and tokens only."""
#: Names that speak of a credential but only say where something is.
_PLACE = re.compile(r"\.(url|uri|file|location|path)$")
_CREDENTIAL_IN_VALUE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s@]*:(?P<password>[^/\s@]*)@")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\r\n]+")


class Secret:
    """A credential that shows itself as ``***`` wherever it is printed, also by ``vars``, ``asdict`` and debuggers."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Hold a credential."""
        self._value = value

    def reveal(self) -> str:
        """Return the credential itself, for the client only."""
        return self._value

    def __eq__(self, other: object) -> bool:
        """Compare the credentials."""
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        """Hash the credential."""
        return hash((Secret, self._value))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        """Pickle the credential: a task on another machine needs it."""
        return Secret, (self._value,)

    def __repr__(self) -> str:
        """Show a mask."""
        return MASK

    def __str__(self) -> str:
        """Show a mask."""
        return MASK

    def __format__(self, format_spec: str) -> str:
        """Show a mask in f-strings too."""
        return MASK


#: A client option: plain text, a reference, or a credential that lives in this process only.
ClientValue = str | Secret


def is_secret_key(name: str) -> bool:
    """Tell whether a client option (named without ``kafka.``) holds a credential."""
    lower = name.lower()
    return lower in _SECRET_KEYS or bool(_SECRET_WORD.search(lower) and not _PLACE.search(lower))


def is_reference(value: str) -> bool:
    """Tell whether a value is ``env:NAME`` or ``file:PATH``."""
    return bool(_REFERENCE.fullmatch(value))


def holds_secret(name: str, value: ClientValue) -> bool:
    """Tell whether showing or storing this value would give a credential away."""
    if isinstance(value, Secret):
        return True
    if is_reference(value):
        return False
    return (bool(value) and is_secret_key(name)) or bool(_CREDENTIAL_IN_VALUE.search(value))


def refuse_inline_secrets(config: Mapping[str, ClientValue]) -> None:
    """Refuse credentials in options that would be stored.

    Raises:
        InvalidInputError: the message names the option and says how to give the credential; it never holds the value.
    """
    for name, value in config.items():
        if holds_secret(name, value):
            variable = re.sub(r"[^A-Z0-9]+", "_", f"KAFKA_{name}".upper())
            msg = (
                f"option 'kafka.{name}' holds a credential and options are stored with the table: expected a "
                f"reference, got the credential itself (not shown). Give 'env:{variable}' (an environment variable of "
                f"the driver and the executors) or 'file:/path/to/file', or leave it out and give it each time the "
                f"table is opened: TableStore.open(spark, path, options={{'kafka.{name}': ...}})."
            )
            raise InvalidInputError(msg)


def resolve(config: Mapping[str, ClientValue], prefix: str = "kafka.") -> dict[str, str]:
    """Replace references and :class:`Secret` by what they stand for.

    Args:
        config: client options.
        prefix: what the user writes before their names; for messages.

    Raises:
        InvalidInputError: a variable is not set, or a file cannot be read or is empty.
    """
    return {name: _resolve_one(name, value, prefix) for name, value in config.items()}


def redact(text: str, config: Mapping[str, ClientValue]) -> str:
    """Mask every credential of ``config`` that occurs in ``text``, also as a URL or a Python string would write it."""
    for secret in sorted(set(_spellings(config)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def wrap(options: Mapping[str, object]) -> dict[str, ClientValue]:
    """Return options as text, with each credential in a :class:`Secret`.

    Called first in every function that is given options, so that no frame below it, and no handle, holds the text.

    Args:
        options: by name, with or without ``kafka.`` or ``properties.``.
    """
    wrapped: dict[str, ClientValue] = {}
    for key, value in options.items():
        if isinstance(value, Secret):
            wrapped[key] = value
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        name = key.removeprefix("kafka.").removeprefix("properties.")
        wrapped[key] = Secret(text) if holds_secret(name, text) else text
    return wrapped


def reveal(options: Mapping[str, ClientValue]) -> dict[str, str]:
    """Return options as the client, or Spark on its way to it, takes them."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}


def _resolve_one(name: str, value: ClientValue, prefix: str = "kafka.") -> str:
    if isinstance(value, Secret):
        return value.reveal()
    if not is_reference(value):
        return value
    scheme, _, place = value.partition(":")
    if scheme == "env":
        found = os.environ.get(place)
        problem = "is not set" if found is None else "is empty"
        what = f"environment variable {place} {problem}"
    else:
        found, problem = _read(place.removeprefix("//"))
        what = f"file {problem}"
    if not found:
        remedy = (
            f"Provide it, or give the value when the table is opened: TableStore.open(spark, path, "
            f"options={{'kafka.{name}': ...}})."
            if prefix == "kafka."
            else "Provide it, or give the value itself."
        )
        msg = (
            f"option '{prefix}{name}': reference '{value}' has to lead to a value in this process (driver and "
            f"executors alike), but the {what}. {remedy}"
        )
        raise InvalidInputError(msg)
    return found


def _read(path: str) -> tuple[str | None, str]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            return None, f"is larger than {_FILE_BYTES_MAX} bytes"
        return content.decode("utf-8").rstrip("\r\n"), "is empty"
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        return None, "is not UTF-8 text"


def _spellings(config: Mapping[str, ClientValue]) -> Iterator[str]:
    """Yield each resolvable credential in the ways a message may write it."""
    for name, value in config.items():
        try:
            text = _resolve_one(name, value)
        except InvalidInputError:
            continue
        in_value = _CREDENTIAL_IN_VALUE.search(text)
        if not (isinstance(value, Secret) or is_secret_key(name) or in_value):
            continue
        parts = [text]
        if "\n" in text:
            parts += [line for line in text.splitlines() if len(line) >= _LINE_LENGTH_MIN]
        if in_value and in_value["password"]:
            parts.append(in_value["password"])
        for part in filter(None, parts):
            yield from (part, quote(part, safe=""), repr(part)[1:-1])
