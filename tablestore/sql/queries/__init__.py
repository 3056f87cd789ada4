"""Batch and continuous queries as Spark frames."""
