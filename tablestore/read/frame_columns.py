"""The columns of a frame or a view whose table has been altered since it was made."""

from __future__ import annotations

from snapshot.errors import ConflictError
from snapshot.schema.spec import TableSpec
from tablestore.options.read_options import ReadOptions


def columns_of_frame(spec: TableSpec, options: ReadOptions) -> TableSpec:
    """Return the definition of a table with the columns with which Spark has made a frame of it.

    Spark keeps them as long as the frame, and knows only their names. As with Delta, columns may have been added and
    moved since.

    Args:
        spec: the definition to read by now.
        options: the options of the read.

    Raises:
        ConflictError: columns of the frame were renamed, dropped or changed since.
    """
    if options.frame is None or options.frame == (spec.table_id, spec.since):
        return spec
    table_id, since = options.frame
    if spec.table_id != table_id:
        return spec
    made = spec.at(since)
    changed = spec.changed_since(made)
    if changed:
        msg = (
            f"table {options.path!r}: columns {changed} were renamed, dropped or changed since this frame or view was "
            "made. Make it again."
        )
        raise ConflictError(msg)
    return made
