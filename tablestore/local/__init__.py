"""Reads tables within this process, without Spark."""
