"""A committed snapshot that the log cannot hold, as older versions could make: what is said, and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from log_system.formats import FORMATS
from log_system.local_kafka.owned import LocalKafka
from tablestore import create_local
from tablestore.write.publish import PublishPendingError
from tests.faults.test_far_times import FIRST_DAY, SCHEMA, row


@contextmanager
def unchecked() -> Iterator[None]:
    """Commit what older versions did not refuse."""
    form = FORMATS["json"]
    check = form.check
    object.__setattr__(form, "check", lambda rows: None)
    try:
        yield
    finally:
        object.__setattr__(form, "check", check)


def test_a_copy_is_the_way_out_of_a_log_that_cannot_go_on(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    def made(name: str) -> object:
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
        return create_local(tmp_path / name, SCHEMA, primary_key=["id"], log_system="kafka", options=options)

    stuck = made("stuck")
    stuck.write(row(1))
    with unchecked(), pytest.raises(PublishPendingError, match="snapshot 2 is committed but not yet in the log"):
        stuck.write(row(2, day=FIRST_DAY))
    with pytest.raises(PublishPendingError, match="snapshot 3 is committed but not yet in the log"):
        stuck.write(row(3))
    repaired = stuck.log.repair()
    assert not repaired.ok
    assert "Not everything could be published" in str(repaired)
    assert "column 'd': the date -5877641-06-23 cannot be written as JSON" in str(repaired)
    with pytest.raises(PublishPendingError):
        stuck.delete("id = 2")
    fresh = made("fresh")
    fresh.write(stuck.to_arrow())
    assert fresh.count() == stuck.count() == 2
    assert fresh.verify().ok
    fresh.write(row(4))
    assert fresh.verify().ok
    stuck.close()
    fresh.close()
