"""Checks for SQL that continuous queries do not support, with errors that have the position and an alternative."""

from __future__ import annotations

from typing import Final, NoReturn

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.parser.functions.calls import called
from tablestore.sql.parser.qualify import own_nodes

BATCH: Final = "SET 'execution.runtime-mode' = 'batch' reads what is there now"
KNOWN: Final = "create the table with 'changelog-producer' = 'lookup', by which changes have the rows before them"
"""What to do where the rows that changes replace are not known."""
TOP_N: Final = (
    "SELECT ... FROM (SELECT ..., ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) AS n FROM ...) WHERE n <= 3"
)
"""The form of a query that selects the first rows of each group."""
ONE_ROW: Final = TOP_N.replace("n <= 3", "n = 1")
"""The form of a query that selects one row of each group."""
_RANDOM: Final = frozenset(
    {
        *("RAND", "RAND_INTEGER", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE"),
        *("MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID", "INPUT_FILE_NAME"),
    }
)
"""Functions that return a different value when a micro-batch is repeated."""
_TIMES: Final = frozenset(
    {
        *("PROCTIME", "NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME"),
        *("CURDATE", "CURRENT_ROW_TIMESTAMP", "UNIX_TIMESTAMP"),
    }
)
_MOMENTARY: Final = _RANDOM | _TIMES
"""Functions that return a different value in each micro-batch: a retracted row would differ from the row added."""


def refuse(node: exp.Expr | None, what: str, why: str, word: str = "") -> NoReturn:
    """Raise the error for an unsupported part of a query.

    Args:
        node: the part of the query's tree.
        what: what is not supported.
        why: the reason, and what to do instead.
        word: the keyword before the part to point at; "" to point at the part itself.

    Raises:
        RefusedError: always.
    """
    msg = f"{what} is not supported in a continuous query: {why}."
    raise RefusedError(node, msg, word)


def check_endless(tree: exp.Query) -> None:
    """Check that a query has nothing that is undefined over unbounded tables; nested queries are checked separately.

    Raises:
        RefusedError: it does; the message has an alternative.
    """
    if order := tree.args.get("order") or tree.args.get("sort") or tree.args.get("cluster"):
        refuse(order, "ORDER BY", f"an unbounded result cannot be sorted; add a LIMIT, or {BATCH}", "ORDER")
    for part, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
        if limit := tree.args.get(part):
            name = "FETCH" if isinstance(limit, exp.Fetch) else word
            refuse(limit, name, f"the first rows are not deterministic; add ORDER BY and LIMIT, or {BATCH}", name)
    if not isinstance(tree, exp.Select):
        return
    if qualify := tree.args.get("qualify"):
        refuse(qualify, "QUALIFY", f"filter the places in a query around: {TOP_N}; or {BATCH}")
    on = tree.args.get("distinct")
    if on is not None and on.args.get("on"):
        refuse(on, "DISTINCT ON", f"the row kept is not deterministic; {BATCH}")


def check_repeatable(select: exp.Select) -> None:
    """Check that a SELECT over an updating input has no nondeterministic function and no query in an expression.

    Raises:
        RefusedError: it has one; the message has an alternative.
    """
    for node in own_nodes(select):
        name = _function(node)
        if name in _MOMENTARY:
            refuse(
                node,
                f"{name} over rows that change",
                f"a retraction could differ from the row that was added; leave it out, or {BATCH}",
            )
        if isinstance(node, exp.Query) and node is not select:
            refuse(node, "a query within an expression over rows that change", f"join the tables, or {BATCH}")


def check_same_if_repeated(tree: exp.Expr) -> None:
    """Check that a query whose operators keep the rows of a micro-batch has no function that is random.

    Raises:
        RefusedError: it has one; the message has an alternative.
    """
    for node in tree.walk():
        name = _function(node)
        if name in _RANDOM:
            why = "a micro-batch that is repeated must have the same rows; INSERT them INTO a table, and read that"
            refuse(node, f"{name} with Top-N, or with MIN and MAX over rows that change,", why)


def is_momentary(tree: exp.Expr) -> bool:
    """Return whether an expression has a different value each time it is evaluated."""
    return any(_function(node) in _MOMENTARY for node in tree.walk())


def _function(node: exp.Expr) -> str:
    return called(node) or (node.sql_name().upper() if isinstance(node, exp.Func) else "")


def check_from_the_start(node: exp.Expr | None, since: str, what: str, word: str = "") -> None:
    """Check that an input of an operator with state has all rows of its table, and not only later changes.

    ``since`` is the table whose changes begin in the middle; empty if there is none.

    Raises:
        RefusedError: it has only later changes; the message has an alternative.
    """
    if since:
        why = (
            "its changes replace and delete rows that the query has never read. Remove the hint, INSERT the changes "
            f"INTO a table and read that, or {BATCH}"
        )
        refuse(node, f"{what} over '{since}', which begins in the middle,", why, word)


def check_not_final(node: exp.Expr, is_final: bool) -> None:
    """Check that an updating result has no input whose rows are emitted when a watermark passes.

    Spark emits the results of a query either when a watermark passes or at once, not both.

    Raises:
        RefusedError: it has such an input; the message has an alternative.
    """
    if is_final:
        why = (
            "Spark returns results either when a watermark passes or immediately, not both; INSERT these rows INTO a "
            f"table and read that, or {BATCH}"
        )
        what = "an updating result over windows, or over outer joins or joins FOR SYSTEM_TIME AS OF of event time,"
        refuse(node, what, why)
