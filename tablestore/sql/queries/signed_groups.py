"""Plans the aggregates of a `RetractableQuery` over signed rows, with Spark's own stateful aggregation.

A row's weight in a sum is its value times its sign, and a group is a native aggregate that sums these weights. For
DISTINCT aggregates each distinct value is first a group of its own, and only its appearance and disappearance count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType, LongType, StructType

from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.spark.changelog import SIGN, changelog, signed
from tablestore.sql.operators.extremes import Extreme, with_extremes
from tablestore.sql.operators.held_types import is_ordered
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.queries.retraction import Aggregate, RetractableQuery, Sum

LIVE = "_live"
"""Name of the boolean column that is true if a group has rows."""
_TAG, _ROWS, _EACH = "_tag", "_rows", "_each"
_DECIMAL_MAX = 38


def grouped(rows: DataFrame, parts: RetractableQuery, place: Callable[[], StatePlace]) -> DataFrame:
    """Return the groups of signed rows with their aggregates.

    ``rows`` is a streaming frame with the columns of ``parts.inner`` and ``_change_type``.

    Returns:
        A frame with the query's keys and aggregates, `LIVE`, and ``_seq``, which increases with each micro-batch that
        changes a group. It must run in output mode ``update``, with Spark's check of chained stateful operators off.

    Raises:
        RefusedError: SUM or AVG of a type without exact addition, MIN or MAX of one without an order.
    """
    kinds = {field.name: field.dataType for field in rows.schema}
    for each in parts.aggregates.values():
        _check(each, kinds)
    rows = signed(rows).drop(CHANGE_TYPE)
    extremes = {name: each for name, each in parts.aggregates.items() if each.sum.is_extreme}
    summed = {name: each for name, each in parts.aggregates.items() if name not in extremes}
    plain = {_weights(name): each for name, each in summed.items() if not each.distinct}
    weights = _weighed(plain, kinds)
    weights[_ROWS] = F.col(SIGN)
    distinct = list(dict.fromkeys(each.arguments for each in summed.values() if each.distinct))
    if distinct:
        # The other rows have no values after this step, so MIN and MAX are those of the distinct values.
        distinct = list(dict.fromkeys([*distinct, *(each.arguments for each in extremes.values())]))
        rows, weights = _counted(rows, parts.keys, weights, distinct)
    if extremes:
        rows = _with_extremes(rows, parts.keys, extremes, distinct, place())
    for name, each in summed.items():
        if each.distinct:
            tag = F.col(_TAG) == distinct.index(each.arguments) + 1
            weights |= {part: F.when(tag, weight) for part, weight in _weighed({_weights(name): each}, kinds).items()}
    sums = [F.sum(weight).alias(name) for name, weight in weights.items()]
    newest = [F.max_by(F.struct(name), F.col(f"{name}_at")).alias(_weights(name).value) for name in extremes]
    groups = rows.groupBy(*parts.keys).agg(*sums, *newest, F.count(F.lit(1)).alias(SEQ))
    # Without GROUP BY there is always one group, even if it has no rows.
    live = F.coalesce(F.col(_ROWS), F.lit(0)) > 0 if parts.keys else F.lit(True)
    results = [_result(name, each, kinds).alias(name) for name, each in parts.aggregates.items()]
    return groups.select(*parts.keys, *results, live.alias(LIVE), SEQ)


@dataclass(frozen=True)
class _Weights:
    """Names of the two sums behind an aggregate: the sum of its values and the number of its values."""

    value: str
    count: str


def _weights(name: str) -> _Weights:
    return _Weights(f"{name}_value", f"{name}_count")


def _with_extremes(
    rows: DataFrame,
    keys: tuple[str, ...],
    extremes: dict[str, Aggregate],
    distinct: list[tuple[str, ...]],
    place: StatePlace,
) -> DataFrame:
    """Add the rows and columns of MIN and MAX to signed rows; see ``with_extremes``."""
    found = []
    for name, each in extremes.items():
        value = F.col(each.arguments[0])
        if distinct:
            value = F.when(F.col(_TAG) == distinct.index(each.arguments) + 1, value)
        rows = rows.withColumn(f"{name}_of", value)
        found.append(Extreme(name, f"{name}_of", is_max=each.sum is Sum.MAX))
    return with_extremes(rows, SIGN, keys, found, place)


def _check(each: Aggregate, kinds: dict[str, DataType]) -> None:
    if each.sum is Sum.COUNT:
        return
    kind = kinds[each.arguments[0]]
    if each.sum.is_extreme:
        if not is_ordered(kind):
            msg = f"{each.node.sql('spark')} over rows that change is not supported for {kind.simpleString()}."
            raise RefusedError(each.node, msg)
        return
    if not isinstance(kind, IntegralType | DecimalType):
        msg = (
            f"{each.node.sql('spark')} over rows that change is not supported for {kind.simpleString()}, because a "
            "value cannot be retracted exactly. CAST it to a DECIMAL, such as DECIMAL(18, 4)."
        )
        raise RefusedError(each.node, msg)


def _weighed(aggregates: dict[_Weights, Aggregate], kinds: dict[str, DataType]) -> dict[str, Column]:
    """Return the weight of a signed row in each sum, by the sum's name."""
    found: dict[str, Column] = {}
    for names, each in aggregates.items():
        there = reduce(Column.__and__, [F.col(name).isNotNull() for name in each.arguments], F.lit(True))
        found[names.count] = F.when(there, F.col(SIGN))
        if each.sum is not Sum.COUNT:
            value = F.col(each.arguments[0])
            value = value if isinstance(kinds[each.arguments[0]], DecimalType) else value.cast("bigint")
            found[names.value] = F.when(F.col(SIGN) > 0, value).otherwise(-value)
    return found


