"""The interpreter that Spark runs as Python.

Spark puts `pyspark.zip`, Py4J's zip and the jar of its core in front of the `PYTHONPATH` of its Python processes.
Python keeps no bytecode of modules in a zip, so each process compiles PySpark again: an import takes 1.1 s, and 0.25 s
from site-packages (measured). A session starts about six such processes, and each source of a streaming query one more.
`interpreter.sh` removes the three entries and replaces itself with the interpreter.

The script also starts the processes that plan the reads and writes of a data source. Spark ends them after a minute
without work and starts new ones, each of which would import this package again. `tablestore.python_daemon` imports it
once and forks them. `source_processes.py` does the same for the sources of streaming queries.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution
from pathlib import Path

import pyspark

PYTHON = "TABLESTORE_PYTHON"
"""The environment variable that names the interpreter to `interpreter.sh`."""
_SCRIPT = Path(__file__).with_name("interpreter.sh")


def worker_interpreter(*, in_driver: bool) -> str:
    """Return the path of `interpreter.sh`, or of this interpreter where the script could not be used.

    The script needs a POSIX shell and PySpark installed by a package manager.

    Args:
        in_driver: whether tasks run in the driver's JVM; other workers have no use for the script.
    """
    installed = Path(str(distribution("pyspark").locate_file("pyspark")))
    usable = (
        in_driver
        and os.name == "posix"
        and os.access(_SCRIPT, os.X_OK)
        and installed.resolve() == Path(pyspark.__file__).resolve().parent
    )
    return str(_SCRIPT) if usable else sys.executable
