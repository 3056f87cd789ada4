"""Reading of a table's log in Kafka."""
