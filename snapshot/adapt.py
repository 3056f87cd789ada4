"""Rows of one schema as rows of another one of the same table, matched by stored names, in Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from snapshot.columns import stored_name, visible
from snapshot.errors import InvalidInputError
from snapshot.schema import arrow_schema, can_become


@dataclass(frozen=True)
class Adapter:
    """Gives rows that were written under one schema the columns of another. Picklable.

    A column that the rows lack is NULL, one that the other schema lacks is left out, and a narrower type is cast.

    Attributes:
        came: the columns of the rows, with their stored names.
        wanted: the columns to give, with theirs.
        why: begins the message of what cannot be given.
    """

    came: StructType
    wanted: StructType
    why: str = ""

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema(visible(self.wanted))

    @cached_property
    def _is_same(self) -> bool:
        return self.came == self.wanted

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Adapt a batch; columns that are not the table's, such as ``_kind``, follow as they are.

        Raises:
            InvalidInputError: a value has no place in the wanted columns, which are older: a type was widened, a column
                that is NOT NULL was dropped or holds NULL.
        """
        if self._is_same:
            return batch
        places = {stored_name(field): number for number, field in enumerate(self.came.fields)}
        columns, fields = [], []
        for field, target in zip(self.wanted.fields, self._schema, strict=True):
            number = places.get(stored_name(field))
            source = None if number is None else self.came.fields[number]
            column = None if source is None else batch.column(batch.schema.get_field_index(source.name))
            columns.append(self._column(column, source, field, target.type, batch.num_rows))
            fields.append(target)
        own = set(self.came.fieldNames())
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name not in own:
                columns.append(column)
                fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _column(
        self, array: pa.Array | None, came: StructField | None, wanted: StructField, to: pa.DataType, rows: int
    ) -> pa.Array:
        if array is None or came is None:
            found = pa.nulls(rows, to)
        else:
            found = self._array(array, came.dataType, wanted.dataType, to, wanted.name)
        if not wanted.nullable and found.null_count:
            msg = f"{self.why}column {wanted.name!r} is NOT NULL here, and was dropped or may hold NULL since."
            raise InvalidInputError(msg)
        return found

    def _array(self, array: pa.Array, came: DataType, wanted: DataType, to: pa.DataType, name: str) -> pa.Array:
        if came == wanted:
            return array if array.type == to else array.cast(to)
        if isinstance(came, StructType) and isinstance(wanted, StructType):
            children = dict(
                zip(map(stored_name, came.fields), zip(came.fields, array.flatten(), strict=True), strict=True)
            )
            arrays = []
            for field, target in zip(wanted.fields, to, strict=True):
                source, child = children.get(stored_name(field), (None, None))
                if source is None:
                    arrays.append(pa.nulls(len(array), target.type))
                else:
                    arrays.append(self._array(child, source.dataType, field.dataType, target.type, field.name))
            return pa.StructArray.from_arrays(arrays, fields=list(to), mask=array.is_null())
        if isinstance(came, ArrayType) and isinstance(wanted, ArrayType):
            values = self._array(array.values, came.elementType, wanted.elementType, to.value_type, name)
            return pa.ListArray.from_arrays(_offsets(array), values, type=to, mask=array.is_null())
        if isinstance(came, MapType) and isinstance(wanted, MapType):
            keys = self._array(array.keys, came.keyType, wanted.keyType, to.key_type, name)
            items = self._array(array.items, came.valueType, wanted.valueType, to.item_type, name)
            return pa.MapArray.from_arrays(_offsets(array), keys, items, type=to, mask=array.is_null())
        if not can_become(came, wanted):
            msg = f"{self.why}column {name!r} is {came.simpleString()} now, and {wanted.simpleString()} here."
            raise InvalidInputError(msg)
        return array.cast(to)


def _offsets(array: pa.Array) -> pa.Array:
    # A copy without an offset of its own: a mask goes with no other.
    return pa.array(array.offsets.to_numpy(), pa.int32())
