"""What Spark pickles for its Python processes loads where the package is, and elsewhere says how to send it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import venv
from pathlib import Path

import pyspark
import pytest
from pyspark.cloudpickle import cloudpickle

from snapshot.row_kind import RowKind
from tablestore.datasource import TableStoreDataSource
from tablestore.spark.shipped import shipped, shipped_source

LOAD = "import pickle, sys; thing = pickle.load(open(sys.argv[1], 'rb')); "


def work():
    def kinds(batches):
        yield from (RowKind.INSERT.change_type for _ in batches)

    return kinds


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Make a Python that has PySpark as executors have it, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True, with_pip=False)
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("make", "use", "printed"),
    [
        (lambda: shipped(work()), "list(thing([1]))", "['insert']"),
        (lambda: shipped_source(TableStoreDataSource), "thing.name(), type(thing({'path': 'x'})).__name__",
         "tablestore TableStoreDataSource"),
        (lambda: TableStoreDataSource({"path": "x"}), "thing.options", "{'path': 'x'}"),
    ],
    ids=["function", "class", "object"],
)  # fmt: skip
def test_it_loads_where_the_package_is_and_says_elsewhere_what_is_missing(tmp_path, empty, make, use, printed):
    file = tmp_path / "pickled"
    file.write_bytes(cloudpickle.dumps(make()))
    zips = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    path = {"PYTHONPATH": os.pathsep.join(map(str, zips))}

    def load(python):
        command = [python, "-c", f"{LOAD}print({use})", str(file)]
        return subprocess.run(command, env=path, cwd=tmp_path, capture_output=True, text=True, check=False)

    there, elsewhere = load(sys.executable), load(empty)
    assert there.stdout.strip() == printed, there.stderr
    said = elsewhere.stderr.splitlines()[-1]
    assert said.startswith(f"RuntimeError: {empty} on ")
    assert "cannot import '" in said
    assert "run 'tablestore pack'" in said
    assert elsewhere.stdout == ""


def test_other_picklers_take_sources_too():
    assert pickle.loads(pickle.dumps(TableStoreDataSource({"path": "x"}))).options == {"path": "x"}
