"""A proxy in front of an HTTP server that drops answers and holds requests, as a network may."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

DROP = "/drop-the-answer-of-the-next-put-to/"
COUNT = "/requests-since-the-last-count"
HOLD = "/hold-the-next-put-of-spark-to/"
_HOLD_SECONDS_MAX = 10.0


class LossyProxy:
    """Listens on loopback and forwards to a server; ``drop_next`` works from any process."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to ``host:port``; count requests."""
        proxy = self
        self._lock, self._names, self.dropped = Lock(), list[str](), 0
        self._seen, self._held, self._put = list[str](), list[str](), set[str]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith(DROP):
                    with proxy._lock:
                        proxy._names.append(self.path.removeprefix(DROP))
                    self._answer(200, [], b"")
                    return
                if self.path.startswith(HOLD):
                    with proxy._lock:
                        proxy._held.append(self.path.removeprefix(HOLD))
                    self._answer(200, [], b"")
                    return
                if self.path == COUNT:
                    with proxy._lock:
                        seen, proxy._seen = proxy._seen, []
                    self._answer(200, [], json.dumps(seen).encode())
                    return
                with proxy._lock:
                    proxy._seen.append(f"{self.command} {self.path}")
                if self.command == "PUT" and "Hadoop" in self.headers.get("User-Agent", ""):
                    proxy._hold(self.path)
                connection = http.client.HTTPConnection(host, port, timeout=60)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in ("expect", "connection")}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                with proxy._lock:
                    proxy._put |= {self.path} if self.command == "PUT" else set()
                if self.command == "PUT" and proxy._takes(self.path):
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

    def _takes(self, path: str) -> bool:
        found = self._asked(self._names, path)
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


def requests_since(endpoint: str) -> list[str]:
    """Return method and path of each request since the last call."""
    with urllib.request.urlopen(f"{endpoint}{COUNT}", timeout=10) as answer:
        return list(json.load(answer))
