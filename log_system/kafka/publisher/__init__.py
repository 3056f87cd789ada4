"""Publishing of committed snapshots to Kafka."""
