"""The ``kafka.*`` options that a user may pass to librdkafka, and the error messages for all others.

Names are those of librdkafka, the C client under confluent-kafka. Three kinds are always rejected: names that only the
Java client knows, names that the store sets itself because its guarantees depend on them, and options whose values are
not text. `ACCESS` says who may set each of the others; ``access_policy.py`` enforces this for stored options. An
unknown name is rejected if it is stored; if the program sets it, librdkafka rejects it and ``errors.py`` translates
the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean

#: Names of the Java client, and what to use instead.
JAVA_ONLY: Mapping[str, str] = {
    "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
    "sasl.login.class": "use kafka.sasl.oauthbearer.method=oidc",
    "sasl.login.callback.handler.class": "use kafka.sasl.oauthbearer.method=oidc",
    "sasl.client.callback.handler.class": "use kafka.sasl.oauthbearer.method=oidc",
    "ssl.truststore.location": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.password": "use kafka.ssl.ca.location with a PEM file, which needs no password",
    "ssl.truststore.type": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.certificates": "use kafka.ssl.ca.pem",
    "ssl.keystore.type": "leave it out: kafka.ssl.keystore.location takes PKCS#12 files; for PEM files use "
    "kafka.ssl.certificate.location and kafka.ssl.key.location",
    "ssl.keystore.key": "use kafka.ssl.key.pem",
    "ssl.keystore.certificate.chain": "use kafka.ssl.certificate.pem",
    "ssl.protocol": "leave it out: the newest TLS version of both sides is used",
    "ssl.enabled.protocols": "leave it out: the newest TLS version of both sides is used",
    "max.poll.records": "leave it out: readers take read limits instead",
    "fetch.max.wait.ms": "use kafka.fetch.wait.max.ms",
    "buffer.memory": "use kafka.queue.buffering.max.kbytes",
    "max.request.size": "use kafka.message.max.bytes",
    "max.block.ms": "leave it out: calls of the store are bounded",
    "default.api.timeout.ms": "use kafka.socket.timeout.ms",
    "reconnect.backoff": "use kafka.reconnect.backoff.ms",
    "interceptor.classes": "leave it out: Java classes cannot be loaded here",
    "metric.reporters": "leave it out: Java classes cannot be loaded here",
    "partitioner.class": "leave it out: the partition of a row is its bucket",
}

_OWNED: Final = """
    transactional.id group.id group.instance.id group.protocol group.remote.assignor
    partition.assignment.strategy enable.idempotence enable.gapless.guarantee acks request.required.acks
    auto.offset.reset enable.auto.commit enable.auto.offset.store auto.commit.enable auto.commit.interval.ms
    enable.partition.eof allow.auto.create.topics key.serializer key.deserializer log.queue opaque
    plugin.library.paths
"""

#: Names that the store sets itself, and the table option that controls each (empty: none).
OWNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_OWNED.split(), ""),
    "metadata.broker.list": "kafka.bootstrap.servers",
    "transaction.timeout.ms": "log.transaction-timeout",
    "isolation.level": "log.consistency",
    "partitioner": "bucket",
    "value.serializer": "log.format",
    "value.deserializer": "log.format",
    "replication.factor": "log.replication-factor",
    "replication-factor": "log.replication-factor",
    "num.partitions": "bucket",
    "partitions": "bucket",
    "retention.ms": "log.retention",
    "cleanup.policy": "log.compacted",
}


class Access(StrEnum):
    """Who may set a librdkafka property. A table's author chooses its stored options, not the user who opens it."""

    STORED = "stored"
    """Anyone: it may be set in a table's options, in a definition, or in SQL."""
    CREDENTIAL = "credential"
    """Stored only as a reference, which is resolved if the opening program allows that reference."""
    FILE = "file"
    """Names a file that the client reads: may be stored if the opening program allows that file."""
    PROGRAM = "program"
    """Runs code, writes files, or sends the opener's secrets or identity: only the opening program may set it."""


_STORED: Final = """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages batch.size
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup
    client.id client.rack compression.codec compression.level compression.type connections.max.idle.ms
    consume.callback.max.messages coordinator.query.interval.ms delivery.report.only.error delivery.timeout.ms
    enable.metrics.push enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.protocol.type heartbeat.interval.ms https.ca.pem linger.ms log.connection.close
    log.thread.name log_level max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy receive.message.max.bytes
    reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.id
    sasl.oauthbearer.extensions sasl.oauthbearer.grant.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.username security.protocol session.timeout.ms share.acknowledgement.mode
    socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.pem ssl.certificate.pem ssl.cipher.suites ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
_CREDENTIAL: Final = """
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.password ssl.key.password ssl.key.pem ssl.keystore.password
"""
_FILE: Final = """
    https.ca.location sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file ssl.ca.location ssl.certificate.location ssl.crl.location
    ssl.key.location ssl.keystore.location
