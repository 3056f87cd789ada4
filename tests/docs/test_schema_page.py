"""docs/guide/schema.md: the statements run as they stand and give what the page says, with and without a log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from log_system.local_kafka.owned import LocalKafka
from tablestore.cli.output import text_of
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
from tests.harness.waiting import PATIENCE_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "schema.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def result_of(catalog: Catalog, text: str) -> list[str]:
    frame = catalog.sql(text).frame
    assert frame is not None
    return sorted(" ".join(map(text_of, row)) for row in frame.collect())


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_statements_give_what_the_page_says(spark: SparkSession, tmp_path: Path, number: int) -> None:
    text, said = BLOCKS[number]
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    assert result_of(catalog, text) == said.splitlines()


@pytest.mark.parametrize(("key", "log_format"), [(True, "json"), (True, "debezium-json"), (False, "arrow")])
def test_a_column_gets_another_type_and_the_log_keeps_in_step(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], key: bool, log_format: str
) -> None:
    """A stream of all changes, which begins with records of the old type, ends with the table's rows."""
    (text, said) = next(block for block in BLOCKS if "age_before" in block[0])
    log = f"'log.system' = 'kafka', 'log.format' = '{log_format}', 'kafka.topic' = '{topic()}', 'kafka.bootstrap.servers' = '{kafka.bootstrap_servers}'"  # fmt: skip  # noqa: E501
    text = text.replace("NOT ENFORCED);", f"NOT ENFORCED) WITH ({log});", 1)
    text = text if key else text.replace(", PRIMARY KEY (id) NOT ENFORCED", "", 1)
    catalog = Catalog(spark, tmp_path / "w", settings={"execution.runtime-mode": "batch"})
    assert result_of(catalog, text) == said.splitlines()
    with pytest.raises(Exception, match="shows under 'Another type'"):
        catalog.sql("ALTER TABLE visits MODIFY age INT")
    table = catalog.table("visits")
    assert isinstance(table, TableStore)
    assert table.verify().ok
    rows: dict[Any, str] = {}
    found: Counter[str] = Counter()
    stream = table.read_stream(scan_mode="earliest").writeStream.trigger(availableNow=True)
    changes: list[Any] = []
    query = stream.foreachBatch(lambda frame, _: changes.extend(frame.collect())).start()
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    for row in sorted(changes, key=lambda each: each["_commit_version"]):
        line = f"{row['id']} {text_of(row['age'])}"
        found[line] += -1 if row["_change_type"] in ("delete", "update_preimage") else 1
        rows[row["id"]] = line
    assert sorted(rows.values() if key else (+found).elements()) == said.splitlines()
