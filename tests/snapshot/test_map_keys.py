"""A map with a key twice is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapshot.errors import InvalidInputError
from snapshot.schema.map_keys import refuse_repeated_keys
from tablestore import create_local

INT, TEXT = pa.int64(), pa.string()
MAP = pa.map_(TEXT, INT)
TWICE: dict[str, tuple[pa.DataType, Any]] = {
    "a map": (MAP, [("x", 1), ("y", 2), ("x", 3)]),
    "numbers": (pa.map_(INT, TEXT), [(1, "x"), (1, "y")]),
    "rows as keys": (pa.map_(pa.struct([("a", INT)]), INT), [({"a": 1}, 1), ({"a": 1}, 2)]),
    "in an array": (pa.list_(MAP), [[("x", 1)], [("y", 1), ("y", 2)]]),
    "in a row": (pa.struct([("a", INT), ("m", MAP)]), {"a": 1, "m": [("x", 1), ("x", 2)]}),
    "in a map": (pa.map_(TEXT, MAP), [("x", [("y", 1), ("y", 1)])]),
}
FINE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "the same key in several maps": (MAP, [[("x", 1)], [("x", 2)], [], None, [("x", 1), ("y", 1)]]),
    "rows": (pa.struct([("m", MAP)]), [{"m": [("x", 1)]}, None, {"m": None}, {"m": [("x", 1)]}]),
    "no map": (pa.list_(INT), [[1, 1], None]),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_key_twice_is_refused(case: str, tmp_path: Path) -> None:
    """Also in a slice, in which the map is not the first one."""
    kind, value = TWICE[case]
    given = pa.record_batch({"id": pa.array([1, 2, 3], INT), "m": pa.array([None, None, value], kind)})
    for batch in (given, given.slice(1)):
        with pytest.raises(InvalidInputError, match="column 'm': a map has a key twice"):
            refuse_repeated_keys(batch)
    refuse_repeated_keys(given.slice(0, 2))
    with create_local(tmp_path / "t", given.schema, primary_key=["id"]) as table:
        with pytest.raises(InvalidInputError, match="column 'm': a map has a key twice"):
            table.write(given)
        assert table.to_arrow().num_rows == 0


@pytest.mark.parametrize("case", FINE)
def test_other_maps_are_fine(case: str) -> None:
    kind, values = FINE[case]
    refuse_repeated_keys(pa.record_batch({"m": pa.array(values, kind)}))


def test_what_is_beneath_null_does_not_count() -> None:
    keys, items, offsets = pa.array(["x", "x", "y"]), pa.array([1, 2, 3]), pa.array([0, 2, 3], pa.int32())
    maps = pa.MapArray.from_arrays(offsets, keys, items, MAP, mask=pa.array([True, False]))
    refuse_repeated_keys(pa.record_batch({"m": maps}))
