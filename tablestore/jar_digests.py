"""Writes ``log_system/jars.sha256``; run ``python -m tablestore.jar_digests`` after a change of jars.

These are the jars of Kafka, Delta and Hadoop's S3 client. They are downloaded from Maven Central into a temporary
folder, so that digests never come from a local cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from log_system.jars import DIGESTS, digests_of, fetch_unchecked
from log_system.local_kafka import installation
from tablestore.session import IN_SPARK, delta_modules
from tablestore.spark.object_stores import hadoop_aws_modules


def main() -> None:
    """Download all jars that the program runs and write their digests."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="tablestore-jars-") as work:
        for name, modules, excludes in (
            (installation.JARS, installation.MODULES, ()),
            (*delta_modules(), IN_SPARK),
            hadoop_aws_modules(),
        ):
            folder = Path(work) / name
            fetch_unchecked(name, modules, folder, excludes=excludes)
            lines += [f"{digest}  {name}/{jar}\n" for jar, digest in digests_of(folder).items()]
    DIGESTS.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
