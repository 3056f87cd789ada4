"""Union of the HyperLogLog sketches that Spark's ``hll_sketch_agg`` creates (Apache DataSketches).

The library is an optional dependency: only tables with ``aggregate-function=hll_sketch`` need it.
"""

from __future__ import annotations

from importlib.util import find_spec

import duckdb
import pyarrow as pa
from duckdb.func import PythonUDFType

UNITE = "unite_sketches"
"""Name of the DuckDB function that returns the union of a list of sketches."""


def has_sketches() -> bool:
    """Return whether the DataSketches library is installed."""
    return find_spec("datasketches") is not None


def register_sketches(session: duckdb.DuckDBPyConnection) -> None:
    """Register the function ``unite_sketches`` in a session's database, unless an earlier session has registered it."""
    known = session.execute("SELECT count(*) FROM duckdb_functions() WHERE function_name = ?", [UNITE]).fetchall()
    if known == [(0,)]:
        session.create_function(UNITE, _unite, ["BLOB[]"], "BLOB", type=PythonUDFType.ARROW)


def _unite(lists: pa.ChunkedArray) -> pa.Array:
    """Return the union of the sketches in each list; the library handles one list at a time."""
    return pa.array([_united(sketches) for sketches in lists.to_pylist()], pa.binary())


def _united(sketches: list[bytes] | None) -> bytes | None:
    from datasketches import hll_sketch, hll_union, tgt_hll_type  # noqa: PLC0415 - an optional dependency

    if not sketches:
        return None
    try:
        read = [hll_sketch.deserialize(each) for each in sketches]
    except (RuntimeError, ValueError, IndexError) as error:
        msg = f"hll_sketch: a value of {max(map(len, sketches))} bytes or fewer is not an HLL sketch ({error})"
        raise ValueError(msg) from error
    if len(read) == 1:
        return sketches[0]
    # Use the lowest precision, as DataSketches' own unions do, so that the result does not depend on the order.
    union = hll_union(min(each.lg_config_k for each in read))
    for each in read:
        union.update(each)
    return bytes(union.get_result(tgt_hll_type.HLL_8).serialize_compact())
