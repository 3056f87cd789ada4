"""Sessions of a Spark Connect server."""

from __future__ import annotations

import importlib
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from log_system.jars import waiting
from snapshot.arrow_slices import unsliced
from snapshot.errors import InvalidInputError, TableStoreError, UnavailableError

_WAIT_S: Final = 30.0
_DELTA: Final = "spark.sql.catalog.spark_catalog"
_CHECKED: Final = "error string, is_sent boolean"
AGAIN: Final = "open the table again, in a session that runs"
"""What to do where a session was stopped, for ``running``."""
_without_streams: set[str] = set()
"""Ids of sessions whose server has this package from ``addArtifacts`` only."""


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def running(spark: SparkSession, who: str, remedy: str) -> SparkSession:
    """Return a session, which must not have been stopped: PySpark's own errors do not say so.

    For the message, ``who`` is what works on it, and ``remedy`` what to do if it was stopped.

    Raises:
        InvalidInputError: it was stopped.
    """
    # The sessions of Spark Connect alone have a public name for it.
    is_stopped = getattr(spark, "is_stopped", None) if is_remote(spark) else spark.sparkContext._jsc is None  # noqa: SLF001
    if is_stopped:
        msg = f"{who}: expected a Spark session that runs, got one that was stopped: {remedy}."
        raise InvalidInputError(msg)
    return spark


