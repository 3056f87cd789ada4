"""Every error of the Kafka client becomes one of ours, by what the caller can do about it."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.errors import FAMILIES, codes, translate
from log_system.kafka.client.secrets import Secret
from log_system.kafka.client.topic import delete_topic, ensure_topic
from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    DataLostError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TableStoreError,
    UnavailableError,
)

MAPPING: list[tuple[str, type[TableStoreError]]] = [
    ("_FENCED", FencedError),
    ("PRODUCER_FENCED", FencedError),
    ("INVALID_PRODUCER_EPOCH", FencedError),
    ("_TRANSPORT", UnavailableError),
    ("_TIMED_OUT", UnavailableError),
    ("_MSG_TIMED_OUT", UnavailableError),
    ("_ALL_BROKERS_DOWN", UnavailableError),
    ("_RESOLVE", UnavailableError),
    ("_NOENT", UnavailableError),
    ("COORDINATOR_NOT_AVAILABLE", UnavailableError),
    ("COORDINATOR_LOAD_IN_PROGRESS", UnavailableError),
    ("CONCURRENT_TRANSACTIONS", UnavailableError),
    ("NOT_ENOUGH_REPLICAS", UnavailableError),
    ("REQUEST_TIMED_OUT", UnavailableError),
    ("_FATAL", OutcomeUnknownError),
    ("_STATE", OutcomeUnknownError),
    ("INVALID_TXN_STATE", OutcomeUnknownError),
    ("INVALID_PRODUCER_ID_MAPPING", OutcomeUnknownError),
    ("OUT_OF_ORDER_SEQUENCE_NUMBER", OutcomeUnknownError),
    ("UNKNOWN", OutcomeUnknownError),
    ("_AUTHENTICATION", InvalidInputError),
    ("SASL_AUTHENTICATION_FAILED", InvalidInputError),
    ("TOPIC_AUTHORIZATION_FAILED", InvalidInputError),
    ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", InvalidInputError),
    ("_SSL", InvalidInputError),
    ("MSG_SIZE_TOO_LARGE", InvalidInputError),
    ("_INVALID_ARG", InvalidInputError),
    ("INVALID_REPLICATION_FACTOR", InvalidInputError),
    ("INVALID_TRANSACTION_TIMEOUT", InvalidInputError),
    ("INVALID_TIMESTAMP", InvalidInputError),
    ("UNKNOWN_TOPIC_OR_PART", NotFoundError),
    ("_UNKNOWN_TOPIC", NotFoundError),
    ("_UNKNOWN_PARTITION", NotFoundError),
    ("TOPIC_ALREADY_EXISTS", AlreadyExistsError),
    ("OFFSET_OUT_OF_RANGE", DataLostError),
    ("_AUTO_OFFSET_RESET", DataLostError),
    ("_BAD_MSG", CorruptedError),
]


def error(name: str) -> KafkaError:
    (code,) = codes(name)
    return KafkaError(code)


@pytest.mark.parametrize(("name", "expected"), MAPPING)
def test_each_code_has_its_place(name: str, expected: type[TableStoreError]) -> None:
    for given in (error(name), KafkaException(error(name))):
        ours = translate(given, "publish snapshot 7")

        assert type(ours) is expected
        assert str(ours).startswith("publish snapshot 7 failed: ")
        assert name in str(ours)


def test_a_code_is_in_one_family_only() -> None:
    members = [code for family, _ in FAMILIES for code in family]

    assert len(members) == len(set(members))


@pytest.mark.parametrize("code", range(-200, 150))
def test_no_code_is_without_a_place(code: int) -> None:
    assert isinstance(translate(KafkaError(code), "read"), TableStoreError)


@pytest.mark.parametrize(
    "name", ["_TIMED_OUT", "_TRANSPORT", "REQUEST_TIMED_OUT", "_STATE", "COORDINATOR_NOT_AVAILABLE"]
)
def test_no_answer_to_a_commit_means_that_it_may_have_landed(name: str) -> None:
    assert type(translate(error(name), "commit", indefinite=True)) is OutcomeUnknownError


@pytest.mark.parametrize(("name", "expected"), [("_FENCED", FencedError), ("MSG_SIZE_TOO_LARGE", InvalidInputError)])
def test_a_definite_answer_to_a_commit_stays_definite(name: str, expected: type[TableStoreError]) -> None:
    assert type(translate(error(name), "commit", indefinite=True)) is expected


def test_a_fatal_time_out_may_have_landed() -> None:
    (code,) = codes("_TIMED_OUT")

    assert type(translate(KafkaError(code, "gave up", True), "flush")) is OutcomeUnknownError


@pytest.mark.parametrize("given", [TimeoutError("no answer in 5 s"), BufferError("queue full")])
def test_waits_of_our_own_are_translated_too(given: TimeoutError | BufferError) -> None:
    assert type(translate(given, "publish")) is UnavailableError
    assert type(translate(given, "publish", indefinite=True)) is OutcomeUnknownError
    with pytest.raises(UnavailableError, match=re.escape(str(given))), kafka_errors("publish"):
        raise given


def test_a_time_out_behind_which_stands_a_refused_login_says_so() -> None:
    ours = translate(error("_TIMED_OUT"), "publish", trouble=error("_AUTHENTICATION"), indefinite=True)

    assert type(ours) is InvalidInputError
    assert "kafka.sasl.password" in str(ours)


def test_credentials_are_masked_in_the_message_and_the_cause() -> None:
    client = KafkaClient({"bootstrap.servers": "localhost:1", "sasl.password": Secret("swordfish")})
    (code,) = codes("_FAIL")

    with pytest.raises(TableStoreError) as caught, kafka_errors("log in", client):
        raise KafkaException(KafkaError(code, "bad password swordfish"))

    assert "swordfish" not in "".join(traceback.format_exception(caught.value))
    assert "***" in str(caught.value)


def test_errors_of_our_own_pass_unchanged_and_the_wrapper_is_a_decorator_too() -> None:
    mine = DataLostError("mine")

    @kafka_errors("read")
    def read() -> None:
        raise mine

    with pytest.raises(DataLostError) as caught:
        read()
    assert caught.value is mine


@pytest.fixture
def topic(client: KafkaClient) -> Iterator[str]:
    name = f"errors-{time.time_ns()}"
    ensure_topic(client, name, partitions=1, retention_ms=None, compacted=False)
    yield name
    delete_topic(client, name)


@contextmanager
def open_transaction(client: KafkaClient, topic: str) -> Iterator[Producer]:
    producer = client.producer(f"tx-{topic}")
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.flush(20)
    yield producer


def test_a_publisher_whose_transactional_id_was_taken_over_is_fenced(client: KafkaClient, topic: str) -> None:
    with open_transaction(client, topic) as old:
        client.producer(f"tx-{topic}").init_transactions(20)

        with pytest.raises(FencedError, match="recover"), kafka_errors("commit", client, handle=old, indefinite=True):
            old.commit_transaction(20)
        with pytest.raises(FencedError), kafka_errors("begin", client, handle=old):
            old.begin_transaction()


def test_a_fenced_publisher_is_told_so_whatever_its_delivery_callbacks_do(client: KafkaClient, topic: str) -> None:
    """A callback may clear the client's exception: what is left of it says only that something fatal happened."""

    def clear(_error: KafkaError | None, _message: object) -> None:
        with suppress(ValueError):
            raise ValueError

    for hidden in (SystemError("returned NULL without setting an exception"), KafkaException(error("_FATAL"))):
        with open_transaction(client, topic) as old:
            client.producer(f"tx-{topic}").init_transactions(20)
            old.produce(topic, b"late", on_delivery=clear)
            with pytest.raises(FencedError), kafka_errors("flush", client, handle=old):
                old.flush(20)
            with pytest.raises(FencedError), kafka_errors("flush", client, handle=old):
                raise hidden


