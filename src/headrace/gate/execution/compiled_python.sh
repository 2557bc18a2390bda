#!/bin/sh
# Starts $HEADRACE_PYTHON for Spark without the archives that Spark puts first into its path. This
# Python has the same packages installed and compiled. From an archive they are compiled at each
# start.
path=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
        *) path=$path:$entry ;;
    esac
done
PYTHONPATH=${path#:} exec "$HEADRACE_PYTHON" "$@"
