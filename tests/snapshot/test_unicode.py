"""Names, partition values and statistics with characters of every plane of Unicode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tablestore import create_local, open_local

TEXTS = ["é", "日", "\u2028", "\x85", "😀", "𠮷野", "\U000e0041", "\U0010ffff"]
"""Planes 0, 1, 2, 14 and 16, and characters at which Python ends lines."""
ROWS = [{"k": n, "𠮷": text, "r": {"\U000e1c31": text}} for n, text in enumerate(TEXTS)]
COLUMNS = "k int, `𠮷` string, r struct<`\U000e1c31`: string>"


def by_k(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["k"])


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS + ", m map<int, timestamp_ntz>"], ids=["", "local times"])
@pytest.mark.parametrize("partition_by", [[], ["𠮷"]], ids=["", "partitions"])
def test_this_program_and_delta_rs_read_them(tmp_path: Path, partition_by: list[str], columns: str) -> None:
    """With times without a zone in a map, this program writes the first entry, else delta-rs."""
    table = create_local(tmp_path / "t", columns, partition_by=partition_by)
    rows = [{**row, "m": None} for row in ROWS] if " m " in columns else ROWS
    table.write(rows)
    table.alter.add_column("𠮷𠮷", "int")
    rows = [{**row, "𠮷𠮷": None} for row in rows]
    opened = open_local(tmp_path / "t")
    assert by_k(opened.to_arrow().to_pylist()) == rows
    assert by_k(DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()) == rows
    for text in TEXTS:
        expected = [row for row in rows if row["𠮷"] == text]
        assert opened.to_arrow(filter=f"\"𠮷\" = '{text}'").to_pylist() == expected
        assert DeltaTable(tmp_path / "t").to_pyarrow_table(filters=[("𠮷", "=", text)]).to_pylist() == expected
    opened.delete("\"𠮷\" = '𠮷野'")
    assert by_k(open_local(tmp_path / "t").to_arrow().to_pylist()) == [row for row in rows if row["𠮷"] != "𠮷野"]


def test_tables_with_a_key_have_them_in_keys_and_partitions(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", COLUMNS, primary_key=["k", "𠮷"], partition_by="𠮷", options={"bucket": 2})
    table.write(ROWS)
    opened = open_local(tmp_path / "t")
    assert by_k(opened.to_arrow().to_pylist()) == ROWS
    assert [opened.get((n, text)) for n, text in enumerate(TEXTS)] == ROWS
    opened.compact()
    opened = open_local(tmp_path / "t")
    assert [opened.get((n, text)) for n, text in enumerate(TEXTS)] == ROWS
    assert by_k(DeltaTable(tmp_path / "t").to_pyarrow_table(columns=["k", "𠮷", "r"]).to_pylist()) == ROWS
