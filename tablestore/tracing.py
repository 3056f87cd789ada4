"""OpenTelemetry spans of what a table does; nothing is imported before tracing is switched on."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from snapshot.errors import InvalidInputError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

EXPORTER = "OTEL_TRACES_EXPORTER"
"""The environment variable that names the exporter, as in OpenTelemetry's own configuration."""
_tracer: Tracer | None = None


def trace(provider: TracerProvider | None = None) -> None:
    """Record an OpenTelemetry span of each write, commit, publish, compaction and expiry of this process.

    A span has the attributes ``tablestore.table`` (the folder), ``tablestore.snapshot`` and ``tablestore.rows``, and
    the error of an operation that failed. Spans of commit and publish are children of the write's. Spark's tasks record
    none.

    Args:
        provider: creates the spans. None for the global provider; if the program has set none, the exporter in
            ``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``) gets them.

    Raises:
        InvalidInputError: OpenTelemetry or the exporter is not installed.
    """
    global _tracer  # noqa: PLW0603 - a process has one tracer, as in OpenTelemetry itself
    try:
        from opentelemetry import trace as api  # noqa: PLC0415 - an extra of the package
    except ImportError as error:
        msg = "tracing needs the packages opentelemetry-api and opentelemetry-sdk: pip install tablestore[otel]."
        raise InvalidInputError(msg) from error
    if provider is None and isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        api.set_tracer_provider(_provider(os.environ.get(EXPORTER, "otlp")))
    _tracer = api.get_tracer("tablestore", tracer_provider=provider)


def stop_tracing() -> None:
    """Record no further spans."""
    global _tracer  # noqa: PLW0603 - as above
    _tracer = None


@contextmanager
def span(name: str, table: str) -> Iterator[Span | None]:
    """Record the block as span ``tablestore NAME``, with its error if it fails; yield None if tracing is off."""
    if _tracer is None:
        yield None
        return
    with _tracer.start_as_current_span(f"tablestore {name}", attributes={"tablestore.table": table}) as found:
        yield found


def _provider(exporter: str) -> TracerProvider:
    """Return a provider whose spans an exporter gets.

    Raises:
        InvalidInputError: it is not installed.
    """
    found = list(importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=exporter))
    try:
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra of the package
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

        make: Any = found[0].load() if found else None
    except ImportError as error:
        msg = f"tracing needs a package that is not installed ({error}): pip install tablestore[otel]."
        raise InvalidInputError(msg) from error
    if make is None:
        msg = (
            f"{EXPORTER}: expected the name of an installed exporter, got {exporter!r}. For 'otlp', install "
            "opentelemetry-exporter-otlp; or set it to 'console'."
        )
        raise InvalidInputError(msg)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(make()))
    return provider
