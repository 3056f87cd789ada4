"""What a schema change makes of columns, what it refuses, and how rows of one schema become rows of another."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.errors import InvalidInputError
from snapshot.schema.adapter import Adapter
from snapshot.schema.evolution import (
    AddColumn,
    AllowNull,
    Change,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    evolved,
    merging_changes,
)
from snapshot.schema.physical_names import Columns
from snapshot.schema.spark_types import arrow_schema, path_of, physical_name, stored, visible, with_physical_names
from snapshot.schema.spec import TableSpec

INNER = StructType().add("x", "integer").add("y", "string", False)
SCHEMA = (
    StructType()
    .add("id", "long", False)
    .add("v", "integer")
    .add("s", INNER)
    .add("list", ArrayType(INNER))
    .add("map", MapType(StringType(), INNER))
    .add("a.b", "string")
)


def change(*changes: Change, schema: StructType = SCHEMA) -> StructType:
    return evolved(schema, changes, past=[], bound={"id": "it is in the primary key, ['id']"})


def columns(schema: StructType) -> Columns:
    return Columns.of(schema.json())


def ddl(schema: StructType) -> str:
    return schema.simpleString()[7:-1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([AddColumn("w", StringType())], "id:bigint,v:int,w:string"),
        ([AddColumn("w", StringType(), first=True)], "w:string,id:bigint,v:int"),
        ([AddColumn("w", StringType(), after="ID")], "id:bigint,w:string,v:int"),
        ([DropColumn("V")], "id:bigint"),
        ([RenameColumn("v", "w"), AddColumn("v", LongType())], "id:bigint,w:int,v:bigint"),
        ([RenameColumn("v", "V")], "id:bigint,V:int"),
        ([MoveColumn("v", first=True)], "v:int,id:bigint"),
        ([MoveColumn("id", after="v")], "v:int,id:bigint"),
        ([WidenColumn("v", LongType())], "id:bigint,v:bigint"),
        ([WidenColumn("v", DecimalType(12, 2))], "id:bigint,v:decimal(12,2)"),
        (
            [AddColumn("w", StringType()), RenameColumn("w", "x"), MoveColumn("x", after="id")],
            "id:bigint,x:string,v:int",
        ),
    ],
)
def test_columns_change(changes: list[Change], expected: str) -> None:
    assert ddl(change(*changes, schema=StructType(SCHEMA.fields[:2]))) == expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [("s", "struct<x:bigint,z:date>"), ("list.element", "array<struct<x:bigint,z:date>>"),
     ("map.value", "map<string,struct<x:bigint,z:date>>")],
)  # fmt: skip
def test_fields_change_wherever_their_struct_is(place: str, expected: str) -> None:
    found = change(
        AddColumn(f"{place}.new", DateType(), after="x"),
        DropColumn(f"{place}.y"),
        WidenColumn(f"{place}.x", LongType()),
        RenameColumn(f"{place}.new", "z"),
    )
    assert found[place.partition(".")[0]].dataType.simpleString() == expected
    files = stored(found)[place.partition(".")[0]].dataType.simpleString()
    assert files == expected.replace("z:", "new:")


def test_a_stored_name_is_never_used_again() -> None:
    first = change(RenameColumn("v", "w"))
    assert (physical_name(first["w"]), visible(first)["w"].metadata) == ("v", {})
    second = evolved(first, [AddColumn("v", StringType()), DropColumn("w")], past=[SCHEMA, first], bound={})
    assert physical_name(second["v"]) == "v_2"
    third = evolved(second, [DropColumn("v"), AddColumn("V", StringType())], past=[SCHEMA, first, second], bound={})
    assert physical_name(third["V"]) == "V_3"
    nested = change(DropColumn("s.x"))
    again = evolved(nested, [AddColumn("s.x", StringType())], past=[SCHEMA], bound={})
    assert ddl(StructType([stored(again)["s"]])) == "s:struct<y:string,x_2:string>"
    assert physical_name(evolved(again, [AddColumn("x", StringType())], past=[SCHEMA], bound={})["x"]) == "x"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (AddColumn("V", StringType()), "the name is already used"),
        (AddColumn("_kind", StringType()), "reserved"),
        (AddColumn("s.X", StringType()), "the name is already used"),
        (AddColumn("v.x", StringType()), "int"),
        (AddColumn("w", StringType(), first=True, after="v"), "exclude each other"),
        (AddColumn("w", StringType(), after="nix"), "'nix' does not exist"),
        (AddColumn("list.x", StringType()), "'element'"),
        (DropColumn("nix"), "'nix' does not exist; existing fields are"),
        (DropColumn("id"), "primary key"),
        (DropColumn("s..x"), "expected a name"),
        (RenameColumn("v", "ID"), "the name is already used"),
        (RenameColumn("v", "_seq"), "reserved"),
        (RenameColumn("ID", "key"), "primary key"),
        (RenameColumn("list.element", "x"), "not a struct field"),
        (MoveColumn("v"), "first=True"),
        (MoveColumn("v", after="v"), "column 'v' cannot be placed after itself"),
        (WidenColumn("id", DecimalType(20, 0)), "primary key"),
        (WidenColumn("v", ShortType()), "from int to smallint"),
        (WidenColumn("v", FloatType()), "from int to float"),
        (WidenColumn("v", DecimalType(10, 1)), r"from int to decimal\(10,1\)"),
        (WidenColumn("s", INNER), "by its path"),
        (WidenColumn("map.key", StringType()), "key type of a map"),
        (AllowNull("nix"), "does not exist"),
        (AllowNull("map.key"), "not a struct field"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: Change, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        change(wrong)


@pytest.mark.parametrize(
    ("came", "wanted", "can"),
    [
        (IntegerType(), DoubleType(), True),
        (LongType(), DoubleType(), False),
        (LongType(), DecimalType(20, 0), True),
        (LongType(), DecimalType(21, 2), False),
        (FloatType(), DoubleType(), True),
        (DecimalType(10, 2), DecimalType(12, 4), True),
        (DecimalType(10, 2), DecimalType(11, 4), False),
        (DateType(), TimestampNTZType(), False),
        (TimestampNTZType(), TimestampType(), False),
        (IntegerType(), StringType(), False),
    ],
)
def test_types_become_those_that_hold_all_their_values(came: DataType, wanted: DataType, can: bool) -> None:
    schema = StructType().add("id", "long").add("v", came)
    if can:
        assert change(WidenColumn("v", wanted), schema=schema)["v"].dataType == wanted
    else:
        with pytest.raises(InvalidInputError, match="cannot change from"):
            change(WidenColumn("v", wanted), schema=schema)


def test_a_path_is_read_as_it_is_written() -> None:
    assert path_of("a.b", SCHEMA) == ("a.b",)
    assert path_of("s.x", SCHEMA) == ("s", "x")
    assert path_of("`a.b`.`c``d`", SCHEMA) == ("a.b", "c`d")
    for wrong in ("", ".", "s.", "s..x", "`s"):
        with pytest.raises(InvalidInputError):
            path_of(wrong, SCHEMA)


def test_a_definition_remembers_the_columns_of_each_snapshot() -> None:
    spec = TableSpec("t", SCHEMA.json(), ("id",), ())
    assert '"format": 1' in spec.to_json()
    second = spec.with_columns(change(AddColumn("w", StringType())).json(), 3)
    third = second.with_columns(change(DropColumn("v"), schema=with_physical_names(second.schema_json)).json(), 7)
    read = TableSpec.from_json(third.to_json(), "t")
    assert read == third
    assert '"format": 2' in third.to_json()
    assert [read.at(s).since for s in (0, 2, 3, 6, 7, 99)] == [0, 0, 3, 3, 7, 7]
    assert read.at(0) == spec
    assert read.at(5) == second
    assert read.added == {"w"}


def test_rows_of_one_schema_become_rows_of_another() -> None:
    past = visible(SCHEMA)
    now = change(
        WidenColumn("v", LongType()),
        *[each for place in ("s", "list.element", "map.value") for each in (
            WidenColumn(f"{place}.x", LongType()), AddColumn(f"{place}.z", StringType(), first=True),
            RenameColumn(f"{place}.y", "why"),
        )],
        RenameColumn("s", "struct"), MoveColumn("a.b", first=True), AddColumn("new", DateType()),
    )  # fmt: skip
    inner = {"x": 1, "y": "y"}
    rows = [
        {"id": 0, "v": 7, "s": inner, "list": [inner, None], "map": [("k", inner)], "a.b": "t"},
        {"id": 1, "v": None, "s": None, "list": None, "map": None, "a.b": None},
        {"id": 2, "v": -7, "s": {"x": None, "y": ""}, "list": [], "map": [], "a.b": ""},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(past)).append_column("_kind", pa.array([0, 2, 3]))
    wide = {"z": None, "x": 1, "why": "y"}
    expected = [
        {"a.b": "t", "id": 0, "v": 7, "struct": wide, "list": [wide, None], "map": [("k", wide)], "new": None,
         "_kind": 0},
        {"a.b": None, "id": 1, "v": None, "struct": None, "list": None, "map": None, "new": None, "_kind": 2},
        {"a.b": "", "id": 2, "v": -7, "struct": {"z": None, "x": None, "why": ""}, "list": [], "map": [], "new": None,
         "_kind": 3},
    ]  # fmt: skip
    adapt = Adapter(columns(past), columns(now))
    found = adapt(batch)
    assert found.to_pylist() == expected
    found.validate(full=True)
    assert adapt(batch.slice(1)).to_pylist() == expected[1:]
    assert adapt(batch.slice(1, 0)).to_pylist() == []
    assert adapt(batch).schema == pa.schema([*arrow_schema(visible(now)), pa.field("_kind", pa.int64())])
    assert Adapter(columns(past), columns(past))(batch) is batch


def test_rows_have_no_place_in_an_older_schema_that_is_narrower() -> None:
    past = StructType().add("id", "long", False).add("v", "integer", False)
    for now, words in (
        (change(WidenColumn("v", LongType()), schema=past), "expected type int32, got int64"),
        (change(DropColumn("v"), schema=past), "NOT NULL here"),
        (change(AllowNull("v"), schema=past), "NOT NULL here"),
    ):
        batch = pa.RecordBatch.from_pylist([{"id": 1, "v": None}], schema=arrow_schema(visible(now)))
        with pytest.raises(InvalidInputError, match=words):
            Adapter(columns(now), columns(past), "restart: ")(batch)


def test_merging_finds_what_a_table_lacks() -> None:
    came = (
        StructType()
        .add("ID", "integer")
        .add("v", "long")
        .add("s", StructType().add("x", "short").add("new", "integer"))
        .add("list", ArrayType(StructType().add("x", "long")))
        .add("map", MapType(StringType(), StructType().add("n.n", "integer")))
        .add("a.b", "integer")
        .add("_change_type", "string")
        .add("more", INNER)
    )
    assert merging_changes(came, SCHEMA) == [
        WidenColumn("`v`", LongType()),
        AddColumn("`s`.`new`", IntegerType()),
        WidenColumn("`list`.`element`.`x`", LongType()),
        AddColumn("`map`.`value`.`n.n`", IntegerType()),
        AddColumn("`more`", INNER),
    ]
    changed = change(*merging_changes(came, SCHEMA))
    assert merging_changes(came, changed) == []
    assert change(CommentColumn("v", "why"))["v"].metadata == {"comment": "why"}
