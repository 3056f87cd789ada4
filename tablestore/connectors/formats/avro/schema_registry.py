"""A client of a schema registry with Confluent's REST interface: the schema of an id, and the id of a schema."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from log_system.kafka.client.secrets import ClientValue, resolve
from snapshot.errors import InvalidInputError, UnavailableError
from tablestore.connectors.formats.values import UnfitError

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_SECONDS: Final = 30
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry. Cheap to pickle; what it answers is kept for the life of the process.

    Attributes:
        urls: its addresses, of which the first that answers is used.
        user_info: ``user:password`` for basic authentication.
        token: the token for bearer authentication.
        option_prefix: what users write before the names of the options; used in error messages.
    """

    urls: tuple[str, ...]
    user_info: ClientValue | None
    token: ClientValue | None
    option_prefix: str

    def schema(self, number: int) -> tuple[Any, ...]:
        """Return the schema of an id as parsed JSON, after the schemas that it refers to.

        Raises:
            UnfitError: there is no such schema, or it is not one of Avro.
            UnavailableError: the registry does not answer.
        """
        return _schema(self, number)

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema, which is registered under a subject if it is not there.

        Raises:
            InvalidInputError: the registry rejects the schema.
            UnavailableError: the registry does not answer.
        """
        return _register(self, subject, schema)

    def ask(self, path: str, body: Any = None) -> Any:
        """Send a request, and return the parsed answer.

        Raises:
            urllib.error.HTTPError: the registry rejects the request.
            UnavailableError: no address answers.
        """
        data = None if body is None else json.dumps(body).encode()
        failed = []
        for url in self.urls:
            request = urllib.request.Request(f"{url}{path}", data, self._headers())
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code < _SERVER_ERROR:
                    raise
                failed.append(f"{url}: {error}")
            except (OSError, ValueError) as error:
                failed.append(f"{url}: {error}")
        msg = f"the schema registry does not answer ('{self.option_prefix}url'): {'; '.join(failed)}"
        raise UnavailableError(msg)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _CONTENT, "Content-Type": _CONTENT}
        given = {"basic-auth.user-info": self.user_info, "bearer-auth.token": self.token}
        values = resolve({name: value for name, value in given.items() if value is not None}, self.option_prefix)
        for name, value in values.items():
            is_basic = name == "basic-auth.user-info"
            headers["Authorization"] = (
                f"Basic {base64.b64encode(value.encode()).decode()}" if is_basic else f"Bearer {value}"
            )
        return headers


@lru_cache(maxsize=1000)
def _schema(registry: SchemaRegistry, number: int) -> tuple[Any, ...]:
    found = _found(registry, f"/schemas/ids/{number}", f"schema with the id {number}")
    kind = found.get("schemaType", "AVRO")
    if kind != "AVRO":
        msg = f"schema {number} of the schema registry: expected one of Avro, got one of {kind}"
        raise UnfitError(msg)
    return (*_referred(registry, found, set()), json.loads(found["schema"]))


def _referred(registry: SchemaRegistry, found: Any, seen: set[tuple[str, int]]) -> Iterator[Any]:
    """Yield the schemas that a registry's entry refers to, each once and after those that it refers to itself."""
    for each in found.get("references") or ():
        place = (each["subject"], each["version"])
        if place in seen:
            continue
        seen.add(place)
        path = f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}"
        entry = _found(registry, path, f"version {place[1]} of subject '{place[0]}', to which a schema refers")
        yield from _referred(registry, entry, seen)
        yield json.loads(entry["schema"])


def _found(registry: SchemaRegistry, path: str, what: str) -> Any:
    try:
        return registry.ask(path)
    except urllib.error.HTTPError as error:
        if error.code == _NOT_FOUND:
            msg = f"the schema registry has no {what}"
            raise UnfitError(msg) from error
        raise UnavailableError(_rejected(error)) from error


@lru_cache(maxsize=1000)
def _register(registry: SchemaRegistry, subject: str, schema: str) -> int:
    try:
        return int(registry.ask(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})["id"])
    except urllib.error.HTTPError as error:
        msg = (
            f"the table's schema cannot be registered under '{subject}' ('{registry.option_prefix}subject'): "
            f"{_rejected(error)}. The schema is {schema}"
        )
        raise InvalidInputError(msg) from error


def _rejected(error: urllib.error.HTTPError) -> str:
    return f"the schema registry rejected the request ({error.code}): {error.read(1000).decode(errors='replace')}"
