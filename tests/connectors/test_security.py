"""Real brokers that ask who is there: SASL/PLAIN and TLS, with the options that the Java client has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from log_system.kafka.client.secrets import Secret
from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import InvalidInputError, TableStoreError
from tablestore.connectors.kafka.client_properties import parse_properties
from tablestore.connectors.spark.datasource import KafkaDataSource
from tests.connectors.harness.lab import Lab, batch_of, schema_of
from tests.connectors.harness.wire import Wire
from tests.harness.certificates import listener_properties, self_signed

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
COLUMNS = "n INT"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, str, str, Path]]:
    """Run a broker with a SASL/PLAIN and a TLS listener; give it, their addresses, and the certificate in PEM."""
    certificate = self_signed(tmp_path_factory.mktemp("tls"))
    port = free_port()
    sasl, tls = f"{LOOPBACK}:{port}", f"{LOOPBACK}:{free_port(avoid=port)}"
    properties = {
        "listeners": f"SAFE://{sasl},TLS://{tls}",
        "advertised.listeners": f"SAFE://{sasl},TLS://{tls}",
        "listener.security.protocol.map": "SAFE:SASL_PLAINTEXT,TLS:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.safe.plain.sasl.jaas.config": f'{PLAIN} required user_alice="right \\"pass";',
        **listener_properties(certificate),
    }
    with LocalKafka(properties=properties) as kafka:
        yield kafka, sasl, tls, certificate.pem


def round_trip(address: str, topic: str, **properties: str) -> list[dict[str, object]]:
    options = {
        "topic": topic, "format": "json", "scan.startup.mode": "earliest-offset",
        "properties.bootstrap.servers": address,
        **{f"properties.{name}": value for name, value in properties.items()},
    }  # fmt: skip
    source = KafkaDataSource(CaseInsensitiveDict(options))
    writer = source.writer(schema_of(COLUMNS), False)
    writer.commit([writer.write(iter([batch_of(COLUMNS, [(1,)])]))])
    reader = source.reader(schema_of(COLUMNS))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def jaas(password: str) -> str:
    escaped = password.replace('"', '\\"')
    return f'{PLAIN} required username="alice" password="{escaped}";'


def test_g07_sasl_plain_lets_in_who_knows_the_password(guarded: tuple[LocalKafka, str, str, Path]) -> None:
    """`properties.security.protocol`, `sasl.mechanism` and Java's `sasl.jaas.config` reach the client."""
    kafka, address, _, _ = guarded
    Wire(kafka.bootstrap_servers).make("sasl")
    asked = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    right = {**asked, "sasl.jaas.config": jaas('right "pass')}
    assert round_trip(address, "sasl", **right) == [{"n": 1}]
    plain = {**asked, "sasl.username": "alice", "sasl.password": 'right "pass'}
    assert round_trip(address, "sasl", **plain) == [{"n": 1}, {"n": 1}]
    with pytest.raises(InvalidInputError) as caught:
        round_trip(address, "sasl", **asked, **{"sasl.jaas.config": jaas("wrong-word")})
    assert "properties.sasl.password" in str(caught.value)
    assert "wrong-word" not in str(caught.value)


def test_b55_tls_by_a_pem_file_and_javas_pem_truststore(guarded: tuple[LocalKafka, str, str, Path]) -> None:
    """`properties.ssl.*`: librdkafka's names, and Java's PEM trust store, work alike."""
    kafka, _, address, pem = guarded
    Wire(kafka.bootstrap_servers).make("tls")
    own = {"security.protocol": "SSL", "ssl.ca.location": str(pem)}
    assert round_trip(address, "tls", **own) == [{"n": 1}]
    java = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem)}
    assert round_trip(address, "tls", **java) == [{"n": 1}, {"n": 1}]
    with pytest.raises(TableStoreError, match=r"(?i)ssl|certificate"):
        round_trip(address, "tls", **{"security.protocol": "SSL"})


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("ssl.truststore.location", "/x.jks", "properties.ssl.ca.location"),
        ("ssl.keystore.location", "/x.jks", "properties.ssl.certificate.location"),
        ("max.poll.records", "5", "read limits"),
        ("partition.discovery.interval.ms", "1000", "'scan.topic-partition-discovery.interval'"),
        ("commit.offsets.on.checkpoint", "false", "after each completed micro-batch"),
        ("client.id.prefix", "x", "'properties.client.id'"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required;", "properties.sasl.kerberos"),
        ("sasl.jaas.config", f"{PLAIN} required;", "username"),
        ("auto.commit.interval.ms", "soon", "a whole number"),
        ("enable.auto.offset.store", "true", "after each completed micro-batch"),
        ("partitioner.class", "x.Y", "properties"),
    ],
)
def test_javas_own_options_are_refused_with_what_to_use(name: str, value: str, instead: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_properties({name: value})
    assert f"properties.{name}" in str(caught.value)
    assert instead in str(caught.value)


def test_what_the_connectors_do_anyway_may_be_said() -> None:
    said = {
        "commit.offsets.on.checkpoint": "true",
        "acks": "all",
        "enable.idempotence": "true",
        "enable.auto.commit": "true",
        "auto.commit.interval.ms": "1000",
        "linger.ms": "7",
    }
    assert parse_properties(said).config == {"linger.ms": "7"}
    with pytest.raises(InvalidInputError, match=r"'properties\.acks'.*waits for all replicas"):
        parse_properties({"acks": "1"})


def test_credentials_are_wrapped_and_shown_nowhere(lab: Lab) -> None:
    parsed = parse_properties({"sasl.jaas.config": jaas("tr0ub4dor"), "ssl.key.password": "hunter22", "x": "1"})
    assert isinstance(parsed.config["sasl.password"], Secret)
    assert isinstance(parsed.config["ssl.key.password"], Secret)
    assert "tr0ub4dor" not in repr(parsed)
    with pytest.raises(InvalidInputError) as caught:
        lab.read("t", COLUMNS, properties__sasl__password="tr0ub4dor", properties__no__such__option="1")
    assert "'properties.no.such.option'" in str(caught.value)
    assert "tr0ub4dor" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"'properties\.sasl\.password': reference 'env:NO_SUCH_VARIABLE'"):
        lab.read("t", COLUMNS, properties__sasl__password="env:NO_SUCH_VARIABLE")
