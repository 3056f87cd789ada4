"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 500.0
"""How long tests wait for what must happen, however busy the machine is; not a measure of how fast it should be."""


def until(seen: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until a function returns something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, "it was never seen"
        time.sleep(0.02)
    return found
