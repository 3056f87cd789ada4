"""The row format ``csv``."""
