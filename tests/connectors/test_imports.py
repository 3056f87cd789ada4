"""What a source of a streaming query imports: Spark starts a Python process for each, so it delays the first row."""

from __future__ import annotations

import subprocess
import sys


def test_a_source_imports_little() -> None:
    show = (
        "import sys, tablestore.connectors.spark.datasource, tablestore.connectors.api; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'deltalake', 'pandas', 'regex', 'rich', "
        "'sqlglot'}))"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names_are_imported_on_first_use() -> None:
    from tablestore import connectors  # noqa: PLC0415 - the test is about this import

    assert {name: getattr(connectors, name).__name__ for name in connectors.__all__} == {
        name: name for name in connectors.__all__
    }
