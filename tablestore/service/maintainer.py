"""Compacts and expires one table in its own thread, so that publishing does not wait for a long compaction."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

from snapshot.errors import NotFoundError, TableReplacedError
from tablestore.service.attempts import Attempts, Schedule
from tablestore.service.served_table import ServedTable
from tablestore.write.metrics import Observer


class TableMaintainer:
    """Maintains one table as its options say, in one thread. Any number of maintainers may maintain a table."""

    def __init__(self, path: str, options: Mapping[str, object], schedule: Schedule, observer: Observer | None) -> None:
        """Maintain the table at ``path``; nothing is opened yet.

        Args:
            path: the table's folder.
            options: Kafka client options that are not stored with the table.
            schedule: how often to check whether compaction or expiry is due.
            observer: told of each compaction and expiry.
        """
        self.attempts = Attempts()
        self._path = path
        self._schedule = schedule
        self._table = ServedTable(path, options, observer)

    def run(self, stop: Event) -> None:
        """Maintain the table until ``stop`` is set. Errors are logged, kept in ``attempts``, and tried again."""
        while not stop.wait(self._schedule.retry if self.attempts.error else self._schedule.maintain):
            try:
                self.maintain()
                self.attempts = self.attempts.succeeded()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is shown and tried again
                if isinstance(error, NotFoundError | TableReplacedError):
                    self._table.close()
                self.attempts = self.attempts.failed(error, f"table {self._path}: maintenance")
        self._table.close()

    def maintain(self) -> None:
        """Compact and expire what is due.

        Raises:
            TableStoreError: one of them failed; the others ran.
        """
        handle = self._table.opened()
        handle.table.check_same()
        failed: list[Exception] = []
        with handle.lock:
            handle.renew()
            for work in handle.maintenance().values():
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - the others do not depend on it
                    failed.append(error)
        if failed:
            raise failed[0]
