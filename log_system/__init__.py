"""The log: where committed snapshots are published, and how readers follow it."""
