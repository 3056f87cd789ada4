"""Admin clients that behave as those of other clusters do."""

from __future__ import annotations

import pytest

from log_system.kafka.client import connect, shared_admin
from log_system.kafka.client.shared_admin import SharedAdmin


def use_admin(monkeypatch: pytest.MonkeyPatch, kind: type[SharedAdmin]) -> None:
    """Let all look-ups use admin clients of this kind, and none that is open already."""
    monkeypatch.setattr(connect, "SharedAdmin", kind)
    monkeypatch.setattr(shared_admin, "_open", {})