def _result(name: str, each: Aggregate, kinds: dict[str, DataType]) -> Column:
    """Return an aggregate computed from its sums, in the type that it has over rows that are added."""
    names = _weights(name)
    if each.sum.is_extreme:
        return F.col(names.value).getField(name)
    count = F.coalesce(F.col(names.count), F.lit(0).cast("bigint"))
    if each.sum is Sum.COUNT:
        return count
    kind, value = kinds[each.arguments[0]], F.col(names.value)
    if isinstance(kind, DecimalType):
        wider = 10 if each.sum is Sum.SUM else 4
        scale = kind.scale if each.sum is Sum.SUM else min(kind.scale + 4, _DECIMAL_MAX)
        wanted: DataType = DecimalType(min(kind.precision + wider, _DECIMAL_MAX), scale)
        value = value / count if each.sum is Sum.AVG else value
    elif each.sum is Sum.AVG:
        # As in Flink, the average of integers is one.
        wanted, value = kind, F.expr(f"{names.value} DIV {names.count}")
    else:
        wanted = LongType()
    return F.when(count > 0, value.cast(wanted))


def _counted(
    rows: DataFrame, keys: tuple[str, ...], weights: dict[str, Column], distinct: list[tuple[str, ...]]
) -> tuple[DataFrame, dict[str, Column]]:
    """Count each distinct value within its group, and return signed rows for its appearance and disappearance.

    Each row becomes several: one with the tag 0, which carries its weights, and one for each list of distinct arguments
    without a NULL, with the tag of that list. A group with the tag 0 always exists and changes with its sums; a group
    with another tag exists while its value occurs.

    Returns:
        Signed rows with keys, tag, distinct arguments and weights; and the new expression of each weight, by name.
    """
    kinds = {field.name: field.dataType for field in rows.select(*(w.alias(n) for n, w in weights.items())).schema}
    values = list(dict.fromkeys(name for names in distinct for name in names))

    def row(tag: int, names: tuple[str, ...]) -> Column:
        fields = [F.lit(tag).alias(_TAG), F.col(SIGN).alias(SIGN)]
        fields += [(F.col(v) if v in names else F.lit(None).cast(rows.schema[v].dataType)).alias(v) for v in values]
        fields += [(w if tag == 0 else F.lit(None).cast(kinds[n])).alias(n) for n, w in weights.items()]
        there = reduce(Column.__and__, [F.col(name).isNotNull() for name in names], F.lit(True))
        return F.when(there, F.struct(*fields))

    several = F.array(row(0, ()), *(row(number + 1, names) for number, names in enumerate(distinct)))
    each = rows.select(*keys, F.explode(several).alias(_EACH)).where(F.col(_EACH).isNotNull())
    each = each.select(*keys, *(F.col(f"{_EACH}.{name}").alias(name) for name in (_TAG, SIGN, *values, *weights)))
    key = [*keys, _TAG, *values]
    sums = each.groupBy(*key).agg(
        *(F.sum(name).alias(name) for name in weights), F.sum(SIGN).alias(SIGN), F.count(F.lit(1)).alias(SEQ)
    )
    there = (F.col(_TAG) == 0) | (F.col(SIGN) > 0)
    kind = F.when(there, RowKind.INSERT.change_type).otherwise(RowKind.DELETE.change_type)
    records = sums.withColumn(CHANGE_TYPE, kind)
    schema = StructType([field for field in records.schema if field.name in {*key, *weights}])
    changes = signed(changelog(records, schema, key)).drop(CHANGE_TYPE)
    return changes, {name: F.when(F.col(SIGN) > 0, F.col(name)).otherwise(-F.col(name)) for name in weights}
