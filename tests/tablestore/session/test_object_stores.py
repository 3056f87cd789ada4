"""What a session needs for S3, and the warning where a session lacks it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark import SparkConf

from log_system.jars import locked_digests, pyspark_jars
from snapshot.errors import InvalidInputError
from tablestore.session import session
from tablestore.spark import object_stores
from tablestore.spark.object_stores import (
    HADOOP,
    LOG_STORE,
    hadoop_aws_modules,
    storage_of,
    storage_settings,
    warn_of_overwrites,
)
from tests.harness.own_messages import own_messages

S3A = "spark.hadoop.fs.s3a"


def test_hadoops_client_is_that_of_sparks_hadoop_and_small() -> None:
    assert (pyspark_jars() / f"hadoop-client-api-{HADOOP}.jar").exists()
    jars = locked_digests()[hadoop_aws_modules()[0]]
    assert f"hadoop-aws-{HADOOP}.jar" in jars
    assert not [jar for jar in jars if jar.startswith(("bundle", "netty-codec", "slf4j"))]


def test_hadoop_is_told_by_the_same_variables_as_the_others() -> None:
    given = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_DEFAULT_REGION": "eu-west-1"}
    found = storage_settings(given | {"AWS_ACCESS_KEY_ID": "the-id", "AWS_SECRET_ACCESS_KEY": "the-secret"})
    assert {name: value for name, value in found.items() if name.startswith(S3A)} == {
        f"{S3A}.endpoint": "http://127.0.0.1:9000",
        f"{S3A}.endpoint.region": "eu-west-1",
        f"{S3A}.path.style.access": "true",
        f"{S3A}.connection.ssl.enabled": "false",
    }
    assert found["spark.delta.logStore.s3.impl"] == found["spark.delta.logStore.s3a.impl"] == LOG_STORE
    assert not {"the-id", "the-secret"} & set(found.values())


@pytest.mark.parametrize(
    ("given", "by_path"),
    [
        ({"AWS_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com"}, "false"),
        ({"AWS_ENDPOINT_URL_S3": "https://minio", "AWS_ENDPOINT_URL": "https://else"}, "true"),
        ({"AWS_ENDPOINT_URL": "https://minio", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, "false"),
    ],
)
def test_buckets_are_in_the_path_except_at_aws(given: dict[str, str], by_path: str) -> None:
    found = storage_settings(given)
    assert found[f"{S3A}.endpoint"] == next(iter(given.values()))
    assert (found[f"{S3A}.path.style.access"], found[f"{S3A}.connection.ssl.enabled"]) == (by_path, "true")


def test_without_variables_hadoop_looks_for_itself() -> None:
    assert not [name for name in storage_settings({}) if name.startswith(S3A)]


def test_an_unknown_storage_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"storage: expected 's3', or None for local files, got 'gs'"):
        session(storage="gs")


def test_sessions_of_ours_load_the_log_store(spark) -> None:
    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert loader.loadClass(LOG_STORE).getSuperclass().getName() == "io.delta.storage.S3SingleDriverLogStore"


def test_a_session_whose_commits_replace_others_is_warned_of_once(spark, caplog, monkeypatch) -> None:
    monkeypatch.setattr(object_stores, "_warned", set())
    conf = SparkConf(loadDefaults=False, _jvm=None).set("spark.app.id", "theirs")
    foreign = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    for path in ("/data/t", "gs://lake/t"):
        warn_of_overwrites(foreign, path)
    warn_of_overwrites(spark, "s3://lake/t")
    assert own_messages(caplog) == []
    for path in ("s3a://lake/t", "s3a://lake/u"):
        warn_of_overwrites(foreign, path)
    [message] = own_messages(caplog)
    assert message.startswith(f"table s3a://lake/t: expected the setting spark.delta.logStore.s3a.impl={LOG_STORE}")
    caplog.clear()
    conf.set("spark.delta.logStore.s3.impl", LOG_STORE)
    warn_of_overwrites(foreign, "s3://lake/t")
    assert own_messages(caplog) == []


def test_the_command_line_brings_the_client_for_the_storage_of_a_path() -> None:
    found = {path: storage_of(path) for path in ("s3://lake/t", "s3a://lake/t", "/data/s3", "gs://lake/t")}
    assert found == {"s3://lake/t": "s3", "s3a://lake/t": "s3", "/data/s3": None, "gs://lake/t": None}
