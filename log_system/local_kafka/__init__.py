"""A real Kafka broker on this machine, for development and tests."""
