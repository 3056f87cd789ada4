"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(seen: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until a function returns something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, "it was never seen"
        time.sleep(0.02)
    return found
