"""Paths with letters that mean something to a URL, a shell or SQL; and text that is no Unicode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from snapshot.errors import InvalidInputError
from tablestore import create_local, open_local

ODD = ["a b", "a%b", "a#b", "a?b=c", "\u00e9\U0001f600", "a*[b]{c}", "a'\"`b", "_x", ".x", "n" * 250]


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a\\b", "a\nb"])
def test_a_folder_that_delta_rs_takes_for_another_one_is_refused(tmp_path: Path, name: str) -> None:
    """Of a table at ``a%20b``, rows would be read from the table at ``a b``."""
    other = create_local(tmp_path / "a b", "id bigint")
    for path in (str(tmp_path / name), f"file://{tmp_path / name}"):
        with pytest.raises(InvalidInputError, match="which delta-rs reads as another character"):
            create_local(path, "id bigint", primary_key=["id"])
        assert not (tmp_path / name).exists()
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidInputError, match="which delta-rs reads as another character"):
        open_local(tmp_path / name)
    other.write([{"id": 1}])
    assert other.count() == 1


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_odd_folders_hold_tables(tmp_path: Path, name: str, *, key: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = f"{tmp_path}/link/{name}/"
    with create_local(path, "id bigint", primary_key=["id"] if key else []) as table:
        for number in range(3):
            table.write([{"id": number}])
        table.compact()
        table.delete("id = 0")
        assert open_local(tmp_path / name).count("id > 0") == 2
        table.maintenance.expire(keep_last=1, older_than="0 s")
        assert table.count() == 2


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    half = "\ud800"
    with create_local(tmp_path / "t", "id bigint, v string", primary_key=["id"]) as table:
        uses: list[Callable[[], object]] = [
            lambda: table.to_arrow(filter=f"v = '{half}'"),
            lambda: table.delete(f"v = '{half}'"),
            lambda: table.update(None, {"v": f"'{half}'"}),
            lambda: table.alter.rename_column("v", half),
            lambda: table.write([{"id": 1, "v": half}]),
            lambda: open_local(tmp_path / half),
        ]
        for use in uses:
            with pytest.raises(InvalidInputError, match=r"(?i)UTF-8"):
                use()
