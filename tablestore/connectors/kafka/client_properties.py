"""The connectors' ``properties.*``: Kafka's own configuration, as people write it for the Java client.

The client here is librdkafka. Where a Java option has a counterpart it is translated, where it has none it is refused
with what to use instead. What decides how a reader reads (group, isolation level, reset) is taken out: the connectors
do that themselves, and librdkafka must not do it a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from log_system.kafka.client.access_policy import Allowed, check_stored
from log_system.kafka.client.client_options import JAVA_ONLY
from log_system.kafka.client.secrets import ClientValue, Secret, wrap
from snapshot.errors import InvalidInputError

PREFIX = "properties."

READ_COMMITTED = "read_committed"
_ISOLATION = (READ_COMMITTED, "read_uncommitted")
_RESETS = ("earliest", "latest", "none")

#: Decoding and encoding are the formats' affair, as in Flink, which overrides these without a word.
_OVERRIDDEN = frozenset({"key.deserializer", "value.deserializer", "key.serializer", "value.serializer"})

#: Set by the connectors: offsets are committed after micro-batches only, and transactions by the sink's own options.
_OWNED: Mapping[str, str] = {
    "enable.auto.commit": "offsets of the group are committed after each completed micro-batch",
    "auto.commit.enable": "offsets of the group are committed after each completed micro-batch",
    "auto.commit.interval.ms": "offsets of the group are committed after each completed micro-batch",
    "enable.auto.offset.store": "offsets of the group are committed after each completed micro-batch",
    "enable.partition.eof": "the reader decides where it ends",
    "group.instance.id": "Spark decides which task reads which partition",
    "group.protocol": "Spark decides which task reads which partition",
    "partition.assignment.strategy": "Spark decides which task reads which partition",
    "transactional.id": "set 'sink.transactional-id-prefix'",
    "enable.idempotence": "the sink always sends idempotently",
    "enable.gapless.guarantee": "the sink always sends idempotently",
    "acks": "the sink always waits for all replicas",
    "request.required.acks": "the sink always waits for all replicas",
    "partitioner": "set 'sink.partitioner'",
    "partitioner.class": "set 'sink.partitioner'",
    "plugin.library.paths": "native code cannot be loaded by an option",
    "opaque": "it cannot be given as text",
}
#: Of those, what the connectors do anyway may be said.
_DONE_ANYWAY: Mapping[str, tuple[str, ...]] = {
    "enable.auto.commit": ("false",),
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
#: Taken out before the client sees it, or set by the connectors anyway: none of it reaches the client as it is given.
_HANDLED = (
    _OVERRIDDEN
    | _DONE_ANYWAY.keys()
    | {
        "allow.auto.create.topics",
        "auto.offset.reset",
        "group.id",
        "isolation.level",
        "transaction.timeout.ms",
    }
)
_JAAS_MODULE = re.compile(r"^\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*$", re.DOTALL)
_JAAS_OPTION = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;\"']+))")
_JAAS_MODULES = (
    "org.apache.kafka.common.security.plain.PlainLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
)


@dataclass(frozen=True)
class Properties:
    """What ``properties.*`` say.

    Attributes:
        config: librdkafka options, credentials wrapped.
        group_id: the reader's group; None where none is given.
        isolation_level: whether a reader sees records of open and aborted transactions.
        reset: ``auto.offset.reset``: ``earliest``, ``latest``, ``none``; None where it is not given.
        transaction_timeout_ms: of the exactly-once sink; None leaves it to the client.
    """

    config: Mapping[str, ClientValue]
    group_id: str | None = None
    isolation_level: str = READ_COMMITTED
    reset: str | None = None
    transaction_timeout_ms: int | None = None


def check_stored_properties(given: Mapping[str, ClientValue], allowed: Allowed, servers: str) -> None:
    """Refuse what a definition must not say to the client, or to Python.

    Args:
        given: those options of a definition that the program does not give itself, without ``properties.``.
        allowed: what they may refer to.
        servers: the brokers that the client goes to.

    Raises:
        InvalidInputError: as ``allowed.check_stored``.
    """
    parsed = parse_properties(given)
    check_stored(parsed.config, allowed, servers, prefix=PREFIX, handled=_HANDLED)


def parse_properties(given: Mapping[str, object]) -> Properties:
    """Read Kafka's configuration.

    Args:
        given: options by name, without ``properties.``.

    Raises:
        InvalidInputError: a name or a value cannot be used; the message names the option and shows no credential.
    """
    rest = {
        name: value
        for name, value in wrap(given).items()
        if name not in _OVERRIDDEN and str(value).lower() not in _DONE_ANYWAY.get(name, ())
    }
    if str(rest.get("ssl.truststore.type", "")).upper() == "PEM" and "ssl.truststore.location" in rest:
        # Java's way to say that the certificates are in a PEM file, which is the only way of librdkafka.
        del rest["ssl.truststore.type"]
        rest["ssl.ca.location"] = rest.pop("ssl.truststore.location")
    login = _login(rest.pop("sasl.jaas.config")) if "sasl.jaas.config" in rest else {}
    for name, value in rest.items():
        _check(name, value)
    group = rest.pop("group.id", None)
    if group == "":
        msg = f"option '{PREFIX}group.id': expected the name of a consumer group, got an empty text."
        raise InvalidInputError(msg)
    isolation = _word(rest, "isolation.level", _ISOLATION)
    reset = _word(rest, "auto.offset.reset", _RESETS)
    timeout = _number(rest, "transaction.timeout.ms")
    group_id = None if group is None else str(group)
    return Properties({**login, **rest}, group_id, isolation or READ_COMMITTED, reset, timeout)


def _check(name: str, value: ClientValue) -> None:
    if name in JAVA_ONLY:
        instead = JAVA_ONLY[name].replace("kafka.", PREFIX)
        msg = f"option '{PREFIX}{name}' is known to the Java client only; this one is librdkafka: {instead}."
        raise InvalidInputError(msg)
    if name == "ssl.keystore.location" and str(value).lower().endswith(".jks"):
        msg = (
            f"option '{PREFIX}{name}': expected a PKCS#12 file, got a Java key store (.jks). Convert it with "
            f"'keytool -importkeystore -deststoretype PKCS12', or use {PREFIX}ssl.certificate.location and "
            f"{PREFIX}ssl.key.location."
        )
        raise InvalidInputError(msg)
    if name in _OWNED:
        msg = f"option '{PREFIX}{name}' is set by the connector: {_OWNED[name]}. Leave it out."
        raise InvalidInputError(msg)
    if name.endswith("_cb") or not name:
        msg = f"option '{PREFIX}{name}': this is no option that can be given as text. Leave it out."
        raise InvalidInputError(msg)


def _login(given: ClientValue) -> dict[str, ClientValue]:
    """Take user and password out of a JAAS configuration of the PLAIN or SCRAM login module."""
    login = _parsed_login(given)
    if login is None:
        msg = (
            f"option '{PREFIX}sasl.jaas.config': expected '<login module> required username=\"...\" password=\"...\";' "
            f"with one of {', '.join(_JAAS_MODULES)}; got something else (not shown). For other mechanisms "
            f"use librdkafka's options, such as {PREFIX}sasl.kerberos.keytab or {PREFIX}sasl.oauthbearer.method."
        )
        raise InvalidInputError(msg)
    return login


def _parsed_login(given: ClientValue) -> dict[str, ClientValue] | None:
    """Return user and password; None where they are not there. Raises nothing, since its frame holds them as text."""
    found = _JAAS_MODULE.match(given.reveal() if isinstance(given, Secret) else given)
    options = {}
    if found and found[1] in _JAAS_MODULES:
        for name, quoted, single, bare in _JAAS_OPTION.findall(found[2]):
            options[name] = re.sub(r"\\(.)", r"\1", quoted) if quoted else single or bare
    if not options.get("username") or "password" not in options:
        return None
    return {"sasl.username": options["username"], "sasl.password": Secret(options["password"])}


def _word(rest: dict[str, ClientValue], name: str, words: tuple[str, ...]) -> str | None:
    given = rest.pop(name, None)
    if given is None:
        return None
    value = str(given)
    if value.lower() not in words:
        msg = f"option '{PREFIX}{name}': expected one of {', '.join(words)}, got {value!r}."
        raise InvalidInputError(msg)
    return value.lower()


def _number(rest: dict[str, ClientValue], name: str) -> int | None:
    given = rest.pop(name, None)
    if given is None:
        return None
    value = str(given)
    if not value.isdigit() or int(value) < 1:
        msg = f"option '{PREFIX}{name}': expected a whole number of milliseconds, got {value!r}."
        raise InvalidInputError(msg)
    return int(value)
