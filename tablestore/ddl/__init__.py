"""Create, drop and alter tables."""
