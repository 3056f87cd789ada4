"""Operators of continuous queries that Spark does not have, with state in files by bucket and micro-batch."""
