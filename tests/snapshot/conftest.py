"""An object store for tests of files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import s3fs

from tests.harness.s3_server import aws_variables, s3_server


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Return the address of a store."""
    with s3_server() as address:
        yield address


@pytest.fixture
def lake(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket; fsspec and delta-rs learn from the environment where it is."""
    for name, value in aws_variables(store).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}"
    s3fs.S3FileSystem.clear_instance_cache()
