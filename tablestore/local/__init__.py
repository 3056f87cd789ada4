"""Reading of a table by this process alone, without Spark."""
