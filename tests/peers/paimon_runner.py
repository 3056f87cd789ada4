"""Paimon in a process of its own: reads statements from the standard input, writes the answer to each.

``tests/peers/paimon.py`` starts it with a Python that has PyFlink; here is nothing of this program. The argument is the
folder of the warehouse. Each line is a statement, as JSON; an answer has ``rows``, or an ``error``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment


def answer(environment: TableEnvironment, statement: str) -> dict[str, Any]:
    """Run a statement to its end; the values of rows are numbers, texts and booleans."""
    try:
        result = environment.execute_sql(statement)
        if statement.startswith("SELECT"):
            with result.collect() as rows:
                return {"rows": [list(row) for row in rows]}
        if statement.startswith(("INSERT", "DELETE", "UPDATE", "TRUNCATE")):
            result.wait()
        return {"rows": []}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return {"error": str(error)}


def main() -> None:
    """Answer until the standard input ends."""
    # Flink's JVM logs to the standard output, which is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    environment = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    environment.get_config().set("parallelism.default", "1")
    environment.execute_sql(f"CREATE CATALOG p WITH ('type' = 'paimon', 'warehouse' = 'file://{sys.argv[1]}')")
    environment.execute_sql("USE CATALOG p")
    for line in sys.stdin:
        print(json.dumps(answer(environment, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
