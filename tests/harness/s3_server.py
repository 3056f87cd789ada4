"""A server of the S3 protocol on loopback, in a process of its own, behind a proxy that drops and counts."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tests.harness.lossy_proxy import LossyProxy


def serve(mine: Connection) -> None:
    """Serve until told to stop. In a process of its own, since delta-rs waits with Python's lock held."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - slow to import, and only this process needs it

    logging.disable()
    running: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    # Everything goes by the proxy, which drops an answer where a test asks for that.
    mine.send(LossyProxy(*running.get_host_and_port()).port)
    mine.poll(None)
    running.stop()


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of a store."""
    context = multiprocessing.get_context("spawn")
    theirs, mine = context.Pipe()
    process = context.Process(target=serve, args=(mine,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{theirs.recv()}"
    theirs.send("stop")
    process.join()


def aws_variables(endpoint: str) -> dict[str, str]:
    """Return the environment by which fsspec, delta-rs and Hadoop find the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
    }  # fmt: skip
