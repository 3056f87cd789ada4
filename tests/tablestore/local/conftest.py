"""Makes local tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tablestore import LocalTable, create_local
from tests.tablestore.local.local_tables import COLUMNS


@pytest.fixture
def make(kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> Iterator[Callable[..., LocalTable]]:
    tables: list[LocalTable] = []

    def create(schema: Any = COLUMNS, *, log: bool = False, **given: Any) -> LocalTable:
        keys = ("primary_key", "partition_by")
        options: dict[str, Any] = {"bucket": 2, **{name: value for name, value in given.items() if name not in keys}}
        if log:
            options |= {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
        tables.append(
            create_local(
                tmp_path / f"t{len(tables)}",
                schema,
                log_system="kafka" if log else None,
                options=options,
                **{name: given[name] for name in keys if name in given},
            )
        )
        return tables[-1]

    yield create
    for table in tables:
        table.close()
