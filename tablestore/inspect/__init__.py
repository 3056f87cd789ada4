"""Metadata tables: a table's snapshots, files, options and more, as tables."""
