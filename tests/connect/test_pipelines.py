"""Spark's declarative pipelines read tables and write to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.sql.connect.session import SparkSession as RemoteSession

from snapshot.errors import InvalidInputError
from tablestore import create_local, register
from tablestore.session import FILTER_PUSHDOWN, REDACTED_OPTIONS, REDACTION, STREAM_SETTINGS
from tests.harness.connect_server import ConnectServer

SETTINGS = STREAM_SETTINGS | {FILTER_PUSHDOWN: "true", REDACTED_OPTIONS: f"(?i){REDACTION}"}
SPEC = """
name: shop
storage: file://{folder}/storage
libraries:
  - glob:
      include: shop.py
configuration: {settings}
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from tablestore import register

spark = SparkSession.active()
register(spark)
dp.create_sink("paid", "tablestore", {{"path": "{folder}/paid"}})


@dp.append_flow(target="paid")
def paid_orders():
    return spark.readStream.format("tablestore").load("{folder}/orders").where("paid").select("id")


@dp.materialized_view
def by_state():
    return spark.read.format("tablestore").load("{folder}/orders").groupBy("paid").count()
"""


def test_settings_that_a_pipeline_lacks_are_named(server: ConnectServer) -> None:
    session = RemoteSession.builder.remote(server.url).create()
    register(session)
    with block_session_mutations():
        register(session)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    lines = 'spark-pipeline.yml:\nconfiguration:\n  spark.sql.python.filterPushdown.enabled: "true"$'
    with block_session_mutations(), pytest.raises(InvalidInputError, match=lines):
        register(session)
    session.stop()


def test_a_pipeline_reads_a_table_and_writes_to_another(tmp_path: Path) -> None:
    with create_local(tmp_path / "orders", "id bigint, paid boolean") as orders:
        orders.write([{"id": 1, "paid": True}, {"id": 2, "paid": False}, {"id": 3, "paid": True}])
    paid = create_local(tmp_path / "paid", "id bigint")
    (tmp_path / "shop.py").write_text(FLOWS.format(folder=tmp_path))
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(SPEC.format(folder=tmp_path, settings=json.dumps(SETTINGS)))
    done = run(spec)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr
    assert sorted(paid.to_arrow().column("id").to_pylist()) == [1, 3]
    paid.close()


def run(spec: Path) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [programs / "spark-pipelines", "run", "--spec", spec]
    return subprocess.run(
        command, env=environment, cwd=spec.parent, capture_output=True, text=True, timeout=400, check=False
    )
