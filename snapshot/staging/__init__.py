"""Staging: writes rows to files that no snapshot contains yet."""