def test_a_transaction_that_cannot_be_ended_may_have_landed(topic: str, client: KafkaClient) -> None:
    # In a microsecond no answer comes, unless the machine does something else meanwhile; then it is tried again.
    told = next(filter(None, (commit_without_waiting(client, topic) for _ in range(20))))
    assert "recover" in str(told)


def commit_without_waiting(client: KafkaClient, topic: str) -> OutcomeUnknownError | None:
    """Give the error, or None where the answer came all the same."""
    with open_transaction(client, topic) as producer:
        try:
            with kafka_errors("commit", client, handle=producer, indefinite=True):
                producer.commit_transaction(0.000001)
        except OutcomeUnknownError as error:
            return error
    return None


def test_a_closed_port_is_an_unreachable_broker_named_by_its_option() -> None:
    address = f"{LOOPBACK}:{free_port()}"
    client = KafkaClient({"bootstrap.servers": address})
    admin = client.admin()

    with pytest.raises(UnavailableError) as caught, kafka_errors("list topics", client, handle=admin):
        admin.list_topics(timeout=1)

    assert f"kafka.bootstrap.servers='{address}'" in str(caught.value)
    assert "refused" in str(caught.value)


def test_an_unknown_topic_is_not_found(client: KafkaClient) -> None:
    with closing(client.consumer("errors")) as consumer, pytest.raises(NotFoundError), kafka_errors("read", client):
        consumer.get_watermark_offsets(TopicPartition("no-such-topic", 0), timeout=10)


