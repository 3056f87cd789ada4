"""The normalized read of an upsert topic beside Flink's ChangelogNormalize, over the same broker and records.

Flink reads the ``upsert-kafka`` table into its ``blackhole`` sink, ours ``read_changes`` into Spark's ``noop`` sink,
each in a process that is warm. A run is timed as a whole by the wall, from starting the query or job until it has
ended. Flink keeps its state on the heap and makes no checkpoints; ours puts state and offsets into files with each
micro-batch, as always. Nothing of Flink is a dependency: ``FLINK_PYTHON`` names a Python that has PyFlink.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.harness import CORES, Bench, Result, at_least, count_text, main, timed
from benchmarks.peers import answering
from log_system.jars import cache_home, fetch_unchecked
from tablestore.connectors import read_changes
from tablestore.table.store import TableStore

PYTHON: Final = "FLINK_PYTHON"
_INSTALL: Final = (
    f"python3.11 -m venv flink-venv && flink-venv/bin/pip install 'apache-flink==2.2.*', then "
    f"{PYTHON}=flink-venv/bin/python python -m benchmarks flink"
)
_CONNECTORS: Final = {"1.20": "3.4.0-1.20", "2.0": "4.0.1-2.0", "2.1": "4.0.1-2.0", "2.2": "5.0.0-2.2"}
"""The release of flink-sql-connector-kafka for each release of Flink."""
_COLUMNS: Final = "id BIGINT, name STRING, price DOUBLE"
_UPSERTS: Final = 20
_MICRO_BATCHES: Final = (1, 10, 100)
_FLINK: Final = {"Flink": "plain", "Flink, mini-batch": "mini-batch"}


def run(bench: Bench) -> list[Result]:
    """Read upserts of the same keys with both, in turns."""
    python = os.environ.get(PYTHON, "")
    version = pyflink_version(python)
    if version is None:
        where = f"{PYTHON}={python} has no PyFlink" if python else f"{PYTHON} is not set"
        return [Result("flink: skipped", f"{where}. To install it: {_INSTALL}")]
    if version not in _CONNECTORS:
        return [Result("flink: skipped", f"PyFlink {version}; expected {', '.join(_CONNECTORS)}: {_INSTALL}")]
    module = f"org.apache.flink:flink-sql-connector-kafka:{_CONNECTORS[version]}"
    (jar,) = fetched(bench, f"flink-connector-{_CONNECTORS[version]}", [module])
    keys = bench.size(100_000, 20_000)
    count = keys * _UPSERTS
    table = _filled(bench, keys)
    topic = table.options.log.kafka.topic
    command = [python, str(Path(__file__).with_name("peer_flink.py")), str(jar), bench.kafka.bootstrap_servers]
    with ExitStack() as stack:
        flink = stack.enter_context(answering([*command, topic, _COLUMNS, str(CORES)]))
        contestants: dict[str, Callable[[], float]] = {name: partial(flink, step) for name, step in _FLINK.items()} | {
            f"ours in {n}": partial(_read, bench, topic, keys, count // n) for n in _MICRO_BATCHES
        }
        turns = bench.take_turns("flink", contestants, rounds=3, rows=count)
    what = f"normalize {count_text(count)} upserts of {count_text(keys)} keys, JSON, whole run"
    return [
        at_least(f"{what}, {n} micro-batches", turns[f"ours in {n}"], turns[name], 2.0, f"{name} {version}")
        for n in _MICRO_BATCHES
        for name in _FLINK
    ]


def pyflink_version(python: str) -> str | None:
    """Return the PyFlink release, such as ``2.2``, that a Python has; None if it has none."""
    if not python:
        return None
    command = [python, "-c", "import pyflink.version; print(pyflink.version.__version__)"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    return ".".join(answer.stdout.strip().split(".")[:2]) if answer.returncode == 0 else None


def fetched(bench: Bench, name: str, modules: Sequence[str]) -> list[Path]:
    """Return the jars of modules that hold what they need, fetched from Maven Central into the cache folder once."""
    folder = cache_home() / name
    if not folder.is_dir():
        bench.say(f"fetching {', '.join(modules)}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch_unchecked(name, modules, folder)
    names = [f"{module}-{release}.jar" for _, module, release in (each.split(":") for each in modules)]
    return [folder / each for each in names]


def _filled(bench: Bench, keys: int) -> TableStore:
    """Return a table whose log, a topic as ``upsert-kafka`` reads it, has each key a number of times."""
    bench.say(f"making a topic of {count_text(keys * _UPSERTS)} upserts")
    table, ids = eventual_table(bench), np.arange(keys)
    send(table, (changes(ids, np.array(False), number) for number in range(_UPSERTS)))
    return table


def _read(bench: Bench, topic: str, keys: int, rows: int) -> float:
    """Read the topic in micro-batches of a number of records; return the seconds of the whole run."""
    options = {
        "properties.bootstrap.servers": bench.kafka.bootstrap_servers,
        "topic": topic,
        "key.format": "json",
        "value.format": "json",
        "primary-key": "id",
        "maxRowsPerTrigger": str(rows),
    }
    checkpoint = bench.path("checkpoint")

    def whole() -> None:
        frame = read_changes(bench.spark, _COLUMNS, options, state=bench.path("states"))
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(1200)
        assert sum(each.numInputRows for each in query.recentProgress) >= keys

    return timed(whole)


if __name__ == "__main__":
    main(run)
