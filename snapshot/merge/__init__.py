"""Merging of rows in DuckDB and NumPy: merge on read, merge rules, deduplication, bitmaps, bucket hash."""
