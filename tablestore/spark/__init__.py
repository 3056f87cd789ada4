"""Spark helpers shared by tables and connectors: tasks, Python workers, normalization, checkpoints."""