def test_an_expired_offset_is_lost_data_and_never_a_jump(client: KafkaClient, topic: str) -> None:
    with closing(client.consumer("errors")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 500)])
        (message,) = consumer.consume(1, timeout=20)

    refused = message.error()
    assert refused is not None
    ours = translate(refused, "read")
    assert type(ours) is DataLostError
    assert "log.retention" in str(ours)


def test_a_record_that_is_too_large_is_the_users_to_shrink(client: KafkaClient, topic: str) -> None:
    # By default the topic decides, and the broker refuses such a record later.
    producer = client.producer(None, **{"message.max.bytes": 1_000_000})

    with pytest.raises(InvalidInputError, match=r"kafka\.message\.max\.bytes"), kafka_errors("publish", client):
        producer.produce(topic, b"x" * 2_000_000)


def test_a_transaction_timeout_above_the_brokers_is_wrong_input(client: KafkaClient) -> None:
    producer = client.producer("errors-timeout", **{"transaction.timeout.ms": 7_200_000})

    with pytest.raises(InvalidInputError, match="timeout"), kafka_errors("take over", client, handle=producer):
        producer.init_transactions(20)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("sasl.mechansm", "PLAIN", "'kafka.sasl.mechanism'"),
        ("no.such.option", "1", "'kafka.no.such.option'"),
        ("compression.type", "brotli", "'kafka.compression.type'"),
        ("fetch.min.bytes", "many", "'kafka.fetch.min.bytes'"),
    ],
)
def test_options_that_librdkafka_refuses_are_named_without_asking_a_broker(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        KafkaClient({"bootstrap.servers": "127.0.0.1:1", name: value}).check()


def test_log_lines_go_to_logging_and_repeats_to_its_debug_level(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    with caplog.at_level(logging.DEBUG, logger="tablestore.kafka"):
        admin = client.admin()
        with pytest.raises(UnavailableError), kafka_errors("list topics", client, handle=admin):
            admin.list_topics(timeout=5)

    lines = [record for record in caplog.records if "refused" in record.getMessage()]
    assert len([record for record in lines if record.levelno > logging.DEBUG]) == 1
    assert len(lines) > 1
    assert "refused" not in "".join(capfd.readouterr())


def test_a_wrong_password_is_told_from_a_broker_that_is_down() -> None:
    login = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    address = f"{LOOPBACK}:{free_port()}"
    listener = {
        "listeners": f"SASL_PLAINTEXT://{address}",
        "advertised.listeners": f"SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        login: f'{module} required user_alice="swordfish";',
    }
    options: dict[str, str | Secret] = {
        "bootstrap.servers": address,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
    }
    with LocalKafka(properties=listener):
        right = KafkaClient({**options, "sasl.password": Secret("swordfish")})
        assert right.admin().list_topics(timeout=20).brokers
        wrong = KafkaClient({**options, "sasl.password": Secret("marlin")})
        admin = wrong.admin()
        with pytest.raises(InvalidInputError) as caught, kafka_errors("list topics", wrong, handle=admin):
            admin.list_topics(timeout=3)

    assert "kafka.sasl.password" in str(caught.value)
    assert "marlin" not in str(caught.value)
