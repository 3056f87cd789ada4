"""The row format ``json``."""
