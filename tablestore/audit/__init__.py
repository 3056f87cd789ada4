"""Verify and repair a table's log."""
