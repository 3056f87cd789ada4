"""What a SELECT reads, planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlglot import exp

from tablestore.sql.parser.window_types import Windows
from tablestore.sql.queries.qualify import Source
from tablestore.sql.queries.relation import Relation


@dataclass(frozen=True)
class QueryInput:
    """A table, view or query in FROM.

    Attributes:
        alias: by which the SELECT names it.
        key: by which its frame goes in the SELECT that is said to Spark.
        relation: what it gives.
        place: where it stands in the SELECT.
        windows: over it.
    """

    alias: str
    key: str
    relation: Relation
    place: exp.Table
    windows: Windows | None = None


@dataclass(frozen=True)
class Parts:
    """All that a SELECT reads.

    Attributes:
        inputs: of FROM.
        inner: tables with an end that are read within expressions, by name.
    """

    inputs: tuple[QueryInput, ...]
    inner: Mapping[str, DataFrame]

    def frames(self) -> dict[str, DataFrame]:
        """Give the frames, of which rows are only added, by the names they have in the SELECT."""
        found = dict(self.inner)
        for each in self.inputs:
            assert each.relation.rows is not None, "rows that change are no plain frame"
            found[each.key] = each.relation.rows
        return found

    def sources(self) -> dict[str, Source]:
        """Give the tables' columns, by aliases in small letters."""
        return {each.alias.lower(): Source(each.alias, each.relation.names) for each in self.inputs}

    @property
    def endless(self) -> tuple[QueryInput, ...]:
        """Those that go on."""
        return tuple(each for each in self.inputs if each.relation.endless)
