"""Writes a stream to a table exactly once, reads it back as a changelog, and reads the table without Spark.

Without ``--servers HOST:PORT``, the example starts its own broker.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame

from tablestore import LocalKafka, TableStore, open_local, session

COLUMNS = "word string, n bigint"
LINES = ("to be or not to be", "that is the question", "to die to sleep")


def main(
    servers: Annotated[str, typer.Option(help="The brokers; without, one is started on this machine.")] = "",
    topic: Annotated[str, typer.Option(help="The table's topic.")] = "words",
) -> None:
    """Count words."""
    spark = session()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = servers or stack.enter_context(LocalKafka()).bootstrap_servers
        options = {
            "kafka.bootstrap.servers": found,
            "kafka.topic": topic,
            # Include the replaced rows, so that readers of the log can retract them.
            "changelog-producer": "lookup",
            "log.format": "arrow",
        }
        words = TableStore.create(
            spark, folder / "words", COLUMNS, primary_key=["word"], log_system="kafka", options=options
        )
        lines = folder / "lines"
        lines.mkdir()
        # Each file is a micro-batch, and each micro-batch a snapshot.
        for number, line in enumerate(LINES):
            file = lines / f"{number}.txt"
            file.write_text(line)
            # Spark reads the oldest file first.
            os.utime(file, (number, number))
        read = spark.readStream.option("maxFilesPerTrigger", 1).text(str(lines))
        counts = read.selectExpr("explode(split(value, ' ')) AS word").groupBy("word").count()
        query = words.write_stream(
            counts.withColumnRenamed("count", "n"),
            checkpoint=folder / "checkpoint",
            output_mode="update",
            trigger={"availableNow": True},
        )
        query.awaitTermination()

        def show(changes: DataFrame, number: int) -> None:
            for row in changes.where("word = 'to'").orderBy("_commit_version", "n").collect():
                print(f"snapshot {row['_commit_version']}: {row['_change_type']} {row.word} {row.n}")

        feed = words.read_stream(scan_mode="earliest")
        feed.writeStream.foreachBatch(show).trigger(availableNow=True).start().awaitTermination()

        # This needs neither Spark nor Java.
        table = open_local(folder / "words")
        print(table.to_arrow(filter="n > 1").sort_by("word").to_pylist())
        print(table.to_duckdb().aggregate("sum(n)::BIGINT").fetchall())
        words.drop()


if __name__ == "__main__":
    typer.run(main)
