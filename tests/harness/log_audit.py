"""verify() and repair() of a table that was opened without Spark."""

from __future__ import annotations

from functools import partial

from log_system.base import LogPublisher
from log_system.report import Progress, RepairReport, Report
from tablestore.context import TableContext
from tablestore.write.publish import recover


def verify(table: TableContext, progress: Progress | None = None) -> Report:
    """Compare the log with the table."""
    return table.log.verify(progress)


def repair(table: TableContext, publisher: LogPublisher | None, progress: Progress | None = None) -> RepairReport:
    """Repair the log with a publisher."""
    return table.log.repair(publisher, partial(recover, table, publisher), progress)


def repair_anew(table: TableContext) -> RepairReport:
    """Repair the log as another process does, with a publisher of its own."""
    publisher = table.log.publisher()
    assert publisher is not None
    try:
        return repair(table, publisher)
    finally:
        publisher.discard()
