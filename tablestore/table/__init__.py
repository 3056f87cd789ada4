"""The façade: ``TableStore`` and its parts."""

from tablestore.table.store import TableStore

__all__ = ["TableStore"]