def arrow_frame(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows as a Spark frame, with the types of a schema or those that fit Arrow's.

    Spark's ``createDataFrame`` takes no Arrow table without rows over Spark Connect, or if a column is nested, and no
    slices of maps.
    """
    if rows.num_rows == 0:
        return spark.createDataFrame([], schema or from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
    return spark.createDataFrame(pa.Table.from_batches(map(unsliced, rows.to_batches())), schema)


def skip_accumulators(spark: SparkSession) -> None:
    """Skip the accumulators of Python workers among the answers to a session's commands; PySpark has read them by then.

    Each process that plans a Python data source sends those of the profiler. Commands whose answers are read one by
    one, such as the run of a declarative pipeline, take them for unknown answers and fail (Spark 4.2.0).
    """
    client = spark.client
    answers = client._execute_and_fetch_as_iterator  # noqa: SLF001 - PySpark has no other name for it
    if hasattr(answers, "__wrapped__"):
        return

    @wraps(answers)
    def others(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for answer in answers(*args, **kwargs):
            if getattr(answer, "name", None) != "__python_accumulator__":
                yield answer

    client._execute_and_fetch_as_iterator = others  # type: ignore[method-assign]  # noqa: SLF001 - as above


@contextmanager
def micro_batch(batch: DataFrame) -> Iterator[None]:
    """Run the function of ``foreachBatch`` on a micro-batch.

    Spark shows where an exception was raised, within its own; of an error of the store, only the message matters.

    At the end, let the micro-batch go without asking the server of Spark Connect to forget it. The server forgets it by
    itself. Spark 4.2.0 asks when the frame is collected, by a request that sometimes gets no answer, for which the
    process then waits forever, and the query with it.
    """
    try:
        yield
    except TableStoreError as error:
        raise error.with_traceback(None) from None
    finally:
        if is_remote(batch.sparkSession):
            plan: Any = batch._plan  # noqa: SLF001 - Spark has no public way
            plan._relation_id = None  # noqa: SLF001


def remote_session(url: str, app_name: str, config: Mapping[str, str]) -> SparkSession:
    """Return a session of the Spark Connect server at a URL: a new one, or the one that this process has.

    Args:
        url: ``sc://host:port``, with further parameters as Spark takes them.
        app_name: name shown by Spark.
        config: settings that Spark can change at runtime.

    Raises:
        InvalidInputError: the URL is not one of a Connect server, the server refuses the token, or it has no Delta.
        UnavailableError: no server answers, or packages for Connect are missing here.
    """
    if not url.startswith("sc://"):
        msg = f"remote: expected the URL of a Spark Connect server, such as 'sc://host:15002', got {_shown(url)!r}."
        raise InvalidInputError(msg)
    _wait_for(url)
    with waiting("Connecting to Spark ..."):
        spark: SparkSession = SparkSession.builder.appName(app_name).remote(url).config(map=dict(config)).getOrCreate()
    if "delta" not in (spark.conf.get(_DELTA, "") or ""):
        msg = (
            f"{_shown(url)}: expected a Spark Connect server with Delta ({_DELTA}=org.apache.spark.sql.delta.catalog."
            "DeltaCatalog), got one without. Start the server as docs/guide/connect.md shows."
        )
        raise InvalidInputError(msg)
    return spark


def check_server(spark: SparkSession) -> None:
    """Check that the Python of a Connect server can import this package, which it runs in data sources and tasks.

    Raises:
        UnavailableError: it cannot.
    """

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        error, is_sent = "", False
        try:
            module = importlib.import_module("tablestore.datasource")
            is_sent = str(module.__file__).startswith(SparkFiles.getRootDirectory())
        except ImportError as missing:
            error = str(missing)
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"error": [error], "is_sent": [is_sent]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(check, _CHECKED).collect()
    if row.error:
        msg = (
            f"the Spark Connect server's Python cannot import this package: {row.error}. Install tablestore, in the "
            "version of this client, in the environment of the server's PYSPARK_PYTHON; see docs/guide/connect.md."
        )
        raise UnavailableError(msg)
    if row.is_sent:
        _without_streams.add(_session_id(spark))


def check_streams(spark: SparkSession) -> None:
    """Check that a session's server can run streams of this package.

    Raises:
        InvalidInputError: the package was sent by ``addArtifacts``, which Spark gives to tasks and batches only.
    """
    if is_remote(spark) and _session_id(spark) in _without_streams:
        msg = (
            "stream: the Spark Connect server has this package from spark.addArtifacts, which Spark does not give to "
            "the processes that plan and write streams. Install tablestore in the environment of the server's "
            "PYSPARK_PYTHON; see docs/guide/connect.md."
        )
        raise InvalidInputError(msg)


def _session_id(spark: Any) -> str:
    return str(spark.session_id)


def _wait_for(url: str) -> None:
    """Wait until a server answers. Spark's own client tries for minutes, without a word."""
    try:
        grpc = importlib.import_module("grpc")
        client = importlib.import_module("pyspark.sql.connect.client")
    except ImportError as error:
        msg = f"remote: packages for Spark Connect are missing: {error}. Install 'tablestore[connect]'."
        raise UnavailableError(msg) from error
    try:
        channel = client.DefaultChannelBuilder(url).toChannel()
    except ValueError:
        # Spark's own message shows parameters, of which one may be a token.
        msg = f"remote: expected a URL such as 'sc://host:15002/;token=...', got one for {_shown(url)!r}."
        raise InvalidInputError(msg) from None
    with channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_WAIT_S)
            _check_token(url, channel, grpc)
        except grpc.FutureTimeoutError as error:
            msg = (
                f"{_shown(url)}: no Spark Connect server answered within {_WAIT_S:.0f} s. Check the address, and that "
                "the server is running. With a token, Spark uses TLS for any host but 'localhost', so the address must "
                "be that of a proxy that serves TLS."
            )
            raise UnavailableError(msg) from error


def _check_token(url: str, channel: Any, grpc: Any) -> None:
    """Check that a server accepts the client's token: by a request that does nothing, before there is a session.

    PySpark would keep a session with the wrong token, and return it again for the right one.
    """
    proto = importlib.import_module("pyspark.sql.connect.proto")
    nothing = proto.ReleaseSessionRequest(session_id=str(uuid.uuid4()))
    try:
        proto.SparkConnectServiceStub(channel).ReleaseSession(nothing, timeout=_WAIT_S)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:
            return
        msg = (
            f"{_shown(url)}: the Spark Connect server refused the token: {error.details()}. Give that of its setting "
            "spark.connect.authenticate.token: as 'sc://host:15002/;token=...', or in the environment variable "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN."
        )
        raise InvalidInputError(msg) from None


def _shown(url: str) -> str:
    """Return a URL without its parameters, which may hold a token."""
    return re.split("[/;]", url.removeprefix("sc://"), maxsplit=1)[0]
