#!/bin/sh
# Run Python as Spark asks for it, but import PySpark from site-packages; see interpreter.py.
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

case "$2 $3" in
    # These read a data source's class. A daemon that has imported it forks them ready to run.
    "pyspark.daemon pyspark.sql.worker."*data_source | \
    "pyspark.daemon pyspark.sql.worker."*data_source_* | \
    "pyspark.daemon pyspark.sql.worker."*sink_runner)
        shift 2
        set -- -m tablestore.python_daemon "$@"
        ;;
    # A source of a streaming query. A process that has imported its class forks it ready to run.
    "pyspark.sql.streaming.python_streaming_source_runner "*)
        set -- -I -S "${0%/*}/source_processes.py" "$@"
        ;;
esac
exec "$TABLESTORE_PYTHON" "$@"
