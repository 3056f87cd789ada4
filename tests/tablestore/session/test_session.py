"""The session: Delta, the right interpreter, the data source registered, and the user's settings on top."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from snapshot.errors import UnavailableError
from tablestore.session import FILTER_PUSHDOWN, STREAM_SETTINGS, merged, register, session
from tablestore.spark.interpreter import PYTHON, worker_interpreter


def test_it_reads_and_writes_delta(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.range(10).write.format("delta").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id < 3")
    assert spark.read.format("delta").load(path).agg(F.sum("id")).collect()[0][0] == sum(range(3, 10))


def test_executors_run_this_interpreter(spark):
    frame = spark.range(1).mapInArrow(_interpreter, "interpreter string")
    assert frame.collect()[0].interpreter == sys.executable


def _interpreter(batches):
    import sys  # noqa: PLC0415 - of the executor

    import pyarrow as pa  # noqa: PLC0415

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"interpreter": [sys.executable]})


def test_python_processes_of_spark_import_pyspark_from_site_packages(spark):
    frame = spark.range(1).mapInArrow(_path, "entry string")
    entries = [row.entry for row in frame.collect()]
    assert str(Path(pyspark.__file__).parent.parent) in entries
    assert not [entry for entry in entries if entry.endswith((".zip", ".jar")) and "pyspark" in entry]


def test_the_interpreter_is_that_of_the_program_where_workers_are_elsewhere_or_pyspark_is():
    assert worker_interpreter(in_driver=True) != sys.executable
    assert worker_interpreter(in_driver=False) == sys.executable


def test_the_interpreter_keeps_the_users_path_and_passes_arguments_on(tmp_path):
    home = "/opt/my spark"
    sparks = [
        f"{home}/python/lib/pyspark.zip",
        f"{home}/python/lib/py4j-0.10-src.zip",
        f"{home}/jars/spark-core_2.13.jar",
    ]
    path = os.pathsep.join([*sparks, str(tmp_path / "a b"), "/opt/pyspark.zip", "/opt/*"])
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1:], sep='|')"
    env = os.environ | {"PYTHONPATH": path, PYTHON: sys.executable}
    words = [worker_interpreter(in_driver=True), "-c", program, "one two", "*"]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    kept = os.pathsep.join([str(tmp_path / "a b"), "/opt/pyspark.zip", "/opt/*"])
    assert ran.stdout.strip() == f"{kept}|{sys.executable}|['one two', '*']"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pyspark.daemon pyspark.sql.worker.create_data_source", "tablestore.python_daemon"),
        ("pyspark.daemon pyspark.sql.worker.plan_data_source_read", "tablestore.python_daemon"),
        ("pyspark.daemon pyspark.sql.worker.python_streaming_sink_runner", "tablestore.python_daemon"),
        ("pyspark.daemon pyspark.sql.worker.lookup_data_sources", "pyspark.daemon"),
        ("pyspark.daemon pyspark.sql.worker.analyze_udtf", "pyspark.daemon"),
        ("pyspark.daemon pyspark.worker", "pyspark.daemon"),
    ],
)
def test_planners_of_data_sources_come_from_our_daemon(words, expected):
    env = os.environ | {PYTHON: "/bin/echo", "PYTHONPATH": ""}
    command = [worker_interpreter(in_driver=True), "-m", *words.split()]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["-m", expected, words.split()[1]]


def _path(batches):
    import sys  # noqa: PLC0415 - of the executor

    import pyarrow as pa  # noqa: PLC0415

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"entry": sys.path})


def test_python_workers_are_those_of_our_daemon(spark):
    assert spark.range(1).mapInArrow(_daemon, "daemon string").collect()[0].daemon == "tablestore.python_daemon"


def _daemon(batches):
    import sys  # noqa: PLC0415 - of the executor

    import pyarrow as pa  # noqa: PLC0415

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"daemon": [sys.modules["__main__"].__spec__.name]})


def test_the_data_source_is_registered_once_or_again(spark):
    register(spark)
    assert spark.conf.get(FILTER_PUSHDOWN) == "true"
    with pytest.raises(Exception, match=r"(?i)path|table") as caught:
        spark.read.format("tablestore").load()
    assert "DATA_SOURCE_NOT_FOUND" not in str(caught.value)


def test_streaming_queries_keep_their_state_as_is_best_unless_the_session_says_otherwise(spark):
    provider, changelog, _ = STREAM_SETTINGS
    try:
        spark.conf.set(provider, "org.example.Mine")
        spark.conf.unset(changelog)
        register(spark)
        assert (spark.conf.get(provider), spark.conf.get(changelog)) == ("org.example.Mine", "true")
    finally:
        spark.conf.set(provider, STREAM_SETTINGS[provider])


class _LongAnswers(DataSource):
    """A stream whose partitions take a while to send to Spark, so that two threads that ask for them meet."""

    @classmethod
    def name(cls):
        return "long-answers"

    def schema(self):
        return "id long"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return _LongAnswersReader()


class _LongAnswersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self):  # noqa: N802 - Spark's name
        pass

    def initialOffset(self):  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, start=None, limit=None):  # noqa: N802 - Spark's name
        return {"at": 1}

    def partitions(self, start, end):
        return [InputPartition(bytes(2_000_000)) for _ in range(4)]

    def read(self, partition):
        yield (1,)


def test_a_query_that_reads_a_stream_twice_ends(spark, tmp_path):
    spark.dataSource.register(_LongAnswers)
    read = spark.readStream.format("long-answers").load()
    both = read.repartition(2, "id").union(read.where("id > 0").repartition(3, "id"))
    query = (
        both.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 8


def test_files_of_local_checkpoints_take_no_processes(spark, tmp_path):
    jvm = spark._jvm
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    path, files = jvm.org.apache.hadoop.fs.Path, _checkpoint_files(spark, tmp_path)
    faults = []
    for number in range(9):
        before = _page_faults_of_children(java)
        out = files.createAtomic(path(str(tmp_path / "offsets" / str(number))), True)
        out.write(b"v1")
        out.close()
        faults.append(_page_faults_of_children(java) - before)
    # A process for each file would add to each of these; a Python worker that happens to end adds to one.
    assert min(faults) == 0
    written = sorted(tmp_path.glob("offsets/[0-9]"))
    assert [(file.name, file.read_bytes()) for file in written] == [(str(number), b"v1") for number in range(9)]
    assert {file.stat().st_mode & 0o777 for file in written} == {0o644}


def _checkpoint_files(spark, folder):
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    manager = getattr(spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing, "CheckpointFileManager$")
    return getattr(manager, "MODULE$").create(spark._jvm.org.apache.hadoop.fs.Path(str(folder)), conf)


def _page_faults_of_children(pid):
    """Return how many page faults the processes have had that a process has started and that have ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[8])


