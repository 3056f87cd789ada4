"""The service's pages over HTTP; nothing can be changed by a request."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from snapshot.errors import InvalidInputError, TableStoreError
from tablestore.service import page
from tablestore.service.log_tail import ROWS_SHOWN, log_tail
from tablestore.service.service import Service

logger = logging.getLogger("tablestore")
_COOKIE = "tablestore-token"
_HTML = "text/html; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Query = Mapping[str, str]


def http_server(service: Service, host: str, port: int, token: str | None) -> ThreadingHTTPServer:
    """Return a server of a service's pages, listening, not yet serving.

    Args:
        service: the service.
        host: the address to listen on.
        port: the port; 0 for a free one.
        token: what requests must present as ``Authorization: Bearer TOKEN`` or ``?token=TOKEN``; None or an empty one
            for nothing.

    Raises:
        InvalidInputError: the address is not a loopback one, and there is no token; or nothing can listen there.
    """
    token = token or None
    if token is None and not _is_loopback(host):
        msg = (
            f"host: expected a loopback address such as 127.0.0.1, or a token (TABLESTORE_SERVE_TOKEN), got {host!r} "
            "without one."
        )
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
    """Answers a request."""

    server_version = "tablestore"

    def __init__(self, service: Service, token: str | None, *args: object) -> None:
        self._service = service
        self._token = token
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer ``/``, ``/table?path=...``, ``/log?path=...``, ``/metrics``, ``/healthz`` and ``/page.js``."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/page.js":
            self._answer(HTTPStatus.OK, "text/javascript; charset=utf-8", page.SCRIPT)
        elif self._token is None and not _is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""):
            # Otherwise any page in the user's browser could read these by a name that it lets point here.
            text = b"expected a loopback address in the Host header; for other names, set TABLESTORE_SERVE_TOKEN\n"
            self._answer(HTTPStatus.FORBIDDEN, _TEXT, text)
        elif not self._is_allowed(query):
            self._answer(HTTPStatus.UNAUTHORIZED, _TEXT, b"expected 'Authorization: Bearer TOKEN'\n")
        elif parts.path in ("/", "/table", "/log") and "token" in query and self._token is not None:
            self._keep_token(parts.path, query)
        else:
            self._show(parts.path, query)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log the paths of requests at debug level only, without what follows ``?``: a token may be there."""
        path = urlsplit(getattr(self, "path", "")).path
        logger.debug("%s %s %s", self.address_string(), self.command, path)

    def _show(self, path: str, query: Query) -> None:
        if path == "/healthz":
            problems = self._service.problems()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            self._answer(status, "application/json", json.dumps({"ok": not problems, "problems": problems}).encode())
        elif path == "/metrics":
            self._answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self._service.metrics.text())
        elif path == "/":
            self._answer(HTTPStatus.OK, _HTML, page.overview(self._service.states, self._service.unlisted).encode())
        elif path in ("/table", "/log"):
            self._table(path, query)
        else:
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"not found\n")

    def _is_allowed(self, query: Query) -> bool:
        if self._token is None:
            return True
        given = [self.headers.get("Authorization", "").removeprefix("Bearer "), query.get("token", "")]
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
            given.append("" if cookie is None else unquote(cookie.value))
        except CookieError:
            pass
        # Every candidate is compared, and each in a time that says nothing about the token.
        found = [hmac.compare_digest(each.encode(), self._token.encode()) for each in given]
        return any(found)

    def _keep_token(self, path: str, query: Query) -> None:
        """Store the token in a cookie, and redirect to the address without it."""
        left = urlencode({name: value for name, value in query.items() if name != "token"})
        cookie = f"{_COOKIE}={quote(self._token or '', safe='')}; Path=/; HttpOnly; SameSite=Strict"
        headers = {"Location": f"{path}?{left}" if left else path, "Set-Cookie": cookie}
        self._answer(HTTPStatus.SEE_OTHER, _TEXT, b"", headers)

    def _table(self, kind: str, query: Query) -> None:
        path = query.get("path", "")
        watcher = self._service.watcher(path)
        if watcher is None:
            self._answer(HTTPStatus.NOT_FOUND, _HTML, page.failed(path, "The service does not watch it.").encode())
            return
        table, state = watcher.table, watcher.state
        try:
            if table is None:
                text = state.error or "The table is being opened; look again in a moment."
                body = page.failed(path, text)
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _HTML, body.encode())
                return
            before = _number(query, "before")
            if kind == "/log":
                key = query.get("key", "")
                body = page.log_page(
                    state,
                    table,
                    log_tail(table, before=before, key=key),
                    key,
                    min(_number(query, "rows") or ROWS_SHOWN, ROWS_SHOWN),
                )
            else:
                body = page.detail(state, table, before=before, whole=query.get("range") == "all")
        except InvalidInputError as error:
            self._answer(HTTPStatus.BAD_REQUEST, _HTML, page.failed(path, str(error)).encode())
        except TableStoreError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _HTML, page.failed(path, str(error)).encode())
        else:
            self._answer(HTTPStatus.OK, _HTML, body.encode())

    def _answer(
        self, status: HTTPStatus, content_type: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        given = {"Content-Type": content_type, "Content-Length": str(len(body)), **_HEADERS, **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _number(query: Query, name: str) -> int | None:
    """Return a number of the query; None if it is not given.

    Raises:
        InvalidInputError: it is no number.
    """
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        msg = f"{name}: expected a whole number, got {text!r:.40}."
        raise InvalidInputError(msg)
    return int(text)