"""
_PROGRAM: Final[Mapping[str, str]] = {
    "ssl.engine.location": "loads a shared library",
    "ssl.engine.id": "loads a shared library",
    "ssl.providers": "loads shared libraries",
    "sasl.kerberos.kinit.cmd": "runs a shell command",
    # Both are inserted into the text of that shell command.
    "sasl.kerberos.keytab": "is put into a shell command",
    "sasl.kerberos.principal": "is put into a shell command",
    "sasl.oauthbearer.token.endpoint.url": "says where the client's secret is sent",
    "sasl.oauthbearer.metadata.authentication.type": "sends the identity of the machine to the broker",
    "offset.store.method": "may write files",
    "offset.store.path": "writes files",
    "offset.store.sync.interval.ms": "belongs to files that the client writes",
    "debug": "writes the client's inner state into the log",
    "builtin.features": "switches off parts of the client",
    "enabled_events": "changes which events the client handles",
    "interceptors": "adds code to the client",
    "internal.termination.signal": "changes how the process handles a signal",
}
ACCESS: Final[Mapping[str, Access]] = {
    **dict.fromkeys(_STORED.split(), Access.STORED),
    **dict.fromkeys(_CREDENTIAL.split(), Access.CREDENTIAL),
    **dict.fromkeys(_FILE.split(), Access.FILE),
    **dict.fromkeys(_PROGRAM, Access.PROGRAM),
}
"""All properties of librdkafka 2.16 that may be set. Stored options may not contain any other property."""

TAKES_REFERENCE: Final = frozenset(_CREDENTIAL.split()) | {
    "https.ca.pem",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.id",
    "sasl.username",
    "ssl.ca.pem",
    "ssl.certificate.pem",
}
"""Options whose stored ``env:`` or ``file:`` reference is resolved: credentials, and options that belong to one."""


def why_program_only(name: str) -> str:
    """Return why a property of `Access.PROGRAM` must not be set by stored options."""
    return _PROGRAM[name]


#: librdkafka's names for options, which its messages use, and the aliases that users mostly write.
_ALIASES: Mapping[str, str] = {
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.send.max.retries": "retries",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight.requests.per.connection": "max.in.flight",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}


def given_name(canonical: str, config: Mapping[str, object]) -> str:
    """Return the name with which the user set the option that librdkafka calls ``canonical``."""
    alias = _ALIASES.get(canonical, canonical)
    return alias if alias in config and canonical not in config else canonical


def nearest_client_option(name: str) -> str:
    """Return ``Did you mean 'kafka.x'?`` for a name similar to a known one, else an empty string."""
    return did_you_mean(name.removeprefix("kafka."), [*ACCESS, "topic"], prefix="kafka.")


def _owned(name: str) -> str:
    """Return the reason why an option cannot be given: the store sets it itself; empty for others."""
    if name not in OWNED:
        return ""
    steered = f"Use option '{OWNED[name]}' instead." if OWNED[name] else "Leave it out."
    return f": the store sets this itself, its guarantees depend on it. {steered}"


def check_client_options(
    config: Mapping[str, object], *, prefix: str = "kafka.", owned: Callable[[str], str] = _owned
) -> None:
    """Check that client options can be passed to librdkafka.

    Args:
        config: client options, named without the prefix.
        prefix: what users write before the names.
        owned: returns why an option cannot be set, as the rest of a message; an empty text if it can.

    Raises:
        InvalidInputError: a name belongs to the Java client, is set by the store itself, or takes no text value; or a
            Java key store is given. The message shows no values.
    """
    for name, value in config.items():
        why = owned(name)
        if name in JAVA_ONLY:
            why = f" is known to the Java client only; this one is librdkafka: {JAVA_ONLY[name]}."
            why = why.replace("kafka.", prefix)
        elif name == "ssl.keystore.location" and str(value).lower().endswith(".jks"):
            why = (
                ": expected a PKCS#12 file, got a Java key store (.jks). Convert it with 'keytool -importkeystore "
                f"-deststoretype PKCS12', or use {prefix}ssl.certificate.location and {prefix}ssl.key.location."
            )
        elif not why and (name.endswith("_cb") or not name):
            why = ": this option cannot be given as text. Leave it out."
        if why:
            msg = f"option '{prefix}{name}'{why}"
            raise InvalidInputError(msg)
