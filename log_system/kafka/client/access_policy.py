"""What stored options may make the process do that opens a table: `Allowed` is its policy, `merge_runtime` applies it.

Whoever can write a table's folder, or a definition, chooses its stored options, the brokers among them. So of the
opener's environment and files only what the opening program allows is resolved or read, and nothing stored runs code.
What the program gives itself when it opens the table is not checked: it could do the same without us.

The check is made once, in the process that opens. Tasks get the client as it came out of it.
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
"""What is allowed where nothing else is said: names that are meant for Kafka's clients."""
EXPECTED: Final = "env:NAME, file:/PATH or class:package.module.Class, each with * for any characters"

_ENTRY: Final = re.compile(r"(?:env:[A-Za-z0-9_*]+|file:/[^\r\n]+?|class:[\w.*]+)(?:@(?P<brokers>[^@/\s]+:[^@/\s]+))?")
_PROTOCOL: Final = re.compile(r"^\w+://")


@dataclass(frozen=True)
class Allowed:
    """What stored options may refer to in the process that opens.

    Attributes:
        entries: ``env:``, ``file:`` and ``class:`` patterns. ``*`` is any characters but ``/``. An entry that ends in
            ``@host:port;host:port`` counts only where each address of ``bootstrap.servers`` is one of these.
    """

    entries: tuple[str, ...]

    @classmethod
    def of(cls, given: Iterable[str] | None = None) -> Allowed:
        """Return the policy that a program asks for.

        Args:
            given: the entries; None for those of the environment variable ``TABLESTORE_ALLOWED_REFERENCES``, or, where
                that is not set, `DEFAULT`.

        Raises:
            InvalidInputError: an entry is none.
        """
        if isinstance(given, str):
            return cls.parse(given, "allow_references")
        if given is not None:
            return cls.parse(",".join(given), "allow_references")
        text = os.environ.get(VARIABLE)
        return cls(DEFAULT) if text is None else cls.parse(text, VARIABLE)

    @classmethod
    def parse(cls, text: str, where: str) -> Allowed:
        """Read entries that are separated by commas.

        Raises:
            InvalidInputError: one is none.
        """
        entries = tuple(filter(None, (entry.strip() for entry in text.split(","))))
        for entry in entries:
            if not _ENTRY.fullmatch(entry):
                msg = f"{where}: expected {EXPECTED}; got {entry!r}. Correct it."
                raise InvalidInputError(msg)
        return cls(entries)

    @property
    def text(self) -> str:
        """The entries as `parse` reads them."""
        return ",".join(self.entries)

    def covers(self, reference: str, servers: str = "") -> bool:
        """Return whether a stored option may refer to this.

        Args:
            reference: ``env:NAME``, ``file:PATH`` or ``class:NAME``.
            servers: the addresses of the brokers that would get it.
        """
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
    """Lay options given when a table is opened over its stored client options.

    Args:
        stored: client options as kept with the table, named without ``kafka.``.
        runtime: options given at opening, named with ``kafka.``; they win and are never stored. One that is empty
            leaves the stored one out.
        allowed: what stored options may refer to; None for what the environment of this process says.

    Returns:
        Client options for :class:`~log_system.kafka.client.connect.KafkaClient`, credentials wrapped in
        :class:`Secret`.

    Raises:
        InvalidInputError: a runtime option is not a client option, or may not be set by the user; a stored one is of
            the program alone, or refers to what is not allowed.
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
    """Refuse stored client options that only the opening program may give.

    Args:
        config: client options that are stored, in a table or a definition, named without prefix.
        allowed: what they may refer to.
        servers: the brokers that the client goes to.
        prefix: what the user writes before the names.
        handled: further names that do not reach the client.

    Raises:
        InvalidInputError: one runs code, reads a file or takes a value that is not allowed, or is unknown.
    """
    for name, value in config.items():
        problem = None if name in handled else _problem(name, value, allowed, servers)
        if problem is not None:
            problem = problem.replace("'kafka.", f"'{prefix}")
            msg = f"option '{prefix}{name}'{problem}, or {_by_program(prefix, name)}."
            raise InvalidInputError(msg)


def _problem(name: str, value: ClientValue, allowed: Allowed, servers: str) -> str | None:
    """Return why an option may not be stored, and what to do about it; None where it may."""
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
    """Return how a program gives an option of its own."""
    option = f"options={{'{prefix}{name}': ...}}"
    if prefix == "kafka.":
        return f"give it when the table is opened: TableStore.open(spark, path, {option})"
    return f"give it in the program: Catalog(spark, warehouse, {option}), or 'tablestore sql -o {prefix}{name}=...'"
