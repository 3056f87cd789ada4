"""Flink's ``kafka`` and ``upsert-kafka`` connectors on Spark: rows in Kafka topics, with Flink's own options."""

from tablestore.connectors.api import read, read_changes, read_stream, write, write_stream
from tablestore.connectors.spark.partition_watermarks import read_with_watermark

__all__ = ["read", "read_changes", "read_stream", "read_with_watermark", "write", "write_stream"]
