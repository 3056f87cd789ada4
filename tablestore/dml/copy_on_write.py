"""DML on a table without a key: files with affected rows are rewritten, the others stay as they are.

1. Find the files with affected rows, and their number in each file. Spark's Delta reader skips files by partition and
   statistics.
2. A file all of whose rows are deleted is only removed. The others are read in full, their rows are divided into
   remaining rows and changes, and both are written (``snapshot/staging/file_rewriter.py``).
3. One commit removes the old files, adds the new ones and lists the change files.

A crash before step 3 leaves files that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, StringType, StructField, StructType

from snapshot.delta.log import DataFile
from snapshot.quoting import backquoted
from snapshot.row_kind import KIND
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, COMMIT_VERSION, SEQ
from snapshot.staging.file_rewriter import Act
from snapshot.staging.stage import AMBIGUOUS, OUTSIDE, StagedFile
from snapshot.store.changes import SnapshotChanges
from tablestore.context import TableContext
from tablestore.dml.conditions import holds
from tablestore.dml.dynamic_overwrite import replaced_partitions
from tablestore.dml.merge_clauses import Action, Match
from tablestore.dml.merge_join import MergeJoin
from tablestore.read.base_table_columns import base_table_columns, is_worth_it, shielded
from tablestore.spark.python_worker import begin_task
from tablestore.spark.shipped import shipped
from tablestore.spark.tasks import parallelism
from tablestore.write.frame_input import run_staging, table_columns
from tablestore.write.optimistic_retry import Replaced

Staging = tuple[Sequence[StagedFile], Replaced]
PLACE = COMMIT_VERSION
"""Column with a row's file, or with the number of a row, while a statement is staged. No user column has this name."""
_TASKS_MAX = 64
"""Maximum number of tasks that read files."""


@dataclass(frozen=True)
class Found:
    """The files with affected rows.

    Attributes:
        base: the snapshot that was searched.
        whole: files all of whose rows are affected, and which are only removed.
        some: files to rewrite.
        stored: the columns of rewritten files (``TableContext.stored_spec``).
    """

    base: int
    whole: tuple[DataFile, ...]
    some: tuple[DataFile, ...]
    stored: TableSpec


def delete(spark: SparkSession, table: TableContext, where: Column, base: int) -> Staging:
    """Stage a delete of the rows that a condition selects."""
    touched = found_by(places(base_rows(spark, table, base).where(where)), table, base)
    return _rewritten(_deletes(spark, table, touched, where) if touched.some else None, table, touched)


def update(spark: SparkSession, table: TableContext, where: Column, values: Mapping[str, Column], base: int) -> Staging:
    """Stage an update of the rows that a condition selects."""
    touched = found_by(places(base_rows(spark, table, base).where(where)), table, base)
    # An update also rewrites files all of whose rows are affected.
    touched = replace(touched, whole=(), some=(*touched.whole, *touched.some))
    if not touched.some:
        return [], Replaced((), (), base)
    names = table.spec.schema.fieldNames()
    rows = _rows_to_rewrite(spark, table, touched).withColumn(SEQ, holds(where))
    act = F.when(F.col(SEQ), int(Act.UPDATE)).otherwise(int(Act.KEEP))
    after = [
        F.when(F.col(SEQ), values.get(name, F.col(backquoted(name)))).alias(f"n{number}")
        for number, name in enumerate(names)
    ]
    return _rewritten(rows.select(*_before(touched.stored), _act(act), *after), table, touched)


def overwrite(spark: SparkSession, table: TableContext, rows: DataFrame, where: Column | None, base: int) -> Staging:
    """Stage an overwrite, which replaces the rows that a condition selects, or all rows, by new ones."""
    if where is None:
        touched = Found(base, tuple(table.files.base_table.files(base)), (), table.spec)
        return _rewritten(_inserts(rows, table.spec, touched.stored, None), table, touched)
    touched = found_by(places(base_rows(spark, table, base).where(where)), table, base)
    inserts = _inserts(rows, table.spec, touched.stored, where)
    if touched.some:
        gone = _deletes(spark, table, touched, where)
        absent = [F.lit(None).cast(f.dataType).alias(f"n{number}") for number, f in enumerate(table.spec.schema.fields)]
        inserts = gone.select("*", *absent).unionByName(inserts)
    return _rewritten(inserts, table, touched)


