"""Emulators of Azure Blob Storage and Google Cloud Storage on loopback, behind a proxy that drops answers.

Azurite is run for ``abfss://`` and fake-gcs-server for ``gs://``, where they are in the ``PATH``:

    npm install --global azurite
    go install github.com/fsouza/fake-gcs-server@latest
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from log_system.local_kafka.server import LOOPBACK, free_port
from tests.harness.lossy_proxy import LossyProxy

COMMANDS = {"abfss": "azurite-blob", "gs": "fake-gcs-server"}
PACKAGES = {"abfss": "adlfs", "gs": "gcsfs"}
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every Azurite, as its documentation publishes it."""
_START_SECONDS = 60.0


@contextmanager
def emulator(scheme: str) -> Iterator[str]:
    """Yield the address of a store; its command must be in the ``PATH``."""
    command, port = shutil.which(COMMANDS[scheme]), str(free_port())
    assert command is not None
    azure = f"--inMemoryPersistence --silent --skipApiVersionCheck --blobHost {LOOPBACK} --blobPort {port}"
    google = f"-backend memory -scheme http -host {LOOPBACK} -port {port} -public-host {LOOPBACK}:{port}"
    google += f" -external-url http://{LOOPBACK}:{port} -log-level error"
    words = {"abfss": azure, "gs": google}[scheme].split()
    process = subprocess.Popen([command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    context = multiprocessing.get_context("spawn")
    theirs, mine = context.Pipe()
    proxy = context.Process(target=_serve, args=(mine, int(port), scheme), daemon=True)
    try:
        _wait_for(int(port))
        proxy.start()
        yield f"http://{LOOPBACK}:{theirs.recv()}"
        theirs.send("stop")
        proxy.join()
    finally:
        process.kill()
        process.wait()


def variables(scheme: str, endpoint: str, folder: Path) -> dict[str, str]:
    """Return the environment by which fsspec and delta-rs find a store."""
    if scheme == "gs":
        account = folder / "account.json"
        nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **nobody}))
        return {"NO_GCE_CHECK": "true", "STORAGE_EMULATOR_HOST": endpoint, "GOOGLE_SERVICE_ACCOUNT": str(account)}
    blobs = f"{endpoint}/{_ACCOUNT}"
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": endpoint,
        "AZURE_STORAGE_CONNECTION_STRING":
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={blobs};",
    }  # fmt: skip


def _serve(mine: Connection, port: int, scheme: str) -> None:
    """Run the proxy, in a process of its own, since delta-rs waits with Python's lock held."""

    def at_server(method: str, path: str, headers: dict[str, str]) -> tuple[str, str]:
        # fake-gcs-server serves delta-rs's part of the protocol (XML) under its own address only.
        headers.update({name: f"{LOOPBACK}:{port}" for name in headers if name.lower() == "host"})
        return _in_json_protocol(method, path, headers)

    mine.send(LossyProxy(LOOPBACK, port, at_server if scheme == "gs" else None).port)
    mine.poll(None)


def _in_json_protocol(method: str, path: str, headers: dict[str, str]) -> tuple[str, str]:
    """Return a request of the XML protocol in the form that fake-gcs-server knows: its JSON protocol."""
    parts = urlsplit(path)
    bucket, _, name = parts.path[1:].partition("/")
    if bucket in ("upload", "storage", "download"):
        return method, path
    if method == "GET" and "list-type" in parse_qs(parts.query):
        return method, f"/{bucket}/?{parts.query}"
    if method != "PUT":
        return method, path
    generation = headers.get("x-goog-if-generation-match")
    condition = "" if generation is None else f"&ifGenerationMatch={generation}"
    target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(name), safe='')}{condition}"
    return "POST", target


def _wait_for(port: int) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nothing listens on port {port}"
            time.sleep(0.05)
