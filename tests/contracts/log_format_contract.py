"""What every log format promises, as tests that a test class of each format inherits."""

from __future__ import annotations

import pickle
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from log_system.formats import LogFormat, open_format
from snapshot.errors import CorruptedError, InvalidInputError
from snapshot.row_kind import KIND, TRUNCATE, RowKind
from snapshot.schema.system_columns import truncate_row
from tests.harness import schema_strategies as tables

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("total", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.int32()))),
    ]
)
ROW = {"id": 1, "name": "a", "price": 0.5, "total": Decimal("12.50"), "at": 1_700_000_000_000_000, "tags": [1, None]}
ROW_JSON = b'{"id":1,"name":"a","price":0.5,"total":12.50,"at":"2023-11-14T22:13:20.000000Z","tags":[1,null]}'


def changes(schema: pa.Schema, rows: list[dict[str, Any]], kinds: list[int]) -> pa.RecordBatch:
    """A batch of changes from Python rows."""
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(kinds, pa.int8())], schema=schema.append(pa.field(KIND, pa.int8()))
    )


class LogFormatContract:
    """What every log format promises."""

    name: str

    def kinds(self, primary_key: list[str]) -> list[RowKind]:
        """The row kinds this format carries."""
        raise NotImplementedError

    def expected(self, batch: pa.RecordBatch, primary_key: list[str]) -> pa.RecordBatch:
        """What comes back for a batch that went in."""
        return batch

    @quick
    @given(st.data())
    def test_every_table_comes_back_exactly(self, data: st.DataObject) -> None:
        schema, primary_key = data.draw(tables.tables())
        batch = data.draw(tables.changes(schema, primary_key, self.kinds(primary_key)))
        log_format = open_format(self.name, schema, primary_key)
        records = log_format.encode(batch)
        decoded = log_format.decode(records.keys, records.values)
        expected = self.expected(batch, primary_key)
        assert decoded.batch.schema.equals(schema.append(pa.field(KIND, pa.int8())), check_metadata=True)
        for ours, theirs in zip(decoded.batch, expected, strict=True):
            assert tables.identical(ours, theirs)
        assert len(records.keys) == len(records.values) == len(records.rows)
        assert list(decoded.record) == list(np.repeat(np.arange(len(records.rows)), records.rows))

    def test_no_rows_are_no_records(self) -> None:
        log_format = open_format(self.name, ORDERS, ["id"])
        records = log_format.encode(changes(ORDERS, [], []))
        assert (list(records.keys), list(records.values), list(records.rows)) == ([], [], [])
        decoded = log_format.decode([], [])
        assert decoded.batch.num_rows == 0
        assert decoded.batch.schema == ORDERS.append(pa.field(KIND, pa.int8()))

    def test_many_large_values_come_back_within_little_memory(self) -> None:
        schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("data", pa.binary())])
        rows = [{"id": n, "text": f"{n}ä\n" * 80_000, "data": bytes([n]) * 400_000} for n in range(80)]
        log_format = open_format(self.name, schema, ["id"])
        batch = changes(schema, rows, [int(RowKind.UPDATE_AFTER)] * len(rows))
        records = log_format.encode(batch)
        assert log_format.decode(records.keys, records.values).batch.equals(batch)

    def test_it_travels_by_pickle_before_and_after_use(self) -> None:
        log_format: LogFormat = pickle.loads(pickle.dumps(open_format(self.name, ORDERS, ["id"])))
        batch = changes(ORDERS, [ROW], [2])
        records = log_format.encode(batch)
        assert pickle.loads(pickle.dumps(log_format)).decode(records.keys, records.values).batch == batch

    def test_other_columns_than_the_tables_are_refused(self) -> None:
        log_format = open_format(self.name, ORDERS, ["id"])
        with pytest.raises(InvalidInputError, match="need the columns"):
            log_format.encode(changes(ORDERS, [ROW], [0]).rename_columns([*"abcdef", KIND]))

    @pytest.mark.parametrize("kind", [-1, 5])
    def test_an_unknown_row_kind_is_refused(self, kind: int) -> None:
        with pytest.raises(InvalidInputError, match=r"must be 0 to [34]"):
            open_format(self.name, ORDERS, ["id"]).encode(changes(ORDERS, [ROW], [kind]))

    @pytest.mark.parametrize("kind", [pa.duration("us"), pa.month_day_nano_interval(), pa.null(), pa.struct([])])
    def test_types_that_no_table_holds_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(InvalidInputError, match=r"column 'a', element: type .* cannot be kept"):
            open_format(self.name, pa.schema([("a", pa.list_(kind))]), [])

    def test_a_record_that_all_rows_are_gone_comes_back_in_its_place(self) -> None:
        log_format = open_format(self.name, ORDERS, ["id"])
        gone = log_format.encode(truncate_row(ORDERS.append(pa.field(KIND, pa.int8()))))
        rows = log_format.encode(changes(ORDERS, [ROW], [2]))
        (nothing,), (all_gone,) = gone.keys, gone.values
        assert nothing is None
        keys, values = [*rows.keys, None, *rows.keys, None], [*rows.values, all_gone, *rows.values, all_gone]
        found = log_format.decode(keys, values)
        assert found.batch[KIND].to_pylist() == [2, TRUNCATE, 2, TRUNCATE]
        assert found.batch["id"].to_pylist() == [ROW["id"], None, ROW["id"], None]
        assert list(found.record) == [0, 1, 2, 3]
        with pytest.raises(CorruptedError, match=r"^record 2: "):
            log_format.decode([*keys[:2], *rows.keys], [*values[:2], b"not one of ours"])

    def test_records_of_an_older_and_a_newer_schema_are_read(self) -> None:
        writer = open_format(self.name, ORDERS, ["id"])
        records = writer.encode(changes(ORDERS, [ROW], [2]))
        evolved = ORDERS.remove(1).append(pa.field("new", pa.string()))
        batch = open_format(self.name, evolved, ["id"]).decode(records.keys, records.values).batch
        assert batch.schema.names == ["id", "price", "total", "at", "tags", "new", KIND]
        assert (batch["id"][0].as_py(), batch["price"][0].as_py(), batch["new"][0].as_py()) == (1, 0.5, None)

    @settings(quick, max_examples=150)
    @given(st.data())
    def test_damage_is_an_error_and_never_a_wrong_row(self, data: st.DataObject) -> None:
        log_format = shared(self.name)
        records = log_format.encode(changes(ORDERS, [ROW], [2]))
        key, value = records.keys[0], records.values[0]
        assert value is not None
        at = data.draw(st.integers(0, len(value)))
        cut = data.draw(st.integers(0, 3))
        printable = st.sampled_from(
            [b'"', b"{", b"}", b"[", b"]", b",", b":", b".", b"-", b"e9", b"0", b"null", b"true"]
        )
        damaged = value[:at] + data.draw(printable | st.binary(max_size=2)) + value[at + cut :]
        assume(damaged != value)
        try:
            batch = log_format.decode([key, key], [value, damaged]).batch
        except CorruptedError as error:
            message = str(error)
        else:
            message = "record 1: read"
            self.check_accepted(damaged, batch.slice(1))
        assert message.startswith("record 1: ")

    def check_accepted(self, damaged: bytes, batch: pa.RecordBatch) -> None:
        """Fail unless damaged bytes that were decoded do say what the batch says."""
        raise AssertionError(damaged)


@cache
def shared(name: str) -> LogFormat:
    """A format of ``ORDERS`` that all tests use in turn: an error in one must not hurt the next."""
    return open_format(name, ORDERS, ["id"])
