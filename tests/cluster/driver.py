"""A driver: a process with a session of the cluster, which runs one step after another until it ends or is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tablestore.session import session
from tests.cluster.standalone import JAVA
from tests.harness.waiting import PATIENCE_SECONDS

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # Executors run in a work folder of their own, which the worker removes; Spark fetches the packages into this.
    "spark.executor.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir=.",
    # Executors share no folder, so a copy for others would only cost time.
    "spark.files.useFetchCache": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for two executors of one core with few rows."""
_open: dict[str, SparkSession] = {}
Make = Callable[[str, Mapping[str, str]], SparkSession]


class Driver:
    """A process with a session.

    Args:
        url: the master.
        make: makes the session of the master and settings.
        config: further settings.
    """

    def __init__(self, url: str, make: Make | None = None, **config: str) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        # A killed JVM leaves its folders behind, with the packages for executors in them.
        self._folder = tempfile.TemporaryDirectory(prefix="tablestore-driver-", ignore_cleanup_errors=True)
        settings = SMALL | {f"spark.{name.replace('__', '.')}": value for name, value in config.items()}
        given = (self._folder.name, make or of_the_store, url, settings)
        self._pool = ProcessPoolExecutor(1, context, _begin, given)
        # A process id may be another process's by the time that it is used; a descriptor stays this one's.
        self._processes = [os.pidfd_open(pid) for pid in self.run(_processes)]

    def run(self, step: Callable[..., Any], *given: Any) -> Any:
        """Run a step with the session, and return what it returns."""
        return self.start(step, *given).result(timeout=PATIENCE_SECONDS)

    def start(self, step: Callable[..., Any], *given: Any) -> Future[Any]:
        """Begin a step with the session."""
        return self._pool.submit(_step, step, *given)

    def kill(self) -> None:
        """Kill Python and the JVM at once (SIGKILL)."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)

    def __enter__(self) -> Self:
        """Return the driver."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the session and the process."""
        with suppress(BrokenProcessPool):
            self.run(_stop)
        self._pool.shutdown()
        self.kill()
        for process in self._processes:
            os.close(process)
        self._folder.cleanup()


def of_the_store(url: str, config: Mapping[str, str]) -> SparkSession:
    """Return the session as a user makes it."""
    return session("cluster-test", master=url, config=dict(config))


def _begin(folder: str, make: Make, url: str, config: Mapping[str, str]) -> None:
    os.environ["SPARK_LOCAL_DIRS"] = folder
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={folder}"
    _open["spark"] = make(url, config)


def _step(step: Callable[..., Any], *given: Any) -> Any:
    return step(_open["spark"], *given)


def _processes(_spark: SparkSession) -> tuple[int, int]:
    gateway = SparkContext._gateway
    assert gateway is not None
    return os.getpid(), gateway.proc.pid


def _stop(spark: SparkSession) -> None:
    spark.stop()
