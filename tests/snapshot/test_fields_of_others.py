"""New values of a column with the fields that other Delta writers have added to it."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from snapshot.errors import InvalidInputError
from snapshot.schema.fields_of_others import with_fields_of_others

OWN = pa.struct([("a", pa.float64()), ("l", pa.list_(pa.struct([("x", pa.float64())])))])
FULL = pa.struct(
    [("a", pa.float64()), ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())]))), ("b", pa.string())]
)


def test_values_of_the_same_row_and_element_stay_beside_new_ones() -> None:
    elements = [{"x": 0.0, "y": "one"}, None, {"x": math.nan, "y": "two"}]
    before = pa.array(
        [{"a": 9.0, "l": [], "b": "cut"}, {"a": 1.0, "l": elements, "b": "b"}, None, {"a": 1.0, "l": None, "b": "c"}],
        FULL,
    ).slice(1)
    new = pa.array(
        [
            None,
            {"a": 2.0, "l": [{"x": -0.0}, None, {"x": math.nan}]},
            {"a": 3.0, "l": [{"x": 4.0}]},
            {"a": None, "l": [{"x": 5.0}, {"x": 6.0}]},
        ],
        OWN,
    ).slice(1)
    found = with_fields_of_others(new, before, "s")
    assert found.type == FULL
    (first, second, third) = found.to_pylist()
    assert str(first) == str({"a": 2.0, "l": [{"x": -0.0, "y": "one"}, None, {"x": math.nan, "y": "two"}], "b": "b"})
    assert second == {"a": 3.0, "l": [{"x": 4.0, "y": None}], "b": None}
    assert third == {"a": None, "l": [{"x": 5.0, "y": None}, {"x": 6.0, "y": None}], "b": "c"}


@pytest.mark.parametrize(
    ("new", "lost"),
    [
        ([("k", [{"x": 1}, {"x": 2}])], True),
        ([("other", [{"x": 1}])], True),
        ([("k", [{"x": 1}])], False),
        (None, False),
    ],
)
def test_a_map_of_lists_is_not_replaced_where_a_value_would_be_lost(new: object, lost: bool) -> None:
    own, full = (pa.map_(pa.string(), pa.list_(pa.struct([(n, pa.int32()) for n in names]))) for names in ("x", "xy"))
    before = pa.array([[("k", [{"x": 1, "y": 7}])], [("k", [{"x": 1, "y": None}])]], full)
    # Nothing is lost in the second row.
    values = pa.array([new, [("z", [])]], own)
    if lost:
        with pytest.raises(InvalidInputError, match=r"column 'm' cannot .*'m.value.element.y', of another"):
            with_fields_of_others(values, before, "m")
    else:
        expected = None if new is None else [("k", [{"x": 1, "y": 7}])]
        assert with_fields_of_others(values, before, "m").to_pylist() == [expected, [("z", [])]]
