"""What a master's URL decides: where executors are, what they are sent, and which Python they run."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from snapshot.errors import InvalidInputError
from tablestore.cli import app
from tablestore.session import merged
from tablestore.spark.interpreter import PYTHON
from tablestore.spark.masters import PYTHON_PATH, Master, python_environment
from tablestore.spark.packages import ARCHIVES, FOLDER, pack, python_name

PACKED = {ARCHIVES: f"lake/x.tar.gz#{FOLDER}"}
DAEMON = "spark.python.daemon.module"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", PYTHON):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("PYSPARK_PYTHON")


@pytest.mark.parametrize(
    ("url", "in_driver", "on_this_machine", "on_loopback"),
    [
        ("local", True, True, True),
        ("local[*]", True, True, True),
        ("local[2, 3]", True, True, True),
        ("local-cluster[2,1,1024]", False, True, True),
        ("local-cluster [2, 1, 1024]", False, True, True),
        ("spark://127.0.0.1:7077", False, False, True),
        ("spark://localhost:7077", False, False, True),
        ("spark://localhost.example.org:7077", False, False, False),
        ("spark://127.0.0.1:7077,10.0.0.1:7077", False, False, False),
        ("spark://local:7077", False, False, False),
        ("yarn", False, False, False),
        ("k8s://https://127.0.0.1:6443", False, False, False),
    ],
)
def test_a_master_says_where_executors_are(url, in_driver, on_this_machine, on_loopback):
    master = Master(url)
    assert (master.in_driver, master.on_this_machine, master.on_loopback) == (in_driver, on_this_machine, on_loopback)


def test_no_path_of_the_driver_reaches_executors_elsewhere():
    settings = Master("spark://host:7077").settings(PACKED)
    assert settings == {PYTHON_PATH: FOLDER, DAEMON: "tablestore.python_daemon"}
    assert merged(settings, PACKED) == settings | PACKED
    local = Master("local-cluster[1,1,512]").settings({})
    assert local[f"spark.executorEnv.{PYTHON}"] == sys.executable
    assert ARCHIVES not in local


def test_archives_and_paths_of_the_user_are_joined():
    ours = {ARCHIVES: f"ours.tar#{FOLDER}", PYTHON_PATH: FOLDER}
    given = {ARCHIVES: "mine.zip#mine", PYTHON_PATH: "mine"}
    assert merged(ours, given) == {ARCHIVES: f"ours.tar#{FOLDER},mine.zip#mine", PYTHON_PATH: f"{FOLDER}:mine"}


def test_a_python_that_the_user_names_is_used_and_nothing_is_sent(monkeypatch):
    master, given = Master("spark://host:7077"), {"spark.pyspark.python": "/opt/env/bin/python"}
    assert master.settings(given) == {}
    with python_environment(master, given):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/bin/python")
    assert master.settings({}) == {}
    with python_environment(master, {}):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/other/bin/python"
    # An archive that the user names is used by that Python.
    assert master.settings(given | PACKED)[PYTHON_PATH] == FOLDER


def test_executors_find_python_by_name_and_the_driver_finds_its_own():
    master, before = Master("spark://host:7077"), os.environ["PATH"]
    with python_environment(Master("local[1]"), {}):
        pass
    with python_environment(master, {}):
        assert os.environ["PYSPARK_PYTHON"] == python_name() == f"python3.{sys.version_info.minor}"
        assert os.environ["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert os.environ["PATH"] == before


@pytest.mark.slow
def test_the_archive_is_packed_once_for_an_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = [Master("spark://127.0.0.1:1").settings({}) for _ in range(2)]
    (file,) = (tmp_path / "tablestore" / "packages").iterdir()
    assert [each[ARCHIVES] for each in settings] == [f"{file}#{FOLDER}"] * 2
    # Over loopback, compression costs more than it saves.
    assert file.suffix == ".tar"


@pytest.mark.parametrize(
    ("name", "extra", "expected"),
    [
        ("x.whl", [], r"x\.whl: expected a name that ends with \.tar\.gz"),
        ("x.tar", ["no-such-package"], "'no-such-package' is not installed"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(tmp_path, name, extra, expected):
    with pytest.raises(InvalidInputError, match=expected):
        pack(tmp_path / name, extra)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_another_python_imports_the_package_from_the_archive(tmp_path):
    file = tmp_path / "packages.tar"
    said = CliRunner().invoke(app, ["pack", str(file), "--with", "flask"])
    assert said.exit_code == 0, said.output
    for line in (
        f"--conf {ARCHIVES}={file}#{FOLDER}",
        f"--conf {PYTHON_PATH}={FOLDER}",
        f"PYSPARK_PYTHON={python_name()}",
    ):
        assert line in said.output
    with tarfile.open(file) as archive:
        names = {name.partition("/")[0] for name in archive.getnames()}
        archive.extractall(tmp_path / FOLDER, filter="data")
    assert {"tablestore", "snapshot", "log_system", "duckdb", "flask"} <= names
    assert not {"pyspark", "pytest", "mypy", "moto"} & names
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    spark = Path(pyspark.__file__).parent / "python" / "lib"
    path = os.pathsep.join([*map(str, spark.glob("*.zip")), FOLDER])
    program = "import tablestore.datasource as d, tablestore.connectors.spark.datasource, flask; print(d.__file__)"
    ran = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "python"), "-c", program],
        cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == str(tmp_path / FOLDER / "tablestore" / "datasource.py"), ran.stderr
