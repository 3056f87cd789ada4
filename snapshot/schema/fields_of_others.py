"""Fields that other Delta writers have added within columns: an updated row keeps their values."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from snapshot.errors import InvalidInputError
from snapshot.schema.adapter import fitted
from snapshot.schema.nested_nulls import items_of, with_items
from snapshot.schema.row_equality import equal


def with_fields_of_others(new: pa.Array, before: pa.Array, path: str) -> pa.Array:
    """Return the new values of a column with those of the fields of others that the rows had before.

    An array or a map keeps them if it is the same as before, apart from such fields. ``before`` is the column as it is
    in files, with the fields of others too.

    Raises:
        InvalidInputError: an array or a map is set to another one, and has values of such a field: nothing says which
            element is which.
    """
    kind = before.type
    if new.type == kind or not is_.is_nested(kind):
        return new
    if is_.is_struct(kind):
        own = dict(zip((field.name for field in new.type), new.flatten(), strict=True))
        arrays = [
            with_fields_of_others(own[field.name], held, f"{path}.{field.name}") if field.name in own else held
            for field, held in zip(kind, before.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=new.is_null())
    was = fitted(before, new.type, "")
    same = equal(was, new)
    if (~same & new.is_valid().to_numpy(zero_copy_only=False) & ~equal(fitted(was, kind, ""), before)).any():
        msg = (
            f"column {path!r} cannot be set to another value in rows where {', '.join(_added(kind, new.type, path))}, "
            "of another Delta writer, is not NULL: nothing says which element is which. Change such "
            "rows with the tool that has added the field, and then call recover(); or delete them and write new ones."
        )
        raise InvalidInputError(msg)
    items = items_of(pc.if_else(pa.array(same), before, fitted(new, kind, "")))
    return with_items(new, with_fields_of_others(items_of(new), items, path), kind)


def _added(kind: pa.DataType, own: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of fields that only the first of two types has."""
    if is_.is_struct(kind):
        names = {field.name: field.type for field in own}
        for field in kind:
            inside = f"{path}.{field.name}"
            yield from _added(field.type, names[field.name], inside) if field.name in names else (repr(inside),)
    elif is_.is_map(kind):
        yield from _added(kind.item_type, own.item_type, f"{path}.value")
    elif is_.is_list(kind):
        yield from _added(kind.value_type, own.value_type, f"{path}.element")
