"""Properties that every row format keeps: rows come back, and decoding in bulk is decoding one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import strategies as st

from snapshot.errors import BadRecordError
from tablestore.connectors.formats.bulk_decode import to_batch
from tablestore.connectors.formats.values import UnfitError
from tests.harness import schema_strategies as tables

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
DAY = 86_400_000_000


def check_bulk_is_one_by_one(row_format: Any, schema: pa.Schema, payloads: Sequence[bytes | None]) -> None:
    """Fail unless decoding payloads at once gives what decoding each alone gives, or names the first at fault.

    As its callers do, it goes on behind a payload at fault.
    """
    while payloads:
        rows, record, fault = _one_by_one(row_format, payloads)
        if fault is not None:
            with pytest.raises(BadRecordError) as raised:
                row_format.decode(payloads)
            assert (raised.value.position, raised.value.field, raised.value.reason) == fault
        end = len(payloads) if fault is None else fault[0]
        decoded = row_format.decode(payloads[:end])
        assert decoded.record.tolist() == record
        assert decoded.batch.schema.equals(schema, check_metadata=True)
        decoded.batch.validate(full=True)
        for ours, theirs in zip(decoded.batch, to_batch(rows, schema), strict=True):
            assert tables.identical(ours, theirs), (payloads, decoded.batch.to_pylist())
        payloads = payloads[end + 1 :]


def _one_by_one(
    row_format: Any, payloads: Sequence[bytes | None]
) -> tuple[list[dict[str, Any]], list[int], tuple[int, str | None, str] | None]:
    rows, record = [], []
    for position, payload in enumerate(payloads):
        try:
            row = None if payload is None else row_format._one(payload)
        except UnfitError as error:
            return rows, record, (position, error.field, error.reason)
        if row is not None:
            rows.append(row)
            record.append(position)
    return rows, record, None


def within_years(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, dates and timestamps within the years 1 to 9999, NaN as one NaN."""
    if pt.is_date32(kind):
        return st.integers(FIRST_DAY, LAST_DAY)
    if pt.is_timestamp(kind):
        return st.integers(FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1) | st.integers(0, 2_000_000_000).map(
            lambda s: s * 1_000_000
        )
    if pt.is_time(kind):
        return st.integers(0, 86_399_999).map(lambda milli: milli * 1_000_000)
    if pt.is_list(kind):
        return st.lists(may_be_null(kind.value_field), max_size=3)
    if pt.is_map(kind):
        pair = st.tuples(tables.values(kind.key_type), may_be_null(kind.item_field))
        return st.lists(pair, max_size=3, unique_by=lambda pair: pair[0])
    if pt.is_struct(kind):
        return st.fixed_dictionaries({field.name: may_be_null(field) for field in kind})
    return tables.values(kind)


def may_be_null(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a field, NULL among them where it may be."""
    return st.none() | within_years(field.type) if field.nullable else within_years(field.type)


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a schema; now and then a slice of a larger batch."""
    rows = draw(st.integers(0, 5))
    columns = [pa.array(draw(st.lists(may_be_null(f), min_size=rows, max_size=rows)), f.type) for f in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return batch.slice(draw(st.integers(0, rows))) if draw(st.booleans()) else batch


def damaged(payload: bytes) -> st.SearchStrategy[bytes]:
    """A payload with a few bytes put in, taken out or changed."""
    pieces = st.sampled_from(
        [b'"', b"{", b"}", b"[", b"]", b",", b":", b".", b"-", b"e9", b"0", b"null", b"true", b"NaN",
         b"\\", b" "]
    )  # fmt: skip

    @st.composite
    def damage(draw: st.DrawFn) -> bytes:
        at, cut = draw(st.integers(0, len(payload))), draw(st.integers(0, 3))
        return payload[:at] + draw(pieces | st.binary(max_size=2)) + payload[at + cut :]

    return damage()
