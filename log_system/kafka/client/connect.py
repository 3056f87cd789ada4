"""The one door to Kafka: makes producers, consumers and admin clients from a table's ``kafka.*`` options."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from log_system.kafka.client.errors import codes, translate
from log_system.kafka.client.secrets import ClientValue, redact, resolve

__all__ = ["KafkaClient", "kafka_errors", "translate"]

logger: Final = logging.getLogger("tablestore.kafka")
# Where a program has set up no logging, Python writes warnings to the terminal; what matters of these is in the errors.
logger.addHandler(logging.NullHandler())

Setting = str | int | float | bool

#: For every kind of client. A user's ``kafka.*`` options come after these, what the store must have comes last.
_COMMON: Final[Mapping[str, Setting]] = {
    "client.id": "tablestore",
    "socket.connection.setup.timeout.ms": 10_000,
    # Each coordinator is a connection that begins with this wait: by default a take-over is 60 ms of waiting for each.
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 2_000,
}

PRODUCER_DEFAULTS: Final[Mapping[str, Setting]] = {
    "compression.type": "lz4",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    # A full queue takes 50 to 160 MB with what librdkafka keeps beside each message (measured: 50 and 650 bytes each).
    # Twice the bytes are no faster, and take a process that publishes large records over 600 MB.
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
    # What the topic accepts decides, not the client, whose own limit is a million bytes: as much as the queue holds.
    "message.max.bytes": 65_536 * 1024,
    # librdkafka waits this long (by default 30 s) before it believes that a topic does not exist.
    "topic.metadata.propagation.max.ms": 10_000,
}

_CONSUMER: Final[Mapping[str, Setting]] = {
    # The default of one second stalls a fast reader whenever its queue was full for a moment.
    "fetch.queue.backoff.ms": 1,
    # These hold for each partition, and count neither librdkafka's own 300 bytes a message nor, in a fetch, what
    # decompression adds. Measured with small messages compressed ten to one: 80 to 180 MB for one partition of a
    # consumer, 530 MB for eight; at eight times the fetch size 470 MB and 700 MB, and no faster.
    "fetch.message.max.bytes": 1 << 20,
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 50_000,
}

#: Options that a consumer or an admin client does not know and would warn about, or the other way round.
_PRODUCER_ONLY: Final = re.compile(r"^(compression\.|linger\.|batch\.|queue\.buffering\.|message\.timeout|delivery\.)")
_CONSUMER_ONLY: Final = re.compile(
    r"^(fetch\.|queued\.|max\.partition\.|max\.poll\.|session\.|check\.crcs|allow\.auto)"
)

_ALL_BROKERS_DOWN: Final = codes("_ALL_BROKERS_DOWN")

_VARYING: Final = re.compile(r", \d+ identical error\(s\) suppressed|\d+")
"""What differs between log lines that say the same."""
_TRANSACTIONS: Final = "__transaction_state"
_QUESTIONS_MAX: Final = 5
WAIT_SECONDS: Final = 20.0
_REQUEST_SECONDS: Final = 8.0
"""How long one request of an admin client may take."""
_FLUSH_STEP_SECONDS: Final = 1.0
_TROUBLE_AGE_SECONDS_MAX: Final = 60.0


@dataclass
class _Watch:
    """Hears what librdkafka says on the side: log lines, and connection errors that no call returns."""

    config: Mapping[str, ClientValue]
    trouble: KafkaError | None = None
    trouble_at: float = 0.0
    _last_line: str = ""

    def log(self, level: int, text: str, *args: object) -> None:
        """Pass a log line of librdkafka on; what repeats itself or is tried again anyway goes to the debug level."""
        line = redact(text % args if args else text, self.config)
        same = _VARYING.sub("", line)
        minor = same == self._last_line or line.endswith("retrying")
        self._last_line = same
        logger.log(logging.DEBUG if minor else level, "%s", line)

    def error(self, error: KafkaError) -> None:
        """Remember a connection error; that all brokers are down only follows from the errors of each."""
        if error.code() not in _ALL_BROKERS_DOWN or self.trouble is None:
            self.trouble, self.trouble_at = error, time.monotonic()

    def recent(self) -> KafkaError | None:
        """Return the last connection error if it is young enough to explain a failure of now."""
        young = time.monotonic() - self.trouble_at < _TROUBLE_AGE_SECONDS_MAX
        return self.trouble if young else None


@dataclass(frozen=True)
class KafkaClient:
    """How to reach one Kafka cluster; cheap to pickle, opens nothing until asked.

    Attributes:
        config: librdkafka options without the ``kafka.`` prefix. Credentials are references (``env:``, ``file:``),
            resolved each time a client is made, or :class:`~log_system.kafka.client.secrets.Secret`.
        prefix: what the user writes before the names of these options; for messages.
        wait_seconds: how long the broker may leave something unanswered.
    """

    config: Mapping[str, ClientValue]
    prefix: str = "kafka."
    wait_seconds: float = WAIT_SECONDS
    _watch: _Watch = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take a copy, so that the options cannot change under a running client."""
        object.__setattr__(self, "config", dict(self.config))
        object.__setattr__(self, "_watch", _Watch(self.config))

    def __reduce__(self) -> tuple[type[KafkaClient], tuple[Mapping[str, ClientValue], str, float]]:
        """Pickle the options only."""
        return KafkaClient, (self.config, self.prefix, self.wait_seconds)

    def __hash__(self) -> int:
        """Hash by the options, which a dict does not do by itself."""
        return hash(frozenset(self.config.items()))

    @property
    def request_seconds(self) -> float:
        """How long one request of an admin client may take; after a few of them somebody gives up."""
        return min(_REQUEST_SECONDS, self.wait_seconds)

    @property
    def bootstrap_servers(self) -> str:
        """The address, as the user gave it."""
        return str(self.config.get("bootstrap.servers", ""))

    def producer(self, transactional_id: str | None, **overrides: Setting) -> Producer:
        """Make an idempotent producer; with an id, a transactional one.

        Where the broker's ``auto.create.topics.enable`` is on, the first record to a missing topic makes it anew, with
        the wrong number of partitions: check the topic before publishing.

        Args:
            transactional_id: who publishes; taking it over (``init_transactions``) fences the producer before.
            overrides: librdkafka options by name, such as ``**{"transaction.timeout.ms": 60_000}``.

        Raises:
            InvalidInputError: an option is wrong, or a reference leads nowhere.
        """
        must: dict[str, Setting] = {"enable.idempotence": True, "acks": "all"}
        if transactional_id is not None:
            must["transactional.id"] = transactional_id
        config = self._config(PRODUCER_DEFAULTS, _CONSUMER_ONLY, {**must, **overrides})
        with kafka_errors("make a Kafka producer", self):
            return Producer(config, logger=self._watch)

    def consumer(self, group_id: str, **overrides: Setting) -> Consumer:
        """Make a consumer that sees committed transactions only, stores no offsets and never jumps to another offset.

        A partition of a topic that does not exist is silent, without an error: look the topic up before reading.

        Args:
            group_id: the group; nothing is committed for it unless asked.
            overrides: librdkafka options by name, such as ``**{"enable.partition.eof": True}``.

        Raises:
            InvalidInputError: an option is wrong, or a reference leads nowhere.
        """
        must: dict[str, Setting] = {
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        config = self._config(_CONSUMER, _PRODUCER_ONLY, {**must, **overrides})
        with kafka_errors("make a Kafka consumer", self):
            return Consumer(config, logger=self._watch)

    def admin(self) -> AdminClient:
        """Make an admin client.

        Raises:
            InvalidInputError: an option is wrong, or a reference leads nowhere.
        """
        config = self._config({}, re.compile(f"{_PRODUCER_ONLY.pattern}|{_CONSUMER_ONLY.pattern}"), {})
        with kafka_errors("make a Kafka admin client", self):
            return AdminClient(config, logger=self._watch)

    def check(self) -> None:
        """Let librdkafka judge the options, without waiting for a broker.

        Raises:
            InvalidInputError: an option is unknown or has a wrong value, or a reference leads nowhere.
        """
        self.producer(None)
        self.consumer("tablestore-check").close()

    def trouble(self, handle: Producer | AdminClient | None = None) -> KafkaError | None:
        """Return the last connection error of the past minute: the reason behind a time-out.

        Args:
            handle: a client made here, whose pending callbacks are served first. Consumers serve theirs when they poll.
        """
        if handle is not None:
            # A fenced producer answers every poll with its fatal error, which the caller already has.
            try:
                handle.poll(0)
            except KafkaException as error:
                logger.debug("poll after an error: %s", redact(str(error), self.config))
        return self._watch.recent()

    def _config(
        self, defaults: Mapping[str, Setting], foreign: re.Pattern[str], must: Mapping[str, Setting]
    ) -> dict[str, Any]:
        mine = {name: value for name, value in resolve(self.config, self.prefix).items() if not foreign.match(name)}
        return {**_COMMON, **defaults, **mine, **must, "error_cb": self._watch.error}


def flush(producer: Any, seconds: float) -> None:
    """Wait until the broker has every queued record, or has taken none of them for so long.

    Whether it has them, the callbacks tell, or the end of the transaction.
    """
    left, since = len(producer), time.monotonic()
    while left and time.monotonic() - since < seconds:
        now = producer.flush(min(_FLUSH_STEP_SECONDS, seconds))
        if now != left:
            left, since = now, time.monotonic()


def take_over(producer: Producer, seconds: float) -> None:
    """Make a producer the owner of its transactional id: the owner before is fenced, and what it has open is aborted.

    The client looks for the id's coordinator at once and, where it is connected to no broker, again half a second
    later. So it is connected first. A first answer may come by an address of ``bootstrap.servers``, a connection that
    ends as soon as the brokers behind it are known; only an answer of a broker with an id says that one is connected.

    Args:
        producer: a transactional producer that is new.
        seconds: how long each question may take.

    Raises:
        KafkaException: the broker does not answer or refuses.
    """
    for _ in range(_QUESTIONS_MAX):
        # Asking for a topic of the log would make it anew where it was deleted and the broker makes topics by itself.
        if producer.list_topics(_TRANSACTIONS, seconds).orig_broker_id >= 0:
            break
    producer.init_transactions(seconds)


def _fatal_behind(error: SystemError) -> KafkaException:
    """Find the fatal error, such as being fenced, behind a ``SystemError``.

    The client sets a fatal error before it calls the delivery callbacks that wait. Python complains that a callback
    "returned a result with an exception set", or a callback swallows the error and the client returns without one.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__ or cause.__context__
    return cause or KafkaException(KafkaError(KafkaError._FATAL, str(error)))  # noqa: SLF001 - it has no public name


@contextmanager
def kafka_errors(
    doing: str,
    client: KafkaClient | None = None,
    *,
    handle: Producer | AdminClient | None = None,
    indefinite: bool = False,
) -> Iterator[None]:
    """Raise our own errors in place of Kafka's; also works as a decorator.

    Args:
        doing: what is tried, for the message.
        client: whose options and connection errors explain a failure; without it nothing can be masked.
        handle: the producer or admin client in use, to hear its last connection errors.
        indefinite: no answer may mean that it landed (ending a transaction, sending records outside of one).

    Raises:
        TableStoreError: see :func:`~log_system.kafka.client.errors.translate`.
    """
    try:
        yield
    except (KafkaException, TimeoutError, BufferError, SystemError) as raised:
        error = _fatal_behind(raised) if isinstance(raised, SystemError) else raised
        config = client.config if client else {}
        trouble = client.trouble(handle) if client else None
        prefix = client.prefix if client else "kafka."
        ours = translate(error, doing, indefinite=indefinite, config=config, trouble=trouble, prefix=prefix)
        shown = str(error)
        # A traceback prints the cause too, so a cause that names a credential is left out.
        if redact(shown, config) != shown:
            raise ours from None
        raise ours from error


def send_offsets(producer: Any, offsets: Sequence[TopicPartition], group: Any, seconds: float) -> None:
    """Move a group's offsets within the producer's transaction.

    Where the broker restarts at this moment, librdkafka may wait for ever, whatever time-out it was given. So the call
    is made in a thread that is left behind, with its producer, when the time is over.

    Raises:
        TimeoutError: no answer came; throw the producer away.
        KafkaException: the broker refused.
    """
    failed: list[BaseException] = []

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
        raise failed[0]
