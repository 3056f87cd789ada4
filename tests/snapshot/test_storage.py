"""Whether a file exists is known only from an answer of the file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot.errors import UnavailableError
from snapshot.storage import Storage

FAILURES = {
    "a disk that fails": (OSError(5, "Input/output error"), UnavailableError),
    "no rights": (PermissionError(13, "Permission denied"), UnavailableError),
    "Ctrl-C": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "there").write_text("rows")
    return Storage(str(tmp_path))


def test_what_exists(storage: Storage) -> None:
    """A name below a file is no error: nothing can be there."""
    assert storage.exists("there")
    assert not storage.exists("not there")
    assert not storage.exists("there/below a file")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_does_not_say_that_a_file_is_gone(
    storage: Storage, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a tag passes for deleted, and a commit for one whose files are lost."""
    raised, expected = FAILURES[failure]

    def info(path: str, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(storage.filesystem, "info", info)
    with pytest.raises(expected):
        storage.exists("there")
    with pytest.raises(expected):
        storage.delete_tree()
    monkeypatch.undo()
    assert storage.exists("there")
