"""What tables and connectors share of Spark: tasks, Python workers, state, checkpoints."""
