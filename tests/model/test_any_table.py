"""Tables of any columns, options and history against a dict: what is written is what every reader returns."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from snapshot.merge.bucket_hash import key_types_allowed
from snapshot.quoting import backquoted, quoted
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from tablestore import LocalTable, TableStore, create_local, when_matched, when_not_matched
from tablestore.write.frame_input import rows_in_arrow
from tests.harness import schema_strategies as tables

UPSERTS = [RowKind.INSERT, RowKind.UPDATE_AFTER]

any_table = settings(suppress_health_check=list(HealthCheck))
any_spark_table = settings(any_table, max_examples=settings().max_examples // 5)

Row = tuple[str, ...]
"""The values of a row as text, which is the same for NaN and NaN."""


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``create_local``, without what names the log's broker and topic."""
    schema, primary_key = draw(tables.tables())
    primary_key = [name for name in primary_key if key_types_allowed(schema.field(name).type)]
    options: dict[str, Any] = {"bucket": draw(st.integers(1, 3)), "compaction.commits": draw(st.sampled_from([2, 100]))}
    log_system = draw(st.sampled_from(["kafka", "files"]))
    if log_system == "kafka":
        options["log.format"] = draw(st.sampled_from(["json", "arrow", "debezium-json"]))
    if primary_key:
        options["merge-engine"] = draw(st.sampled_from(["deduplicate"] * 3 + ["partial-update", "first-row"]))
        match draw(st.sampled_from(["none", "lookup", "eventual"])):
            case "lookup" if options.get("log.format") != "json":
                options["changelog-producer"] = "lookup"
            case "eventual" if log_system == "kafka":
                options["log.consistency"] = "eventual"
    fit = [name for name in primary_key or schema.names if is_partition_type(schema.field(name).type)]
    partition_by = draw(st.lists(st.sampled_from(fit), max_size=1)) if fit and len(schema) > 1 else []
    return {
        "schema": schema,
        "primary_key": primary_key,
        "partition_by": partition_by,
        "log_system": log_system,
        "options": options,
    }


def is_partition_type(kind: pa.DataType) -> bool:
    """Return whether a partition column may have this type."""
    return key_types_allowed(kind) and not (pa.types.is_timestamp(kind) or pa.types.is_binary(kind))


class Model:
    """The rows that a table should have."""

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str], options: dict[str, Any]) -> None:
        self.columns = schema.names
        self.engine = options.get("merge-engine", "deduplicate")
        self.rows: Counter[Row] = Counter()
        self._keys = [self.columns.index(name) for name in primary_key]

    def rows_in(self, data: pa.Table | pa.RecordBatch) -> list[Row]:
        """Return the rows of Arrow data."""
        batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        return [
            row
            for batch in batches
            for row in zip(*(map(self._text, tables.plain(batch[name])) for name in self.columns), strict=True)
        ]

    def holds(self, data: pa.Table) -> bool:
        """Return whether Arrow data has these rows, in any order."""
        return Counter(self.rows_in(data)) == self.rows

    def change(self, row: Row, kind: RowKind) -> None:
        """Apply a change of the table's feed."""
        if not self._keys:
            self.rows[row] += 1 if kind in UPSERTS else -1
            self.rows = +self.rows
        elif kind is not RowKind.UPDATE_BEFORE:
            for old in self._same_key(row):
                del self.rows[old]
            if kind is not RowKind.DELETE:
                self.rows[row] = 1

    def write(self, row: Row, kind: RowKind) -> None:
        """Write a row, by the rules of the merge engine."""
        for old in self._same_key(row) if kind is not RowKind.DELETE else ():
            if self.engine == "first-row":
                row = old
            elif self.engine == "partial-update":
                row = tuple(before if new == "None" else new for before, new in zip(old, row, strict=True))
        self.change(row, kind)

    def key_of(self, row: Row) -> Row:
        """Return a row's key."""
        return tuple(row[n] for n in self._keys)

    def matching(self, name: str, text: str) -> list[Row]:
        """Return the rows that have a value in a column."""
        return [row for row in self.rows if row[self.columns.index(name)] == text]

    def _same_key(self, row: Row) -> list[Row]:
        return [old for old in self.rows if self._keys and self.key_of(old) == self.key_of(row)]

    def _text(self, value: Any) -> str:
        # DuckDB takes -0.0 for 0.0 where merge engines fold rows.
        text = repr(value)
        return text if self.engine == "deduplicate" else re.sub(r"-0\.0(?![\d'])", "0.0", text)


