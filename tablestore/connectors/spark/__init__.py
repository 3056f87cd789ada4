"""The connectors' Spark data sources, sinks and streams."""
