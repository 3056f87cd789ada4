"""A process that may not write to a table's folder and tries every verb; what each of them says is printed as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql.types import IntegerType

from snapshot.errors import TableStoreError
from tablestore import AddColumn, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tests.harness.local_writes import SCHEMA


def said(path: str) -> dict[str, str]:
    """Return by verb what it said: "OK", or the error's class and message."""
    table, context = open_local(path), TableContext.open(path)
    maintenance, row = table.maintenance, [{"id": 1, "v": "x"}]
    verbs: dict[str, Callable[[], object]] = {
        "read": table.to_arrow,
        "filter": lambda: table.count("v = 'b'"),
        "changes": lambda: list(table.changes(1)),
        "verify": table.verify,
        "recover": table.recover,
        "expire dry": lambda: maintenance.expire(keep_last=1, older_than="0 s", dry_run=True),
        "expire options dry": lambda: maintenance.expire(dry_run=True),
        "remove_orphans dry": lambda: maintenance.remove_orphans(dry_run=True),
        "write": lambda: table.write(row),
        "update": lambda: table.update("id = 1", {"v": "'z'"}),
        "delete": lambda: table.delete("id = 1"),
        "overwrite": lambda: table.overwrite(row),
        "truncate": table.truncate,
        "compact": table.compact,
        "alter": lambda: alter(context, [AddColumn("w", IntegerType())], publish=lambda _: None),
        "set options": lambda: alter(context, set_options={"compaction.auto": "false"}, publish=lambda _: None),
        "expire": lambda: maintenance.expire(keep_last=1, older_than="0 s"),
        "remove_orphans": maintenance.remove_orphans,
        "rollback": lambda: maintenance.rollback(1),
        "tag": lambda: table.tags.create("new"),
        "drop": lambda: create_drop.drop(context),
        "create": lambda: create_drop.create(TableDefinition(f"{path}/new", SCHEMA)),
    }
    return {verb: _said(call) for verb, call in verbs.items()}


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except TableStoreError as error:
        return f"{type(error).__name__}: {error}"
    return "OK"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(said(sys.argv[1])))
