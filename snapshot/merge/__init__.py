"""Merging of rows in DuckDB and numpy: merge on read, merge rules, deduplication, bitmaps, bucket hash."""
