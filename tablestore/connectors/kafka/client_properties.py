"""Parses the connectors' ``properties.*`` options: Kafka client configuration as written for the Java client.

The client here is librdkafka. A Java option with a librdkafka counterpart is translated; one without is rejected with a
message that names the alternative. The options that control reading (group, isolation level, offset reset) are removed
from the client configuration, because the connectors implement them and librdkafka must not apply them a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from log_system.kafka.client.access_policy import Allowed, check_stored
from log_system.kafka.client.client_options import check_client_options
from log_system.kafka.client.secrets import ClientValue, Secret, wrap
from snapshot.errors import InvalidInputError
from tablestore.options.declaration import Group, option, optional
from tablestore.options.value_types import choice, integer, text

PREFIX = "properties."

READ_COMMITTED = "read_committed"
_ISOLATION = (READ_COMMITTED, "read_uncommitted")

#: Silently ignored, as in Flink: the table's formats encode and decode messages.
_OVERRIDDEN = frozenset({"key.deserializer", "value.deserializer", "key.serializer", "value.serializer"})

#: Options that the connectors control themselves, with the reason or the option to use instead.
_OWNED: Mapping[str, str] = {
    "enable.auto.commit": "offsets of the group are committed after each completed micro-batch",
    "auto.commit.enable": "offsets of the group are committed after each completed micro-batch",
    "enable.auto.offset.store": "offsets of the group are committed after each completed micro-batch",
    "commit.offsets.on.checkpoint": "offsets of the group are committed after each completed micro-batch",
    "enable.partition.eof": "the reader decides where it ends",
    "partition.discovery.interval.ms": "set 'scan.topic-partition-discovery.interval'",
    "client.id.prefix": "set 'properties.client.id'",
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
#: Accepted and ignored values of the options above: they match what the connectors do anyway.
_DONE_ANYWAY: Mapping[str, tuple[str, ...]] = {
    "enable.auto.commit": ("false", "true"),
    "commit.offsets.on.checkpoint": ("true",),
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
#: Options whose configured value never reaches the client: the connectors remove them or set their own value.
_HANDLED = (
    _OVERRIDDEN
    | _DONE_ANYWAY.keys()
    | {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
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


@dataclass(frozen=True, kw_only=True)
class Properties(Group):
    """The parsed ``properties.*`` options.

    Attributes:
        config: librdkafka options; credentials are wrapped.
    """

    config: Mapping[str, ClientValue]
    group_id: str | None = optional("group.id", text("the name of a consumer group"))
    isolation_level: str = option(
        "isolation.level", choice(_ISOLATION), READ_COMMITTED, "Whether records of aborted transactions are read."
    )
    reset: str | None = optional("auto.offset.reset", choice(("earliest", "latest", "none")))
    commit_interval_ms: int | None = optional(
        "auto.commit.interval.ms", integer(0), "Has no effect: offsets are committed after each completed micro-batch."
    )
    transaction_timeout_ms: int | None = optional(
        "transaction.timeout.ms", integer(1), "Of the exactly-once sink; None uses the sink's default."
    )


def check_stored_properties(given: Mapping[str, ClientValue], allowed: Allowed, servers: str) -> None:
    """Raise if a stored table definition contains client options that the access policy does not allow.

    Args:
        given: the options of the definition that the program does not set itself, without ``properties.``.
        allowed: the access policy: what these options may refer to.
        servers: the brokers that the client connects to.

    Raises:
        InvalidInputError: an option is invalid, or not allowed; see ``access_policy.check_stored``.
    """
    parsed = parse_properties(given)
    check_stored(parsed.config, allowed, servers, prefix=PREFIX, handled=_HANDLED)


def parse_properties(given: Mapping[str, object]) -> Properties:
    """Parse a Kafka client configuration, whose names are without ``properties.``.

    Raises:
        InvalidInputError: a name or a value is not supported; the message names the option and shows no credentials.
    """
    rest = {
        name: value
        for name, value in wrap(given).items()
        if name not in _OVERRIDDEN and str(value).lower() not in _DONE_ANYWAY.get(name, ())
    }
    if str(rest.get("ssl.truststore.type", "")).upper() == "PEM" and "ssl.truststore.location" in rest:
        # Java's form for a PEM trust store; librdkafka supports only PEM, through ssl.ca.location.
        del rest["ssl.truststore.type"]
        rest["ssl.ca.location"] = rest.pop("ssl.truststore.location")
    login = _login(rest.pop("sasl.jaas.config")) if "sasl.jaas.config" in rest else {}
    check_client_options(rest, prefix=PREFIX, owned=_owned)
    own = {spec.name: str(rest.pop(spec.name)) for spec in Properties.specs() if spec.name in rest}
    return Properties.read(own, prefix=PREFIX, config={**login, **rest})


def _owned(name: str) -> str:
    return f" is set by the connector: {_OWNED[name]}. Leave it out." if name in _OWNED else ""


def _login(given: ClientValue) -> dict[str, ClientValue]:
    """Return the SASL user and password from a JAAS configuration of the PLAIN or SCRAM login module.

    Raises:
        InvalidInputError: the configuration has another form; the message does not show it.
    """
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
    """Return the SASL user and password; None if the configuration does not contain both.

    This function must not raise: its frame holds the credentials as plain text, which a traceback could expose.
    """
    found = _JAAS_MODULE.match(given.reveal() if isinstance(given, Secret) else given)
    options = {}
    if found and found[1] in _JAAS_MODULES:
        for name, quoted, single, bare in _JAAS_OPTION.findall(found[2]):
            options[name] = re.sub(r"\\(.)", r"\1", quoted) if quoted else single or bare
    if not options.get("username") or "password" not in options:
        return None
    return {"sasl.username": options["username"], "sasl.password": Secret(options["password"])}
