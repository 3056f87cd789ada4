"""Spark beside the store on S3: its commits and ours, one table by all names, a client that Spark needs for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import s3fs

from tests.crash.processes.spark_on_s3 import SPARK_COMMITS
from tests.harness.s3_server import aws_variables, s3_server


def test_commits_of_spark_replace_none_of_ours_and_all_names_are_one_table() -> None:
    with s3_server() as endpoint:
        bucket, variables = f"lake-{uuid.uuid4().hex[:8]}", aws_variables(endpoint)
        s3fs.S3FileSystem(key="id", secret="secret", endpoint_url=endpoint, skip_instance_cache=True).mkdir(bucket)
        command = [sys.executable, "-m", "tests.crash.processes.spark_on_s3", bucket]
        ran = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=300
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["lost"], found["same"]) == (0, True), found
    assert (found["spark"], found["failed"]) == (SPARK_COMMITS, []), found
    assert found["versions of a change"] == 1
    rows = [[1, "a"], [2, "b"], [3, "b"]]
    assert found["compacted"] == [rows, rows]
    assert "replace commits that this program makes" not in ran.stderr
