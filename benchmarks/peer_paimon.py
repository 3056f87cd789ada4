"""Paimon on Flink in a process of its own: ``benchmarks/paimon.py`` starts it with PyFlink's Python.

A step is the time between checkpoints in milliseconds: the whole topic goes into a new table and its Kafka log. The
jars that Flink needs are in ``HADOOP_CLASSPATH``, which PyFlink adds to the class path of its JVM.
"""

from __future__ import annotations

import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

servers, topic, columns, keys, warehouse, cores = sys.argv[1:7]
# Flink's JVM logs to the standard output, which is for the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
MOST_MS = 600_000

stream = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
batch = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
for environment in (stream, batch):
    environment.execute_sql(f"""
        CREATE CATALOG paimon WITH (
            'type' = 'paimon', 'warehouse' = 'file://{warehouse}', 'log.system.auto-register' = 'true')
    """)
    environment.execute_sql("USE CATALOG paimon")
SETTINGS = {
    "parallelism.default": cores,
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.dir": f"file://{warehouse}/checkpoints",
}
for name, value in SETTINGS.items():
    stream.get_config().set(name, value)
# The topic has no deletes, so it is read without upsert-kafka, for which Flink would normalize.
stream.execute_sql(f"""
    CREATE TEMPORARY TABLE upserts ({columns}) WITH (
        'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}', 'format' = 'json',
        'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset')
""")

for number, line in enumerate(sys.stdin):
    # A broker allows transactions of at most 15 minutes; Flink's default is an hour.
    stream.execute_sql(f"""
        CREATE TABLE ingest_{number} ({columns}, PRIMARY KEY (id) NOT ENFORCED) WITH (
            'bucket' = '{cores}', 'log.system' = 'kafka', 'log.system.partitions' = '{cores}',
            'kafka.bootstrap.servers' = '{servers}', 'kafka.topic' = 'paimon-ingest-{number}',
            'kafka.transaction.timeout.ms' = '{MOST_MS}')
    """)
    stream.get_config().set("execution.checkpointing.interval", f"{line.strip()} ms")
    begun = time.perf_counter()
    stream.execute_sql(f"INSERT INTO ingest_{number} SELECT * FROM upserts").wait(MOST_MS)
    taken = time.perf_counter() - begun
    ((count,),) = (tuple(row) for row in batch.execute_sql(f"SELECT COUNT(*) FROM ingest_{number}").collect())
    assert count == int(keys), count
    print(taken, file=answers, flush=True)
