"""Connections to Kafka, shared by tables' logs and by the connectors."""
