"""Dates and timestamps that Arrow and Spark have, and Python, pandas or JSON has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from log_system.report import shown
from snapshot.errors import InvalidInputError
from snapshot.python_values import printable
from tablestore import LocalTable, create_local
from tablestore.cli import app

RUN = CliRunner(env={"COLUMNS": "200"})
NTZ, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("d", pa.date32()), ("t", UTC), ("n", NTZ), ("l", pa.list_(pa.date32()))])
FIRST_DAY, LAST_DAY, FIRST_MICROS = -(2**31), 2**31 - 1, -9_223_372_022_400_000_000


def dates(*days: int | None) -> pa.Array:
    return pa.array(days, pa.int32()).view(pa.date32())


def times(kind: pa.DataType, *micros: int | None) -> pa.Array:
    return pa.array(micros, pa.int64()).view(kind)


def row(number: int, *, day: int = 0, micros: int = 0, ntz: int = 0, item: int = 0) -> pa.Table:
    items = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), dates(item))
    return pa.Table.from_arrays(
        [pa.array([number]), dates(day), times(UTC, micros), times(NTZ, ntz), items], schema=SCHEMA
    )


FAR = row(1, day=5_000_000, micros=10**18, ntz=-(10**17), item=LAST_DAY)
UNWRITABLE = {
    "d": row(2, day=FIRST_DAY),
    "t": row(2, micros=FIRST_MICROS - 1),
    "n": row(2, ntz=-(2**63)),
    "l": row(2, item=FIRST_DAY),
}


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
@pytest.mark.parametrize("form", ["json", "debezium-json"])
def test_what_json_cannot_hold_is_refused_before_it_is_committed(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], form: str, consistency: str
) -> None:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "log.format": form,
        "log.consistency": consistency,
    }  # fmt: skip
    with create_local(tmp_path / "t", SCHEMA, primary_key=["id"], log_system="kafka", options=options) as table:
        for name, bad in UNWRITABLE.items():
            with pytest.raises(InvalidInputError, match=rf"column '{name}': .* cannot be written as JSON"):
                table.write(pa.concat_tables([row(3), bad]))
        assert len(table.snapshots()) == 1
        table.write(FAR)
        table.write(row(2, day=LAST_DAY, micros=2**63 - 1, ntz=-(2**63) + 1, item=FIRST_DAY + 1))
        table.write(row(3, micros=FIRST_MICROS))
        assert table.verify().differences == ()
        held = table.to_arrow().sort_by("id")
    assert held.slice(0, 1).cast(SCHEMA).equals(FAR)


def far_table(path: Path) -> LocalTable:
    table = create_local(path, SCHEMA, primary_key=["id"])
    table.write(FAR)
    return table


def test_a_row_that_python_cannot_hold_names_the_column(tmp_path: Path) -> None:
    with far_table(tmp_path / "t") as table:
        with pytest.raises(InvalidInputError, match=r"get: column 'd' is '15659-07-15', .*columns=\[\.\.\.\]"):
            table.get(1)
        with pytest.raises(InvalidInputError, match=r"get: column 't' is '33658-09-27 01:46:40\.000000Z'"):
            table.get(1, columns=["id", "t"])
        assert table.get(1, columns=["id"]) == {"id": 1}
        with pytest.raises(InvalidInputError, match=r"to_pandas: .*\(year 15659 is out of range\)\. Use to_arrow\(\)"):
            table.to_pandas()
        assert len(table.to_pandas(["id", "t", "n"])) == 1


def test_the_command_line_shows_them(tmp_path: Path) -> None:
    far_table(tmp_path / "t").close()
    for command in ("read", "changes"):
        for words in ([command, str(tmp_path / "t")], [command, "--json", str(tmp_path / "t")]):
            done = RUN.invoke(app, words)
            assert done.exit_code == 0, done.output
            assert "15659-07-15" in done.output
            assert "33658-09-27" in done.output


def test_values_are_printed_as_python_has_them_and_as_text_beyond() -> None:
    pair = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), times(NTZ, 10**18))
    rows = pa.record_batch([dates(5_000_000), times(UTC, None), pair], names=["d", "t", "m"])
    assert shown(rows) == "d='15659-07-15', t=None, m=[('k', '33658-09-27 01:46:40.000000')]"
    nested = pa.StructArray.from_arrays([dates(0, 5_000_000), pa.array(["a", "b"])], ["d", "s"])
    assert printable(nested) == [{"d": printable(dates(0))[0], "s": "a"}, {"d": "15659-07-15", "s": "b"}]


def test_a_key_too_large_for_the_log_is_named_though_python_has_no_such_date(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    schema = pa.schema([("d", pa.date32()), ("v", pa.string())])
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    refused = pytest.raises(InvalidInputError, match=r"row with d='15659-07-15': its log record would have")
    rows = pa.Table.from_arrays([dates(5_000_000), pa.array(["x" * 2_000_000])], schema=schema)
    table = create_local(tmp_path / "t", schema, primary_key=["d"], log_system="kafka", options=options)
    with table, refused:
        table.write(rows)
