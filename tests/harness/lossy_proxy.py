"""A proxy in front of an HTTP server that passes a request on and drops the answer, as a network may."""

from __future__ import annotations

import http.client
import json
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

DROP = "/drop-the-answer-of-the-next-put-to/"
COUNT = "/requests-since-the-last-count"


class LossyProxy:
    """Listens on loopback and forwards to a server; ``drop_next`` works from any process."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to ``host:port``; count requests."""
        proxy = self
        self._lock, self._names, self.dropped = Lock(), list[str](), 0
        self._seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith(DROP):
                    with proxy._lock:
                        proxy._names.append(self.path.removeprefix(DROP))
                    self._answer(200, [], b"")
                    return
                if self.path == COUNT:
                    with proxy._lock:
                        seen, proxy._seen = proxy._seen, []
                    self._answer(200, [], json.dumps(seen).encode())
                    return
                with proxy._lock:
                    proxy._seen.append(f"{self.command} {self.path}")
                connection = http.client.HTTPConnection(host, port, timeout=60)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in ("expect", "connection")}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
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
        with self._lock:
            found = next((name for name in self._names if name in path), None)
            if found is not None:
                self._names.remove(found)
                self.dropped += 1
        return found is not None


def drop_next(endpoint: str, name: str) -> None:
    """Drop the answer to the next PUT of an object whose path has ``name`` in it."""
    with urllib.request.urlopen(f"{endpoint}{DROP}{name}", timeout=10):
        pass


def requests_since(endpoint: str) -> list[str]:
    """Return method and path of each request since the last call."""
    with urllib.request.urlopen(f"{endpoint}{COUNT}", timeout=10) as answer:
        return list(json.load(answer))
