"""What the product itself logs, without the lines of librdkafka, which other clients of the process add at any time."""

from __future__ import annotations

import pytest


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of the product's own logger."""
    return [record.getMessage() for record in caplog.records if record.name == "tablestore"]
