"""Ingest beside Paimon on Flink with its Kafka log: a topic of upserts into a table with a key and its log.

Both read the same topic into two buckets, in about as many snapshots, each in a process that is warm. A run is timed as
a whole by the wall, from starting the query or job until it has ended. Paimon's log gets every record of the topic,
ours the last change of each key in a snapshot. Nothing of Flink is a dependency: ``PAIMON_PYTHON`` names a Python that
has PyFlink 1.20. Paimon 1.3 is the last release with a Kafka log.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.flink import fetched, pyflink_version
from benchmarks.harness import CORES, Bench, Result, at_least, count_text, main, timed
from benchmarks.ingest import ingesting
from benchmarks.peers import answering
from log_system.jars import pyspark_jars

PYTHON: Final = "PAIMON_PYTHON"
_FLINK: Final = "1.20"
_INSTALL: Final = (
    f"python3.11 -m venv paimon-venv && paimon-venv/bin/pip install 'apache-flink=={_FLINK}.*', then "
    f"{PYTHON}=paimon-venv/bin/python python -m benchmarks paimon"
)
_JARS: Final = (
    f"org.apache.paimon:paimon-flink-{_FLINK}:1.3.1",
    # The newest release that has the class FlinkKafkaProducer, on which Paimon's log is built, in a jar of its own.
    "org.apache.flink:flink-sql-connector-kafka:3.2.0-1.19",
)
_COLUMNS: Final = "id BIGINT, name STRING, price DOUBLE"
_UPSERTS: Final = 20
_SNAPSHOTS: Final = 10


def run(bench: Bench) -> list[Result]:
    """Ingest upserts of the same keys with both, in turns."""
    python = os.environ.get(PYTHON, "")
    version = pyflink_version(python)
    if version != _FLINK:
        has = "has no PyFlink" if version is None else f"has PyFlink {version}, expected {_FLINK}"
        where = f"{PYTHON}={python} {has}" if python else f"{PYTHON} is not set"
        return [Result("paimon: skipped", f"{where}. To install it: {_INSTALL}")]
    # Paimon needs classes of Hadoop; those of PySpark will do.
    jars = [*fetched(bench, "paimon-1.3.1-flink-1.20", _JARS), *pyspark_jars().glob("hadoop-client-*.jar")]
    jars += pyspark_jars().glob("jcl-over-slf4j-*.jar")
    keys = bench.size(100_000, 20_000)
    count = keys * _UPSERTS
    bench.say(f"making a topic of {count_text(count)} upserts")
    source, ids = eventual_table(bench), np.arange(keys)
    send(source, (changes(ids, np.array(False), number) for number in range(_UPSERTS)))
    topic, warehouse = source.options.log.kafka.topic, bench.path("warehouse")
    script = str(Path(__file__).with_name("peer_paimon.py"))
    command = [python, script, bench.kafka.bootstrap_servers, topic, _COLUMNS, str(keys), warehouse, str(CORES)]
    # PyFlink adds this to the class path of its JVM.
    with answering(command, {"HADOOP_CLASSPATH": os.pathsep.join(map(str, jars))}) as ask:
        paimon = _Paimon(ask, Path(warehouse, "default.db"))
        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda: _ours(bench, topic, keys, count // _SNAPSHOTS),
            "Paimon": paimon.ingest,
        }
        turns = bench.take_turns("paimon", contestants, rounds=2, rows=count)
    what = f"ingest {count_text(count)} upserts of {count_text(keys)} keys, JSON, whole run, {_SNAPSHOTS} snapshots"
    name = f"Paimon on Flink {_FLINK}, snapshots {', '.join(map(str, paimon.made[1:]))}"
    return [at_least(what, turns["ours"], turns["Paimon"], 3.0, name)]


class _Paimon:
    """Ingests with checkpoints so far apart that a run like the one before has the wanted number of snapshots.

    Attributes:
        made: the number of snapshots of each run.
    """

    def __init__(self, ask: Callable[[str], float], tables: Path) -> None:
        self._ask = ask
        self._tables = tables
        self._milliseconds = 2_000.0
        self.made: list[int] = []

    def ingest(self) -> float:
        """Return the seconds of a run."""
        taken = self._ask(str(round(self._milliseconds)))
        self.made.append(_snapshots(self._tables / f"ingest_{len(self.made)}"))
        self._milliseconds *= self.made[-1] / _SNAPSHOTS
        return taken


def _ours(bench: Bench, topic: str, keys: int, rows: int) -> float:
    target, whole = ingesting(bench, topic, rows)
    taken = timed(whole)
    assert target.read().count() == keys
    assert Counter(each.operation for each in target.snapshots())["upsert"] == _SNAPSHOTS
    return taken


def _snapshots(table: Path) -> int:
    """Return the number of snapshots with rows that a table of Paimon's has, without those of compactions."""
    files = [json.loads(each.read_text(encoding="utf-8")) for each in (table / "snapshot").glob("snapshot-*")]
    return Counter(each["commitKind"] for each in files)["APPEND"]


if __name__ == "__main__":
    main(run)
