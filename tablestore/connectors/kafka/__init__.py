"""Messages of Kafka topics as rows, and rows as messages."""
