"""Compares one table's log with the table while both grow: new snapshots at once, the whole log periodically."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Event

from log_system.gate import limited
from log_system.kafka.client.consumers import CONSUMERS
from log_system.kafka.client.secrets import ClientValue
from log_system.report import Compared, Difference, Report
from snapshot.errors import CorruptedError, DataLostError, NotFoundError, TableReplacedError
from tablestore.context import TableContext
from tablestore.service.attempts import Attempts, Schedule
from tablestore.service.verify_position import Pass, Verified, VerifiedFile

logger = logging.getLogger("tablestore")
_STEP_ROWS = 200_000
_STEP_SNAPSHOTS = 1_000
"""One step compares up to this much, or one snapshot that is larger; the position is stored after each step."""
_AGAIN_MAX = 20
"""Maximum number of snapshots with differences that are compared again in one round."""


class _StoppedError(Exception):
    """The service stops."""


class Throttle:
    """Limits how many records per second the verifiers of a service read, all together."""

    def __init__(self, per_second: float | None) -> None:
        """Limit to ``per_second`` records; None for no limit."""
        self._per_second = per_second
        self._lock = threading.Lock()
        self._free = 0.0

    def wait(self, records: int, stop: Event) -> None:
        """Wait until so many records may have been read; raise `_StoppedError` if ``stop`` is set."""
        if stop.is_set():
            raise _StoppedError
        if self._per_second is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + records / self._per_second
            until = self._free
        if stop.wait(max(0.0, until - now)):
            raise _StoppedError


@dataclass(frozen=True)
class VerifyState(Attempts):
    """How the comparison of a table's log with the table stands.

    Attributes:
        snapshot: log and table were compared up to this snapshot; None before the first comparison.
        differences: the differences that are known.
        count: their number, including those that are not kept.
        running: whether a comparison is under way.
        whole_snapshot: how far the comparison of the whole log that is under way has come; None if there is none.
        whole_ms: when the last comparison of the whole log ended, in milliseconds since the epoch; 0 for never.
        at_ms: when the last step ended.
        records: number of records read by this service.
    """

    snapshot: int | None = None
    differences: tuple[Difference, ...] = ()
    count: int = 0
    running: bool = False
    whole_snapshot: int | None = None
    whole_ms: int = 0
    at_ms: int = 0
    records: int = 0


class TableVerifier:
    """Compares one table's log with the table in one thread.

    New snapshots are compared every ``Schedule.verify`` seconds. The position is stored with the table, so that a
    restarted or another service continues there. Damage to what was compared before is found by a comparison of the
    whole log, which runs every ``Schedule.verify_whole`` seconds beside the others, in steps. Snapshots with
    differences are compared again in each round, so that differences vanish once they are repaired.
    """

    def __init__(
        self, path: str, options: Mapping[str, ClientValue], schedule: Schedule, throttle: Throttle | None = None
    ) -> None:
        """Verify the table at ``path``; nothing is opened yet.

        Args:
            path: the table's folder.
            options: Kafka client options that are not stored with the table.
            schedule: how often to compare new snapshots and the whole log.
            throttle: limits the records read; None for no limit.
        """
        self.state = VerifyState()
        self._path = path
        self._options = options
        self._schedule = schedule
        self._throttle = throttle or Throttle(None)
        self._table: TableContext | None = None
        self._stop = Event()
        self._logged = ""

    def run(self, stop: Event) -> None:
        """Verify until ``stop`` is set. Errors are logged, kept in the state, and tried again."""
        self._stop = stop
        while self._schedule.verify is not None and not stop.is_set():
            try:
                more = self.round()
                self.state = replace(self.state, error="", running=more)
                if not more:
                    # A service of many tables has a verifier for each.
                    CONSUMERS.close()
                    stop.wait(self._schedule.verify)
            except _StoppedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is shown and tried again
                if isinstance(error, NotFoundError | TableReplacedError):
                    self._table = None
                self.state = replace(self.state.failed(error, f"table {self._path}: verify"), running=False)
                stop.wait(self._schedule.retry)

    def round(self) -> bool:
        """Compare new snapshots, then one step of the whole log if that is due; return whether there is more to do.

        1. Read the stored position: another service may have continued in the meantime and done this round.
        2. Compare the snapshots again that had differences.
        3. Compare the snapshots that were published since, step by step, and store the position after each.
        4. Compare one step of the whole log, if that is due, and store the position.

        Raises:
            TableStoreError: the broker or the file system does not answer, or the table is damaged.
        """
        table = self._opened()
        if not table.log.publishes:
            return False
        # Step 1.
        file = VerifiedFile(table.files.storage)
        held = self._show(file.read(table.spec.table_id))
        now = time.time() * 1000
        if (
            held.at_ms > self.state.at_ms
            and now - held.at_ms < (self._schedule.verify or 0) * 1000
            and held.whole is None
        ):
            self.state = replace(self.state, at_ms=held.at_ms)
            return False
        self.state = replace(self.state, running=True)
        if table.log.shows_uncommitted:
            return self._round_of_eventual(table, file, held)
        # Step 2.
        latest = replace(held.latest, compared=self._start(table, held.latest))
        held = replace(held, latest=self._again(table, latest))
        # Step 3.
        while True:
            newest = table.newest_visible()
            through = self._end_of_step(table, held.latest, newest)
            first = held.latest.compared is None
            report = self._compare(table, held.latest, None if through >= newest else through)
            held = replace(held, latest=held.latest.then(report, at_end=through >= newest))
            if through >= newest and (not held.whole_ms or (report.after == 0 and not first)):
                held = replace(held, whole=None, whole_ms=int(time.time() * 1000))
            held = self._store(table, file, held)
            if through >= newest or held.latest.snapshot < through:
                break
        # Step 4.
        if held.whole is None and not self._is_whole_due(held):
            return False
        return self._store(table, file, self._step_of_whole(table, held)).whole is not None

    def _step_of_whole(self, table: TableContext, held: Verified) -> Verified:
        """Return the state after one more step of the comparison of the whole log."""
        before, end = held.whole or Pass(), held.latest.snapshot
        whole = before.then(self._compare(table, before, self._end_of_step(table, before, end)), at_end=False)
        if before.snapshot < whole.snapshot < end:
            return replace(held, whole=whole)
        later = [each for each in held.latest.differences if each.snapshot is None or each.snapshot > whole.snapshot]
        latest = replace(held.latest, differences=(*whole.differences, *later), more=whole.more)
        return replace(held, latest=latest, whole=None, whole_ms=int(time.time() * 1000))

    def _round_of_eventual(self, table: TableContext, file: VerifiedFile, held: Verified) -> bool:
        """Compare keys that were sent or changed since, or all keys if that is due or some differed, in one step."""
        whole = held.latest.compared is None or bool(held.latest.differences) or self._is_whole_due(held)
        before = Pass() if whole else held.latest
        report = self._compare(table, before, None)
        at = held.whole_ms if report.after else int(time.time() * 1000)
        self._store(table, file, replace(held, latest=before.then(report, at_end=True), whole_ms=at))
        return False

    def _is_whole_due(self, held: Verified) -> bool:
        """Return whether the last comparison of the whole log was too long ago, or dated by a clock that was ahead."""
        return not 0 <= time.time() * 1000 - held.whole_ms < self._schedule.verify_whole * 1000

    def _again(self, table: TableContext, latest: Pass) -> Pass:
        """Compare snapshots that had differences again, and return the pass with the remaining ones."""
        snapshots = sorted({each.snapshot for each in latest.differences if each.snapshot})[:_AGAIN_MAX]
        for snapshot in snapshots:
            try:
                before = table.compared_up_to(snapshot - 1)
            except (NotFoundError, CorruptedError):
                # What leads there is damaged, too. The next comparison of the whole log says what remains.
                continue
            report = self._compare(table, Pass(before), snapshot)
            if report.after == snapshot - 1:
                latest = latest.again(snapshot, report)
        return latest

    def _end_of_step(self, table: TableContext, so_far: Pass, newest: int) -> int:
        """Return the last snapshot of the next step."""
        after = max(so_far.snapshot, table.files.oldest(fresh=False) - 1)
        try:
            return limited(after, newest, table.log.rows, rows_max=_STEP_ROWS, snapshots_max=_STEP_SNAPSHOTS)
        except (CorruptedError, DataLostError, NotFoundError):
            # An entry of the index is damaged, which the comparison reports.
            return newest

    def _compare(self, table: TableContext, so_far: Pass, through: int | None) -> Report:
        counted = 0

        def progress(done: int, _: int) -> None:
            nonlocal counted
            read, counted = done - counted, done
            self._throttle.wait(read, self._stop)

        report = table.compare(progress, self._start(table, so_far), through)
        self.state = replace(self.state, records=self.state.records + report.records)
        if not report.ok and str(report) != self._logged:
            self._logged = str(report)
            logger.error("%s", report)
        return report

    def _start(self, table: TableContext, so_far: Pass) -> Compared | None:
        """Return where the next step of a comparison starts.

        After a difference, the log's offsets may have been wrong, and a repair may have published what was
        missing. The index then says where it ends.
        """
        if so_far.compared is None or not so_far.differences:
            return so_far.compared
        try:
            return table.compared_up_to(so_far.snapshot)
        except (NotFoundError, CorruptedError):
            return so_far.compared

    def _store(self, table: TableContext, file: VerifiedFile, state: Verified) -> Verified:
        """Store a state, unless the table was dropped in the meantime; return what is stored."""
        table.check_same()
        state = file.write(state)
        try:
            table.check_same()
        except (NotFoundError, TableReplacedError):
            # What is left in the folder of a dropped table would be in the way of the next one.
            file.delete()
            raise
        return self._show(state, at_ms=int(time.time() * 1000))

    def _show(self, held: Verified, *, at_ms: int | None = None) -> Verified:
        self.state = replace(
            self.state,
            snapshot=None if held.latest.compared is None else held.latest.snapshot,
            differences=held.differences,
            count=held.count,
            whole_snapshot=None if held.whole is None else held.whole.snapshot,
            whole_ms=held.whole_ms,
            at_ms=self.state.at_ms if at_ms is None else at_ms,
        )
        return held

    def _opened(self) -> TableContext:
        if self._table is None:
            self._table = TableContext.open(self._path, self._options)
        self._table = self._table.refreshed()
        self._table.check_same()
        return self._table
