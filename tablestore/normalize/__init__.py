"""Normalize: turns upserts and repeated records into a changelog, with state in files by partition and offset."""