def test_a_second_call_returns_the_running_session(spark):
    again = session("tests", master="local[2]", config={"spark.sql.shuffle.partitions": 3})
    try:
        assert again.sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "4")


def test_a_vacuum_by_spark_takes_hundreds_of_tasks_and_not_a_hundred_thousand(spark, tmp_path):
    spark.range(9).write.format("delta").save(str(tmp_path))
    tasks = spark.sparkContext._jsc.sc().taskScheduler()
    before = tasks.newTaskId()
    spark.sql(f"VACUUM delta.`{tmp_path}`").collect()
    assert tasks.newTaskId() - before < 2_000


def test_it_listens_on_loopback_only(spark):
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_arrow_does_not_check_each_value_again(spark):
    arrow = spark.sparkContext._jvm.org.apache.arrow
    assert not arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_settings_given_win_but_jars_extensions_and_java_options_add_up():
    driver, executor = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
    ours = {"spark.jars": "a.jar", "spark.sql.extensions": "Delta", "spark.driver.memory": "2g"}
    given = {"spark.jars": "b.jar", "spark.sql.extensions": "Mine", "spark.driver.memory": "8g", "x": "y"}
    options = ({driver: "-Da=1", executor: "-Db=1"}, {driver: "-Da=2", executor: "-Db=2"})
    assert merged(ours | options[0], given | options[1]) == {
        "spark.jars": "a.jar,b.jar",
        "spark.sql.extensions": "Delta,Mine",
        "spark.driver.memory": "8g",
        "x": "y",
        driver: "-Da=1 -Da=2",
        executor: "-Db=1 -Db=2",
    }


def test_without_java_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match=r"Java 17 or newer is needed; .*JAVA_HOME"):
        session()


def test_what_is_left_of_a_session_that_was_stopped_says_so(tmp_path):
    """In a process of its own, since other tests use the session of this one."""
    script = f"""
from tablestore import Catalog, TableStore, session
spark = session(master="local[1]")
table = TableStore.create(spark, {str(tmp_path / "t")!r}, "id bigint", primary_key="id")
table.write([{{"id": 0}}])
rows, catalog = spark.range(3), Catalog(spark, {str(tmp_path)!r})
catalog.sql("SELECT 1").frame
spark.stop()
calls = {{
    "write": lambda: table.write(rows),
    "write a list": lambda: table.write([{{"id": 1}}]),
    "delete": lambda: table.delete("id = 1"),
    "read": lambda: table.read(),
    "count": lambda: table.count(),
    "changes": lambda: table.changes(0),
    "stream": lambda: table.read_stream(),
    "write a stream": lambda: table.write_stream(rows, checkpoint="/tmp/none"),
    "compact": lambda: table.compact(),
    "history": lambda: table.history(),
    "SQL": lambda: catalog.sql("SELECT 1").frame,
    "create": lambda: TableStore.create(spark, {str(tmp_path / "other")!r}, "id bigint"),
}}
for name, call in calls.items():
    try:
        call()
        print(name, "no error")
    except Exception as error:
        print(name, type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    said = done.stdout.splitlines()
    assert len(said) == 12, said
    assert [line for line in said if "InvalidInputError" not in line or "got one that was stopped" not in line] == []
    assert not (tmp_path / "other").exists()
