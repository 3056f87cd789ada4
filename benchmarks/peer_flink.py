"""Flink in a process of its own: ``benchmarks/flink.py`` starts it with PyFlink's Python and says what to time."""

from __future__ import annotations

import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

connector, servers, topic, columns, parallelism = sys.argv[1:6]
# Flink's JVM logs to the standard output, which is for the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
STEPS = {"plain": {}, "mini-batch": {"enabled": "true", "allow-latency": "1 s", "size": "20000"}}

environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
environment.get_config().set("pipeline.jars", f"file://{connector}")
environment.get_config().set("parallelism.default", parallelism)
environment.get_config().set("table.exec.mini-batch.enabled", "false")
environment.execute_sql(f"""
    CREATE TABLE upserts ({columns}, PRIMARY KEY (id) NOT ENFORCED) WITH (
        'connector' = 'upsert-kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
        'key.format' = 'json', 'value.format' = 'json', 'scan.bounded.mode' = 'latest-offset')
""")
environment.execute_sql(f"CREATE TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
# Flink 2.2 leaves ChangelogNormalize out for a sink that takes upserts; a condition, which all rows meet, needs it.
INSERT = "INSERT INTO nowhere SELECT * FROM upserts WHERE price >= 0"
plan = environment.explain_sql(INSERT)
assert "ChangelogNormalize" in plan, plan

for line in sys.stdin:
    for name in ("enabled", "allow-latency", "size"):
        value = STEPS[line.strip()].get(name, "false" if name == "enabled" else None)
        if value is not None:
            environment.get_config().set(f"table.exec.mini-batch.{name}", value)
    begun = time.perf_counter()
    environment.execute_sql(INSERT).wait()
    print(time.perf_counter() - begun, file=answers, flush=True)
