"""Machines whose clocks are wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def clock(ahead: float) -> Iterator[None]:
    """Let this process be on a machine whose clock is ahead by some seconds."""
    real = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + ahead)
        patch.setattr(time, "time_ns", lambda: int((real() + ahead) * 1e9))
        yield
