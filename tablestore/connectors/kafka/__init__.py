"""Conversion of Kafka messages to rows and of rows to messages."""
