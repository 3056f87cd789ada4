"""Tables on emulators of Azure Blob Storage and Google Cloud Storage, without Spark: fsspec and delta-rs.

Skipped where the emulator or the fsspec file system is not installed; ``tests/harness/emulators.py`` says how.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pytest
from fsspec.registry import _registry

from snapshot.errors import AlreadyExistsError, InvalidInputError
from snapshot.storage import Storage
from tablestore import create_local, open_local
from tests.harness.emulators import COMMANDS, PACKAGES, emulator, variables
from tests.harness.lossy_proxy import faulty

pytestmark = pytest.mark.slow

WRITES = 6
KEYS = pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])


@pytest.fixture(scope="module", params=["abfss", "gs"])
def store(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Yield the scheme and the address of a store."""
    scheme = request.param
    if find_spec(PACKAGES[scheme]) is None:
        pytest.skip(f"the Python package {PACKAGES[scheme]} is not installed")
    if shutil.which(COMMANDS[scheme]) is None:
        pytest.skip(f"{COMMANDS[scheme]} is not in the PATH")
    with emulator(scheme) as endpoint:
        yield scheme, endpoint


@pytest.fixture
def lake(store: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a bucket; fsspec and delta-rs learn from the environment where it is."""
    scheme, endpoint = store
    for name, value in variables(scheme, endpoint, tmp_path).items():
        monkeypatch.setenv(name, value)
    kind = fsspec.get_filesystem_class(scheme)
    kind.clear_instance_cache()
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    kind(**({"token": "anon", "project": "none"} if scheme == "gs" else {})).mkdir(bucket)
    yield f"{scheme}://{bucket}"
    kind.clear_instance_cache()


def ids(path: str) -> list[int]:
    with open_local(path) as table:
        return sorted(table.to_arrow()["id"].to_pylist())


@KEYS
def test_a_table_is_made_written_compacted_expired_and_read(lake: str, key: tuple[str, ...]) -> None:
    path = f"{lake}/a/orders"
    options = {"bucket": 2, "compaction.auto": False}
    with create_local(path, "id bigint, v string", primary_key=key, options=options) as table:
        with pytest.raises(AlreadyExistsError):
            create_local(path, "id bigint, v string", primary_key=key, options=options)
        # The commit after the twentieth writes a checkpoint.
        for number in range(22):
            table.write([{"id": number, "v": "v"}])
        assert table.count(snapshot=7) == 7
        assert table.compact() is not None
        assert ids(path) == list(range(22))
        table.delete("id = 3")
        table.maintenance.expire(older_than=timedelta(0), keep_last=1)
        assert table.maintenance.remove_orphans().files == ()
        assert table.verify().ok
    assert ids(path) == [number for number in range(22) if number != 3]


@pytest.mark.parametrize("drops", [False, True], ids=["answers", "every-answer-lost"])
@KEYS
def test_two_writers_lose_and_double_nothing(
    store: tuple[str, str], lake: str, key: tuple[str, ...], drops: bool
) -> None:
    path = f"{lake}/orders"

    def write(first: int) -> None:
        with open_local(path) as table:
            for number in range(WRITES):
                table.write([{"id": first + number, "v": "v"}])

    with faulty(store[1], drops_each_put=drops):
        create_local(path, "id bigint, v string", primary_key=key, options={"bucket": 2})
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, (0, 100)))
        assert ids(path) == [*range(WRITES), *range(100, 100 + WRITES)]
        with open_local(path) as table:
            table.compact()
            assert table.verify().ok
        assert ids(path) == [*range(WRITES), *range(100, 100 + WRITES)]


def test_a_file_is_created_by_who_lost_the_answer(store: tuple[str, str], lake: str) -> None:
    storage = Storage.at(f"{lake}/folder")
    with faulty(store[1], drops_each_put=True):
        assert storage.put_new("file", b"mine")
        assert not storage.put_new("file", b"another's")
        storage.check_put_new()
    assert storage.read("file") == b"mine"


def test_an_address_that_delta_rs_reads_otherwise_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="write gs:// instead"):
        create_local("gcs://lake/t", "id bigint", primary_key=["id"])


@pytest.mark.parametrize(("scheme", "package"), [("abfss", "adlfs"), ("gs", "gcsfs")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(_registry, scheme, raising=False)
    for call in (create_local, open_local):
        with pytest.raises(InvalidInputError, match=f"pip install {package}"):
            call(f"{scheme}://lake/t", *(("id bigint",) if call is create_local else ()))
