"""Writes and reads without Spark beside pypaimon and pyiceberg; this group makes an environment for each of them.

A contestant writes rows into a new table with a key (beside pyiceberg, which has no keys: appends them to one without),
upserts a tenth of them again and reads all rows into Arrow, and reads them once more. pyiceberg's upsert rewrites
files, so its reads merge nothing; ours and those of pypaimon are of tables that were not compacted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Bench, Result, at_least, count_text, main, timed
from benchmarks.local_write import SCHEMA, rows
from tablestore import LocalTable, create_local

_PACKAGES: Final[Mapping[str, str]] = {"pypaimon": "pypaimon", "pyiceberg": "pyiceberg[pyarrow,sql-sqlite]"}
_INSTALL_SECONDS = 600.0
_STEPS: Final = {
    "write": "write of {} rows into a new table with a key",
    "append": "append of {} rows to a new table",
    "change": "upsert of a tenth of {} rows, then a read",
    "read": "read of {} rows, a tenth changed",
}


def run(bench: Bench) -> list[Result]:
    """Measure this program and the libraries that can be installed, in turns."""
    count = bench.size(1_000_000, 100_000)
    data = rows(count)
    files = {name: bench.path(name) for name in ("rows", "changes")}
    pq.write_table(data, files["rows"])
    pq.write_table(data.slice(0, count // 10), files["changes"])
    found = []
    for name, package in _PACKAGES.items():
        python = _installed(bench, name, package)
        if isinstance(python, str):
            found.append(Result(f"{name}: skipped", python))
            continue
        script = Path(__file__).with_name(f"peer_{name}.py")
        command = [str(python), str(script), bench.path(name), files["rows"], files["changes"]]
        with answering(command) as theirs:
            found += _compared(bench, name, theirs, data)
    return found


@contextmanager
def answering(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[Callable[[str], float]]:
    """Run a program that reads steps and prints the seconds of each; yield a function that takes a step.

    Args:
        command: the program and its arguments.
        variables: environment variables that it gets too.

    Raises:
        RuntimeError: the program has ended instead of an answer.
    """
    environment = {**os.environ, **(variables or {})}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def take(step: str) -> float:
            print(step, file=asked, flush=True)
            answer = answers.readline()
            if not answer:
                msg = f"{command[1]}: ended with exit code {process.wait()} instead of the seconds of step {step!r}."
                raise RuntimeError(msg)
            return float(answer)

        try:
            yield take
        finally:
            process.kill()


def _compared(bench: Bench, name: str, theirs: Callable[[str], float], data: pa.Table) -> list[Result]:
    ours = _Ours(bench, data)
    results = []
    for step, what in _STEPS.items():
        if step == ("append" if name == "pypaimon" else "write"):
            continue
        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda step=step: ours.take(step),
            name: lambda step=step: theirs(step),
        }
        turns = bench.take_turns(step, contestants, rounds=2, rows=data.num_rows)
        results.append(at_least(what.format(count_text(data.num_rows)), turns["ours"], turns[name], 3, name))
    return results


class _Ours:
    """Does what the scripts of the peers do."""

    def __init__(self, bench: Bench, data: pa.Table) -> None:
        self._bench = bench
        self._data = data
        self._table: LocalTable | None = None

    def take(self, step: str) -> float:
        """Return the seconds that a step takes."""
        if step in ("write", "append") or self._table is None:
            options: dict[str, object] = {"bucket": 2, "compaction.auto": "false"}
            keys = [] if step == "append" else ["id"]
            table = create_local(self._bench.path("ours"), SCHEMA, primary_key=keys, options=options)
            taken = timed(lambda: table.write(self._data))
            self._table = table if keys else None
            if step in ("write", "append"):
                return taken
        return timed(lambda: self._change() if step == "change" else self._read())

    def _change(self) -> None:
        assert self._table is not None
        self._table.write(self._data.slice(0, self._data.num_rows // 10))
        self._read()

    def _read(self) -> None:
        assert self._table is not None
        assert self._table.to_arrow().num_rows == self._data.num_rows


def _installed(bench: Bench, name: str, package: str) -> Path | str:
    """Return the Python of a new environment with a package, or why there is none."""
    bench.say(f"installing {name}")
    folder = Path(bench.path(f"{name}-env"))
    python = folder / "bin" / "python"
    try:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", package],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        return f"cannot be installed: {(error.stderr or error.stdout).strip().splitlines()[-1]}"
    except subprocess.TimeoutExpired:
        return f"not installed after {_INSTALL_SECONDS:.0f} s"
    return python


if __name__ == "__main__":
    main(run)
