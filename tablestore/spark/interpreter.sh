#!/bin/sh
# Run Python for Spark with PySpark from site-packages instead of Spark's pyspark.zip; see interpreter.py.
set -f # no globbing
path=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
        *) path=$path${path:+:}$entry ;;
    esac
done
PYTHONPATH=$path
export PYTHONPATH
exec "$TABLESTORE_PYTHON" "$@"
