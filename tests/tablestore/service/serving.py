"""A service over HTTP in this process, and what tests ask of it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from tablestore.service.service import Service
from tablestore.service.watcher import TableState
from tablestore.service.web import http_server


def state_of(service: Service) -> TableState:
    """Return the state of the only table."""
    (state,) = service.states
    return state


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP."""

    status: int
    text: str
    headers: dict[str, str]


class Served:
    """A service that answers over HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **headers: str) -> Answer:
        """Get a page; redirects are not followed."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), dict(answer.getheaders()))

    def table(self, path: str, page: str = "table", more: str = "") -> Answer:
        """Get the page of a table."""
        return self.get(f"/{page}?path={quote(path, safe='')}{more}")


@contextmanager
def served(service: Service, token: str | None = None) -> Iterator[Served]:
    """Serve over HTTP."""
    with http_server(service, "127.0.0.1", 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Served(server.server_port)
        finally:
            server.shutdown()
            thread.join()
