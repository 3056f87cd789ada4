"""Translate Kafka's errors to this package's exceptions, which tell the caller how to react.

librdkafka's errors lack details. After a producer was fenced, ``produce`` reports only "fatal error". A wrong password
appears as a timeout; only the error callback reports the reason (see ``KafkaClient.trouble``). A commit that times out
may or may not have succeeded: such calls are wrapped with ``indefinite=True``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client.client_options import given_name, nearest_client_option
from log_system.kafka.client.secrets import ClientValue, redact
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

_FENCED: Final = "_FENCED PRODUCER_FENCED INVALID_PRODUCER_EPOCH FENCED_INSTANCE_ID TRANSACTION_COORDINATOR_FENCED"

_CREDENTIALS: Final = (
    "_AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE SECURITY_DISABLED "
    "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED"
)

_NOT_FOUND: Final = (
    "UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION GROUP_ID_NOT_FOUND RESOURCE_NOT_FOUND"
)

_ALREADY_EXISTS: Final = "TOPIC_ALREADY_EXISTS"

_DATA_LOST: Final = "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION"

_CORRUPTED: Final = "_BAD_MSG _BAD_COMPRESSION INVALID_MSG"

_TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE INVALID_MSG_SIZE RECORD_LIST_TOO_LARGE"

_INVALID: Final = (
    "_INVALID_ARG _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _UNSUPPORTED_FEATURE INVALID_CONFIG POLICY_VIOLATION "
    "INVALID_RECORD INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT "
    "INVALID_TRANSACTION_TIMEOUT TOPIC_EXCEPTION TOPIC_DELETION_DISABLED OFFSET_METADATA_TOO_LARGE "
    "UNSUPPORTED_VERSION INVALID_GROUP_ID UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE "
    "INVALID_REQUIRED_ACKS INVALID_REQUEST INVALID_TIMESTAMP"
)

#: Errors after which a transaction or a record may be in the log: only a new producer can find out.
_UNKNOWN_OUTCOME: Final = (
    "_FATAL _STATE _INCONSISTENT _GAPLESS_GUARANTEE _PREV_IN_PROGRESS _CONFLICT INVALID_TXN_STATE "
    "INVALID_PRODUCER_ID_MAPPING UNKNOWN_PRODUCER_ID OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER"
)

_UNAVAILABLE: Final = (
    "_TRANSPORT _TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT _ALL_BROKERS_DOWN _RESOLVE _WAIT_COORD _WAIT_CACHE _RETRY "
    "_QUEUE_FULL _CRIT_SYS_RESOURCE _DESTROY _DESTROY_BROKER _UNKNOWN_BROKER _NODE_UPDATE _IN_PROGRESS _ISR_INSUFF "
    "_PURGE_QUEUE _PURGE_INFLIGHT _INTR _OUTDATED _MAX_POLL_EXCEEDED _NOENT "
    "BROKER_NOT_AVAILABLE COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR NOT_CONTROLLER "
    "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE "
    "ELIGIBLE_LEADERS_NOT_AVAILABLE LISTENER_NOT_FOUND REQUEST_TIMED_OUT NETWORK_EXCEPTION KAFKA_STORAGE_ERROR "
    "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CONCURRENT_TRANSACTIONS TRANSACTION_ABORTABLE "
    "REBALANCE_IN_PROGRESS OFFSET_NOT_AVAILABLE UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED STALE_BROKER_EPOCH "
    "FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH "
    "REBOOTSTRAP_REQUIRED LOG_DIR_NOT_FOUND ILLEGAL_GENERATION UNKNOWN_MEMBER_ID MEMBER_ID_REQUIRED"
)


def codes(names: str) -> frozenset[int]:
    """Return the codes of errors by name; names of librdkafka's own (local) errors start with ``_``."""
    return frozenset(int(getattr(KafkaError, name)) for name in names.split())


#: Sets of error codes and their exception classes, in lookup order; a code is in one set only.
FAMILIES: Final[tuple[tuple[frozenset[int], type[TableStoreError]], ...]] = (
    (codes(_FENCED), FencedError),
    (codes(_CREDENTIALS), InvalidInputError),
    (codes(_NOT_FOUND), NotFoundError),
    (codes(_ALREADY_EXISTS), AlreadyExistsError),
    (codes(_DATA_LOST), DataLostError),
    (codes(_CORRUPTED), CorruptedError),
    (codes(_TOO_LARGE) | codes(_INVALID), InvalidInputError),
    (codes(_UNKNOWN_OUTCOME), OutcomeUnknownError),
    (codes(_UNAVAILABLE), UnavailableError),
)

NOTHING_THERE: Final = codes("_PARTITION_EOF OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET")
"""What a consumer that reports the end of partitions says where it has no record to return."""
CREDENTIAL_CODES: Final = codes(_CREDENTIALS)
_TOO_LARGE_CODES: Final = codes(_TOO_LARGE)
_LONG_TRANSACTION: Final = codes("INVALID_TRANSACTION_TIMEOUT")
_INVALID_ARGUMENT: Final = codes("_INVALID_ARG")
_REJECTED: Final = codes("INVALID_TIMESTAMP INVALID_RECORD")
#: Exceptions after which the call is known to have had no effect.
_DEFINITE: Final = (FencedError, InvalidInputError, NotFoundError, AlreadyExistsError)

