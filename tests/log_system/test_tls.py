"""A table whose broker is reached by TLS alone, and asks clients for a certificate too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import TableStoreError
from tablestore import TableStore, create_local, open_local
from tests.harness.certificates import PASSWORD, Certificate, listener_properties, self_signed
from tests.harness.spark_tables import DDL, Follower, fold, frame, log_options, rows


@dataclass(frozen=True)
class Tls:
    """The address of a TLS listener, and the certificate that it shows and asks for."""

    address: str
    certificate: Certificate

    @property
    def options(self) -> dict[str, str]:
        """What a client needs, without the password."""
        return {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.ca.location": str(self.certificate.pem),
            "kafka.ssl.keystore.location": str(self.certificate.store),
        }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    made = self_signed(tmp_path_factory.mktemp("tls"))
    address = f"{LOOPBACK}:{free_port()}"
    properties = {
        "listeners": f"TLS://{address}",
        "advertised.listeners": f"TLS://{address}",
        "listener.security.protocol.map": "TLS:SSL",
        **listener_properties(made),
        "ssl.truststore.location": str(made.pem),
        "ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.client.auth": "required",
    }
    with LocalKafka(properties=properties):
        yield Tls(address, made)


def test_without_spark(tls: Tls, tmp_path: Path, topic: Callable[[], str]) -> None:
    """The program that opens the table gives the options; none is stored."""
    options = log_options(tls.address, topic(), log__request_timeout="5 s")
    client = {**tls.options, "kafka.ssl.keystore.password": PASSWORD}
    path = tmp_path / "t"
    create_local(path, DDL, primary_key="id", log_system="kafka", options=options, client_options=client).close()
    with open_local(path, options=client) as table:
        table.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
        table.delete("id = 1")
        table.recover()
        assert table.verify().ok
        assert sum(batch.num_rows for batch in table.tail(scan_mode="earliest", follow=False)) == 3
    for missing in ("kafka.ssl.ca.location", "kafka.ssl.keystore.location"):
        some = {name: value for name, value in client.items() if not name.startswith(missing.removesuffix("location"))}
        with open_local(path, options=some) as table, pytest.raises(TableStoreError, match=r"(?i)ssl|certificate"):
            table.write([{"id": 3, "v": "c"}])


@pytest.mark.parametrize("publishes", ["driver", "tasks"])
def test_through_spark(
    tls: Tls,
    spark: SparkSession,
    tmp_path: Path,
    topic: Callable[[], str],
    publishes: str,
) -> None:
    """The options are stored with the table, as far as the program allows the files."""
    password = tls.certificate.pem.with_name("password")
    password.write_text(PASSWORD, encoding="utf-8")
    allowed = [f"file:{password.parent}/*"]
    rows_max = 100 if publishes == "driver" else 0
    more = {**tls.options, "kafka.ssl.keystore.password": f"file:{password}"}
    options = {**log_options(tls.address, topic()), **more, "publish.driver-rows-max": rows_max}
    path = tmp_path / "t"
    TableStore.create(spark, path, DDL, primary_key="id", log_system="kafka", options=options, allow_references=allowed)
    table = TableStore.open(spark, path, allow_references=allowed)
    table.write(frame(spark, [(1, "a"), (2, "b")]))
    follower = Follower(tmp_path / "checkpoint", table.read_stream)
    assert fold(follower.rows()) == {1: "a", 2: "b"}
    table.write(frame(spark, [(2, "B"), (3, "c")]))
    assert {row[0] for row in follower.rows()} == {2, 3}
    assert rows(table.read()) == {1: "a", 2: "B", 3: "c"}
    assert table.verify().ok
