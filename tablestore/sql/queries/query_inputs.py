"""The planned inputs of a SELECT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlglot import exp

from tablestore.sql.parser.qualify import Source
from tablestore.sql.parser.window_types import Windows
from tablestore.sql.queries.relation import Relation


@dataclass(frozen=True)
class QueryInput:
    """A table, view or subquery in FROM.

    Attributes:
        alias: its alias in the SELECT.
        key: name of its frame in the SELECT that Spark runs.
        relation: its plan.
        place: its node in the tree of the SELECT.
        windows: time windows over it, or None.
    """

    alias: str
    key: str
    relation: Relation
    place: exp.Table
    windows: Windows | None = None


@dataclass(frozen=True)
class Parts:
    """All inputs of a SELECT.

    Attributes:
        inputs: the inputs in FROM.
        inner: frames of bounded tables that are read by subqueries within expressions, by table name.
    """

    inputs: tuple[QueryInput, ...]
    inner: Mapping[str, DataFrame]

    def frames(self) -> dict[str, DataFrame]:
        """Return the frames by their names in the SELECT; all inputs must be append-only."""
        return self.frames_but(None)

    def frames_but(self, one: QueryInput | None) -> dict[str, DataFrame]:
        """Return the same without the frame of one input; all others must be append-only."""
        found = dict(self.inner)
        for each in self.inputs:
            if each is not one:
                assert each.relation.rows is not None, "rows that change are no plain frame"
                found[each.key] = each.relation.rows
        return found

    def sources(self) -> dict[str, Source]:
        """Return the inputs' columns, by lower-case alias."""
        return {each.alias.lower(): Source(each.alias, each.relation.names) for each in self.inputs}

    def at(self, node: exp.Expr) -> QueryInput | None:
        """Return the input whose node is an item of FROM; None for one that Spark evaluates itself, such as VALUES."""
        return next((each for each in self.inputs if each.place is node), None)

    @property
    def endless(self) -> tuple[QueryInput, ...]:
        """The unbounded inputs."""
        return tuple(each for each in self.inputs if each.relation.endless)
