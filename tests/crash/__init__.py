"""Crashes on purpose: the matrix, races, the visibility audit, and what they share."""
