"""The local broker: it is a real one, its data survives, and it never outlives its owner."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from log_system.jars import find_java
from log_system.local_kafka import installation
from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import Broker, free_port, server_properties
from log_system.local_kafka.watchdog import LOOK_EVERY_S
from snapshot.errors import InvalidInputError, UnavailableError
from tests.harness.plain_topics import make_topic
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def broker():
    """A broker of the test's own, since the test may kill it."""
    with LocalKafka() as kafka:
        yield kafka


def create_topic(kafka: LocalKafka, name: str) -> None:
    make_topic(kafka.bootstrap_servers, name)


def produce_in_transaction(kafka: LocalKafka, topic: str, values: list[bytes], *, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    if commit:
        producer.commit_transaction(20)
    else:
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction(20)


def read_committed(kafka: LocalKafka, topic: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    values = []
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < end:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                return values
            values.append(message.value())
    finally:
        consumer.close()
    pytest.fail(f"no end of {topic} within 30 s; read {values}")


def gone(pid: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # A process that nobody has waited for yet is dead all the same.
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_transaction_goes_in_and_comes_out(broker, topic):
    name = topic()
    create_topic(broker, name)
    produce_in_transaction(broker, name, [b"aborted"], commit=False)
    produce_in_transaction(broker, name, [b"one", b"two"])
    assert read_committed(broker, name) == [b"one", b"two"]


@pytest.mark.crash
def test_what_was_committed_survives_a_kill_and_a_restart(broker, topic):
    name, servers, pid = topic(), broker.bootstrap_servers, broker.pid
    create_topic(broker, name)
    produce_in_transaction(broker, name, [b"before"])
    broker.kill()
    assert not broker.running
    broker.restart()
    assert (broker.bootstrap_servers, broker.pid != pid) == (servers, True)
    produce_in_transaction(broker, name, [b"after"])
    assert read_committed(broker, name) == [b"before", b"after"]


def test_data_in_a_folder_given_is_there_for_the_next_broker(tmp_path, topic):
    name = topic()
    with LocalKafka(tmp_path / "kafka") as kafka:
        create_topic(kafka, name)
        produce_in_transaction(kafka, name, [b"kept"])
    with LocalKafka(tmp_path / "kafka") as kafka:
        assert read_committed(kafka, name) == [b"kept"]


def test_a_temporary_folder_is_removed_and_stop_may_come_twice():
    kafka = LocalKafka().start()
    folder, pid = kafka.data_dir, kafka.pid
    kafka.stop()
    kafka.stop()
    assert not folder.exists()
    assert gone(pid, 1)
    with pytest.raises(UnavailableError, match=r"has not been started"):
        _ = kafka.bootstrap_servers


@pytest.mark.crash
@pytest.mark.parametrize("with_forked_child", [False, True], ids=["alone", "with a forked child that lives on"])
def test_it_dies_with_an_owner_that_is_killed(with_forked_child):
    fork = "import os, time; os.fork() or time.sleep(20)" if with_forked_child else "pass"
    story = (
        "import sys, time; from log_system.local_kafka.owned import LocalKafka\n"
        "kafka = LocalKafka().start()\n"
        f"{fork}\n"
        "print(kafka.pid, kafka.data_dir, flush=True); time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", story], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    os.kill(int(pid), 0)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert gone(int(pid), within_s=20 * LOOK_EVERY_S)
    end = time.monotonic() + PATIENCE_SECONDS
    while Path(folder).exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_a_taken_port_is_named_before_anything_starts(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"port {port} on 127.0.0.1 is taken .* choose another port"):
            LocalKafka(tmp_path, port).start()


def test_the_answer_of_a_broker_that_took_the_port_first_does_not_count(broker, tmp_path):
    late = Broker(tmp_path, int(broker.bootstrap_servers.partition(":")[2]), free_port(), {})
    late.prepare(installation.kafka_command("128m"))
    with pytest.raises(UnavailableError, match=r"did not answer within 1 s"):
        late.wait_until_ready(lambda: True, timeout_s=1)


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_what_is_no_port_is_refused(port, tmp_path):
    with pytest.raises(InvalidInputError, match="between 1 and 65535"):
        LocalKafka(tmp_path, port).start()


def test_a_start_that_fails_quotes_the_brokers_log(tmp_path):
    with LocalKafka(tmp_path):
        pass
    with (tmp_path / "data" / ".lock").open("w") as lock:
        # As a broker that uses the folder does.
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match=r"(?s)ended while starting.*broker.log.*[Ff]ailed to acquire lock"):
            LocalKafka(tmp_path).start()


def test_the_cause_is_quoted_before_the_errors_of_the_shutdown(tmp_path):
    broker = Broker(tmp_path, 20_001, 20_002, {})
    noise = ["[main] INFO starting"] * 50
    shutdown = ["[controller] ERROR Unexpected error handling request"] * 50
    broker.log.write_text("\n".join([*noise, "[main] ERROR Failed to acquire lock", *shutdown]))
    assert "Failed to acquire lock" in broker.said()
    broker.log.write_text("\n".join([*noise, "killed"]))
    assert broker.said().endswith("killed")


def test_a_property_that_kafka_refuses_is_named(tmp_path):
    with pytest.raises(
        UnavailableError, match=r"(?s)cannot format its storage.*num.network.threads.*Check the properties"
    ):
        LocalKafka(tmp_path, properties={"num.network.threads": "-3"}).start()


def test_a_folder_without_jars_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TABLESTORE_KAFKA_JARS", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"TABLESTORE_KAFKA_JARS='.*' must name a folder with Kafka's jars"):
        LocalKafka().start()


def test_jars_may_be_given(tmp_path, monkeypatch):
    with LocalKafka():
        pass
    jars = tmp_path / "libs"
    jars.mkdir()
    for jar in Path(installation.fetch_jars(f"kafka-{installation.KAFKA_VERSION}", installation.MODULES)).glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    monkeypatch.setenv("TABLESTORE_KAFKA_JARS", str(jars))
    with LocalKafka() as kafka:
        assert str(jars) in Path(f"/proc/{kafka.pid}/cmdline").read_text() if Path("/proc/self").exists() else True


def test_jars_that_cannot_be_fetched_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        UnavailableError, match=r"(?s)no-such.*cannot fetch org.apache.kafka:no-such:1.*copy the folder"
    ):
        installation.fetch_jars("no-such", ["org.apache.kafka:no-such:1"])
    assert [path.name for path in (tmp_path / "tablestore").iterdir()] == ["no-such.lock"]


@pytest.mark.parametrize(
    ("prints", "says"),
    [
        ('openjdk version "11.0.2" 2019-01-15', r"is Java 11.0.2. Install"),
        ('java version "1.8.0_392"', r"is Java 1.8.0_392. Install"),
        ("The operation could not be completed. Unable to locate a Java Runtime.", r"does not run: .*Unable to locate"),
    ],
)
def test_a_java_that_will_not_do_is_named_with_how_to_get_another(tmp_path, monkeypatch, prints, says):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match=rf"Java 17 or newer is needed; .*{says}"):
        LocalKafka().start()


