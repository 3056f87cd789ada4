"""What a continuous query has no answer to, or none yet, refused by name with its place."""

from __future__ import annotations

from typing import Final, NoReturn

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.queries.qualify import own_nodes

BATCH: Final = "SET 'execution.runtime-mode' = 'batch' reads what is there now"
#: Functions whose value is another each time: a row would be taken back as another than it was added.
_MOMENTARY: Final = frozenset(
    {
        *("PROCTIME", "NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME"),
        *(
            "CURDATE",
            "CURRENT_ROW_TIMESTAMP",
            "UNIX_TIMESTAMP",
            "RAND",
            "RANDN",
            "RANDOM",
            "RANDSTR",
            "UNIFORM",
            "UUID",
        ),
        *("SHUFFLE", "MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID", "INPUT_FILE_NAME"),
    }
)


def refuse(node: exp.Expr | None, what: str, why: str, word: str = "") -> NoReturn:
    """Refuse a part of a query.

    Args:
        node: the part.
        what: is not supported.
        why: and what to do instead.
        word: that the part begins with, where that is not a name.

    Raises:
        RefusedError: always.
    """
    msg = f"{what} is not supported in a continuous query: {why}."
    raise RefusedError(node, msg, word)


def check_endless(tree: exp.Query) -> None:
    """Refuse what has no answer where a table has no end; queries within this one are checked by themselves.

    Raises:
        RefusedError: with what to do instead.
    """
    if order := tree.args.get("order") or tree.args.get("sort") or tree.args.get("cluster"):
        refuse(order, "ORDER BY", f"there is no last row to sort; {BATCH}", "ORDER")
    for part, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
        if limit := tree.args.get(part):
            name = "FETCH" if isinstance(limit, exp.Fetch) else word
            refuse(limit, name, f"which rows come first is chance; {BATCH}", name)
    if not isinstance(tree, exp.Select):
        return
    if tree.args.get("qualify") or tree.args.get("windows"):
        refuse(tree.args.get("qualify") or tree.expressions[0], "QUALIFY and WINDOW", f"they need all rows; {BATCH}")
    for node in own_nodes(tree):
        if isinstance(node, exp.Window):
            refuse(node, "OVER (...)", f"it needs all rows; {BATCH}")
    on = tree.args.get("distinct")
    if on is not None and on.args.get("on"):
        refuse(on, "DISTINCT ON", f"which row is kept is chance; {BATCH}")


def check_repeatable(select: exp.Select) -> None:
    """Refuse functions that give the same row another value each time, where rows are taken back.

    Raises:
        RefusedError: with what to do instead.
    """
    for node in own_nodes(select):
        name = _function(node)
        if name in _MOMENTARY:
            refuse(
                node,
                f"{name} over rows that change",
                f"a row would be taken back as another than it was added; leave it out, or {BATCH}",
            )
        if isinstance(node, exp.Query) and node is not select:
            refuse(node, "a query within an expression over rows that change", f"join the tables, or {BATCH}")


def is_momentary(tree: exp.Expr) -> bool:
    """Tell whether an expression has another value each time."""
    return any(_function(node) in _MOMENTARY for node in tree.walk())


def _function(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.upper()
    return node.sql_name().upper() if isinstance(node, exp.Func) else ""


def check_not_final(node: exp.Expr, is_final: bool) -> None:
    """Refuse to go on with what comes when a watermark has passed, as Spark does one or the other in a query.

    Raises:
        RefusedError: with what to do instead.
    """
    if is_final:
        why = (
            "Spark gives results when a watermark passes or at once, not both; INSERT the windows INTO a table and "
            f"read that, or {BATCH}"
        )
        refuse(node, "an updating result over windows or outer joins of event time", why)
