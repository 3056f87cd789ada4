"""What a normalized stream has given, by micro-batch, on disk; and whether each change may follow the one before."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from snapshot.row_kind import CHANGE_TYPE

Given = tuple[int, Any, str]
"""A key, its value, and the kind of change."""
_ORDER = ("delete", "update_preimage", "update_postimage", "insert")


class Ledger:
    """A sink that takes each micro-batch once, and sees whether a repeated one is the same again."""

    def __init__(self, folder: Path) -> None:
        """Keep files in ``folder``, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def put(self, batch: DataFrame, number: int) -> None:
        """Take a micro-batch; for ``foreachBatch``."""
        self.write(self.rows(batch), number)

    def rows(self, batch: DataFrame) -> list[Given]:
        """Compute a micro-batch."""
        found = [(row["id"], row["v"], row[CHANGE_TYPE]) for row in batch.select("id", "v", CHANGE_TYPE).collect()]
        return sorted(found, key=lambda given: (given[0], _ORDER.index(given[2])))

    def write(self, rows: list[Given], number: int) -> None:
        """Keep a micro-batch's rows; what another attempt of it gave is kept beside if it differs."""
        text, file = json.dumps(rows), self._folder / f"{number:06d}.json"
        if file.exists() and file.read_text() != text:
            file = file.with_suffix(".again")
        made = file.with_suffix(".tmp")
        made.write_text(text)
        made.replace(file)

    def batches(self) -> Iterator[list[Given]]:
        """Give the micro-batches in order."""
        for file in sorted(self._folder.glob("*.json")):
            yield [tuple(row) for row in json.loads(file.read_text())]

    def replay(self) -> tuple[dict[int, Any], int]:
        """Fold all that was given.

        Returns:
            The rows, and how many keys of a micro-batch had changes that may not follow what was given before. A
            micro-batch that was given twice, and not the same, counts too.
        """
        rows: dict[int, Any] = {}
        illegal = len(list(self._folder.glob("*.again")))
        for batch in self.batches():
            illegal += follow(rows, batch)
        return rows, illegal


def follow(rows: dict[int, Any], batch: list[Given]) -> int:
    """Apply a micro-batch to rows; count the keys whose changes may not follow them.

    Legal is an insert of a key that is not there; a preimage of the row that is there with another row after it; a
    delete with the row that is there. Of a key that a micro-batch names there is one of these.
    """
    changes: dict[int, list[Given]] = defaultdict(list)
    for given in batch:
        changes[given[0]].append(given)
    wrong = 0
    for key, found in changes.items():
        there, row = key in rows, rows.get(key)
        kinds = [kind for _, _, kind in found]
        if kinds == ["insert"]:
            wrong += there
        elif kinds == ["delete"]:
            wrong += not there or found[0][1] != row
        elif kinds == ["update_preimage", "update_postimage"]:
            wrong += not there or found[0][1] != row or found[1][1] == row
        else:
            wrong += 1
        if kinds[-1] == "delete":
            rows.pop(key, None)
        else:
            rows[key] = found[-1][1]
    return wrong
