"""The service: watches tables in threads, and answers over HTTP."""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from log_system.kafka.client.access_policy import Allowed
from snapshot.errors import InvalidInputError, TableStoreError
from tablestore.service import page
from tablestore.service.metrics import ServiceMetrics
from tablestore.service.watcher import Schedule, TableState, TableWatcher

logger = logging.getLogger("tablestore")
_LIST_SECONDS = 5.0
"""How often the list of tables is read again."""
_UNHEALTHY_SECONDS = 30.0
"""A log that is behind for longer is unhealthy."""


@dataclass(frozen=True)
class _Watched:
    """A watcher, its thread, and what stops it."""

    watcher: TableWatcher
    stop: threading.Event
    thread: threading.Thread


class Service:
    """Watches the tables that a function lists, one thread each. A context manager."""

    def __init__(
        self,
        tables: Callable[[], Iterable[str]],
        *,
        options: Mapping[str, object] | None = None,
        allowed: Allowed | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Create the service; nothing runs before the context is entered.

        Args:
            tables: returns the paths of the tables; called again every few seconds.
            options: Kafka client options for all tables, which are not stored with them.
            allowed: the references that stored options may contain; None for those of the environment.
            schedule: how often to look and work.
        """
        self._tables = tables
        self.metrics = ServiceMetrics(lambda: self.states)
        self._make = partial(TableWatcher, options=options, allowed=allowed, schedule=schedule, hook=self.metrics.hook)
        self._stop = threading.Event()
        self._watched: dict[str, _Watched] = {}
        self._lister = threading.Thread(target=self._list, name="tablestore-serve", daemon=True)

    def __enter__(self) -> Service:
        """Start watching."""
        self._lister.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, after what is being published or maintained is done."""
        self._stop.set()
        self._lister.join()
        for each in self._watched.values():
            each.stop.set()
        for each in self._watched.values():
            each.thread.join()

    @property
    def states(self) -> list[TableState]:
        """The states of all tables, by path."""
        return [each.watcher.state for _, each in sorted(self._watched.copy().items())]

    def watcher(self, path: str) -> TableWatcher | None:
        """Return the watcher of a table; None if there is none."""
        found = self._watched.get(path)
        return None if found is None else found.watcher

    def problems(self) -> dict[str, str]:
        """Return what is wrong with tables, by path: errors, differences, and logs that stay behind."""
        found = {}
        for state in self.states:
            if state.error:
                found[state.path] = state.error
            elif state.differences:
                found[state.path] = f"verify found {state.differences} differences between log and table"
            elif state.behind.seconds > _UNHEALTHY_SECONDS:
                found[state.path] = f"the log is {state.behind.snapshots} snapshots behind"
        return found

    def _list(self) -> None:
        while True:
            try:
                self._watch(set(self._tables()))
            except TableStoreError as error:
                logger.warning("the tables cannot be listed: %s", error)
            if self._stop.wait(_LIST_SECONDS):
                return

    def _watch(self, paths: set[str]) -> None:
        for path in self._watched.keys() - paths:
            self._watched.pop(path).stop.set()
        for path in sorted(paths - self._watched.keys()):
            watcher, stop = self._make(path), threading.Event()
            thread = threading.Thread(target=watcher.run, args=(stop,), name=f"tablestore-watch-{path}", daemon=True)
            self._watched[path] = _Watched(watcher, stop, thread)
            thread.start()


def http_server(service: Service, host: str, port: int, token: str | None) -> ThreadingHTTPServer:
    """Return a server of a service's pages, listening, not yet serving.

    Args:
        service: the service.
        host: the address to listen on.
        port: the port; 0 for a free one.
        token: what requests must present as ``Authorization: Bearer TOKEN`` or ``?token=TOKEN``; None for nothing.

    Raises:
        InvalidInputError: the address is not a loopback one, and there is no token; or nothing can listen there.
    """
    if token is None and not _is_loopback(host):
        msg = f"host: expected a loopback address such as 127.0.0.1, or a token (--token), got {host!r} without one."
        raise InvalidInputError(msg)
    try:
        return ThreadingHTTPServer((host, port), partial(_Handler, service, token))
    except OSError as error:
        msg = f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another --host or --port."
        raise InvalidInputError(msg) from error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    """Answers a request; nothing can be changed by one."""

    server_version = "tablestore"

    def __init__(self, service: Service, token: str | None, *args: object) -> None:
        self._service = service
        self._token = token
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer ``/``, ``/table?path=...``, ``/metrics`` and ``/healthz``."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if not self._is_allowed(query):
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", b"expected 'Authorization: Bearer TOKEN'\n")
            return
        if parts.path == "/healthz":
            problems = self._service.problems()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            self._answer(status, "application/json", json.dumps({"ok": not problems, "problems": problems}).encode())
        elif parts.path == "/metrics":
            self._answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self._service.metrics.text())
        elif parts.path == "/":
            token = query.get("token", [""])[0]
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.overview(self._service.states, token).encode())
        elif parts.path == "/table":
            self._table(query.get("path", [""])[0])
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log requests at debug level only."""
        logger.debug("%s %s", self.address_string(), format % args)

    def _is_allowed(self, query: Mapping[str, list[str]]) -> bool:
        if self._token is None:
            return True
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = [bearer, *query.get("token", [])]
        return any(hmac.compare_digest(each.encode(), self._token.encode()) for each in given)

    def _table(self, path: str) -> None:
        watcher = self._service.watcher(path)
        table = None if watcher is None else watcher.table
        if watcher is None or table is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"no such table, or it cannot be opened\n")
            return
        try:
            body = page.detail(watcher.state, table)
        except TableStoreError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n".encode())
            return
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", body.encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(body)
