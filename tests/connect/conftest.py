"""One Connect server and one remote session for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession

from tablestore.session import register
from tests.harness.connect_server import ConnectServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture(scope="module")
def remote(server: ConnectServer) -> Iterator[SparkSession]:
    """Yield a session of the server. Where this process has a Spark of its own, PySpark's builder refuses one."""
    with pytest.MonkeyPatch.context() as patch:
        # By this PySpark decides whose columns and functions it makes.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = RemoteSession.builder.remote(server.url).create()
        register(session)
        yield session
        session.stop()
