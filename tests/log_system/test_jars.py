"""Jars that were downloaded are run only if they are the ones that the package was made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from log_system.jars import cache_home, digests_of, fetch_jars, locked_digests
from log_system.local_kafka import installation
from snapshot.errors import UnavailableError
from tablestore.session import delta_jars, delta_modules
from tablestore.spark.object_stores import hadoop_aws_modules


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a cache of its own, that holds Kafka's jars as links."""
    there = fetch_jars(installation.JARS, installation.MODULES)
    folder = tmp_path / "tablestore" / there.name
    folder.mkdir(parents=True)
    for jar in there.glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return folder


def test_all_that_is_downloaded_is_locked() -> None:
    assert locked_digests().keys() == {installation.JARS, delta_modules()[0], hadoop_aws_modules()[0]}
    assert len(locked_digests()[installation.JARS]) > 40
    assert digests_of(Path(delta_jars()[0]).parent) == locked_digests()[delta_modules()[0]]


def test_a_jar_that_differs_is_named_and_not_run(jars: Path) -> None:
    changed = jars / "jackson-core-2.19.0.jar"
    content = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(content[:-1] + b"x")

    with pytest.raises(UnavailableError, match=r"jackson-core-2\.19\.0\.jar: expected SHA-256 \w{64}, got \w{64}"):
        installation.kafka_command("64m")
    assert cache_home() / installation.JARS == jars


@pytest.mark.parametrize("name", ["jackson-core-2.19.0.jar", "evil.jar"])
def test_a_jar_too_few_or_too_many_is_named(jars: Path, name: str) -> None:
    jar = jars / name
    if jar.exists():
        jar.unlink()
    else:
        jar.write_bytes(b"PK")

    with pytest.raises(UnavailableError, match=rf"{name}: .*no such jar.*Remove the folder"):
        fetch_jars(installation.JARS, installation.MODULES)


def test_jars_without_digests_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tablestore/other-1").mkdir(parents=True)

    with pytest.raises(UnavailableError, match="make lock"):
        fetch_jars("other-1", ["org.example:other:1"])
