"""The log to which committed snapshots are published, and from which readers follow a table."""
