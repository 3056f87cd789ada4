"""Credentials: stored as references, resolved on use, masked in all text.

A stored option holds ``env:NAME`` or ``file:PATH`` instead of a credential. Whether the reference is allowed is checked
once, when the table is opened (``access_policy.py``). The driver and every executor resolve it when they create a
client, so the variable or file must exist on each of them. A credential given when a table is opened is wrapped in
:class:`Secret` and never stored. A pickled :class:`Secret` contains its value, because tasks on other machines need it:
never write a pickled client anywhere that outlives the running job, such as a checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from snapshot.errors import InvalidInputError

MASK = "***"
CLIENT_PREFIXES = ("properties.", "kafka.")
"""How the names of client options begin in tables of the connectors, and in those of the store."""

#: The largest credential file that is read, in bytes; a certificate chain with its key is far smaller.
_FILE_BYTES_MAX = 1 << 20

#: Lines of a multi-line credential are also masked individually if they have at least this length.
_LINE_LENGTH_MIN = 8

_SECRET_KEYS = frozenset({"ssl.key.pem", "sasl.oauthbearer.config", "sasl.jaas.config", "ssl.keystore.key"})
_SECRET_WORDS = r"password|passphrase|passwd|secret|token|private|api[._-]?key|credentials?$|user-info$"
_SECRET_WORD = re.compile(_SECRET_WORDS)
REDACTION = "|".join(
    [_SECRET_WORDS, *(re.escape(name) for name in sorted(_SECRET_KEYS)), "PRIVATE KEY-----", "://[^/]*:[^/]*@"]
)
"""A pattern for Spark, which redacts options whose name or value matches; Spark's default covers fewer credentials."""
#: Names that contain a credential word but hold only a location.
_PLACE = re.compile(r"\.(url|uri|file|location|path)$")
_CREDENTIAL_IN_VALUE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s@]*:(?P<password>[^/\s@]*)@")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\r\n]+")


class Secret:
    """A credential that prints as ``***``, even in ``vars``, ``asdict`` and debuggers."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Wrap a credential."""
        self._value = value

    def reveal(self) -> str:
        """Return the credential itself; for the Kafka client only."""
        return self._value

    def __eq__(self, other: object) -> bool:
        """Return whether the other object is a ``Secret`` with the same credential."""
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        """Return a hash of the credential."""
        return hash((Secret, self._value))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        """Pickle the credential itself: a task on another machine needs it."""
        return Secret, (self._value,)

    def __repr__(self) -> str:
        """Return the mask."""
        return MASK

    def __str__(self) -> str:
        """Return the mask."""
        return MASK

    def __format__(self, format_spec: str) -> str:
        """Return the mask, in f-strings too."""
        return MASK


#: A client option's value: plain text, a reference, or a credential that is never stored.
ClientValue = str | Secret


def client_name(option: str) -> str:
    """Return the client's own name of an option."""
    for prefix in CLIENT_PREFIXES:
        option = option.removeprefix(prefix)
    return option


def is_secret_key(name: str) -> bool:
    """Return whether a client option, named without ``kafka.``, holds a credential."""
    lower = name.lower()
    return lower in _SECRET_KEYS or bool(_SECRET_WORD.search(lower) and not _PLACE.search(lower))


def is_reference(value: str) -> bool:
    """Return whether a value is ``env:NAME`` or ``file:PATH``."""
    return bool(_REFERENCE.fullmatch(value))


def holds_secret(name: str, value: ClientValue) -> bool:
    """Return whether showing or storing a value would disclose a credential; the option's name may have a prefix."""
    if isinstance(value, Secret):
        return True
    if is_reference(value):
        return False
    return (bool(value) and is_secret_key(client_name(name))) or bool(_CREDENTIAL_IN_VALUE.search(value))


def refuse_inline_secrets(config: Mapping[str, ClientValue]) -> None:
    """Check that options to be stored contain no credentials.

    Raises:
        InvalidInputError: an option holds a credential. The message says how to supply it, and never contains it.
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
    """Return options with references and :class:`Secret` objects replaced by their values.

    ``prefix`` is that of the options' names as the user writes them, for messages.

    Raises:
        InvalidInputError: a variable is not set or empty, or a file is empty or cannot be read.
    """
    return {name: _resolve_one(name, value, prefix) for name, value in config.items()}


def redact(text: str, config: Mapping[str, ClientValue]) -> str:
    """Return ``text`` with every credential of ``config`` masked, also in its URL-quoted and Python-escaped forms."""
    for secret in sorted(set(_spellings(config)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def wrap(options: Mapping[str, object]) -> dict[str, ClientValue]:
    """Return option values as text, with each credential wrapped in a :class:`Secret`.

    Every function that receives options calls this first, so that no stack frame below it and no handle holds a
    credential as plain text. The names may begin with ``kafka.`` or ``properties.``.
    """
    wrapped: dict[str, ClientValue] = {}
    for key, value in options.items():
        if isinstance(value, Secret):
            wrapped[key] = value
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        wrapped[key] = Secret(text) if holds_secret(key, text) else text
    return wrapped


def reveal(options: Mapping[str, ClientValue]) -> dict[str, str]:
    """Return options with credentials as plain text, for the Kafka client or for Spark to pass on."""
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
    """Yield each resolvable credential in the forms in which a message may contain it."""
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
