"""A Spark Connect server on loopback: a session of the store in a process of its own, which ends with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from log_system.local_kafka.server import LOOPBACK, free_port
from tablestore.session import session

PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
TOKEN = "hush"
READY = "the server is ready"
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


class ConnectServer:
    """A Connect server.

    Attributes:
        url: its URL for clients, with the token that it asks for.
    """

    def __init__(self, folder: Path, *, is_bare: bool = False) -> None:
        """Keep warehouse and log in a folder; a bare server has neither Delta nor, in its Python, this package."""
        self._folder = folder
        self._is_bare = is_bare
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        """Start the server and wait until it is ready."""
        port = str(free_port())
        words, more = [sys.executable, "-m", "tests.harness.connect_server"], {}
        if self._is_bare:
            # In the folder of this package, Python would find it.
            words, more = [sys.executable, __file__, _python_without_package(self._folder)], {"cwd": self._folder}
        pipe = subprocess.PIPE
        with (self._folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [*words, port, str(self._folder / "warehouse")], stdin=pipe, stdout=pipe, stderr=log, text=True, **more
            )
        assert self._process.stdout is not None
        # What Python processes of the server print, Spark may print there too.
        assert any(READY in line for line in self._process.stdout), (self._folder / "server.log").read_text()
        # With a token, Spark's clients use TLS for any host but this one.
        self.url = f"sc://localhost:{port}/;token={TOKEN}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        assert self._process is not None
        self._process.communicate(timeout=500)


def _python_without_package(folder: Path) -> str:
    """Make an interpreter that finds what is installed here, except what is installed for editing: this package."""
    made = folder / "python"
    venv.create(made, symlinks=True, with_pip=False)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return str(made / "bin" / "python")


def main() -> None:
    """Serve until standard input is closed, which it is when the owner dies."""
    *bare, port, warehouse = sys.argv[1:]
    address = {"spark.connect.grpc.binding.address": LOOPBACK, "spark.connect.grpc.binding.port": port}
    config = {"spark.plugins": PLUGIN, "spark.connect.authenticate.token": TOKEN, **address, **QUICK}
    if bare:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = bare[0]
        SparkSession.builder.master("local[2]").config(map={"spark.ui.enabled": "false", **config}).getOrCreate()
    else:
        session("connect", master="local[2]", warehouse=warehouse, config=config)
    print(READY, flush=True)  # noqa: T201 - to the owner
    sys.stdin.read()


if __name__ == "__main__":
    main()
