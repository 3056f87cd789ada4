"""The policy for stored client options in the process that opens a table: `Allowed`, applied by `merge_runtime`.

Anyone who can write a table's folder, or a definition, controls its stored options, including the brokers. Stored
options may therefore read only those environment variables and files that the opening program allows, and may never
run code. Options that the program itself gives when it opens the table are not checked: it could do the same directly.

The check runs once, in the process that opens the table. Tasks receive the checked client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from log_system.kafka.client.client_options import (
    ACCESS,
    TAKES_REFERENCE,
    Access,
    check_client_options,
    nearest_client_option,
    why_program_only,
)
from log_system.kafka.client.secrets import ClientValue, Secret, is_reference, wrap
from snapshot.errors import InvalidInputError

VARIABLE: Final = "TABLESTORE_ALLOWED_REFERENCES"
DEFAULT: Final = (
    "env:KAFKA_*",
    "env:TABLESTORE_*",
    "file:/run/secrets/kafka*",
    "file:/var/run/secrets/kafka*",
)
"""The default policy: environment variables and files whose names show that they are meant for Kafka clients."""
EXPECTED: Final = "env:NAME, file:/PATH or class:package.module.Class, each with * for any characters"

_ENTRY: Final = re.compile(r"(?:env:[A-Za-z0-9_*]+|file:/[^\r\n]+?|class:[\w.*]+)(?:@(?P<brokers>[^@/\s]+:[^@/\s]+))?")
_PROTOCOL: Final = re.compile(r"^\w+://")


@dataclass(frozen=True)
class Allowed:
    """The references that stored options may use in the process that opens the table.

    Attributes:
        entries: ``env:``, ``file:`` and ``class:`` patterns. ``*`` matches any characters except ``/``. An entry that
            ends in ``@host:port;host:port`` applies only if all addresses of ``bootstrap.servers`` are in that list.
    """

    entries: tuple[str, ...]

    @classmethod
    def of(cls, given: Iterable[str] | None = None) -> Allowed:
        """Return the policy that a program requests.

        Args:
            given: the entries; None for those of the environment variable ``TABLESTORE_ALLOWED_REFERENCES`` or, if
                that is not set, `DEFAULT`.

        Raises:
            InvalidInputError: an entry is invalid.
        """
        if isinstance(given, str):
            return cls.parse(given, "allow_references")
        if given is not None:
            return cls.parse(",".join(given), "allow_references")
        text = os.environ.get(VARIABLE)
        return cls(DEFAULT) if text is None else cls.parse(text, VARIABLE)

    @classmethod
    def parse(cls, text: str, where: str) -> Allowed:
        """Parse comma-separated entries.

        Raises:
            InvalidInputError: an entry is invalid.
        """
        entries = tuple(filter(None, (entry.strip() for entry in text.split(","))))
        for entry in entries:
            if not _ENTRY.fullmatch(entry):
                msg = f"{where}: expected {EXPECTED}; got {entry!r}. Correct it."
                raise InvalidInputError(msg)
        return cls(entries)

    @property
    def text(self) -> str:
        """The entries in the form that `parse` reads."""
        return ",".join(self.entries)

    def covers(self, reference: str, servers: str = "") -> bool:
        """Return whether a stored option for these brokers may use a reference, such as ``env:NAME``."""
        kind, _, place = reference.partition(":")
        if kind == "file":
            place = place.removeprefix("//")
            if ".." in place.split("/"):
                return False
        return any(_fits(entry, f"{kind}:{place}", servers) for entry in self.entries)


def _fits(entry: str, reference: str, servers: str) -> bool:
    found = _ENTRY.fullmatch(entry)
    brokers = found["brokers"] if found else None
    pattern = entry if brokers is None else entry.removesuffix(f"@{brokers}")
    if not _matches(pattern, reference):
        return False
    if brokers is None:
        return True
    addresses = [_PROTOCOL.sub("", each.strip()) for each in servers.split(",")]
    return all(any(_matches(known, address) for known in brokers.split(";")) for address in addresses)


def _matches(pattern: str, text: str) -> bool:
    return bool(re.fullmatch("[^/]*".join(map(re.escape, pattern.split("*"))), text))


def merge_runtime(
    stored: Mapping[str, str], runtime: Mapping[str, object], allowed: Allowed | None = None
) -> dict[str, ClientValue]:
    """Merge options given when a table is opened with its stored client options.

    Args:
        stored: client options stored with the table, named without ``kafka.``.
        runtime: options given when the table is opened, named with ``kafka.``; they take precedence and are never
            stored. An empty value removes the stored option.
        allowed: the references that stored options may use; None for the policy of this process's environment.

    Returns:
        Client options for :class:`~log_system.kafka.client.connect.KafkaClient`, with the credentials in ``runtime``
        wrapped in :class:`Secret`.

    Raises:
        InvalidInputError: a runtime option is not a client option or must not be set by users; or only a program may
            set a stored option, or a stored option uses a reference that is not allowed.
    """
    given: dict[str, ClientValue] = {}
    for key, value in wrap(runtime).items():
        name = key.removeprefix("kafka.")
        if name in (key, "topic"):
            msg = (
                f"option '{key}': an opened table takes only client options 'kafka.*' (such as kafka.sasl.password); "
                f"all others, 'kafka.topic' too, are fixed when the table is created. Leave it out."
            )
            raise InvalidInputError(msg)
        given[name] = value
    check_client_options(given)
    kept = {name: text for name, text in stored.items() if name not in given}
    merged = {**kept, **{name: value for name, value in given.items() if value != ""}}
    check_stored(kept, allowed or Allowed.of(), str(merged.get("bootstrap.servers", "")))
    return merged


def check_stored(
    config: Mapping[str, ClientValue],
    allowed: Allowed,
    servers: str,
    *,
    prefix: str = "kafka.",
    handled: Iterable[str] = (),
) -> None:
    """Check that stored client options contain none that only the opening program may set.

    Args:
        config: client options stored in a table or a definition, named without prefix.
        allowed: the references that they may use.
        servers: the brokers to which the client connects.
        prefix: the prefix of the option names as the user writes them.
        handled: names of options that are not passed to the client and are not checked.

    Raises:
        InvalidInputError: an option is unknown, may be set only by a program, or uses a file or reference that is not
            allowed.
    """
    for name, value in config.items():
        problem = None if name in handled else _problem(name, value, allowed, servers)
        if problem is not None:
            problem = problem.replace("'kafka.", f"'{prefix}")
            msg = f"option '{prefix}{name}'{problem}, or {_by_program(prefix, name)}."
            raise InvalidInputError(msg)


def _problem(name: str, value: ClientValue, allowed: Allowed, servers: str) -> str | None:
    """Return why an option may not be stored and how to fix that; None if it may be stored."""
    access = ACCESS.get(name)
    if access is None:
        near = nearest_client_option(name)
        hint = f"{near} " if near else ""
        return f": expected a librdkafka property that can be stored, got an unknown name. {hint}Correct it"
    if access is Access.PROGRAM:
        return f" {why_program_only(name)}, so it is never taken from what is stored: leave it out"
    if isinstance(value, Secret):
        return None
    if is_reference(value) and name not in TAKES_REFERENCE:
        return f"='{value}': a stored reference is resolved for credentials only: store the value itself"
    if access is not Access.FILE and not is_reference(value):
        return None
    reference, what = (f"file:{value}", "a file") if access is Access.FILE else (value, "a reference")
    if allowed.covers(reference, servers):
        return None
    return (
        f"='{value}' is stored and names {what} that this program does not allow for brokers '{servers}' (allowed: "
        f"{allowed.text or 'nothing'}). Allow it by {VARIABLE}='{reference}' in this program's environment or by "
        f"allow_references=['{reference}']"
    )


def _by_program(prefix: str, name: str) -> str:
    """Return instructions for setting an option in the program, for messages."""
    option = f"options={{'{prefix}{name}': ...}}"
    if prefix == "kafka.":
        return f"give it when the table is opened: TableStore.open(spark, path, {option})"
    return f"give it in the program: Catalog(spark, warehouse, {option}), or 'tablestore sql -o {prefix}{name}=...'"
