"""Union of the sketches that Spark's ``hll_sketch_agg`` and ``theta_sketch_agg`` create, and of Roaring bitmaps.

The libraries are optional dependencies: only tables with such an aggregate function need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import duckdb
import pyarrow as pa
from duckdb.func import PythonUDFType

from snapshot.merge.merge_rules import Function


def missing_library(function: Function) -> str:
    """Return the name of the library that a function needs; empty if it is installed, or none is needed."""
    name = _LIBRARIES.get(function, "")
    return name if name and find_spec(name) is None else ""


def unite(function: Function) -> str:
    """Return the name of the DuckDB function that returns the union of a list of sketches."""
    return f"unite_{function}"


def register_sketches(session: duckdb.DuckDBPyConnection) -> None:
    """Register the functions of `unite` in a session's database, unless an earlier session has registered them."""
    for function, united in _UNITED.items():
        name = unite(function)
        known = session.execute("SELECT count(*) FROM duckdb_functions() WHERE function_name = ?", [name]).fetchall()
        if known == [(0,)]:
            session.create_function(name, united, ["BLOB[]"], "BLOB", type=PythonUDFType.ARROW)


def _unite(function: Function, union: Callable[[list[bytes]], Any], lists: pa.ChunkedArray) -> pa.Array:
    """Return the union of the sketches in each list; the library handles one list at a time."""
    return pa.array([_united(function, union, sketches) for sketches in lists.to_pylist()], pa.binary())


def _united(function: Function, union: Callable[[list[bytes]], Any], sketches: list[bytes] | None) -> bytes | None:
    if not sketches:
        return None
    try:
        united = union(sketches)
    except (RuntimeError, ValueError, IndexError) as error:
        kind = _KINDS[function]
        msg = f"{function}: a value of {max(map(len, sketches))} bytes or fewer is not {kind} ({error})"
        raise ValueError(msg) from error
    return sketches[0] if len(sketches) == 1 else bytes(united)


def _hll(sketches: list[bytes]) -> Any:
    from datasketches import hll_sketch, hll_union, tgt_hll_type  # noqa: PLC0415 - an optional dependency

    read = [hll_sketch.deserialize(each) for each in sketches]
    # Use the lowest precision, as DataSketches' own unions do, so that the result does not depend on the order.
    union = hll_union(min(each.lg_config_k for each in read))
    for each in read:
        union.update(each)
    return union.get_result(tgt_hll_type.HLL_8).serialize_compact()


def _theta(sketches: list[bytes]) -> Any:
    from datasketches import compact_theta_sketch, theta_union  # noqa: PLC0415 - an optional dependency

    # One size for all, the library's own, so that the result does not depend on how sketches are divided into writes.
    union = theta_union()
    for each in sketches:
        union.update(compact_theta_sketch.deserialize(each))
    return union.get_result().serialize()


def _rbm32(bitmaps: list[bytes]) -> bytes:
    from pyroaring import BitMap  # noqa: PLC0415 - an optional dependency

    union = BitMap.union(*map(BitMap.deserialize, bitmaps))
    # As in Paimon, so that equal bitmaps have equal bytes.
    union.run_optimize()
    return bytes(union.serialize())


_LIBRARIES: Final[Mapping[Function, str]] = {
    Function.HLL_SKETCH: "datasketches",
    Function.THETA_SKETCH: "datasketches",
    Function.RBM32: "pyroaring",
}
_KINDS: Final[Mapping[Function, str]] = {
    Function.HLL_SKETCH: "an HLL sketch",
    Function.THETA_SKETCH: "a theta sketch",
    Function.RBM32: "a Roaring bitmap of 32 bits in the portable format",
}
_UNITED: Final[Mapping[Function, Callable[[pa.ChunkedArray], pa.Array]]] = {
    function: partial(_unite, function, union)
    for function, union in ((Function.HLL_SKETCH, _hll), (Function.THETA_SKETCH, _theta), (Function.RBM32, _rbm32))
}
"""Kept as long as the process runs: DuckDB does not keep the functions of a session that was closed."""
