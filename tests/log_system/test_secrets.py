"""Credentials: never stored, never shown, and found only where they are used."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from log_system.kafka.client.access_policy import merge_runtime
from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.kafka.client.secrets import Secret, is_secret_key, redact, refuse_inline_secrets, resolve
from snapshot.errors import InvalidInputError
from tablestore.options.table_options import parse_options

PASSWORD = "swordfish/%&'7"
KAFKA: dict[str, Any] = {"log.system": "kafka", "kafka.bootstrap.servers": "localhost:9092", "kafka.topic": "orders"}


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.config",
        "sasl.jaas.config",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "some.api.key",
    ],
)
def test_names_of_credentials_are_known(name: str) -> None:
    assert is_secret_key(name)


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "sasl.username",
        "sasl.mechanism",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.key.location",
        "security.protocol",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.assertion.private.key.file",
        "client.id",
        "sasl.oauthbearer.client.credentials.client.id",
    ],
)
def test_names_that_only_sound_like_credentials_are_not(name: str) -> None:
    assert not is_secret_key(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.password", PASSWORD),
        ("sasl.password", "env:" + PASSWORD),
        ("ssl.key.pem", "-----BEGIN PRIVATE KEY-----\nswordfish\n-----END PRIVATE KEY-----"),
        ("sasl.oauthbearer.token.endpoint.url", "https://user:swordfish@host/token"),
        ("client.id", "-----BEGIN RSA PRIVATE KEY-----swordfish"),
    ],
)
def test_an_inline_credential_is_refused_with_how_to_do_it_right(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_options({**KAFKA, f"kafka.{name}": value}, primary_key=[])

    message = str(caught.value)
    assert f"kafka.{name}" in message
    assert "env:KAFKA_" in message
    assert "file:" in message
    assert "TableStore.open" in message
    assert "swordfish" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("sasl.jaas.config", "kafka.sasl.password"),
        ("ssl.truststore.location", "kafka.ssl.ca.location"),
        ("ssl.truststore.password", "kafka.ssl.ca.location"),
        ("ssl.keystore.type", "kafka.ssl.keystore.location"),
        ("ssl.keystore.key", "kafka.ssl.key.pem"),
    ],
)
def test_names_of_the_java_client_are_answered_with_librdkafkas(name: str, instead: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_options({**KAFKA, f"kafka.{name}": "swordfish"}, primary_key=[])

    assert instead in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_a_java_key_store_is_refused_by_its_file_name() -> None:
    with pytest.raises(InvalidInputError, match="PKCS#12"):
        parse_options({**KAFKA, "kafka.ssl.keystore.location": "/etc/client.JKS"}, primary_key=[])


def test_a_reference_is_stored_as_it_is() -> None:
    options = parse_options({**KAFKA, "kafka.sasl.password": "env:KAFKA_PASSWORD"}, primary_key=[])

    assert options.to_properties()["kafka.sasl.password"] == "env:KAFKA_PASSWORD"


def test_references_are_resolved_at_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("line 1\nline 2\n")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)

    resolved = resolve(
        {
            "sasl.password": "env:KAFKA_PASSWORD",
            "ssl.key.pem": f"file:{file}",
            "ssl.key.password": Secret("given"),
            "client.id": "plain",
        }
    )

    assert resolved == {
        "sasl.password": PASSWORD,
        "ssl.key.pem": "line 1\nline 2",
        "ssl.key.password": "given",
        "client.id": "plain",
    }


@pytest.mark.parametrize("reference", ["env:NO_SUCH_VARIABLE", "file:/no/such/file", "file:/", "env:EMPTY_VARIABLE"])
def test_a_reference_that_leads_nowhere_is_named(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_VARIABLE", "")

    with pytest.raises(InvalidInputError) as caught:
        KafkaClient({"bootstrap.servers": "localhost:1", "sasl.password": reference}).admin()

    assert "kafka.sasl.password" in str(caught.value)
    assert reference in str(caught.value)
    assert "TableStore.open" in str(caught.value)


def test_a_file_that_is_no_credential_is_not_read_to_its_end(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * (2 << 20))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")

    for file, word in ((big, "larger"), (binary, "UTF-8")):
        with pytest.raises(InvalidInputError, match=word):
            resolve({"sasl.password": f"file:{file}"})


def test_a_secret_shows_a_mask_wherever_it_is_printed() -> None:
    secret = Secret(PASSWORD)

    for text in (
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret:>10}",
        "{}".format(secret),  # noqa: UP032 - each way of formatting is tried
        repr([secret]),
        repr({"a": secret}),
    ):
        assert "swordfish" not in text
    assert secret == Secret(PASSWORD)
    assert secret.reveal() == PASSWORD
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_a_secret_reaches_a_task_on_another_machine() -> None:
    client = KafkaClient({"bootstrap.servers": "localhost:1", "sasl.password": Secret(PASSWORD)})

    there = pickle.loads(pickle.dumps(client))

    assert there == client
    assert hash(there) == hash(client)
    assert resolve(there.config)["sasl.password"] == PASSWORD
    assert "swordfish" not in repr(there)


def test_redact_masks_every_spelling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("BEGIN\nMIIEvQIBADANBg\nEND\n")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    config: dict[str, str | Secret] = {
        "sasl.password": "env:KAFKA_PASSWORD",
        "ssl.key.pem": f"file:{key}",
        "ssl.key.password": Secret("given"),
        "sasl.oauthbearer.token.endpoint.url": Secret("https://user:marlin@host/"),
        "sasl.username": "alice",
        "ssl.keystore.password": "env:NO_SUCH_VARIABLE",
    }

    text = redact(f"alice {PASSWORD} {PASSWORD!r} swordfish%2F%25%26%277 MIIEvQIBADANBg given marlin", config)

    assert text.startswith("alice ***")
    for word in ("swordfish", "MIIEvQIBADANBg", "given", "marlin"):
        assert word not in text


def test_redact_leaves_addresses_given_by_reference_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS", "broker:9092")

    assert redact("no answer from broker:9092", {"bootstrap.servers": "env:SERVERS"}) == "no answer from broker:9092"


def test_runtime_options_win_and_their_credentials_are_wrapped() -> None:
    stored = {"bootstrap.servers": "old:9092", "sasl.username": "alice"}

    merged = merge_runtime(
        stored, {"kafka.sasl.password": PASSWORD, "kafka.bootstrap.servers": "new:9092", "kafka.log_level": 3}
    )

    assert merged == {
        "bootstrap.servers": "new:9092",
        "sasl.username": "alice",
        "sasl.password": Secret(PASSWORD),
        "log_level": "3",
    }
    assert stored["bootstrap.servers"] == "old:9092"
    assert "swordfish" not in repr(merged)


@pytest.mark.parametrize("name", ["sasl.password", "bucket", "kafka.topic", "kafka.group.id", "kafka.sasl.jaas.config"])
def test_runtime_options_are_those_of_the_client_only(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        merge_runtime({}, {name: "swordfish"})

    assert f"'{name}'" in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_a_credential_that_slipped_past_is_still_refused_for_storage() -> None:
    with pytest.raises(InvalidInputError):
        refuse_inline_secrets({"sasl.password": Secret(PASSWORD)})


def test_neither_error_nor_cause_nor_log_shows_a_credential_that_the_client_repeats(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # librdkafka repeats a wrong value of this option, and with debug=all prints its whole configuration.
    client = KafkaClient({"bootstrap.servers": "localhost:1", "security.protocol": Secret("swordfish"), "debug": "all"})
    with caplog.at_level(logging.DEBUG), pytest.raises(InvalidInputError) as caught:
        client.admin()

    assert "kafka.security.protocol" in str(caught.value)
    assert "swordfish" not in "".join(traceback.format_exception(caught.value))
    assert "swordfish" not in caplog.text
    assert "swordfish" not in "".join(capfd.readouterr())


def test_debug_lines_of_the_client_go_to_logging_without_credentials(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    client = KafkaClient(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": Secret("swordfish"),
            "debug": "all",
        }
    )
    with caplog.at_level(logging.DEBUG, logger="tablestore.kafka"):
        admin = client.admin()
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"), kafka_errors("list topics", client, handle=admin):
            admin.list_topics(timeout=0.5)

    assert "FAIL" in caplog.text
    assert "swordfish" not in caplog.text
    assert "rdkafka" not in "".join(capfd.readouterr())
