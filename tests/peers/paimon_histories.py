"""Random histories of tables, by a seed: a definition, and statements that this program and Paimon run alike.

Left out is what differs by intent (``docs/guide/merge_engines.md``), such as late rows of ``listagg``, and what depends
on Paimon's compactions, such as which deletes late rows are compared with.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

RETRACTED = {"INT": ("sum", "last_value", "last_non_null_value"), "STRING": ("last_value", "last_non_null_value")}
NOT_RETRACTED = {"INT": ("max", "min", "product", "first_value"), "STRING": ("listagg", "max", "first_non_null_value")}
ROW_KINDS = ("+I", "+I", "+U", "-U", "-D")
ACTIONS = (
    "insert",
    "insert",
    "insert",
    "overwrite",
    "overwrite",
    "partition",
    "drop",
    "truncate",
    "add",
    "rename",
    "lose",
)
KEYS = range(4)
STEPS = 7


@dataclass
class History:
    """A table and what is done to it.

    Attributes:
        name: the table.
        columns: the types of its columns; the first ones are ``keys``.
        options: of its ``WITH``.
        keys: the columns of its primary key; none for a table without.
        partitions: the columns of its ``PARTITIONED BY``.
        steps: statements.
    """

    name: str
    columns: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ("k",)
    partitions: tuple[str, ...] = ()
    steps: list[str] = field(default_factory=list)

    def definition(self, **more: str) -> str:
        """Return the ``CREATE TABLE``, with further options whose names have ``_`` for ``-``."""
        parts = [f"{name} {kind}" for name, kind in self.columns.items()]
        if self.keys:
            parts.append(f"PRIMARY KEY ({', '.join(self.keys)}) NOT ENFORCED")
        by = f" PARTITIONED BY ({', '.join(self.partitions)})" if self.partitions else ""
        options = self.options | {name.replace("_", "-"): value for name, value in more.items()}
        given = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
        return f"CREATE TABLE {self.name} ({', '.join(parts)}){by} WITH ({given})"


def merged(dice: Random, name: str) -> History:
    """Return a history of a table with a merge engine: upserts, row kinds, ``DELETE`` and ``UPDATE``."""
    engine = dice.choice(("deduplicate", "partial-update", "partial-update", "aggregation", "aggregation", "first-row"))
    made = History(name, {"k": "INT"}, {"bucket": "1", "merge-engine": engine})
    made.columns |= {f"c{number}": dice.choice(("INT", "STRING")) for number in range(dice.randint(2, 4))}
    marks = engine != "first-row" and dice.random() < 0.6
    match engine:
        case "deduplicate":
            if dice.random() < 0.6:
                made.columns |= {"s": "INT", "t": "INT"}
                # Without compaction, Paimon remembers deletes too.
                made.options |= {"sequence.field": dice.choice(("s", "s,t")), "write-only": "true"}
                made.options["sequence.field.sort-order"] = dice.choice(("ascending", "descending"))
        case "partial-update":
            _partial_update(dice, made, marks=marks)
        case "aggregation":
            removes = dice.random() < 0.4
            _functions(dice, made, list(made.columns)[1:], marks=marks, ignores=not removes)
            made.options["aggregation.remove-record-on-delete"] = str(removes).lower()
    if marks:
        made.columns["kind"] = "STRING"
        made.options["rowkind.field"] = "kind"
        if engine == "aggregation":
            made.options["fields.kind.aggregate-function"] = "last_non_null_value"
    _change(dice, made, verbs=not marks)
    return made


def _partial_update(dice: Random, made: History, *, marks: bool) -> None:
    grouped = dice.random() < 0.7
    if grouped:
        ordered = dice.sample(list(made.columns)[1:], 2)
        made.columns["g"] = "INT"
        made.options["fields.g.sequence-group"] = ",".join(ordered)
        if dice.random() < 0.5:
            _functions(dice, made, ordered[:1], marks=marks, ignores=True)
        if dice.random() < 0.3:
            made.options["partial-update.remove-record-on-sequence-group"] = "g"
    else:
        choice = ("ignore-delete", "partial-update.remove-record-on-delete")
        made.options[dice.choice(choice) if marks else choice[1]] = "true"


def _functions(dice: Random, made: History, columns: list[str], *, marks: bool, ignores: bool) -> None:
    for column in columns:
        kind = made.columns[column]
        takes_back = marks and (not ignores or dice.random() < 0.5)
        functions = RETRACTED[kind] if takes_back else RETRACTED[kind] + NOT_RETRACTED[kind]
        function = dice.choice(functions)
        made.options[f"fields.{column}.aggregate-function"] = function
        if marks and ignores and (not takes_back or function.startswith("last")):
            made.options[f"fields.{column}.ignore-retract"] = "true"


def _change(dice: Random, made: History, *, verbs: bool) -> None:
    """Add the steps. Only rows that exist are taken back: a retraction alone makes a row here."""
    engine, known = made.options["merge-engine"], set[int]()
    removes = any("remove-record" in option and value != "false" for option, value in made.options.items())
    deletes = engine == "deduplicate" or made.options.get("partial-update.remove-record-on-delete") == "true"
    plain = not any(option.endswith("aggregate-function") for option in made.options)
    for _ in range(STEPS):
        if verbs and known and (deletes or (plain and engine == "partial-update")) and dice.random() < 0.3:
            where = dice.choice(("k < 2", "k = 1", "k > 1"))
            column = dice.choice([name for name in made.columns if name.startswith("c")])
            update = f"UPDATE {made.name} SET {column} = {_value(dice, made.columns[column], nulls=0)} WHERE {where}"
            made.steps.append(f"DELETE FROM {made.name} WHERE {where}" if deletes and dice.random() < 0.5 else update)
            continue
        rows = []
        for key in dice.sample(KEYS, dice.randint(1, len(KEYS))):
            kind = dice.choice(ROW_KINDS) if key in known or engine == "deduplicate" else "+I"
            known.add(key)
            if kind == "-D" and removes:
                known.discard(key)
            # A row without a sequence sets the columns of its group in Paimon, until it is merged with another one.
            special = {"k": str(key), "kind": f"'{kind}'", "g": _value(dice, "INT", nulls=0)}
            values = (special.get(name) or _value(dice, of) for name, of in made.columns.items())
            rows.append(f"({', '.join(values)})")
        made.steps.append(f"INSERT INTO {made.name} VALUES {', '.join(rows)}")


def partitioned(dice: Random, name: str) -> History:
    """Return a history of a table with partitions: overwrites, dropped partitions and other columns."""
    keys = dice.choice(((), ("k",), ("p", "k")))
    made = History(name, {"k": "INT", "p": "STRING", "c0": "INT", "c1": "STRING"}, {}, keys, ("p",))
    made.options["bucket"] = "1" if "p" in keys else "-1"
    made.options["dynamic-partition-overwrite"] = dice.choice(("true", "false"))
    definition = dict(made.columns)
    numbers = itertools.count(2)
    made.steps.append(f"INSERT INTO {name} {_rows(dice, made, 5)}")
    for action in dice.choices(ACTIONS, k=STEPS):
        free = [column for column in made.columns if column.startswith("c")]
        partition = f"PARTITION (p = '{dice.choice('xyz')}')"
        hint = f"/*+ OPTIONS('dynamic-partition-overwrite' = '{dice.choice(('true', 'false'))}') */"
        match action:
            case "insert":
                made.steps.append(f"INSERT INTO {name} {_rows(dice, made, 3)}")
            case "overwrite":
                made.steps.append(f"INSERT OVERWRITE {name} {hint} {_rows(dice, made, 3)}")
            case "partition" if "k" not in keys[:1]:
                made.steps.append(f"INSERT OVERWRITE {name} {partition} {_rows(dice, made, 3, without='p')}")
            case "drop":
                made.steps.append(f"ALTER TABLE {name} DROP IF EXISTS {partition}")
            case "truncate":
                made.steps.append(f"TRUNCATE TABLE {name}")
            case "add":
                column = f"c{next(numbers)}"
                made.columns[column] = dice.choice(("INT", "STRING"))
                made.steps.append(f"ALTER TABLE {name} ADD {column} {made.columns[column]}")
            case "rename" if free:
                old, new = dice.choice(free), f"c{next(numbers)}"
                made.columns = {new if column == old else column: kind for column, kind in made.columns.items()}
                made.steps.append(f"ALTER TABLE {name} RENAME {old} TO {new}")
            case "lose" if free:
                column = dice.choice(free)
                del made.columns[column]
                made.steps.append(f"ALTER TABLE {name} DROP {column}")
    made.columns = definition
    return made


def _rows(dice: Random, made: History, count: int, *, without: str = "") -> str:
    rows = {}
    for _ in range(count):
        values = {name: _value(dice, kind) for name, kind in made.columns.items()}
        values |= {"k": str(dice.choice(KEYS)), "p": f"'{dice.choice('xyz')}'"}
        values.pop(without, None)
        key = tuple(values[name] for name in made.keys if name != without) or len(rows)
        rows.setdefault(key, f"({', '.join(values.values())})")
    return f"VALUES {', '.join(rows.values())}"


def _value(dice: Random, kind: str, *, nulls: float = 0.3) -> str:
    if dice.random() < nulls:
        return f"CAST(NULL AS {kind})"
    return str(dice.randint(-5, 9)) if kind == "INT" else f"'{dice.choice(('a', 'b', 'zz', 'c,d'))}'"
