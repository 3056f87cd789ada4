"""Rows become files that no snapshot holds yet."""
