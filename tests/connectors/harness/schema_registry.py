"""A schema registry in memory, with the part of Confluent's REST interface that clients use."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote


class SchemaRegistryServer(ThreadingHTTPServer):
    """Answers requests until it is closed.

    Attributes:
        schemas: the schemas; the id of the first is 1.
        subjects: the ids of each subject.
        authorization: the header that a request must have, if not None.
        requests: the requests that were answered.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.authorization: str | None = None
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, schema: Any, **more: Any) -> int:
        """Return the id of a schema, which is new if no equal one is there."""
        made = {"schema": json.dumps(schema), **more}
        if made not in self.schemas:
            self.schemas.append(made)
        return self.schemas.index(made) + 1

    def schema(self, number: int) -> Any:
        return json.loads(self.schemas[number - 1]["schema"])


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistryServer

    def do_GET(self) -> None:
        if self.path.startswith("/subjects/"):
            subject, _, version = unquote(self.path.removeprefix("/subjects/")).partition("/versions/")
            number = self.server.subjects.get(subject, [0] * int(version))[int(version) - 1]
        else:
            number = int(self.path.removeprefix("/schemas/ids/"))
        known = 0 < number <= len(self.server.schemas)
        missing = {"error_code": 40403, "message": "Schema not found"}
        self._answer(200 if known else 404, self.server.schemas[number - 1] if known else missing)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        subject = unquote(self.path.removeprefix("/subjects/").removesuffix("/versions"))
        if subject == "refused":
            self._answer(409, {"error_code": 409, "message": "Schema being registered is incompatible"})
            return
        number = self.server.add(json.loads(body["schema"]))
        self.server.subjects.setdefault(subject, []).append(number)
        self._answer(200, {"id": number})

    def _answer(self, code: int, body: Any) -> None:
        if self.server.authorization not in (None, self.headers["Authorization"]):
            code, body = 401, {"error_code": 401, "message": "Unauthorized"}
        self.server.requests.append(f"{self.command} {self.path}")
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def schema_registry() -> Iterator[SchemaRegistryServer]:
    """Run a registry."""
    with SchemaRegistryServer() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def basic(user_info: str) -> str:
    return f"Basic {base64.b64encode(user_info.encode()).decode()}"
