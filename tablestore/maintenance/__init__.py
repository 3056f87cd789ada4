"""Compaction, expiry, tags, rollback and removal of orphan files."""
