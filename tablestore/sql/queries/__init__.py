"""Plans batch and continuous queries as Spark DataFrames."""
