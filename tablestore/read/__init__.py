"""Batch reads: the choice of a read plan, and the splits of a snapshot."""
