"""Another process that acts on a table while a statement runs in this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tablestore import LocalTable, TableStore, open_local
from tablestore.write.writer import Writer


def beside(
    patch: pytest.MonkeyPatch,
    table: TableStore | LocalTable,
    act: Callable[[LocalTable], Any],
    step: str = "write_staged",
) -> None:
    """Let another process act in an attempt of the table's next statement, once.

    Args:
        patch: patches the writer.
        table: the table.
        act: what the other process does with the table.
        step: the method of the writer before which it acts, by default the one that commits staged rows.
    """
    real, left = getattr(Writer, step), [table.path]

    def late(writer: Writer, *args: Any, **kwargs: Any) -> Any:
        if left and writer is table._handle.writer:
            with open_local(left.pop()) as other:
                act(other)
        return real(writer, *args, **kwargs)

    patch.setattr(Writer, step, late)