def overwrite_partitions(table: TableContext, rows: DataFrame, base: int) -> Staging:
    """Stage an overwrite of the partitions that occur in the new rows."""
    staged = run_staging(_inserts(rows, table.spec, table.spec, None), table.file_rewriter(table.spec))
    return staged, replaced_partitions(table.files, staged, base)


def truncate(table: TableContext, base: int) -> Staging:
    """Return the removal of all files; nothing is staged."""
    return [], Replaced(table.files.base_table.files(base), (), base)


def merge(spark: SparkSession, table: TableContext, merge: MergeJoin, base: int) -> Staging:
    """Stage a merge."""
    spec, numbers = table.spec, range(len(table.spec.schema.fields))
    found, parts = Found(base, (), (), table.spec), []
    if merge.has(Match.MATCHED) or merge.has(Match.NOT_MATCHED_BY_SOURCE):
        how = "left" if merge.has(Match.NOT_MATCHED_BY_SOURCE) else "inner"
        rows = base_rows(spark, table, base)
        target = rows.withColumn(PLACE, _file_of(rows)).withColumn(KIND, F.lit(1))
        concerned = merge.joined(target, spec, how=how, extra=[PLACE])
        concerned = concerned.where(merge.actions(Action.UPDATE, Action.DELETE))
        touched = found_by(concerned.select(PLACE), table, base)
        found = replace(touched, whole=(), some=(*touched.whole, *touched.some))
    others = found.stored.schema.fields[len(numbers) :]
    if found.some:
        target = _rows_to_rewrite(spark, table, found).withColumn(PLACE, F.monotonically_increasing_id())
        kept = [PLACE, *(field.name for field in others)]
        both = merge.joined(target.withColumn(KIND, F.lit(1)), spec, how="left", extra=kept)
        parts.append(_one_each(both, merge))
    if merge.has(Match.NOT_MATCHED):
        target = base_rows(spark, table, base).withColumn(KIND, F.lit(1))
        new = merge.joined(target, spec, how="right").where(merge.actions(Action.INSERT))
        absent = [F.lit(None).cast(field.dataType).alias(field.name) for field in others]
        parts.append(new.select("*", _act(F.lit(int(Act.INSERT))), *absent))
    frame, names = None, [backquoted(field.name) for field in others]
    for part in parts:
        columns = part.select(*[f"o{n}" for n in numbers], *names, BUCKET, *[f"n{n}" for n in numbers])
        frame = columns if frame is None else frame.unionByName(columns)
    return _rewritten(frame, table, found)


def _one_each(both: DataFrame, merge: MergeJoin) -> DataFrame:
    """Return each row of the table once, with its ``Act`` in ``_bucket``."""
    of_row = Window.partitionBy(PLACE)
    updates, deletes = (F.coalesce(merge.actions(each), F.lit(False)) for each in (Action.UPDATE, Action.DELETE))
    times = F.sum(updates.cast("int")).over(of_row) + F.max(deletes.cast("int")).over(of_row)
    act = (
        F.when(times > 1, F.lit(AMBIGUOUS))
        .when(updates, int(Act.UPDATE))
        .when(deletes, int(Act.DELETE))
        .otherwise(int(Act.KEEP))
    )
    rank = F.row_number().over(of_row.orderBy(F.col(SEQ).asc_nulls_last()))
    return both.select("*", _act(act), rank.alias("rank")).where("rank = 1")


def base_rows(spark: SparkSession, table: TableContext, base: int) -> DataFrame:
    """Return a snapshot's rows with the addresses of their files, read by Spark's Delta reader if that is worth it.

    If fields of a struct were changed, Spark cannot adapt files; our own reader then reads all files.
    """
    files = table.files.base_table.files(base)
    if not is_worth_it(files):
        return rows_of(spark, table, files, base, places=True, tasks=parallelism(spark))
    frame = spark.read.format("delta").option("versionAsOf", base).load(table.path)
    rows = shielded(frame, _file_of(frame))
    columns = base_table_columns(rows.schema, table.spec, table.spec.schema.fieldNames())
    if columns is None:
        return rows_of(spark, table, files, base, places=True)
    return rows.select(*columns, _file_of(rows))


def places(concerned: DataFrame) -> DataFrame:
    """Return the address of its file for each row of a frame made from ``base_rows``."""
    return concerned.select(_file_of(concerned))


