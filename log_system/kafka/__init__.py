"""Kafka as the log system, and a real broker to develop against."""
