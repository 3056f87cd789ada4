"""Readers of a table's log in Kafka."""
