"""Pushed filters keep exactly the rows that Spark's own filter keeps, whatever the values and the files' statistics."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.merge.merge_reader import BaseFile, MergeReader
from snapshot.merge.pushed_filters import Predicate, split_filters

UTC = dt.UTC
STRINGS = [
    "",
    "a",
    "A",
    "ab",
    "a%b",
    "a_b",
    "%",
    "_",
    "\\",
    "a\0b",
    "é",
    "e\u0301",
    "z",
    "\uffff",
    "😀",
    " a",
    "a ",
    "'",
    '"',
]
DOUBLES = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1.5, 5e-324, 0.1]
VALUES: dict[DataType, list[Any]] = {
    BooleanType(): [True, False],
    ByteType(): [-128, 0, 127],
    ShortType(): [-32768, 0, 32767],
    IntegerType(): [-(2**31), 0, 1, 2**31 - 1],
    LongType(): [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    FloatType(): [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 2.0**-149],
    DoubleType(): DOUBLES,
    DecimalType(9, 2): [Decimal("-9999999.99"), Decimal("0.00"), Decimal("1.10"), Decimal("9999999.99")],
    DecimalType(38, 18): [
        Decimal("-1e19"),
        Decimal("0"),
        Decimal("1e-18"),
        Decimal("99999999999999999999.999999999999999999"),
    ],
    StringType(): STRINGS,
    BinaryType(): [b"", b"\0", b"a", b"a\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff"],
    DateType(): [dt.date(1, 1, 2), dt.date(1582, 10, 4), dt.date(1970, 1, 1), dt.date(9999, 12, 30)],
    TimestampType(): [
        dt.datetime(1600, 1, 2, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        dt.datetime(9999, 12, 30, 1, tzinfo=UTC),
    ],
    TimestampNTZType(): [
        dt.datetime(1, 1, 2),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2024, 3, 31, 2, 30),
    ],
    StructType().add("x", IntegerType()).add("y z", StructType().add("w", StringType())): [
        (1, ("a",)),
        (None, None),
        (3, (None,)),
        (-1, ("b",)),
    ],
}
TYPES = list(VALUES)
COLUMNS = [f"c{i}" for i in range(len(TYPES))]
SPARK_SCHEMA = StructType().add("id", IntegerType())
for each_name, each_type in zip(COLUMNS, TYPES, strict=True):
    SPARK_SCHEMA = SPARK_SCHEMA.add(each_name, each_type)
SCHEMA = to_arrow_schema(SPARK_SCHEMA, timezone="UTC")
STRUCT = COLUMNS[-1]

COMPARISONS = {
    EqualTo: lambda c, v: c == v,
    EqualNullSafe: lambda c, v: c.eqNullSafe(v),
    GreaterThan: lambda c, v: c > v,
    GreaterThanOrEqual: lambda c, v: c >= v,
    LessThan: lambda c, v: c < v,
    LessThanOrEqual: lambda c, v: c <= v,
}
STRING_TESTS = {StringStartsWith: F.startswith, StringEndsWith: F.endswith, StringContains: F.contains}


def _rows() -> list[tuple[Any, ...]]:
    longest = max(len(values) for values in VALUES.values())
    rows: list[tuple[Any, ...]] = []
    for shift in range(2):
        for i in range(longest):
            cells = [
                values[(i * (1 + shift)) % len(values)] if i % 7 != 3 + shift else None for values in VALUES.values()
            ]
            rows.append((len(rows), *cells))
    return rows


def _literal(value: Any, kind: DataType) -> Column:
    # By way of text, since java.sql has another calendar for days before 1582.
    return F.lit(value.isoformat() if isinstance(value, dt.date) else value).cast(kind)


def _filters() -> list[tuple[Filter, Column]]:
    """Make every filter on every value, with the Spark expression of the same meaning."""
    made: list[tuple[Filter, Column]] = []
    for name, kind in zip(COLUMNS[:-1], TYPES[:-1], strict=True):
        column, path = F.col(name), (name,)
        literals = [_literal(value, kind) for value in VALUES[kind]]
        for value, literal in zip(VALUES[kind], literals, strict=True):
            made += [(kind_of(path, value), test(column, literal)) for kind_of, test in COMPARISONS.items()]
        made += [
            (IsNull(path), column.isNull()),
            (IsNotNull(path), column.isNotNull()),
            (EqualNullSafe(path, None), column.isNull()),
            (In(path, tuple(VALUES[kind][:3])), column.isin(*literals[:3])),
            (In(path, (*VALUES[kind][:2], None)), column.isin(*literals[:2], F.lit(None))),
            (In(path, tuple(VALUES[kind] * 40)), column.isin(*literals)),
        ]
        if kind == StringType():
            for value in STRINGS:
                made += [(kind_of(path, value), test(column, F.lit(value))) for kind_of, test in STRING_TESTS.items()]
    deep = F.col(f"{STRUCT}.`y z`.w")
    made += [
        (EqualTo((STRUCT, "x"), 1), F.col(f"{STRUCT}.x") == 1),
        (GreaterThan((STRUCT, "x"), -5), F.col(f"{STRUCT}.x") > -5),
        (IsNull((STRUCT, "y z", "w")), deep.isNull()),
        (EqualTo((STRUCT, "y z", "w"), "a"), deep == "a"),
        (IsNotNull((STRUCT,)), F.col(STRUCT).isNotNull()),
        (StringStartsWith((STRUCT, "y z", "w"), "b"), deep.startswith("b")),
    ]
    return made


@pytest.fixture(scope="module")
def spark_answers(spark: SparkSession) -> list[tuple[Filter, set[int]]]:
    """Each filter and its negation, with the ids it keeps in Spark."""
    frame = spark.createDataFrame(_rows(), SPARK_SCHEMA)
    expressions = [expression.alias(f"f{i}") for i, (_, expression) in enumerate(_filters())]
    answers: list[tuple[Filter, set[int]]] = []
    for start in range(0, len(expressions), 100):
        part = frame.select("id", *expressions[start : start + 100]).toArrow()
        ids = part.column("id").to_pylist()
        for column, (each, _) in zip(part.columns[1:], _filters()[start:], strict=False):
            verdicts = list(zip(ids, column.to_pylist(), strict=True))
            answers.append((each, {n for n, keep in verdicts if keep}))
            answers.append((Not(each), {n for n, keep in verdicts if keep is False}))
    return answers


@pytest.fixture(scope="module", params=["pyarrow", "pyarrow-sorted", "spark", "spark-int96"])
def files(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> list[BaseFile]:
    """The same rows, in files of different writers; small row groups, so that a wrong bound would hide rows."""
    folder: Path = tmp_path_factory.mktemp("rows")
    if str(request.param).startswith("pyarrow"):
        struct = [None if row[-1] is None else _as_struct(row[-1]) for row in _rows()]
        arrays = [
            pa.array(cells, kind)
            for cells, kind in zip(list(zip(*_rows(), strict=True))[:-1], SCHEMA.types, strict=False)
        ]
        table = pa.Table.from_arrays([*arrays, pa.array(struct, SCHEMA.types[-1])], schema=SCHEMA)
        for i, name in enumerate(COLUMNS[:-1] if request.param == "pyarrow-sorted" else ["id"]):
            part = table.sort_by(name)
            pq.write_table(
                part if request.param == "pyarrow" else _slice(part, i), folder / f"{i}.parquet", row_group_size=3
            )
    else:
        kind = "INT96" if request.param == "spark-int96" else "TIMESTAMP_MICROS"
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
        frame = spark.createDataFrame(_rows(), SPARK_SCHEMA).repartition(8)
        frame.write.mode("overwrite").parquet(str(folder))
    return [BaseFile(str(path)) for path in sorted(folder.glob("*.parquet"))]


def _slice(table: pa.Table, part: int) -> pa.Table:
    return table.filter(pa.array([n % (len(COLUMNS) - 1) == part for n in table["id"].to_pylist()]))


def _as_struct(value: tuple[Any, Any]) -> dict[str, Any]:
    x, y = value
    return {"x": x, "y z": None if y is None else {"w": y[0]}}


def test_filters_keep_the_rows_that_spark_keeps(
    spark_answers: list[tuple[Filter, set[int]]], files: list[BaseFile]
) -> None:
    wrong = []
    with MergeReader(SCHEMA, ["id"]) as engine:
        for each, expected in spark_answers:
            predicate, unsupported = split_filters([each], SCHEMA)
            assert not unsupported
            batches = engine.merged(files, [], columns=["id"], predicate=predicate)
            kept = {n for batch in batches for n in batch.column(0).to_pylist()}
            if kept != expected:
                wrong.append(f"{each}: {predicate.sql} differs in {sorted(kept ^ expected)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("missing",), 1),
        EqualTo((STRUCT,), {"x": 1}),
        EqualTo((STRUCT, "nothing"), 1),
        EqualTo(("id",), 2**31),
        EqualTo(("id",), True),
        EqualTo(("id",), 1.5),
        EqualTo(("id",), None),
        In(("id",), ()),
        In(("id",), (1, "x")),
        EqualTo((COLUMNS[TYPES.index(FloatType())],), 0.1),
        EqualTo((COLUMNS[TYPES.index(DecimalType(9, 2))],), Decimal("0.001")),
        EqualTo((COLUMNS[TYPES.index(DecimalType(9, 2))],), Decimal("12345678")),
        EqualTo((COLUMNS[TYPES.index(TimestampType())],), dt.datetime(2024, 1, 1)),
        EqualTo((COLUMNS[TYPES.index(TimestampNTZType())],), dt.datetime(2024, 1, 1, tzinfo=UTC)),
        EqualTo((COLUMNS[TYPES.index(DateType())],), dt.datetime(2024, 1, 1)),
        EqualTo((COLUMNS[TYPES.index(StringType())],), "\ud800"),
        StringContains((COLUMNS[TYPES.index(BinaryType())],), "a"),
    ],
)
def test_a_doubtful_filter_is_left_to_spark(each: Filter) -> None:
    for case in (each, Not(each)):
        predicate, unsupported = split_filters([case], SCHEMA)
        assert unsupported == [case]
        assert unsupported[0] is case
        assert predicate == Predicate()


def test_a_predicate_survives_pickling_and_narrows_to_columns() -> None:
    predicate, _ = split_filters([EqualTo(("id",), 1), Not(IsNull(("c0",)))], SCHEMA)
    assert pickle.loads(pickle.dumps(predicate)) == predicate
    assert predicate.columns == {"id", "c0"}
    assert predicate.on(["id"]).sql == '("id" = CAST(? AS INTEGER))'
    assert predicate.on(["id"]).parameters == (1,)
