"""Which ``kafka.*`` options a user may pass on to librdkafka, and what to say about the others.

Names are those of librdkafka, the C client under confluent-kafka. Three kinds are refused: names that only the Java
client knows, names that the store sets itself because its promises hang on them, and names that cannot come as text.
A name that nobody knows is left to librdkafka, whose refusal is translated in ``errors.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from snapshot.errors import InvalidInputError

#: Java client names, and what to use instead.
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

#: Names the store sets itself, and the table option that steers each, where there is one.
OWNED: Mapping[str, str] = {
    "metadata.broker.list": "kafka.bootstrap.servers",
    "transactional.id": "",
    "transaction.timeout.ms": "log.transaction-timeout",
    "group.id": "",
    "group.instance.id": "",
    "group.protocol": "",
    "group.remote.assignor": "",
    "partition.assignment.strategy": "",
    "enable.idempotence": "",
    "enable.gapless.guarantee": "",
    "isolation.level": "log.consistency",
    "acks": "",
    "request.required.acks": "",
    "auto.offset.reset": "",
    "enable.auto.commit": "",
    "enable.auto.offset.store": "",
    "auto.commit.enable": "",
    "auto.commit.interval.ms": "",
    "enable.partition.eof": "",
    "allow.auto.create.topics": "",
    "partitioner": "bucket",
    "key.serializer": "log.key.format",
    "value.serializer": "log.format",
    "key.deserializer": "log.key.format",
    "value.deserializer": "log.format",
    "replication.factor": "log.replication-factor",
    "replication-factor": "log.replication-factor",
    "num.partitions": "bucket",
    "partitions": "bucket",
    "retention.ms": "log.retention",
    "cleanup.policy": "log.compacted",
    "log.queue": "",
    "opaque": "",
    "plugin.library.paths": "",
}

#: librdkafka names that people set, for "did you mean".
_KNOWN = (
    "bootstrap.servers",
    "topic",
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.kerberos.service.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "compression.type",
    "compression.level",
    "linger.ms",
    "batch.size",
    "batch.num.messages",
    "message.max.bytes",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.wait.max.ms",
    "fetch.message.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.queue.backoff.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "socket.timeout.ms",
    "socket.keepalive.enable",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "broker.address.family",
    "metadata.max.age.ms",
    "debug",
    "log_level",
    "check.crcs",
    "max.in.flight.requests.per.connection",
    "connections.max.idle.ms",
    "socket.connection.setup.timeout.ms",
    "statistics.interval.ms",
)


#: librdkafka's own name for what users mostly write otherwise; its messages name the left one.
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
    """Return the name under which the user gave an option that librdkafka calls ``canonical``."""
    alias = _ALIASES.get(canonical, canonical)
    return alias if alias in config and canonical not in config else canonical


def nearest_client_option(name: str) -> str:
    """Return ``; did you mean 'kafka.x'?`` for a name near to a known one, else an empty string."""
    close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75)
    return f"; did you mean 'kafka.{close[0]}'?" if close else ""


def check_client_options(config: Mapping[str, object]) -> None:
    """Refuse client options that cannot be passed on.

    Args:
        config: client options, named without the ``kafka.`` prefix.

    Raises:
        InvalidInputError: a name is Java's, is owned by the store, or cannot come as text. No value is shown.
    """
    for name, value in config.items():
        if name in JAVA_ONLY:
            msg = f"option 'kafka.{name}' is known to the Java client only; this one is librdkafka: {JAVA_ONLY[name]}."
            raise InvalidInputError(msg)
        if name == "ssl.keystore.location" and str(value).lower().endswith(".jks"):
            msg = (
                f"option 'kafka.{name}': expected a PKCS#12 file, came a Java key store (.jks). Convert it with "
                "'keytool -importkeystore -deststoretype PKCS12', or use kafka.ssl.certificate.location and "
                "kafka.ssl.key.location."
            )
            raise InvalidInputError(msg)
        if name in OWNED:
            steered = f" Use option '{OWNED[name]}' instead." if OWNED[name] else " Leave it out."
            msg = f"option 'kafka.{name}': the store sets this itself, its guarantees depend on it.{steered}"
            raise InvalidInputError(msg)
        if name.endswith("_cb") or not name:
            msg = f"option 'kafka.{name}': this is no option that can be given as text. Leave it out."
            raise InvalidInputError(msg)
