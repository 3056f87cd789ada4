"""How one local broker is configured, formatted and asked whether it is ready."""

from __future__ import annotations

import base64
import random
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from log_system.kafka.client.admin_requests import answers, quiet_admin
from snapshot.errors import InvalidInputError, UnavailableError

LOOPBACK = "127.0.0.1"
# Below the ports that Linux and macOS hand to outgoing connections: a client that keeps trying a dead broker's port in
# that range may connect to itself, and then the broker cannot bind again.
PORTS = range(20_000, 32_000)
LOOK_EVERY_S = 0.03
PORT_GRACE_S = 2.0
LOG_LINES_SHOWN = 12

# Listeners given by the user join ours, because ours is what readiness is asked through. Other properties replace ours.
JOINED = ("listeners", "advertised.listeners", "listener.security.protocol.map")


@dataclass(frozen=True)
class Broker:
    """One broker on loopback: where its data is, where it listens, what runs it.

    Attributes:
        data_dir: an existing folder; holds ``server.properties``, ``broker.log`` and Kafka's own ``data``.
        port: of the plain listener.
        controller_port: of the listener that the broker uses to talk to itself.
        heap: Java's heap limit, such as ``512m``.
        properties: the user's own broker properties.
        cluster_id: under which the storage is formatted; brokers of one cluster share it.
    """

    data_dir: Path
    port: int
    controller_port: int
    heap: str
    properties: Mapping[str, str] = field(repr=False)
    cluster_id: str = field(default_factory=lambda: new_cluster_id())  # noqa: PLW0108 - defined below

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """The file that holds what the broker prints."""
        return self.data_dir / "broker.log"

    def prepare(self, java: Sequence[str]) -> list[str]:
        """Write the configuration, format the storage unless it is formatted; return the command that runs the broker.

        Args:
            java: the start of a Java command line with Kafka's jars on its class path.

        Raises:
            UnavailableError: the storage cannot be formatted.
        """
        config = self.data_dir / "server.properties"
        # It may hold a SASL password.
        config.touch(mode=0o600)
        config.write_text(server_properties(self), encoding="utf-8")
        if not (self.data_dir / "data" / "meta.properties").exists():
            self._format(java, config)
        if self.log.exists():
            # What the run before left may explain why it ended.
            self.log.replace(self.log.with_suffix(".log.1"))
        return [*java, "kafka.Kafka", str(config)]

    def _format(self, java: Sequence[str], config: Path) -> None:
        # Kafka's own tool, not a meta.properties of ours: it also decides the feature levels (transaction.version 2).
        tool = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", self.cluster_id, "--config", str(config)]
        answer = subprocess.run(tool, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            said = _telling(answer.stderr + answer.stdout)
            msg = (
                f"local Kafka: cannot format its storage in {self.data_dir}: {said}\n"
                "Check the properties given, or use another data folder."
            )
            raise UnavailableError(msg)

    def wait_until_ready(self, alive: Callable[[], bool], *, timeout_s: float) -> None:
        """Return when the broker answers a client.

        Args:
            alive: tells whether the broker's process still runs.
            timeout_s: seconds to wait at most.

        Raises:
            UnavailableError: the process ended, or did not answer in time; quotes its last lines.
        """
        end = time.monotonic() + timeout_s
        client = None
        while time.monotonic() < end:
            if not alive():
                msg = f"local Kafka on {self.bootstrap_servers} ended while starting. {self.last_lines()}"
                raise UnavailableError(msg)
            if client is None and port_is_open(self.port):
                # Made only now: a client that finds the port closed waits before its next try.
                client = quiet_admin(self.bootstrap_servers)
            if client is not None and answers(client):
                return
            time.sleep(LOOK_EVERY_S)
        msg = f"local Kafka on {self.bootstrap_servers} did not answer within {timeout_s:g} s. {self.last_lines()}"
        raise UnavailableError(msg)

    def last_lines(self) -> str:
        """Quote the end of the broker's log for an error message."""
        printed = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return f"The end of {self.log}:\n{_telling(printed)}"


def _telling(printed: str) -> str:
    # What went wrong stands before the stack trace and the orderly shutdown that follow it.
    lines = printed.splitlines()
    telling = [line for line in lines if " ERROR " in line or "Exception" in line or line.startswith("Error")]
    return "\n".join((telling or lines)[-LOG_LINES_SHOWN:]) or "(nothing)"


def new_cluster_id() -> str:
    """Return a random cluster id."""
    # Kafka writes a UUID as 22 characters of base64; one that starts with a dash would look like an option to the tool.
    return "t" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[1:22]


def server_properties(broker: Broker) -> str:
    """Return the text of ``server.properties``: one KRaft process, small, on loopback only."""
    listener, controller = (
        f"PLAINTEXT://{broker.bootstrap_servers}",
        f"CONTROLLER://{LOOPBACK}:{broker.controller_port}",
    )
    ours = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{broker.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listener},{controller}",
        "advertised.listeners": listener,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(broker.data_dir / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A group with one member need not wait for others.
        "group.initial.rebalance.delay.ms": "0",
        # A topic that vanished should be an error, not an empty topic of another shape.
        "auto.create.topics.enable": "false",
        # After a kill the broker may register again only when its former session is over, by default after 9 s. But one
        # that a busy machine holds up for longer than that is taken for dead, and as the only one leaves no leader:
        # with 2 s that happened.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # The default takes 128 MB of a 512 MB heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # With little to compact it would look only every 15 s.
        "log.cleaner.backoff.ms": "1000",
    }
    joined = {key: f"{ours[key]},{broker.properties[key]}" for key in JOINED if key in broker.properties}
    merged = {**ours, **broker.properties, **joined}
    return "".join(f"{key}={_escaped(value)}\n" for key, value in merged.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def free_port(avoid: int | None = None) -> int:
    """Return a port on loopback where nothing listens; somebody may take it before it is used."""
    for port in random.SystemRandom().sample(PORTS, k=200):
        if port != avoid and port_is_free(port):
            return port
    msg = f"local Kafka needs a free port on {LOOPBACK}; 200 tries between {PORTS.start} and {PORTS.stop} found none."
    raise UnavailableError(msg)


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # As Java does: a port with old connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def port_is_open(port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=0.5):
            return True
    except OSError:
        return False


def check_port(port: int) -> None:
    """Check that the port can be used; wait a moment for one that is just being given up.

    Raises:
        InvalidInputError: it is no port.
        UnavailableError: something listens there.
    """
    if not 0 < port < 65_536:
        msg = f"local Kafka: port must be between 1 and 65535; got {port}."
        raise InvalidInputError(msg)
    # A broker that was killed holds its port until the last of its threads is gone.
    end = time.monotonic() + PORT_GRACE_S
    while not port_is_free(port):
        if time.monotonic() < end:
            time.sleep(LOOK_EVERY_S)
            continue
        msg = (
            f"local Kafka: port {port} on {LOOPBACK} is taken (or needs a privilege). "
            "Stop what listens there, choose another port, or give none to get a free one."
        )
        raise UnavailableError(msg)
