"""A table as HTML, for notebooks."""

from __future__ import annotations

from html import escape

from pyspark.sql.types import StructField

from snapshot.errors import TableStoreError
from snapshot.messages import counted
from snapshot.records import Snapshot
from tablestore.context import TableContext


def table_html(table: TableContext) -> str:
    """Return a table's definition and newest snapshot as HTML, or the error in place of the snapshot."""
    try:
        table.check_same()
        table = table.refreshed()
        newest = _described(next(table.files.snapshots()))
    except TableStoreError as error:
        newest = str(error)
    spec, log = table.spec, table.options.log
    facts = {
        "path": table.path,
        "primary key": ", ".join(spec.primary_key) or "none: writes append",
        "partitions": ", ".join(spec.partition_by) or "none",
        "log": f"Kafka topic {log.kafka.topic}" if log else "the table's files",
        "newest snapshot": newest,
    }
    columns = [_row("td", field.name, _type(field), field.metadata.get("comment", "")) for field in spec.schema.fields]
    return (
        "<table><caption>TableStore</caption>"
        + "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts.items())
        + f"</table><table>{_row('th', 'column', 'type', 'comment')}{''.join(columns)}</table>"
    )


def _described(snapshot: Snapshot) -> str:
    rows = counted(snapshot.rows, "row")
    return f"{snapshot.id}: {snapshot.operation} of {rows} at {snapshot.time:%Y-%m-%d %H:%M:%S} UTC"


def _type(field: StructField) -> str:
    return field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")


def _row(cell: str, *texts: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"
