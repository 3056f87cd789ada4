"""Merge engines: the rules by which rows of one key are merged; ``aggregate_sql.py`` executes them.

All engines share one model. Each column has a function that aggregates the values of a key's rows in order of arrival,
starting with the existing row of the table. A *sequence* decides which rows are late: those that are older by it than
the newest row that arrived before. Functions for the last value ignore late rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from snapshot.row_kind import RowKind


class Function(StrEnum):
    """Aggregate functions of columns; the names are Paimon's."""

    SUM = "sum"
    PRODUCT = "product"
    COUNT = "count"
    MAX = "max"
    MIN = "min"
    LAST_VALUE = "last_value"
    LAST_NON_NULL_VALUE = "last_non_null_value"
    FIRST_VALUE = "first_value"
    FIRST_NON_NULL_VALUE = "first_non_null_value"
    BOOL_OR = "bool_or"
    BOOL_AND = "bool_and"
    LISTAGG = "listagg"
    COLLECT = "collect"
    MERGE_MAP = "merge_map"
    NESTED_UPDATE = "nested_update"
    HLL_SKETCH = "hll_sketch"
    THETA_SKETCH = "theta_sketch"
    RBM32 = "rbm32"

    @classmethod
    def _missing_(cls, value: object) -> Function | None:
        """Return the function for an older name of Paimon's."""
        return cls.FIRST_NON_NULL_VALUE if value == FIRST_NOT_NULL else None


SKETCHES: Final = (Function.HLL_SKETCH, Function.THETA_SKETCH, Function.RBM32)
"""Functions that unite sketches or bitmaps, by a library."""
FIRST_NOT_NULL: Final = "first_not_null_value"


class Deletes(Enum):
    """The effect of a delete."""

    REMOVE = "remove"
    """The row is removed; later changes start a new row."""
    RETRACT = "retract"
    """The delete's values are subtracted from the row, which stays. So are those of an UPDATE_BEFORE."""
    REFUSE = "refuse"
    """The write is rejected."""


@dataclass(frozen=True)
class Sequence:
    """Columns that order the rows of a key from the oldest to the newest, compared in turn; NULL is the oldest.

    Attributes:
        fields: the columns.
        is_group: it orders only the columns of its group; a row whose fields are all NULL does not change the group.
        removes: whether a delete that is not late in this group removes the row.
        descending: whether the smallest value is the newest.
    """

    fields: tuple[str, ...]
    is_group: bool = False
    removes: bool = False
    descending: bool = False


@dataclass(frozen=True)
class ColumnRule:
    """How one column is merged.

    Attributes:
        function: the aggregate function.
        sequence: number of the sequence that orders the column; None for the order of arrival.
        delimiter: the separator of ``listagg``.
        distinct: whether ``collect`` and ``listagg`` keep only the first of equal elements, or texts.
        nested_key: positions of the fields by which ``nested_update`` replaces elements; empty if it adds them.
        retracts: whether a value can be retracted; ``last_value`` and ``last_non_null_value`` then become NULL.
        ignore_retract: whether retractions of this column are ignored.
    """

    function: Function
    sequence: int | None = None
    delimiter: str = ","
    distinct: bool = False
    nested_key: tuple[int, ...] = ()
    retracts: bool = True
    ignore_retract: bool = False


_OF_ONE_ROW = (
    Function.LAST_VALUE,
    Function.LAST_NON_NULL_VALUE,
    Function.FIRST_VALUE,
    Function.FIRST_NON_NULL_VALUE,
)


@dataclass(frozen=True)
class MergeRule:
    """How a table merges the rows of a key. Picklable.

    Attributes:
        columns: the rules of all columns outside the key; empty if the last row of a key wins.
        sequences: the sequences.
        deletes: the effect of deletes.
        takes_back: whether an UPDATE_BEFORE row takes its values back, though a delete removes the row.
        ignore_delete: whether deletes and UPDATE_BEFORE rows are dropped first.
        ignore_preimages: whether UPDATE_BEFORE rows are.
        name: the engine's name, for messages.
    """

    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    sequences: tuple[Sequence, ...] = ()
    deletes: Deletes = Deletes.REMOVE
    takes_back: bool = False
    ignore_delete: bool = False
    ignore_preimages: bool = False
    name: str = "deduplicate"

    @property
    def removing(self) -> tuple[int, ...]:
        """The numbers of the sequence groups whose deletes remove the row."""
        return tuple(number for number, sequence in enumerate(self.sequences) if sequence.removes)

    @property
    def merges(self) -> bool:
        """Whether the stored row depends on more than the last row of a key."""
        return bool(self.columns)

    @property
    def adds_up(self) -> bool:
        """Whether the row of a key depends on all of its rows, so that an update must first take back the row before.

        Functions that keep the last value depend on the last row only, and ``first_value`` on none that comes later.
        """
        return any(rule.function not in _OF_ONE_ROW for rule in self.columns.values())

    @property
    def takes_preimages(self) -> bool:
        """Whether UPDATE_BEFORE rows, unless they are dropped, take their values back."""
        return (self.takes_back or self.deletes is Deletes.RETRACT) and not self.ignore_delete

    @property
    def takes_deletes_back(self) -> bool:
        """Whether deletes take their values back, and so do not remove the row."""
        return self.deletes is Deletes.RETRACT and not self.ignore_delete

    @property
    def drops(self) -> tuple[RowKind, ...]:
        """The kinds of rows that are dropped first."""
        if self.ignore_delete:
            return RowKind.UPDATE_BEFORE, RowKind.DELETE
        return (RowKind.UPDATE_BEFORE,) if self.ignore_preimages else ()

    @property
    def buries(self) -> tuple[str, ...]:
        """The sequence fields that tombstones store, so that late rows can be recognized; empty if there are none."""
        whole = [each for each in self.sequences if not each.is_group]
        return whole[0].fields if whole and self.deletes is Deletes.REMOVE and not self.ignore_delete else ()

    def as_set(self) -> MergeRule:
        """Return the rule for changes that are final, such as those of ``update``, and are not merged.

        Tombstones of their deletes store the sequence of the deleted row.
        """
        return MergeRule(sequences=self.sequences if self.buries else (), name=self.name)

    @property
    def why_refused(self) -> str:
        """Why the kinds ``refused`` are rejected; empty if they are not."""
        if self.ignore_delete:
            return ""
        if self.deletes is Deletes.REFUSE:
            return f"merge-engine='{self.name}' does not accept deletes; set ignore-delete=true to drop them"
        if not self.takes_preimages:
            return ""
        lacking = [name for name, rule in self.columns.items() if not (rule.retracts or rule.ignore_retract)]
        if not lacking:
            return ""
        name = lacking[0]
        drop = "ignore-update-before=true" if self.takes_back else "ignore-delete=true to drop all deletes"
        return (
            f"column '{name}' has aggregate-function '{self.columns[name].function}', which does not support "
            f"retraction; set fields.{name}.ignore-retract=true, or {drop}"
        )

    @property
    def refused(self) -> tuple[RowKind, ...]:
        """The kinds of rows that are rejected if there is a reason, ``why_refused``."""
        return (RowKind.UPDATE_BEFORE,) if self.takes_back else (RowKind.UPDATE_BEFORE, RowKind.DELETE)


LAST_ROW = MergeRule()
"""The default rule: the last row of a key replaces the others, and a delete removes it."""