class AnyTable:
    """A table, and the model of it."""

    def __init__(self, definition: dict[str, Any], folder: Path, servers: str) -> None:
        options = dict(definition["options"])
        if definition["log_system"] == "kafka":
            options |= {"kafka.bootstrap.servers": servers, "kafka.topic": f"any-table-{uuid.uuid4().hex}"}
        self.table: LocalTable = create_local(folder / "t", **{**definition, "options": options})
        self.schema: pa.Schema = definition["schema"]
        self.key: list[str] = definition["primary_key"]
        self.options = options
        self.model = Model(self.schema, self.key, options)

    def write(self, data: st.DataObject) -> None:
        """Write drawn rows, or deletes where the engine takes them."""
        deletes = self.key and self.model.engine == "deduplicate"
        batch = self.draw_rows(data, [*UPSERTS, RowKind.DELETE] if deletes else UPSERTS)
        self.table.write(self.given(batch))
        self.wrote(batch)

    def wrote(self, batch: pa.RecordBatch) -> None:
        """Apply written rows to the model."""
        for row, kind in zip(self.model.rows_in(batch), batch[KIND].to_pylist(), strict=True):
            self.model.write(row, RowKind(kind))

    def overwrite(self, data: st.DataObject) -> None:
        """Replace all rows: the last one of a key counts, whatever the engine."""
        batch = self.draw_rows(data, [RowKind.INSERT])
        self.table.overwrite(batch.drop_columns([KIND]))
        self.model.rows.clear()
        for row in self.model.rows_in(batch):
            self.model.change(row, RowKind.INSERT)

    def merge(self, data: st.DataObject) -> None:
        """Merge drawn rows by key, each of another key."""
        batch = self.draw_rows(data, [RowKind.INSERT])
        rows = self.model.rows_in(batch)
        if len({self.model.key_of(row) for row in rows}) == len(rows):
            whole = [when_matched().update(), when_not_matched().insert()]
            self.table.merge(batch.drop_columns([KIND]), self.key, whole)
            for row in rows:
                self.model.change(row, RowKind.UPDATE_AFTER)

    def delete(self, data: st.DataObject) -> None:
        """Delete the rows that have NULL in a column."""
        name = data.draw(st.sampled_from(self.schema.names))
        self.table.delete(f"{quoted(name)} IS NULL")
        for row in self.model.matching(name, "None"):
            del self.model.rows[row]

    def update(self, data: st.DataObject) -> None:
        """Set a column to NULL in the rows that have NULL in another one."""
        names = [field.name for field in self.schema if field.nullable and field.name not in self.key]
        if names:
            name, where = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(self.schema.names))
            self.table.update(f"{quoted(where)} IS NULL", {name: "NULL"})
            at = self.schema.names.index(name)
            for row in self.model.matching(where, "None"):
                count = self.model.rows.pop(row)
                self.model.rows[(*row[:at], "None", *row[at + 1 :])] += count

    def add_column(self, data: st.DataObject) -> None:
        """Add a column, which is NULL in all rows."""
        kinds = ["int", "string", "struct<`a.b`: int>", "map<string, double>", "array<date>", "decimal(38, 3)"]
        self.table.alter.add_column(backquoted(self.draw_name(data)), data.draw(st.sampled_from(kinds)))
        self._altered(lambda row: (*row, "None"))

    def drop_column(self, data: st.DataObject) -> None:
        """Drop a column, but not the last one."""
        if len(self.free_columns) > 1:
            name = data.draw(st.sampled_from(self.free_columns))
            at = self.schema.names.index(name)
            self.table.alter.drop_column(backquoted(name))
            self._altered(lambda row: (*row[:at], *row[at + 1 :]))

    def rename_column(self, data: st.DataObject) -> None:
        """Rename a column."""
        if self.free_columns:
            name = data.draw(st.sampled_from(self.free_columns))
            self.table.alter.rename_column(backquoted(name), self.draw_name(data))
            self._altered(lambda row: row)

    def draw_name(self, data: st.DataObject) -> str:
        """Draw the name of a new column."""
        taken = {name.casefold() for name in self.schema.names}
        return data.draw(tables.names.filter(lambda name: name.casefold() not in taken))

    @property
    def free_columns(self) -> list[str]:
        """The columns outside the key and the partitions."""
        return [name for name in self.schema.names if name not in (*self.key, *self.table.partition_by)]

    def _altered(self, change: Callable[[Row], Row]) -> None:
        before, self.schema = self.model, self.table.schema
        self.model = Model(self.schema, self.key, self.options)
        for row, count in before.rows.items():
            self.model.rows[change(row)] += count

    def truncate(self, _: st.DataObject) -> None:
        """Delete all rows."""
        self.table.truncate()
        self.model.rows.clear()

    def compact(self, _: st.DataObject) -> None:
        """Compact the table."""
        self.table.compact()

    @property
    def can_remove(self) -> bool:
        """Whether the log has a place for deletes."""
        return bool(self.key) or self.options.get("log.format") != "json"

    @property
    def log_is_whole(self) -> bool:
        """Whether a tail from the first record gives each change once and in order."""
        return self.options.get("log.consistency") != "eventual"

    def draw_rows(self, data: st.DataObject, kinds: Sequence[RowKind]) -> pa.RecordBatch:
        """Draw rows that may be written, with ``_kind``: Delta has no partition of an empty string or a year 10000."""
        batch = data.draw(tables.changes(self.schema, self.key, kinds))
        partitions = pa.table({name: batch[name] for name in self.table.partition_by})
        fit = in_python(partitions) and not any("" in column.to_pylist() for column in partitions.columns)
        return batch if fit else batch.slice(0, 0)

    def given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return drawn rows as they are written: with the name of the kind in a table with a key."""
        rows = batch.drop_columns([KIND])
        names = [RowKind(kind).change_type for kind in batch[KIND].to_pylist()]
        return rows.append_column(CHANGE_TYPE, pa.array(names, pa.string())) if self.key else rows

    def folded(self, batches: Iterable[pa.RecordBatch]) -> Model:
        """Apply all changes of a feed to an empty table."""
        model = Model(self.schema, self.key, self.options)
        for batch in batches:
            for row, name in zip(model.rows_in(batch), batch[CHANGE_TYPE].to_pylist(), strict=True):
                model.change(row, RowKind(CHANGE_TYPE_NAMES.index(name)))
        return model


def in_python(data: pa.Table) -> bool:
    """Return whether Python has the dates and times in the data."""
    try:
        data.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


@any_table
@given(data=st.data())
def test_what_is_written_is_what_every_reader_returns(
    kafka: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    made = AnyTable(data.draw(definitions()), tmp_path_factory.mktemp("any"), kafka.bootstrap_servers)
    with made.table as table:
        first = table.snapshots()[0].id
        past: dict[int, tuple[pa.Schema, Counter[Row]]] = {}
        acts = [made.write] * 4 + [made.compact, made.add_column] + [made.merge] * bool(made.key)
        acts += [made.overwrite, made.truncate, made.delete, made.update] * made.can_remove
        # Records of an eventual log do not name their schema.
        acts += [made.drop_column, made.rename_column] * made.log_is_whole
        for act in data.draw(st.lists(st.sampled_from(acts), min_size=1, max_size=5)):
            act(data)
            read = table.to_arrow()
            assert made.model.holds(read), act
            assert table.count() == made.model.rows.total()
            for row in read.to_pylist() if made.key and in_python(read) else ():
                assert repr(table.get({name: row[name] for name in made.key})) == repr(row)
            past[table.snapshots()[0].id] = made.schema, Counter(made.model.rows)
        for snapshot, (schema, rows) in past.items():
            if schema == made.schema:
                assert Counter(made.model.rows_in(table.to_arrow(snapshot=snapshot))) == rows
        assert made.folded(table.changes(first)).rows == made.model.rows
        for mode in ["full"] + ["earliest"] * made.log_is_whole:
            assert made.folded(table.tail(scan_mode=mode, follow=False)).rows == made.model.rows
        assert table.verify().ok


@any_spark_table
@given(data=st.data())
def test_spark_reads_and_writes_the_same(
    spark: SparkSession, kafka: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    made = AnyTable(data.draw(definitions()), folder, kafka.bootstrap_servers)
    with made.table as local:
        table = TableStore.open(spark, str(folder / "t"))
        made.write(data)
        write_in_spark(made, table, data.draw(st.sampled_from(["local frame", "file"])), folder / "rows.parquet", data)
        assert made.model.holds(local.to_arrow())
        assert made.model.holds(rows_in_arrow(table.read()))
        table.compact()
        assert made.model.holds(rows_in_arrow(table.read()))
        made.write(data)
        parts: list[pa.Table] = []

        def keep(frame: DataFrame, _: int) -> None:
            parts.append(rows_in_arrow(frame))

        stream = table.read_stream(scan_mode="full").writeStream.trigger(availableNow=True)
        query = stream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        assert made.folded(batch for part in parts for batch in part.to_batches()).rows == made.model.rows


def write_in_spark(made: AnyTable, table: TableStore, way: str, file: Path, data: st.DataObject) -> None:
    """Write drawn rows of different keys, since Spark reads a file's rows in any order."""
    batch = made.draw_rows(data, UPSERTS)
    rows = pa.Table.from_batches([made.given(batch)])
    keys = [tuple(tables.plain(batch[name])) for name in made.key]
    if not in_python(rows) or (keys and len(set(zip(*keys, strict=True))) < len(rows)):
        return
    if way == "file":
        pq.write_table(rows, file)
        table.write(SparkSession.active().read.parquet(str(file)))
    else:
        table.write(rows)
    made.wrote(batch)
