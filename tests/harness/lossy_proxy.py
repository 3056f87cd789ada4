"""A proxy in front of an HTTP server that drops answers, holds requests and is slow, as a network may."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

DROP = "/drop-the-answer-of-the-next-put-to/"
COUNT = "/requests-since-the-last-count"
HOLD = "/hold-the-next-put-of-spark-to/"
FAULTS = "/faults/"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_HOLD_SECONDS_MAX = 10.0
Translate = Callable[[str, str, dict[str, str]], tuple[str, str]]
"""Returns method and path in place of those given, and may change the headers."""


class LossyProxy:
    """Listens on loopback and forwards to a server; ``drop_next`` works from any process.

    A POST to ``/upload/`` counts as a PUT, of the object that its path or the beginning of its body names.
    """

    def __init__(self, host: str, port: int, translate: Translate | None = None) -> None:
        """Forward to ``host:port``; count requests. ``translate`` changes what a server does not understand."""
        proxy = self
        self._lock, self._names, self.dropped = Lock(), list[str](), 0
        self._seen, self._held, self._put = list[str](), list[str](), set[str]()
        self._drops_each_put, self._slow_every, self._forwarded, self._denies = False, 0, 0, ""
        self._late_seconds = 0.0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # The body would wait until the client has acknowledged the headers, for 40 ms.
            disable_nagle_algorithm = True

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                told = proxy._control(self.path, body)
                if told is not None:
                    self._answer(200, [], told)
                    return
                with proxy._lock:
                    proxy._seen.append(f"{self.command} {self.path}")
                time.sleep(proxy._late_seconds)
                if proxy._is_too_fast():
                    self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
                    return
                if self.command == "PUT" and proxy._denies and proxy._denies in self.path:
                    self._answer(403, [("Content-Type", "application/xml")], DENIED)
                    return
                is_put = self.command == "PUT" or (self.command == "POST" and self.path.startswith("/upload/"))
                written = self.path + (body[:300].decode(errors="replace") if self.command == "POST" else "")
                if self.command == "PUT" and "Hadoop" in self.headers.get("User-Agent", ""):
                    proxy._hold(self.path)
                connection = http.client.HTTPConnection(host, port, timeout=60)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in ("expect", "connection")}
                sent = (self.command, self.path) if translate is None else translate(self.command, self.path, kept)
                connection.request(*sent, body, kept)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                if is_put and proxy._takes(written):
                    self.close_connection = True
                    self.connection.close()
                    return
                self._answer(answer.status, answer.getheaders(), data)

            def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = {k.lower(): v for k, v in headers}.get("content-length", str(len(data)))
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815 - the names that http.server calls

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, daemon=True).start()

    def _control(self, path: str, body: bytes) -> bytes | None:
        """Obey a request to the proxy itself, and return the answer; None for a request to the server."""
        with self._lock:
            if path.startswith(DROP):
                self._names.append(path.removeprefix(DROP))
            elif path.startswith(HOLD):
                self._held.append(path.removeprefix(HOLD))
            elif path.startswith(FAULTS):
                faults = json.loads(body)
                self._drops_each_put, self._slow_every = faults["drops_each_put"], faults["slow_every"]
                self._denies, self._late_seconds = faults["denies"], faults["late_seconds"]
            elif path == COUNT:
                seen, self._seen = self._seen, []
                return json.dumps(seen).encode()
            else:
                return None
        return b""

    def _is_too_fast(self) -> bool:
        with self._lock:
            self._forwarded += 1
            return bool(self._slow_every) and self._forwarded % self._slow_every == 0

    def _takes(self, path: str) -> bool:
        """Note a PUT, and return whether its answer is to be dropped."""
        with self._lock:
            is_first = path not in self._put
            self._put.add(path)
        found = self._asked(self._names, path) or (self._drops_each_put and is_first)
        self.dropped += found
        return found

    def _hold(self, path: str) -> None:
        """Wait until another client has put the same object, if a test has asked for that."""
        until = time.monotonic() + _HOLD_SECONDS_MAX
        if self._asked(self._held, path):
            while path not in self._put and time.monotonic() < until:
                time.sleep(0.01)

    def _asked(self, names: list[str], path: str) -> bool:
        with self._lock:
            found = next((name for name in names if name in path), None)
            if found is not None:
                names.remove(found)
        return found is not None


def drop_next(endpoint: str, name: str) -> None:
    """Drop the answer to the next PUT of an object whose path has ``name`` in it."""
    with urllib.request.urlopen(f"{endpoint}{DROP}{name}", timeout=10):
        pass


def hold_next(endpoint: str, name: str) -> None:
    """Hold Spark's next PUT of an object whose path has ``name`` in it until another client has put that object."""
    with urllib.request.urlopen(f"{endpoint}{HOLD}{name}", timeout=10):
        pass


@contextmanager
def faulty(
    endpoint: str, *, drops_each_put: bool = False, slow_every: int = 0, denies: str = "", late_seconds: float = 0.0
) -> Iterator[None]:
    """Misbehave within the context.

    Args:
        endpoint: the proxy.
        drops_each_put: drop the answer to the first PUT of each object.
        slow_every: answer every so many requests with "503 SlowDown" instead of forwarding it; 0 for none.
        denies: answer PUTs of objects with this in their path with "403 AccessDenied"; empty for none.
        late_seconds: answer each request so much later.
    """
    given = {"drops_each_put": drops_each_put, "slow_every": slow_every, "denies": denies, "late_seconds": late_seconds}
    _set_faults(endpoint, given)
    try:
        yield
    finally:
        _set_faults(endpoint, {name: type(value)() for name, value in given.items()})


def _set_faults(endpoint: str, faults: Mapping[str, bool | float | str]) -> None:
    with urllib.request.urlopen(f"{endpoint}{FAULTS}", data=json.dumps(faults).encode(), timeout=10):
        pass


def requests_since(endpoint: str) -> list[str]:
    """Return method and path of each request since the last call."""
    with urllib.request.urlopen(f"{endpoint}{COUNT}", timeout=10) as answer:
        return list(json.load(answer))
