"""Flink in a process of its own: reads statements from the standard input, writes the answer to each.

``tests/peers/flink.py`` starts it with a Python that has PyFlink, also for Paimon; here is nothing of this program. The
first line is the configuration; each other line is a statement, as JSON. An answer has ``rows``, each a row kind and
values as ``tests/peers/values.py`` spells them, or an ``error``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

QUERIES = ("SELECT", "WITH", "VALUES", "(SELECT")
TIMES = {
    "java.time.LocalDateTime": datetime,
    "java.time.Instant": datetime,
    "java.time.LocalDate": date,
    "java.time.LocalTime": time,
}


def plain(value: Any) -> Any:
    """Return a value of Java as JSON has it. PyFlink's own conversion fails for NULLs in arrays, and for intervals."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return f"float {value:.7g}"
    if isinstance(value, Decimal):
        return f"decimal {value:f}"
    if isinstance(value, bytes | bytearray):
        return f"bytes {value.hex()}"
    name = value.getClass().getName()
    if name in TIMES:
        return TIMES[name].fromisoformat(value.toString()).isoformat()
    if name == "org.apache.flink.types.Row":
        return ["row", *(plain(value.getField(at)) for at in range(value.getArity()))]
    if isinstance(value, Mapping):
        return ["map", *sorted(([plain(key), plain(value[key])] for key in value), key=repr)]
    if name.startswith("["):
        return [plain(each) for each in value]
    return value.toString()


def answer(environment: TableEnvironment, statement: str) -> dict[str, Any]:
    """Run a statement to its end."""
    try:
        result = environment.execute_sql(statement)._j_table_result
        if statement.split(maxsplit=1)[0].upper() not in QUERIES:
            getattr(result, "await")()
            return {"rows": []}
        rows, found = result.collect(), []
        while rows.hasNext():
            row = rows.next()
            values = [plain(row.getField(at)) for at in range(row.getArity())]
            found.append([row.getKind().shortString(), values])
        rows.close()
        return {"rows": found}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return {"error": str(error)}


def main() -> None:
    """Answer until the standard input ends."""
    # Flink's JVM logs to the standard output, which is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    configuration = json.loads(sys.stdin.readline())
    batch = configuration.pop("execution.runtime-mode") == "batch"
    settings = EnvironmentSettings.in_batch_mode() if batch else EnvironmentSettings.in_streaming_mode()
    environment = TableEnvironment.create(settings)
    for key, value in configuration.items():
        environment.get_config().set(key, value)
    for line in sys.stdin:
        print(json.dumps(answer(environment, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
