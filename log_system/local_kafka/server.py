"""Configure a local broker, format its storage and wait until it is ready."""

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

from log_system.kafka.client.admin_requests import answering_cluster, quiet_admin
from snapshot.errors import InvalidInputError, UnavailableError

LOOPBACK = "127.0.0.1"
# These ports are below the ephemeral range of Linux and macOS. A client that keeps retrying a dead broker's port inside
# that range may connect to itself, and then the broker cannot bind the port again.
PORTS = range(20_000, 32_000)
LOOK_EVERY_S = 0.03
PORT_GRACE_S = 2.0
LOG_LINES_SHOWN = 12

# The user's listeners are added to ours, because the readiness check uses ours. Other properties replace ours.
JOINED = ("listeners", "advertised.listeners", "listener.security.protocol.map")


@dataclass(frozen=True)
class Broker:
    """The settings of one broker on loopback: data folder, ports and properties.

    Attributes:
        data_dir: an existing folder; holds ``server.properties``, ``broker.log`` and Kafka's own ``data``.
        port: the port of the plain listener.
        controller_port: the port of the controller listener, which only the broker itself uses.
        properties: additional broker properties from the user.
        cluster_id: the cluster id with which the storage is formatted; brokers of one cluster share it.
    """

    data_dir: Path
    port: int
    controller_port: int
    properties: Mapping[str, str] = field(repr=False)
    cluster_id: str = field(default_factory=lambda: new_cluster_id())  # noqa: PLW0108 - defined below

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """The file that receives the broker's output."""
        return self.data_dir / "broker.log"

    @property
    def _storage(self) -> Path:
        return self.data_dir / "data" / "meta.properties"

    def prepare(self, java: Sequence[str]) -> list[str]:
        """Write the configuration, format the storage if necessary, and return the command that runs the broker.

        Args:
            java: a Java command line with Kafka's jars on the class path, up to the class name.

        Raises:
            UnavailableError: the storage cannot be formatted.
        """
        config = self.data_dir / "server.properties"
        # The file may hold a SASL password.
        config.touch(mode=0o600)
        config.write_text(server_properties(self), encoding="utf-8")
        if not self._storage.exists():
            self._format(java, config)
        if self.log.exists():
            # Keep the log of the previous run: it may explain why that run ended.
            self.log.replace(self.log.with_suffix(".log.1"))
        return [*java, "kafka.Kafka", str(config)]

    def _format(self, java: Sequence[str], config: Path) -> None:
        # Use Kafka's own tool instead of writing meta.properties: it also sets feature levels (transaction.version 2).
        tool = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", self.cluster_id, "--config", str(config)]
        answer = subprocess.run(tool, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            said = _errors(answer.stderr + answer.stdout)
            msg = (
                f"local Kafka: cannot format its storage in {self.data_dir}: {said}\n"
                "Check the properties given, or use another data folder."
            )
            raise UnavailableError(msg)

    def wait_until_ready(self, alive: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until the broker responds to a client; an answer of another broker on its port does not count.

        Args:
            alive: returns whether the broker's process is still running.
            timeout_s: seconds to wait at most.

        Raises:
            UnavailableError: the process ended or did not respond in time; the message quotes its log.
        """
        end = time.monotonic() + timeout_s
        client = None
        while time.monotonic() < end:
            if not alive():
                msg = f"local Kafka on {self.bootstrap_servers} ended while starting. {self.said()}"
                raise UnavailableError(msg)
            if client is None and port_is_open(self.port):
                # Create the client only now: a client that finds the port closed backs off before it retries.
                client = quiet_admin(self.bootstrap_servers)
            if client is not None and answering_cluster(client) == self._formatted_id():
                return
            time.sleep(LOOK_EVERY_S)
        msg = f"local Kafka on {self.bootstrap_servers} did not answer within {timeout_s:g} s. {self.said()}"
        raise UnavailableError(msg)

    def _formatted_id(self) -> str:
        lines = self._storage.read_text(encoding="utf-8").splitlines() if self._storage.exists() else []
        ids = [line.partition("=")[2] for line in lines if line.startswith("cluster.id=")]
        return ids[0] if ids else self.cluster_id

    def said(self) -> str:
        """Return the errors of the broker's log, or its end, for an error message."""
        printed = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return f"From {self.log}:\n{_errors(printed)}"


def _errors(printed: str) -> str:
    # The first error is the cause. Those of the shutdown that it starts are many on a slow machine.
    lines = printed.splitlines()
    errors = [line for line in lines if " ERROR " in line or "Exception" in line or line.startswith("Error")]
    return "\n".join(errors[:LOG_LINES_SHOWN] or lines[-LOG_LINES_SHOWN:]) or "(nothing)"


def new_cluster_id() -> str:
    """Return a random cluster id."""
    # Kafka writes a UUID as 22 characters of base64. The storage tool would take an id that starts with a dash for an
    # option, so the first character is fixed.
    return "t" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[1:22]


def server_properties(broker: Broker) -> str:
    """Return the text of ``server.properties`` for one small KRaft process on loopback."""
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
        # A group with one member does not need to wait for others.
        "group.initial.rebalance.delay.ms": "0",
        # A missing topic must be an error, not be replaced by an empty topic with default settings.
        "auto.create.topics.enable": "false",
        # A killed broker can register again only after its old session has expired (default: 9 s). But if a busy
        # machine delays heartbeats for longer than the session, the only broker is fenced and its partitions have no
        # leader; that happened with 2 s.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # The default is 128 MB, a quarter of a 512 MB heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # By default an idle log cleaner checks for work only every 15 s.
        "log.cleaner.backoff.ms": "1000",
    }
    joined = {key: f"{ours[key]},{broker.properties[key]}" for key in JOINED if key in broker.properties}
    merged = {**ours, **broker.properties, **joined}
    return "".join(f"{key}={_escaped(value)}\n" for key, value in merged.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def free_port(avoid: int | None = None) -> int:
    """Return a free port on loopback; another process may still take it before it is used."""
    for port in random.SystemRandom().sample(PORTS, k=200):
        if port != avoid and port_is_free(port):
            return port
    msg = f"local Kafka needs a free port on {LOOPBACK}; 200 tries between {PORTS.start} and {PORTS.stop} found none."
    raise UnavailableError(msg)


def port_is_free(port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket() as probe:
        # Like Java: a port whose old connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def port_is_open(port: int) -> bool:
    """Return whether something listens on the port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=0.5):
            return True
    except OSError:
        return False


def check_port(port: int) -> None:
    """Check that the port can be bound; wait briefly for a port that is still being released.

    Raises:
        InvalidInputError: the number is not a valid port.
        UnavailableError: the port is taken.
    """
    if not 0 < port < 65_536:
        msg = f"local Kafka: port must be between 1 and 65535; got {port}."
        raise InvalidInputError(msg)
    # A killed broker holds its port until its last thread has ended.
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
