"""Metadata tables: what is inside a table."""
