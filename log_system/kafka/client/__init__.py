"""Kafka clients, shared by the logs of tables and by the connectors."""
