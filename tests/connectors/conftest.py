"""Fixtures of the connectors' tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.connectors.harness.lab import Lab
from tests.connectors.harness.wire import Wire


@pytest.fixture
def lab(wire: Wire) -> Lab:
    return Lab(wire)


@pytest.fixture
def made(wire: Wire, topic: Callable[[], str]) -> Callable[..., str]:
    """Return a factory of topics that are there."""
    return lambda partitions=1, **config: wire.make(topic(), partitions, **config)
