"""Flink's ``kafka`` and ``upsert-kafka`` connectors on Spark: rows in Kafka topics, with Flink's own options."""
