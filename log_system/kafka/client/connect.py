"""Create all Kafka clients (producers, consumers and admin clients) from a table's ``kafka.*`` options."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from log_system.kafka.client.errors import CREDENTIAL_CODES, codes, translate
from log_system.kafka.client.process_bound import BoundConsumer, BoundProducer, ProcessBound
from log_system.kafka.client.secrets import ClientValue, redact, resolve
from log_system.kafka.client.shared_admin import SharedAdmin, Watch, forget, lend, logger
from log_system.outages import OUTAGE_SECONDS
from snapshot.errors import AlreadyExistsError, NotFoundError, TableStoreError

Setting = str | int | float | bool

#: Defaults for all clients. A user's ``kafka.*`` options override them; settings that the store requires override both.
_COMMON: Final[Mapping[str, Setting]] = {
    "client.id": "tablestore",
    "socket.connection.setup.timeout.ms": 10_000,
    # The connection to each coordinator starts with this wait: with the default, a take-over waits 60 ms for each.
    "reconnect.backoff.ms": 5,
    # A client that waits for a dead coordinator asks who has taken its place each time it has failed to connect.
    "reconnect.backoff.max.ms": 500,
}

PRODUCER_DEFAULTS: Final[Mapping[str, Setting]] = {
    "compression.type": "lz4",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    # A full queue takes 50 to 160 MB including librdkafka's overhead per message (measured with messages of 50 and 650
    # bytes). Twice the bytes are no faster, and bring a process that publishes large records to more than 600 MB.
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
    # As much as the queue holds, so that the topic's limit applies and not the client's default of a million bytes.
    "message.max.bytes": 65_536 * 1024,
    # How long librdkafka waits until it reports that a topic does not exist (default: 30 s).
    "topic.metadata.propagation.max.ms": 10_000,
    # How long the client remembers a group's coordinator that it does not use (default: 15 min). If that was restarted
    # meanwhile, the client waits for it in vain (see send_offsets), and is left behind with a thread that wakes a
    # thousand times a second. What it knows about topics expires after the same time, so it looks that up more often.
    "metadata.max.age.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 4_000,
}

_CONSUMER: Final[Mapping[str, Setting]] = {
    # The default of one second stalls a fast reader whenever its queue was briefly full.
    "fetch.queue.backoff.ms": 1,
    # These limits apply per partition. They exclude librdkafka's overhead of 300 bytes per message and, for a fetch,
    # the growth by decompression. Measured with small messages compressed ten to one: a consumer takes 80 to 180 MB for
    # one partition and 530 MB for eight; with eight times the fetch size 470 MB and 700 MB, and it is no faster.
    "fetch.message.max.bytes": 1 << 20,
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 50_000,
}

#: Options that only producers or only consumers know; other clients would log a warning about them.
_PRODUCER_ONLY: Final = re.compile(r"^(compression\.|linger\.|batch\.|queue\.buffering\.|message\.timeout|delivery\.)")
_CONSUMER_ONLY: Final = re.compile(
    r"^(fetch\.|queued\.|max\.partition\.|max\.poll\.|session\.|check\.crcs|allow\.auto)"
)

_ADMIN: Final[Mapping[str, Setting]] = {"metadata.max.age.ms": 1_000}
"""A client that is used for long looks up leaders again; by default, it would use one for 15 minutes."""
_TRANSACTIONS: Final = "__transaction_state"
_QUESTIONS_MAX: Final = 5
WAIT_SECONDS: Final = 20.0
_REQUEST_SECONDS: Final = 8.0
"""The time limit of one admin client request."""
QUEUE_WAIT_SECONDS: Final = 0.05
"""How long to wait for space in the queue of a producer, which delivery reports make."""
_FLUSH_STEP_SECONDS: Final = 1.0
COORDINATOR_SECONDS: Final = 3.0
HURRIED_SECONDS: Final = 1.0
"""How long a producer waits for the coordinator of a group before the next one looks it up: usually, and where a
connection has failed in the past minute, unless the producer before was given up so."""
_REPORTS_SECONDS_MAX: Final = 1.0
"""How long a producer that is given up may take to report what it has dropped."""
_INIT_STEP_SECONDS: Final = 0.02
_INIT_STEP_SECONDS_MAX: Final = 0.5
Handle = Producer | AdminClient | Consumer
(_FATAL,) = codes("_FATAL")
_CAUSELESS: Final = codes("_FATAL _STATE _PURGE_QUEUE _PURGE_INFLIGHT")


@dataclass(frozen=True)
class KafkaClient:
    """A factory of clients for one Kafka cluster; cheap to pickle, and connects only through the clients it creates.

    Attributes:
        config: librdkafka options without the ``kafka.`` prefix. Credentials are references (``env:``, ``file:``),
            resolved each time a client is created, or :class:`~log_system.kafka.client.secrets.Secret`.
        prefix: the prefix of option names as the user writes them, for messages.
        wait_seconds: how long the broker may take to respond.
    """

    config: Mapping[str, ClientValue]
    prefix: str = "kafka."
    wait_seconds: float = WAIT_SECONDS
    _watch: Watch = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Copy the options, so that they cannot change while a client is in use."""
        object.__setattr__(self, "config", dict(self.config))
        object.__setattr__(self, "_watch", Watch(self.config))

    def __reduce__(self) -> tuple[type[KafkaClient], tuple[Mapping[str, ClientValue], str, float]]:
        """Pickle only the options, without connection errors."""
        return KafkaClient, (self.config, self.prefix, self.wait_seconds)

    def __hash__(self) -> int:
        """Return a hash of the options, since a dict is not hashable."""
        return hash(frozenset(self.config.items()))

    @property
    def request_seconds(self) -> float:
        """The time limit of one admin client request; shorter than ``wait_seconds`` to leave time for retries."""
        return min(_REQUEST_SECONDS, self.wait_seconds)

    def within(self, seconds: float) -> KafkaClient:
        """Return this client for questions that may be left without an answer after so many seconds."""
        return replace(self, wait_seconds=min(self.wait_seconds, seconds))

    def outlasting(self) -> KafkaClient:
        """Return this client for a reader that is under way, and waits while brokers do not answer."""
        return replace(self, wait_seconds=max(self.wait_seconds, OUTAGE_SECONDS))

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers as the user specified them."""
        return str(self.config.get("bootstrap.servers", ""))

    def producer(self, transactional_id: str | None, **overrides: Setting) -> Producer:
        """Create an idempotent producer; with a transactional id, a transactional one.

        A record to a missing topic does not create it, even if the broker creates topics by
        default (``auto.create.topics.enable``): the table may have been dropped.

        Args:
            transactional_id: the publisher's id; ``init_transactions`` fences the previous producer with this id.
            overrides: librdkafka options by name, such as ``**{"transaction.timeout.ms": 60_000}``.

        Raises:
            InvalidInputError: an option is invalid, or a reference cannot be resolved.
        """
        must: dict[str, Setting] = {"enable.idempotence": True, "acks": "all", "allow.auto.create.topics": False}
        if transactional_id is not None:
            must["transactional.id"] = transactional_id
        config = self._config(PRODUCER_DEFAULTS, _CONSUMER_ONLY, {**must, **overrides})
        with kafka_errors("make a Kafka producer", self):
            return BoundProducer(config, logger=self._watch)

    def consumer(self, group_id: str, **overrides: Setting) -> Consumer:
        """Create a read-committed consumer without auto-commit and without automatic offset reset.

        A partition of a topic that does not exist returns nothing and no error: look up the topic before reading.

        Args:
            group_id: the group; offsets are committed for it only by explicit calls.
            overrides: librdkafka options by name, such as ``**{"enable.partition.eof": True}``.

        Raises:
            InvalidInputError: an option is invalid, or a reference cannot be resolved.
        """
        must: dict[str, Setting] = {
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        config = self._config(_CONSUMER, _PRODUCER_ONLY, {**must, **overrides})
        with kafka_errors("make a Kafka consumer", self):
            return BoundConsumer(config, logger=self._watch)

    def admin(self, *, shared: bool = True) -> SharedAdmin:
        """Return an admin client.

        Args:
            shared: all callers in this process with the same options share one. False for requests to coordinators: a
                client that has used a coordinator before crashes the process if that has moved (librdkafka 2.16).

        Raises:
            InvalidInputError: an option is invalid, or a reference cannot be resolved.
        """
        config = self._config({}, re.compile(f"{_PRODUCER_ONLY.pattern}|{_CONSUMER_ONLY.pattern}"), _ADMIN)
        del config["error_cb"]

        def make() -> SharedAdmin:
            return SharedAdmin(config, Watch(self.config))

        with kafka_errors("make a Kafka admin client", self):
            return lend(frozenset(config.items()), make) if shared else make()

    def check(self) -> None:
        """Check that librdkafka accepts the options, without waiting for a broker.

        Raises:
            InvalidInputError: an option is unknown or has an invalid value, or a reference cannot be resolved.
        """
        unconnected: dict[str, Setting] = {"bootstrap.servers": "", "log_level": 0}
        self.producer(None, **unconnected)
        self.consumer("tablestore-check", **unconnected).close()

    def trouble(self, handle: Producer | AdminClient | None = None) -> KafkaError | None:
        """Return the last connection error of the past minute, which may explain a timeout.

        Args:
            handle: a client created here, whose pending callbacks are served first. Consumers serve theirs on poll.
        """
        watch = handle.watch if isinstance(handle, SharedAdmin) else self._watch
        if handle is not None:
            # A fenced producer raises its fatal error on every poll; the caller already has that error.
            try:
                handle.poll(0)
            except (KafkaException, SystemError) as error:
                logger.debug("poll after an error: %s", redact(str(error), self.config))
        return watch.recent()

    @contextmanager
    def coordinator_seconds(self) -> Iterator[float]:
        """Yield how long to wait for the coordinator of a group, and note whether that was in vain."""
        hurried = self._watch.recent() is not None and not self._watch.was_hurried
        try:
            yield min(HURRIED_SECONDS if hurried else COORDINATOR_SECONDS, self.wait_seconds)
        except TimeoutError:
            self._watch.was_hurried = True
            raise
        self._watch.was_hurried = False

    def _config(
        self, defaults: Mapping[str, Setting], foreign: re.Pattern[str], must: Mapping[str, Setting]
    ) -> dict[str, Any]:
        mine = {name: value for name, value in resolve(self.config, self.prefix).items() if not foreign.match(name)}
        return {**_COMMON, **defaults, **mine, **must, "error_cb": self._watch.error}


def produce(producer: Any, *record: Any, check: Callable[[], None] | None = None, **more: Any) -> None:
    """Queue one record; wait while the producer's queue is full.

    Args:
        producer: the producer.
        record: positional arguments of its ``produce``: topic, value, key, partition and delivery callback.
        check: called after each wait; may raise to give up.
        more: keyword arguments of ``produce``.
    """
    while True:
        try:
            producer.produce(*record, **more)
        except BufferError:
            producer.poll(QUEUE_WAIT_SECONDS)
            if check is not None:
                check()
        else:
            return


def flush(producer: Any, seconds: float) -> None:
    """Wait until the broker has acknowledged all queued records, or has acknowledged none for ``seconds``.

    The delivery callbacks or the commit of the transaction show whether the broker has them all.
    """
    left, since = len(producer), time.monotonic()
    while left and time.monotonic() - since < seconds:
        now = producer.flush(min(_FLUSH_STEP_SECONDS, seconds))
        if now != left:
            left, since = now, time.monotonic()


def discard(producer: Any) -> None:
    """Drop what a producer has queued, without waiting for the broker; the producer must not be used afterwards.

    The delivery reports of dropped records hold the producer, its threads and its connections until they are served.
    In a process that was forked, the producer is left alone: its threads do not answer.
    """
    if isinstance(producer, ProcessBound) and producer.is_elsewhere:
        return
    producer.purge()
    end = time.monotonic() + _REPORTS_SECONDS_MAX
    while True:
        # A fenced producer raises its fatal error here, once; the caller has that error already.
        with suppress(KafkaException, SystemError):
            producer.poll(QUEUE_WAIT_SECONDS if len(producer) else 0)
        if not len(producer) or time.monotonic() > end:
            return


@contextmanager
def discarding(producer: Producer) -> Iterator[Producer]:
    """Use a producer once, and discard it however that ends."""
    try:
        yield producer
    finally:
        discard(producer)


def take_over(producer: Producer, seconds: float) -> None:
    """Make a producer the owner of its transactional id; fence the previous owner and abort its open transaction.

    The client looks up the id's coordinator immediately and, if it is not connected to any broker, only again half a
    second later. So connect first. The first response may come over a bootstrap connection, which closes as soon as the
    brokers are known; only a response from a broker with an id proves that the client is connected to a broker.
    ``seconds`` is the time limit of each request.

    Raises:
        KafkaException: the broker does not respond, or rejects the request.
    """
    for _ in range(_QUESTIONS_MAX):
        # Do not ask for a topic of the log: if it was deleted, a broker with auto-creation would create it again.
        if producer.list_topics(_TRANSACTIONS, seconds).orig_broker_id >= 0:
            break
    _init_transactions(producer, seconds)


def _init_transactions(producer: Producer, seconds: float) -> None:
    """Get a producer id for a transactional id, within a time limit.

    While the broker aborts the previous owner's transaction, which takes milliseconds, it answers
    CONCURRENT_TRANSACTIONS, and the client asks again only after half a second. A call that has timed out may be
    repeated: the client then asks at once, unless a request is under way.
    """
    end, step = time.monotonic() + seconds, _INIT_STEP_SECONDS
    while True:
        left = end - time.monotonic()
        try:
            producer.init_transactions(max(0.001, min(step, left)))
        except KafkaException as error:
            if left <= step or not error.args[0].retriable():
                raise
            step = min(2 * step, _INIT_STEP_SECONDS_MAX)
        else:
            return


def _cause(error: Exception, handle: Handle | None) -> KafkaException | TimeoutError | BufferError:
    """Return the cause of an error of the client, such as being fenced.

    The client hides the cause of an error in several ways. ``produce`` reports only that there is one. And the client
    sets its exception before it calls pending delivery callbacks, so Python may raise a ``SystemError``: either because
    a callback "returned a result with an exception set", or because a callback cleared the exception and the client
    returns an error without one. And after a transaction has failed, such as for lack of rights, it reports only that
    the records were purged, or that no more can be produced. A transactional producer names the cause when it is asked
    to begin a transaction. And a consumer that lacks rights on its group waits until time is over; a poll gives the
    cause.
    """
    if not isinstance(error, SystemError | KafkaException):
        assert isinstance(error, TimeoutError | BufferError)
        return error
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__ or cause.__context__
    found = cause or KafkaException(KafkaError(_FATAL, str(error)))
    if found.args[0].code() in _CAUSELESS and isinstance(handle, Producer):
        try:
            handle.begin_transaction()
        except KafkaException as named:
            return named if named.args[0].fatal() or named.args[0].txn_requires_abort() else found
    if found.args[0].code() == KafkaError._TIMED_OUT and isinstance(handle, Consumer):  # noqa: SLF001 - no public name
        event = handle.poll(0)
        refused = None if event is None else event.error()
        return KafkaException(refused) if refused is not None and refused.code() in CREDENTIAL_CODES else found
    return found


@contextmanager
def kafka_errors(
    doing: str,
    client: KafkaClient | None = None,
    *,
    handle: Handle | None = None,
    indefinite: bool = False,
) -> Iterator[None]:
    """Translate Kafka's errors to this package's exceptions; also works as a decorator.

    Args:
        doing: what is attempted, for the message.
        client: the client whose options and connection errors explain a failure; without it nothing can be masked.
        handle: the client in use, to receive its last connection errors and the cause of an error that hides it.
        indefinite: without a response the outcome is in doubt (ending a transaction, sending records outside of one).

    Raises:
        TableStoreError: see :func:`~log_system.kafka.client.errors.translate`.
    """
    try:
        yield
    except (KafkaException, TimeoutError, BufferError, SystemError) as raised:
        # A variable for the new error would make a cycle with its traceback, whose frames hold clients: they would keep
        # their threads and connections until Python collects cycles.
        raise _ours(raised, doing, client, handle, indefinite=indefinite)  # noqa: B904 - it has its cause


def _ours(
    raised: Exception, doing: str, client: KafkaClient | None, handle: Handle | None, *, indefinite: bool
) -> TableStoreError:
    """Return the error to raise for an error of the client, with its cause."""
    error = _cause(raised, handle)
    _release_frames(raised)
    config = client.config if client else {}
    served = None if isinstance(handle, Consumer) else handle
    trouble = client.trouble(served) if client else None
    prefix = client.prefix if client else "kafka."
    ours = translate(error, doing, indefinite=indefinite, config=config, trouble=trouble, prefix=prefix)
    # A traceback prints the cause too, so omit a cause that contains a credential.
    shown = str(error)
    ours.__cause__ = error if redact(shown, config) == shown else None
    if isinstance(handle, SharedAdmin) and not isinstance(ours, NotFoundError | AlreadyExistsError):
        forget(handle)
    return ours


def _release_frames(error: BaseException) -> None:
    """Release the frames of an error of the client, and the errors that were handled when it was raised.

    If delivery callbacks run while an exception is set, the client holds on to that exception forever. Its frames, and
    those of the other errors, hold clients, whose threads and connections would stay until the process ends.
    """
    each: BaseException | None = error
    while each is not None:
        led_to_it = each.__cause__ or (each.__context__ if isinstance(each, SystemError) else None)
        each.__traceback__ = each.__context__ = None
        each = led_to_it


def send_offsets(client: KafkaClient, producer: Any, offsets: Sequence[TopicPartition], group: Any) -> None:
    """Move a group's offsets within the producer's transaction.

    A producer waits in vain for a coordinator that has died, or that it used before the cluster was without it, even if
    that broker is back (librdkafka #5511), whatever timeout it was given. So the call runs in a thread, which is
    abandoned together with its producer after a while: the next producer looks the coordinator up.

    Raises:
        TimeoutError: the broker did not respond; discard the producer.
        KafkaException: the broker rejected the request.
    """
    failed: list[BaseException] = []
    with client.coordinator_seconds() as seconds:

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(list(offsets), group, seconds)
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                failed.append(error)

        thread = threading.Thread(target=send, name="send-offsets", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            msg = f"the group coordinator did not take the offsets within {seconds:.0f} s"
            raise TimeoutError(msg)
    if failed:
        raise failed.pop()
