"""Verifies and repairs a table's log."""
