"""Fixtures every test may ask for: a real broker, a Spark session, a topic name of its own."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from log_system.local_kafka.owned import LocalKafka
from tests.harness.suspend import PATIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

    from log_system.kafka.client.connect import KafkaClient
    from tests.connectors.harness.wire import Wire
    from tests.harness.table_harness import TableHarness

KAFKA_IMAGE = "apache/kafka:4.1.0"
NAMED_KAFKA = "KAFKA_BOOTSTRAP_SERVERS"
SPARK_PROCESSES = 2
DROP_SECONDS_MAX = 10.0
LONGEST = (
    "tests/cluster/test_standalone.py",
    "tests/connectors/test_spark_crash.py",
    "tests/tablestore/session/test_interrupts.py",
    "tests/crash/test_matrix.py",
    "tests/docs/test_demo.py",
    "tests/crash/test_eventual_crash.py",
    "tests/crash/test_races.py",
    "tests/model/test_state_machine.py",
    "tests/sql/test_event_time_versions.py",
    "tests/sql/test_run.py",
    "tests/sql/test_cli.py",
    "tests/connectors/test_spark.py",
    "tests/connect/test_clients.py",
    "tests/connect/test_calls.py",
)
"""Files of more than a minute; they start first, so that none is left at the end."""

# Tests are over before the better compiler of the JVM pays off; it would take a quarter of the processors.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m")

# As in `make test`: this process and the thousand that tests start keep the bytecode of what they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
"""Queries of a few rows take a quarter less without compiling them (measured). Most processes of tests compile."""

# A real part behind an example makes it slow and never equally fast; that is no sign of a bad test here.
SLOW_PARTS = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=SLOW_PARTS)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("nightly", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


@dataclass(frozen=True)
class Kafka:
    """A broker that somebody else runs."""

    bootstrap_servers: str


def _docker_answers() -> bool:
    import docker  # noqa: PLC0415 - testcontainers brings it; only looked at when no broker is named

    try:
        with closing(docker.from_env(timeout=2)) as client:
            return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False


@contextmanager
def _running_kafka() -> Iterator[Kafka]:
    """Yield a real broker: the one of KAFKA_BOOTSTRAP_SERVERS, else one in a container, else one on Java here."""
    with ExitStack() as stack:
        if named := os.environ.get(NAMED_KAFKA):
            yield Kafka(named)
        elif _docker_answers():
            from testcontainers.kafka import KafkaContainer  # noqa: PLC0415 - slow to import

            container = stack.enter_context(KafkaContainer(KAFKA_IMAGE).with_kraft())
            yield Kafka(container.get_bootstrap_server())
        else:
            yield Kafka(stack.enter_context(LocalKafka(properties=PATIENT)).bootstrap_servers)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start one broker for all processes of pytest-xdist, before these start."""
    if session.config.getoption("numprocesses", None) and not session.config.option.collectonly:
        running = ExitStack()
        os.environ[NAMED_KAFKA] = running.enter_context(_running_kafka()).bootstrap_servers
        session.config.add_cleanup(running.close)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Yield a real broker that others use, too: a test that stops brokers has its own."""
    with _running_kafka() as running:
        yield running


@pytest.fixture(scope="module")
def named_topics() -> Iterator[list[str]]:
    """Yield a list of topics to drop from the common broker: each partition that is left costs it time for ever."""
    names: list[str] = []
    yield names
    if names and NAMED_KAFKA in os.environ:
        admin = AdminClient({"bootstrap.servers": os.environ[NAMED_KAFKA]})
        # Some were never created, or are gone. A client that nothing holds would not answer.
        wait(admin.delete_topics(names).values(), DROP_SECONDS_MAX)


@pytest.fixture
def topic(request: pytest.FixtureRequest, named_topics: list[str]) -> Callable[[], str]:
    """Return a factory of topic names that nobody else uses; the topics are not created."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]

    def new() -> str:
        named_topics.append(f"{test}-{uuid.uuid4().hex[:8]}")
        return named_topics[-1]

    return new


@pytest.fixture(scope="session")
def servers(kafka: Kafka) -> str:
    """Return the broker's address."""
    return kafka.bootstrap_servers


@pytest.fixture(scope="session")
def wire(servers: str) -> Wire:
    """Return what asks the broker plainly."""
    from tests.connectors.harness.wire import Wire  # noqa: PLC0415 - few tests need its imports

    return Wire(servers)


@pytest.fixture
def client(servers: str) -> KafkaClient:
    """Return our client of the broker."""
    from log_system.kafka.client.connect import KafkaClient  # noqa: PLC0415 - few tests need its imports

    return KafkaClient({"bootstrap.servers": servers})


@pytest.fixture
def rig(
    request: pytest.FixtureRequest, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> Iterator[TableHarness]:
    """Yield a new table with a log and two partitions; its options are those that a test is parametrized by."""
    from tests.harness.table_harness import TableHarness  # noqa: PLC0415 - few tests need its imports

    made = TableHarness(tmp_path / "t", servers, topic(), getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture
def delta_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark's Delta reader read files without changes as if they were large."""
    monkeypatch.setattr("tablestore.read.base_table_columns._BYTES_MIN", 0)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield one Spark session on two cores for all tests; made only when a test asks for it."""
    from tablestore.session import session  # noqa: PLC0415 - PySpark takes a second to import

    spark = session("tests", master="local[2]", warehouse=tmp_path_factory.mktemp("warehouse"), config=QUICK)
    yield spark
    spark.stop()


class BySession(LoadScopeScheduling):
    """Hand files to processes as they become free, those that use Spark to the first two processes only.

    Most tests wait, for brokers, for Spark's Python and for processes they kill; those of Spark use less than one core.
    So two Sparks are quicker than one, and a third on two cores would only be in the way. Other tests wait even more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _next_for(self, node: WorkerController) -> str | None:
        """Choose a file; None when what is left is for other processes."""
        is_sparks = node in self.nodes[:SPARK_PROCESSES]
        files = sorted(self.workqueue, key=lambda file: (_uses_spark(file) != is_sparks, file not in LONGEST))
        return files[0] if files and (is_sparks or not _uses_spark(files[0])) else None

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_for(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and self._next_for(node) is None and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)


@cache
def _uses_spark(file: str) -> bool:
    """Return whether a file is for the processes with a Spark session, by what its tests ask for."""
    text = (Path(__file__).parent.parent / file).read_text()
    return re.search(r"\bspark\b[:,)]|\bcatalog: Catalog\b|tests\.cluster", text) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that would start a session in a process without: to start one and warm it up is dear."""
    if "spark" in getattr(item, "fixturenames", ()) and not _uses_spark(item.nodeid.split("::", 1)[0]):
        pytest.fail("this test gets 'spark' by a fixture that _uses_spark does not know; add it there", pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySession:
    """Say how pytest-xdist shares the tests out."""
    return BySession(config, log)
