"""Publishers of committed snapshots to Kafka."""