def found_by(concerned: DataFrame, table: TableContext, base: int) -> Found:
    """Return the files with affected rows, given a frame with the file address of each affected row."""
    counts = {row[0]: row[1] for row in concerned.groupBy(PLACE).agg(F.count("*")).collect()}
    if not counts:
        return Found(base, (), (), table.spec)
    named: dict[str, list[DataFile]] = {}
    for file in table.files.base_table.files(base):
        named.setdefault(file.path.rpartition("/")[2], []).append(file)
    # Spark returns a file's address as a URL with percent-encoded characters.
    decoded = {unquote(place): rows for place, rows in sorted(counts.items())}
    files = [
        (file, rows)
        for place, rows in decoded.items()
        for file in named[place.rpartition("/")[2]]
        if place.endswith(f"/{file.path}")
    ]
    whole, some = tuple(f for f, n in files if f.rows == n), tuple(f for f, n in files if f.rows != n)
    return Found(base, whole, some, table.stored_spec())


def rows_of(
    spark: SparkSession,
    table: TableContext,
    files: Sequence[DataFile],
    base: int,
    *,
    spec: TableSpec | None = None,
    places: bool = False,
    tasks: int = _TASKS_MAX,
) -> DataFrame:
    """Return the rows of whole files, which at most ``tasks`` Spark tasks read with our own reader.

    Returns:
        A frame of the columns of ``spec``, by default the table's, and, with ``places``, of the address of each row's
        file.
    """
    spec = spec or table.spec
    snapshot, names = table.files.snapshot(base), spec.schema.fieldNames()
    changes = SnapshotChanges(
        snapshot, table.files.storage, spec.columns, {number: (file,) for number, file in enumerate(files)}
    )
    addresses = [f"/{quote(file.path)}" for file in files]
    # mapInArrow takes a dot in a name for a struct field access.
    inner = StructType([StructField(f"c{i}", f.dataType) for i, f in enumerate(spec.schema.fields)])
    given = StructType([*inner.fields, StructField(PLACE, StringType())]) if places else inner

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in changes.batches(number):
                    found = part.select(names).rename_columns(inner.names)
                    address = pa.repeat(pa.scalar(addresses[number]), found.num_rows)
                    yield found.append_column(PLACE, address) if places else found

    read = spark.range(0, len(files), 1, max(1, min(len(files), tasks))).mapInArrow(shipped(rows), given)
    return read.toDF(*names, *given.names[len(names) :])


def _deletes(spark: SparkSession, table: TableContext, touched: Found, where: Column) -> DataFrame:
    act = F.when(holds(where), int(Act.DELETE)).otherwise(int(Act.KEEP))
    return _rows_to_rewrite(spark, table, touched).select(*_before(touched.stored), _act(act))


def _rows_to_rewrite(spark: SparkSession, table: TableContext, touched: Found) -> DataFrame:
    return rows_of(spark, table, touched.some, touched.base, spec=touched.stored)


def _inserts(rows: DataFrame, spec: TableSpec, stored: TableSpec, where: Column | None) -> DataFrame:
    """Return new rows in the layout that the rewriter takes: old row, act, new row."""
    act = F.lit(int(Act.INSERT))
    if where is not None:
        act = F.when(holds(where), act).otherwise(F.lit(OUTSIDE))
    coming = rows.select(*table_columns(rows.schema, spec)).select(_act(act), "*")
    absent = [F.lit(None).cast(f.dataType).alias(f"o{number}") for number, f in enumerate(stored.schema.fields)]
    after = [F.col(backquoted(f.name)).alias(f"n{number}") for number, f in enumerate(spec.schema.fields)]
    return coming.select(*absent, BUCKET, *after)


def _file_of(rows: DataFrame) -> Column:
    if PLACE in rows.columns:
        return F.col(PLACE)
    return rows.metadataColumn("_metadata").getField("file_path").alias(PLACE)


def _before(spec: TableSpec) -> list[Column]:
    return [F.col(backquoted(name)).alias(f"o{number}") for number, name in enumerate(spec.schema.fieldNames())]


def _act(act: Column) -> Column:
    return act.cast(ByteType()).alias(BUCKET)


def _rewritten(frame: DataFrame | None, table: TableContext, touched: Found) -> Staging:
    staged = [] if frame is None else run_staging(frame, table.file_rewriter(touched.stored))
    return staged, Replaced(touched.whole, touched.some, touched.base)
