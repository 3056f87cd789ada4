"""Batch reads: which splits a snapshot is read in, and by which plan."""