def test_no_java_at_all_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"no 'java' is on the PATH. Install it with 'apt-get install"):
        find_java()


def test_a_listener_given_joins_the_plain_one_and_other_properties_replace(tmp_path):
    given = {"listeners": "SAFE://127.0.0.1:1", "num.io.threads": "3", "auto.create.topics.enable": "true"}
    lines = server_properties(Broker(tmp_path, 2, 3, given)).splitlines()
    assert "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:3,SAFE://127.0.0.1:1" in lines
    assert "num.io.threads=3" in lines
    assert "auto.create.topics.enable=true" in lines


def test_a_listener_with_passwords_lets_in_who_knows_them():
    port = free_port()
    user = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="right";'
    properties = {
        "listeners": f"SAFE://127.0.0.1:{port}",
        "advertised.listeners": f"SAFE://127.0.0.1:{port}",
        "listener.security.protocol.map": "SAFE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.safe.plain.sasl.jaas.config": user,
    }
    client = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT", "log_level": 0}
    client |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    with LocalKafka(properties=properties):
        assert AdminClient({**client, "sasl.password": "right"}).list_topics(timeout=10).brokers
        with pytest.raises(KafkaException):
            AdminClient({**client, "sasl.password": "wrong"}).list_topics(timeout=2)


def test_a_password_in_a_property_shows_nowhere(tmp_path):
    kafka = LocalKafka(tmp_path, properties={"sasl.jaas.config": "hunter2"})
    assert "hunter2" not in repr(kafka)
    assert "hunter2" not in repr(Broker(tmp_path, 1, 2, {"sasl.jaas.config": "hunter2"}))
