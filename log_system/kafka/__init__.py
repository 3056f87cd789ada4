"""Kafka as the log system."""