_PROPERTY = re.compile(r'property:? "([^"]+)"')


def translate(
    error: KafkaError | KafkaException | TimeoutError | BufferError,
    doing: str,
    *,
    indefinite: bool = False,
    config: Mapping[str, ClientValue] | None = None,
    trouble: KafkaError | None = None,
    prefix: str = "kafka.",
) -> TableStoreError:
    """Return this package's exception for an error of the Kafka client, without any credential of ``config``.

    A :class:`FencedError` means that this producer may no longer write. It does not say whether its last commit
    succeeded: the response may have been lost before another publisher took over. A transaction that the broker aborted
    after its timeout causes the same error.

    Args:
        error: the error that the client raised or reported, our own timeout, or Python's error for a full queue.
        doing: what was attempted, in the user's terms, such as ``"publish snapshot 7 of table 'orders'"``.
        indefinite: the call ends a transaction, or sends records without one, so without a response it is in doubt.
        config: the client's options, for the address and for masking credentials.
        trouble: the last connection error from the client's error callback; explains timeouts.
        prefix: the prefix of client option names as the user writes them.
    """
    cause = _kafka_error(error)
    family = _family(cause)
    if family is UnavailableError and trouble is not None and trouble.code() in CREDENTIAL_CODES:
        # The connection was never established, so nothing was sent and the outcome is known.
        cause, family = trouble, InvalidInputError
    elif indefinite and not issubclass(family, _DEFINITE):
        family = OutcomeUnknownError
    text = f"{doing} failed: {_text(cause)}{_side_note(cause, trouble)}{_remedy(cause, family, config or {}, prefix)}"
    return family(redact(text, config or {}))


def is_unavailable(error: KafkaException) -> bool:
    """Return whether an error says that brokers do not answer, or not yet."""
    return _family(_kafka_error(error)) is UnavailableError


def _kafka_error(error: KafkaError | KafkaException | TimeoutError | BufferError) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    inner = error.args[0] if error.args else None
    if isinstance(inner, KafkaError):
        return inner
    # Python's own errors for an expired wait and for a full queue.
    (code,) = codes(
        "_TIMED_OUT"
        if isinstance(error, TimeoutError)
        else "_QUEUE_FULL"
        if isinstance(error, BufferError)
        else "_FAIL"
    )
    return KafkaError(code, str(error) or None)


def _family(error: KafkaError) -> type[TableStoreError]:
    for members, family in FAMILIES:
        if error.code() in members:
            fatal = error.fatal() and family is UnavailableError
            return OutcomeUnknownError if fatal else family
    return UnavailableError if error.retriable() and not error.fatal() else OutcomeUnknownError


def _text(error: KafkaError) -> str:
    return f"{error.str().rstrip('.')} ({error.name()})"


def _side_note(error: KafkaError, trouble: KafkaError | None) -> str:
    if trouble is None or trouble is error or trouble.str() in error.str():
        return ""
    return f"; last connection error: {_text(trouble)}"


def _remedy(error: KafkaError, family: type[TableStoreError], config: Mapping[str, ClientValue], prefix: str) -> str:
    servers = (
        f"{prefix}bootstrap.servers='{config['bootstrap.servers']}'" if "bootstrap.servers" in config else "the broker"
    )
    if error.code() in CREDENTIAL_CODES:
        return (
            f". {servers} refused this client: check {prefix}security.protocol, {prefix}sasl.mechanism, "
            f"{prefix}sasl.username, {prefix}sasl.password (or {prefix}ssl.*) and what the user is allowed to do."
        )
    if error.code() in _TOO_LARGE_CODES:
        return (
            ". A row with its key has to fit into one Kafka message: make the row smaller, or raise "
            f"{prefix}message.max.bytes here and max.message.bytes of the topic."
        )
    timeout = "log.transaction-timeout" if prefix == "kafka." else f"{prefix}transaction.timeout.ms"
    if error.code() in _LONG_TRANSACTION:
        return f". Set a shorter '{timeout}', or raise the broker's transaction.max.timeout.ms."
    if error.code() in _REJECTED:
        return (
            ". Either the clock of this machine is too far ahead of the broker's (the topic's "
            "message.timestamp.after.max.ms) or behind it (message.timestamp.before.max.ms), or the topic is compacted "
            "(cleanup.policy) and the record has no key."
        )
    found = _PROPERTY.search(error.str())
    if error.code() in _INVALID_ARGUMENT and found:
        name = given_name(found[1], config)
        near = nearest_client_option(name) if "No such" in error.str() else ""
        near = near.replace("'kafka.", f"'{prefix}")
        return f". Correct or leave out option '{prefix}{name}'.{' ' if near else ''}{near}"
    topic = "kafka.topic" if prefix == "kafka." else "the topic"
    return {
        FencedError: (
            f". Another publisher has taken over the log, or the transaction took longer than '{timeout}': do not "
            "write again with this one, recover first."
        ),
        UnavailableError: f". Check that {servers} is running and can be reached from this machine, then retry.",
        OutcomeUnknownError: ". It may have landed: throw this producer away and recover before writing again.",
        NotFoundError: f". Check {topic} and {servers}: the topic may have been deleted.",
        DataLostError: (
            ". The topic no longer holds these offsets: log.retention has passed, or the topic was recreated. "
            "Restart the reader from a snapshot."
        ),
    }.get(family, ".")
