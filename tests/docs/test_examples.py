"""The examples run as they stand, and give what they say; each with topics and a warehouse of its own."""

from __future__ import annotations

import importlib
import re
import time
import uuid
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from log_system.local_kafka.owned import LocalKafka
from tablestore.cli.output import text_of
from tablestore.sql import Catalog
from tablestore.sql.parser.statements import Select
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAID = re.compile(r";\n((?:^-- .*\n)+)", re.MULTILINE)
START = "2026-01-01T12:00:00"


def own(text: str) -> str:
    """Give a text's topics names of their own, since a broker may be used by other tests too."""
    mark = uuid.uuid4().hex[:6]
    return re.sub(r"'((?:kafka\.)?topic)'(\s*)= '(\w+)'", rf"'\1'\2= '\3-{mark}'", text)


def catalog_at(spark: SparkSession, kafka: LocalKafka, path: Path) -> Catalog:
    return Catalog(spark, path, settings={"tablestore.addresses": f"localhost:9092={kafka.bootstrap_servers}"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kafka_connector", "upsert_kafka", "formats", "store_table", "eventual", "datagen"])
def test_what_is_selected_is_what_the_comments_say(
    name: str, spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    text = (EXAMPLES / f"{name}.sql").read_text(encoding="utf-8")
    expected = [[line[3:] for line in found[1].splitlines()] for found in SAID.finditer(text)]
    assert expected
    before = spark.conf.get("spark.sql.session.timeZone")
    got = []
    for result in catalog_at(spark, kafka, tmp_path / "w").run(own(text)):
        if isinstance(result.statement, Select):
            assert result.frame is not None
            got.append([" | ".join(map(text_of, row)) for row in result.frame.collect()])
    spark.conf.set("spark.sql.session.timeZone", before)
    assert got == expected


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("pageviews")


def test_page_views_look_real_and_repeat(site: Any) -> None:
    start = datetime.fromisoformat(START).replace(tzinfo=UTC)
    made = list(islice(site.Site(2_000, 100, 1).views(start, 200), 5_000))
    assert made == list(islice(site.Site(2_000, 100, 1).views(start, 200), 5_000))
    assert [view["viewtime"] for view in made] == sorted(view["viewtime"] for view in made)
    users = {view["user_id"] for view in made}
    assert len({(view["user_id"], view["user_region"]) for view in made}) == len(users)
    assert 200 < len(users) < 1_700
    pages = sorted((sum(view["page_id"] == page for view in made) for page in range(1, 101)), reverse=True)
    assert sum(pages[:10]) > sum(pages[50:])


@pytest.mark.slow
def test_page_views_are_counted_as_they_come(spark: SparkSession, kafka: LocalKafka, tmp_path: Path, site: Any) -> None:
    """README's example, from the file and the script that it names, to the table that it shows."""
    text_of_file = (EXAMPLES / "pageviews.sql").read_text(encoding="utf-8")
    text = own(text_of_file)
    (topic,) = re.findall(r"'topic' = '(pageviews-\w+)'", text)
    catalog = catalog_at(spark, kafka, tmp_path / "w")
    send = CliRunner()
    command = ["--servers", kafka.bootstrap_servers, "--topic", topic, "--rate", "0", "--start", START]
    sender = typer.Typer()
    sender.command()(site.main)
    assert send.invoke(sender, [*command, "--views", "0"]).exit_code == 0
    (query,) = catalog.sql(text).queries
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while query.lastProgress is None and time.monotonic() < until:
            time.sleep(0.2)
        done = send.invoke(sender, [*command, "--views", "10000"])
        assert "10,000 views were sent" in done.output
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        expected = counted(site)
        rows: list[tuple[Any, ...]] = []
        while sum(row[1] for row in rows) < 10_000 and time.monotonic() < until:
            frame = catalog.sql("SELECT * FROM pageviews_per_region ORDER BY pv DESC").frame
            assert frame is not None
            rows = [tuple(row) for row in frame.collect()]
        assert rows == expected
    finally:
        query.stop()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```sql\n{text_of_file[text_of_file.index('CREATE TABLE') :]}```" in readme
    shown = re.search(r"ORDER BY pv DESC\"\n```\n+```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    cells = re.findall(r"[│|] *([A-Z][A-Za-z ]*?) *[│|] *(\d+) *[│|] *(\d+) *[│|]", shown[1])
    assert [(region, int(pv), int(uv)) for region, pv, uv in cells] == expected


def counted(site: Any) -> list[tuple[Any, ...]]:
    """Count the views by hand."""
    start = datetime.fromisoformat(START).replace(tzinfo=UTC)
    views: dict[str, list[int]] = {}
    for view in islice(site.Site(20_000, 500, 1).views(start, 200), 10_000):
        views.setdefault(view["user_region"], []).append(view["user_id"])
    rows = [(region, len(users), len(set(users))) for region, users in views.items()]
    return sorted(rows, key=lambda row: -row[1])


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_stream_goes_in_and_comes_out(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module("streaming").main(kafka.bootstrap_servers, f"words-{uuid.uuid4().hex[:8]}")
    assert capsys.readouterr().out.splitlines() == [
        "snapshot 1: insert to 2",
        "snapshot 3: update_preimage to 2",
        "snapshot 3: update_postimage to 4",
        "[{'word': 'be', 'n': 2}, {'word': 'to', 'n': 4}]",
        "[(14,)]",
    ]
